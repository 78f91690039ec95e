package fetch

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// Bounds on the style sheets of a page: their bytes, their rules, the parts of a
// selector, and the steps that it takes to find what they are about. Where a sheet goes
// beyond the last, what any rule of it might hide is hidden.
const (
	maxSheet = 256 << 10
	maxRules = 8000
	maxParts = 8
	maxTests = 16   // of a part
	maxDepth = 3    // of selectors in selectors
	maxFound = 1000 // about one element
	maxSteps = 8 << 20
)

// sheet is what the style elements of a page hide and show. What other sheets do, which
// are not fetched, is not known.
type sheet struct {
	rules    []*rule
	about    map[string]*listed // by an id, a class or an element that each is about
	revealed map[string]bool    // the animations that end with something in sight
	text     int                // of selectors that stand in others, in bytes
	steps    int
	treeless bool // of an element, nothing is known but what it says itself
	style    style
	found    []*rule
}

// listed are rules in their order.
type listed struct {
	rules []*rule
	hides *rule // one of them
}

type rule struct {
	parts   []compound // the last is what it is about
	weight  int
	order   int
	sets    []declaration
	hides   bool
	perhaps bool // it is not known whether it holds: it counts if it hides
}

// compound is a selector of one element.
type compound struct {
	joint   byte // how it stands to the part before it
	tag, id string
	classes []string
	tests   []test
}

// test is an attribute that an element must have, or a class of elements by other means.
type test struct {
	attr      bool
	name      string
	op, value string
	any       []compound
}

// verdict is whether something holds.
type verdict int

const (
	no verdict = iota
	perhaps
	yes
)

// sheetOf reads the style elements of a tree.
func sheetOf(doc *html.Node) *sheet {
	s := newSheet()
	left := maxSheet
	walk(doc, func(n *html.Node) bool {
		if n.DataAtom == atom.Style {
			left -= s.add(cut(textOf(n), left), attr(n, "type"), attr(n, "media"))
		}
		return n.DataAtom != atom.Template
	})
	return s
}

func newSheet() *sheet {
	return &sheet{about: map[string]*listed{}, revealed: map[string]bool{}, style: style{}}
}

// add takes in one style element and returns its length.
func (s *sheet) add(css, mediaType, media string) int {
	if t := strings.ToLower(strings.TrimSpace(mediaType)); t == "" || t == "text/css" {
		if on := onScreen(media); on != no {
			s.read(strings.NewReplacer("<!--", " ", "-->", " ").Replace(uncommented(css)), nil, on == perhaps, 0)
		}
	}
	return len(css)
}

// read takes in rules, and of those that stand in another, what that is about.
func (s *sheet) read(css string, outer []string, unsure bool, depth int) {
	var own strings.Builder
	type nest struct{ prelude, inner string }
	var nests []nest
	for css != "" {
		end := scan(css, ";{}")
		prelude := strings.TrimSpace(css[:end])
		if end == len(css) || css[end] != '{' { // a declaration, or a statement like @import
			if outer != nil {
				own.WriteString(prelude + ";")
			}
			css = css[min(end+1, len(css)):]
			continue
		}
		var inner string
		inner, css = block(css[end+1:])
		if depth < maxParts && len(nests) < maxRules {
			nests = append(nests, nest{prelude, inner})
		}
	}
	s.list(outer, own.String(), unsure)
	for _, in := range nests {
		if !strings.HasPrefix(in.prelude, "@") {
			s.read(in.inner, s.nested(outer, in.prelude), unsure, depth+1)
			continue
		}
		prelude := strings.Join(strings.Fields(strings.ToLower(in.prelude)), " ")
		end := strings.IndexAny(prelude, " (")
		if end < 0 {
			end = len(prelude)
		}
		condition := strings.TrimSpace(prelude[end:])
		switch prelude[:end] {
		case "@media":
			if on := onScreen(condition); on != no {
				s.read(in.inner, outer, unsure || on == perhaps, depth+1)
			}
		case "@layer", "@scope":
			s.read(in.inner, outer, unsure, depth+1)
		case "@supports":
			if !vendorOnly.MatchString(condition) {
				s.read(in.inner, outer, unsure || strings.HasPrefix(condition, "not"), depth+1)
			}
		case "@container":
			s.read(in.inner, outer, true, depth+1)
		case "@keyframes", "@-webkit-keyframes":
			s.animation(strings.Trim(condition, `'"`), in.inner)
		}
	}
}

// list notes the rules of a block.
func (s *sheet) list(selectors []string, block string, unsure bool) {
	sets := declarations(block)
	if len(sets) == 0 {
		return
	}
	hide := hides(sets)
	for _, selector := range selectors {
		if len(s.rules) >= maxRules {
			return
		}
		r := &rule{order: len(s.rules), sets: sets, hides: hide}
		var v verdict
		r.parts, r.weight, v = parseSelector(selector, 0)
		if r.perhaps = unsure || v == perhaps; v == no || r.perhaps && !hide {
			continue
		}
		s.rules = append(s.rules, r)
		last := &r.parts[len(r.parts)-1]
		key := "*"
		switch {
		case last.id != "":
			key = "#" + last.id
		case len(last.classes) > 0:
			key = "." + last.classes[0]
		case last.tag != "":
			key = last.tag
		}
		l := s.about[key]
		if l == nil {
			l = new(listed)
			s.about[key] = l
		}
		if l.rules = append(l.rules, r); hide {
			l.hides = r
		}
	}
}

// nested are the selectors of a rule that stands in rules of others.
func (s *sheet) nested(outer []string, prelude string) (all []string) {
	for prelude != "" && len(all) < maxRules {
		end := scan(prelude, ",")
		inner := strings.TrimSpace(prelude[:end])
		prelude = prelude[min(end+1, len(prelude)):]
		if outer == nil {
			all = append(all, inner)
			continue
		}
		for _, o := range outer {
			whole := o + " " + inner
			if strings.Contains(inner, "&") {
				whole = strings.ReplaceAll(inner, "&", o)
			}
			if s.text += len(whole); len(all) < maxRules && s.text <= maxSheet {
				all = append(all, whole)
			}
		}
	}
	return all
}

// animation notes the ones that end with what they are about in sight.
func (s *sheet) animation(name, frames string) {
	for frames != "" && len(s.revealed) < maxRules {
		end := scan(frames, "{")
		at := strings.ToLower(frames[:end])
		inner, rest := block(frames[min(end+1, len(frames)):])
		frames = rest
		if !strings.Contains(at, "to") && !strings.Contains(at, "100%") {
			continue
		}
		for _, d := range declarations(inner) {
			n, ok := opacity(d.value)
			if d.name == "opacity" && ok && n >= faint || d.name == "visibility" && d.value == "visible" {
				s.revealed[name] = true
			}
		}
	}
}

// screen is the window that a page is thought to be read in: an ordinary one.
var screen = map[string]float64{"width": 1280, "height": 800, "device-width": 1280, "device-height": 800}

// onScreen reports whether a list of media queries holds in an ordinary window.
func onScreen(list string) verdict {
	list = strings.ToLower(strings.TrimSpace(list))
	if list == "" {
		return yes
	}
	holds := no
	for query := range strings.SplitSeq(list, ",") {
		query = strings.Join(strings.Fields(query), " ")
		rest, negated := strings.CutPrefix(query, "not ")
		rest = strings.TrimPrefix(rest, "only ")
		v := yes
		for _, part := range strings.Split(rest, " and ") {
			v = min(v, medium(strings.TrimSpace(part)))
		}
		if negated {
			v = yes - v
		}
		holds = max(holds, v)
	}
	return holds
}

var (
	bound      = regexp.MustCompile(`^(min-|max-)((?:device-)?(?:width|height)) ?: ?(\S+)$`)
	comparison = regexp.MustCompile(`^(width|height) ?([<>]=?) ?(\S+)$`)
)

// preferences are those of a reader who has changed none.
var preferences = map[string]string{"orientation": "landscape", "hover": "hover", "any-hover": "hover", "pointer": "fine", "any-pointer": "fine", "prefers-color-scheme": "light",
	"forced-colors": "none", "scripting": "enabled", "display-mode": "browser", "update": "fast", "inverted-colors": "none", "monochrome": "0"}

// vendorOnly are conditions that ask for nothing but a browser that is gone.
var vendorOnly = regexp.MustCompile(`^\(? ?\( ?(-ms-|-o-)[^()]*\) ?\)?$`)

// vendors are the features of browsers that are gone.
var vendors = regexp.MustCompile(`^(-ms-|-moz-|-o-)`)

// medium judges one part of a media query.
func medium(part string) verdict {
	switch part {
	case "all", "screen":
		return yes
	case "":
		return perhaps
	}
	inner, ok := strings.CutPrefix(part, "(")
	if !ok {
		return no // paper, speech and so on
	}
	inner = strings.TrimSpace(strings.TrimSuffix(inner, ")"))
	var name, op, value string
	if m := bound.FindStringSubmatch(inner); m != nil {
		name, op, value = m[2], map[string]string{"min-": ">=", "max-": "<="}[m[1]], m[3]
	} else if m := comparison.FindStringSubmatch(inner); m != nil {
		name, op, value = m[1], m[2], m[3]
	}
	if name != "" {
		px, ok := pixels(value)
		switch {
		case !ok:
			return perhaps
		case op[0] == '>' && screen[name] >= px, op[0] == '<' && screen[name] <= px:
			return yes
		}
		return no
	}
	name, value, valued := strings.Cut(inner, ":")
	name, value = strings.TrimSpace(name), strings.TrimSpace(value)
	if vendors.MatchString(name) {
		return no
	}
	usual, known := preferences[name]
	switch {
	case !known && strings.HasPrefix(name, "prefers-"):
		usual, known = "no-preference", true
	case name == "color" || name == "width" || name == "height":
		return yes
	}
	switch {
	case !known:
		return perhaps
	case valued && value == usual, !valued && usual != "none" && usual != "0" && usual != "no-preference":
		return yes
	}
	return no
}

// never are the states that no element is in before anybody does anything.
var never = map[string]bool{"hover": true, "focus": true, "focus-within": true, "focus-visible": true, "active": true, "target": true, "target-within": true, "visited": true,
	"fullscreen": true, "popover-open": true, "modal": true, "host": true, "host-context": true, "before": true, "after": true, "first-line": true, "first-letter": true,
	"current": true, "past": true, "future": true, "playing": true, "user-invalid": true, "user-valid": true, "autofill": true}

// parseSelector reads a selector: its last parts, how much it weighs against others, and
// whether it can hold at all.
func parseSelector(s string, depth int) (parts []compound, weight int, v verdict) {
	v = yes
	joint := byte(0)
	for s = strings.TrimSpace(s); s != ""; {
		c, rest, w, holds := parseCompound(s, depth)
		if v = min(v, holds); v == no || len(rest) == len(s) {
			return nil, 0, no
		}
		c.joint = joint
		weight += w
		if parts = append(parts, c); len(parts) > maxParts {
			parts, v = parts[1:], min(v, perhaps)
		}
		s = strings.TrimLeft(rest, " \t\r\n\f")
		joint = ' '
		if s != "" && strings.IndexByte(">+~", s[0]) >= 0 {
			joint = s[0]
			s = strings.TrimLeft(s[1:], " \t\r\n\f")
			if s == "" {
				return nil, 0, no
			}
		} else if s != "" && len(s) == len(rest) { // something else follows
			return nil, 0, no
		}
	}
	if len(parts) == 0 {
		return nil, 0, no
	}
	return parts, weight, v
}

// ident is the word that s begins with, in lower case.
func ident(s string) (word, rest string) {
	var b strings.Builder
	i := 0
	for i < len(s) {
		c := s[i]
		switch {
		case c == '\\':
			char, n := escape(s[i:])
			b.WriteString(char)
			i += n
			continue
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c >= 0x80:
			b.WriteByte(c)
			i++
			continue
		}
		break
	}
	return strings.ToLower(b.String()), s[i:]
}

var attribute = regexp.MustCompile(`^\s*([A-Za-z0-9_-]+)\s*(?:([~|^$*]?=)\s*(?:"([^"]*)"|'([^']*)'|([^\s"']*))\s*(?:[iIsS]\s*)?)?$`)

// Weights of selectors: one of a kind is more than many of the next.
const (
	ofID    = 1 << 20
	ofClass = 1 << 10
)

// parseCompound reads the selector of one element that s begins with.
func parseCompound(s string, depth int) (c compound, rest string, weight int, v verdict) {
	v = yes
	first := true
	for ; s != ""; first = false {
		if len(c.tests) > maxTests {
			c.tests, v = c.tests[:maxTests], min(v, perhaps)
		}
		var word string
		switch s[0] {
		case '*':
			s = s[1:]
			continue
		case '.', '#':
			kind := s[0]
			if word, s = ident(s[1:]); word == "" {
				return c, "", 0, no
			}
			if kind == '#' {
				if c.id != "" && c.id != word {
					return c, "", 0, no
				}
				c.id = word
				weight += ofID
			} else {
				c.classes = append(c.classes, word)
				weight += ofClass
			}
		case '[':
			end := scan(s[1:], "]") + 1
			m := attribute.FindStringSubmatch(unescaped(s[1:min(end, len(s))]))
			s = s[min(end+1, len(s)):]
			if m == nil || strings.HasSuffix(strings.ToLower(m[1]), "-cloak") { // a script takes that off at once
				return c, "", 0, no
			}
			c.tests = append(c.tests, test{attr: true, name: strings.ToLower(m[1]), op: m[2], value: strings.ToLower(m[3] + m[4] + m[5])})
			weight += ofClass
		case ':':
			if strings.HasPrefix(s, "::") { // what is around the text of an element
				return c, "", 0, no
			}
			word, s = ident(s[1:])
			args := ""
			if strings.HasPrefix(s, "(") {
				end := scan(s[1:], ")") + 1
				args = s[1:min(end, len(s))]
				s = s[min(end+1, len(s)):]
			}
			t, w, holds := pseudo(word, args, depth+1)
			if weight += w; holds == no {
				return c, "", 0, no
			}
			v = min(v, holds)
			if t.name != "" {
				c.tests = append(c.tests, t)
			}
		default:
			if word, rest = ident(s); word == "" || !first {
				return c, s, weight, v
			}
			c.tag, s = word, rest
			weight++
		}
	}
	return c, s, weight, v
}

// pseudo is the test of a pseudo-class, if it has one that can be told.
func pseudo(name, args string, depth int) (t test, weight int, v verdict) {
	switch name {
	case "not", "is", "where", "matches", "-webkit-any", "-moz-any":
		t.name = map[bool]string{true: "not", false: "is"}[name == "not"]
		if v = yes; depth > maxDepth {
			return test{}, ofClass, perhaps
		}
		for args != "" {
			end := scan(args, ",")
			parts, w, holds := parseSelector(args[:end], depth)
			args = args[min(end+1, len(args)):]
			switch {
			case holds == no:
			case holds == perhaps || len(parts) != 1:
				v = perhaps
			default:
				t.any = append(t.any, parts[0])
				weight = max(weight, w)
			}
		}
		switch {
		case v == perhaps:
			return test{}, weight, perhaps
		case name == "where":
			weight = 0
		}
		if len(t.any) == 0 && t.name == "is" {
			return t, 0, no
		}
		return t, weight, yes
	case "root", "first-child", "last-child", "only-child", "empty", "checked", "link", "any-link":
		return test{name: name}, ofClass, yes
	case "defined", "enabled":
		return test{}, ofClass, yes
	case "", "first-letter":
		return t, 0, no
	}
	if never[name] || name[0] == '-' {
		return t, 0, no
	}
	return t, ofClass, perhaps
}

func sibling(n *html.Node, next func(*html.Node) *html.Node) *html.Node {
	for n = next(n); n != nil && n.Type != html.ElementNode; n = next(n) {
	}
	return n
}

func before(n *html.Node) *html.Node { return n.PrevSibling }
func after(n *html.Node) *html.Node  { return n.NextSibling }

func (s *sheet) passes(t *test, n *html.Node) bool {
	s.steps++
	if t.attr {
		if !has(n, t.name) {
			return false
		}
		value := attr(n, t.name)
		s.steps += len(value) / 32
		value = strings.ToLower(value)
		switch t.op {
		case "":
			return true
		case "=":
			return value == t.value
		case "~=":
			return slices.Contains(strings.Fields(value), t.value)
		case "|=":
			return value == t.value || strings.HasPrefix(value, t.value+"-")
		}
		return t.value != "" && (t.op == "^=" && strings.HasPrefix(value, t.value) || t.op == "$=" && strings.HasSuffix(value, t.value) || t.op == "*=" && strings.Contains(value, t.value))
	}
	switch t.name {
	case "is", "not":
		any := slices.ContainsFunc(t.any, func(c compound) bool { return s.fits(&c, n) })
		return any == (t.name == "is")
	case "checked":
		return has(n, "checked") || has(n, "selected")
	case "link", "any-link":
		return has(n, "href")
	case "root":
		return n.DataAtom == atom.Html
	}
	if s.treeless {
		return false
	}
	switch t.name {
	case "first-child":
		return sibling(n, before) == nil
	case "last-child":
		return sibling(n, after) == nil
	case "only-child":
		return sibling(n, before) == nil && sibling(n, after) == nil
	case "empty":
		for c := n.FirstChild; c != nil; c = c.NextSibling {
			s.steps++
			if c.Type == html.ElementNode || c.Type == html.TextNode && c.Data != "" {
				return false
			}
		}
		return true
	}
	return false
}

// fits reports whether an element is what a compound selects.
func (s *sheet) fits(c *compound, n *html.Node) bool {
	s.steps++
	if c.tag != "" && c.tag != n.Data {
		return false
	}
	s.steps += (1 + len(c.tests)) * len(n.Attr) / 8 // each looks for its own
	if c.id != "" && !strings.EqualFold(attr(n, "id"), c.id) {
		return false
	}
	if len(c.classes) > 0 {
		names := attr(n, "class")
		s.steps += len(c.classes) * len(names) / 16
		for _, class := range c.classes {
			found := false
			for name := range strings.FieldsSeq(names) {
				if found = strings.EqualFold(name, class); found {
					break
				}
			}
			if !found {
				return false
			}
		}
	}
	for i := range c.tests {
		if !s.passes(&c.tests[i], n) {
			return false
		}
	}
	return true
}

// holds reports whether the parts of a selector up to the i-th, which fits n, hold.
func (s *sheet) holds(r *rule, i int, n *html.Node) bool {
	if i == 0 || s.steps > maxSteps {
		return true
	}
	if s.treeless {
		return r.hides
	}
	one := &r.parts[i-1]
	switch r.parts[i].joint {
	case '>':
		return n.Parent != nil && s.fits(one, n.Parent) && s.holds(r, i-1, n.Parent)
	case '+':
		p := sibling(n, before)
		return p != nil && s.fits(one, p) && s.holds(r, i-1, p)
	case '~':
		for p := sibling(n, before); p != nil; p = sibling(p, before) {
			if s.fits(one, p) && s.holds(r, i-1, p) {
				return true
			}
		}
		return false
	}
	for p := n.Parent; p != nil; p = p.Parent {
		if s.fits(one, p) && s.holds(r, i-1, p) {
			return true
		}
	}
	return false
}

// nameRules are what frameworks have for names that hide, and for those that take it
// back: the sheets that they stand in are elsewhere, behind the page's own.
var (
	none      = declaration{name: "display", value: "none"}
	nameRules = [4]rule{
		{weight: ofClass, order: maxRules, hides: true, sets: []declaration{none}},
		{weight: ofClass, order: maxRules, hides: true, sets: []declaration{{name: "display", value: "none", important: true}}},
		{weight: ofClass, order: maxRules, sets: []declaration{{name: "display", value: "block"}}},
		{weight: ofClass, order: maxRules, sets: []declaration{{name: "display", value: "block", important: true}}},
	}
)

// look reports whether an element is out of sight with all that is in it, by what it
// says itself and by the sheet, and else what it passes on.
func (s *sheet) look(n *html.Node, above veil) (gone bool, below veil) {
	names := attr(n, "class")
	clear(s.style)
	s.found = s.found[:0]
	if len(s.rules) > 0 {
		s.gather(n, "*")
		s.gather(n, n.Data)
		if id := attr(n, "id"); id != "" {
			s.gather(n, "#"+strings.ToLower(id))
		}
		for name := range strings.FieldsSeq(names) {
			s.gather(n, "."+strings.ToLower(name))
		}
	}
	for i, pattern := range []*regexp.Regexp{hiddenName, hiddenFirm} {
		if names == "" || !named(names, pattern) {
			continue
		}
		if named(names, shownAnyway) {
			i += 2
		}
		s.found = append(s.found, &nameRules[i])
	}
	inline := attr(n, "style")
	if has(n, "hidden") {
		s.style.set(none)
	} else if len(s.found) == 0 && inline == "" {
		return false, above
	}
	slices.SortFunc(s.found, func(a, b *rule) int { return cmp.Or(cmp.Compare(a.weight, b.weight), cmp.Compare(a.order, b.order)) })
	for _, r := range s.found {
		s.steps += len(r.sets)
		for _, d := range r.sets {
			s.style.set(d)
		}
	}
	for _, d := range declarations(inline) {
		s.style.set(d)
	}
	s.animate()
	return s.style.hides(above)
}

// gather notes the rules that are about an element and listed under a name.
func (s *sheet) gather(n *html.Node, name string) {
	l := s.about[name]
	if l == nil {
		return
	}
	for _, r := range l.rules {
		if len(s.found) >= maxFound {
			s.steps = maxSteps + 1
		}
		if s.steps > maxSteps { // who makes it that hard to tell shows nothing
			if l.hides != nil {
				s.found = append(s.found[:0], l.hides)
			}
			return
		}
		if s.fits(&r.parts[len(r.parts)-1], n) && s.holds(r, len(r.parts)-1, n) {
			s.found = append(s.found, r)
		}
	}
}

// animate takes away what an animation ends with.
func (s *sheet) animate() {
	all := s.style["animation"].value + " " + s.style["animation-name"].value
	if len(s.revealed) == 0 || all == " " {
		return
	}
	words := strings.FieldsFunc(all+" "+s.style["animation-fill-mode"].value, func(r rune) bool { return r == ' ' || r == ',' })
	if slices.Contains(words, "forwards") || slices.Contains(words, "both") {
		if slices.ContainsFunc(words, func(w string) bool { return s.revealed[w] }) {
			maps.DeleteFunc(s.style, func(name string, _ declaration) bool {
				return name == "opacity" || name == "visibility" || name == "transform" || name == "translate" || name == "scale" || name == "filter"
			})
		}
	}
}
