package fetch

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// maxNodes bounds the tree of a page, before it is made. A node takes some hundred
// bytes, and the tree of one page is in memory at a time.
const maxNodes = 120_000

// maxWeight bounds the bytes of text, each times the elements that it stands in: a
// converter carries it through every one of them. Pages that people write are at a
// tenth of it.
const maxWeight = 64 << 20

// formatting are the elements that the parser opens again in each block after one
// that did not end them: few bytes can make many nodes.
var formatting = map[atom.Atom]bool{
	atom.A: true, atom.B: true, atom.Big: true, atom.Code: true, atom.Em: true, atom.Font: true, atom.I: true, atom.Nobr: true,
	atom.S: true, atom.Small: true, atom.Strike: true, atom.Strong: true, atom.Tt: true, atom.U: true,
}

// implied are elements that may end without an end tag.
var implied = map[atom.Atom]bool{
	atom.P: true, atom.Li: true, atom.Dt: true, atom.Dd: true, atom.Tr: true, atom.Td: true, atom.Th: true, atom.Tbody: true, atom.Thead: true, atom.Tfoot: true,
	atom.Option: true, atom.Optgroup: true, atom.Html: true, atom.Head: true, atom.Body: true,
}

// void are elements that hold nothing.
var void = map[atom.Atom]bool{
	atom.Br: true, atom.Hr: true, atom.Img: true, atom.Input: true, atom.Meta: true, atom.Link: true, atom.Col: true, atom.Wbr: true, atom.Source: true, atom.Area: true,
	atom.Embed: true, atom.Param: true, atom.Track: true, atom.Base: true, atom.Frame: true,
}

// affordable reports whether the tree of a page stays within bounds.
func affordable(content string) bool {
	_, ok := estimate(content)
	return ok
}

// estimate is how many nodes a page has, rather more than the parser makes and never
// fewer, and whether its tree stays within bounds.
func estimate(content string) (nodes int, ok bool) {
	z := html.NewTokenizer(strings.NewReader(content))
	var open []atom.Atom // formatting elements that have not ended
	var stack []atom.Atom
	cost, weight := 8, 0 // what every document has
	for cost <= maxNodes && weight <= maxWeight {
		switch z.Next() {
		case html.ErrorToken:
			return cost, true
		case html.StartTagToken, html.SelfClosingTagToken:
			name, more := z.TagName()
			tag := atom.Lookup(name)
			cost += 2 + len(open)
			for more {
				_, _, more = z.TagAttr()
				cost++
			}
			if formatting[tag] {
				if slices.Contains(open, tag) && (tag == atom.A || tag == atom.Nobr) { // one ends the other
					cost += 8 * (len(open) + 3)
					continue
				}
				open = append(open, tag)
			}
			if !implied[tag] && !void[tag] {
				stack = append(stack, tag)
			}
		case html.EndTagToken:
			name, _ := z.TagName()
			tag := atom.Lookup(name)
			cost++
			if at := lastIndex(stack, tag); at >= 0 {
				if formatting[tag] && at < len(stack)-1 { // taken out from between others
					cost += 8 * (len(open) + 3)
				}
				stack = stack[:at]
			}
			if at := lastIndex(open, tag); at >= 0 {
				open = slices.Delete(open, at, at+1)
			}
		default:
			cost += 1 + len(open)
			weight += len(z.Raw()) * (1 + len(stack))
		}
		if len(stack) > 1024 { // deeper than the parser goes
			return cost, false
		}
	}
	return cost, false
}

func lastIndex(list []atom.Atom, tag atom.Atom) int {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i] == tag {
			return i
		}
	}
	return -1
}

// inline are elements that do not end a line.
var inline = map[atom.Atom]bool{
	atom.Abbr: true, atom.Bdi: true, atom.Bdo: true, atom.Cite: true, atom.Data: true, atom.Del: true, atom.Dfn: true, atom.Ins: true, atom.Kbd: true, atom.Label: true,
	atom.Mark: true, atom.Q: true, atom.Ruby: true, atom.Rb: true, atom.Rt: true, atom.Rp: true, atom.Samp: true, atom.Span: true, atom.Sub: true, atom.Sup: true, atom.Time: true,
	atom.Var: true, atom.Wbr: true, atom.Img: true, atom.Acronym: true, atom.Output: true, atom.Picture: true, atom.Slot: true,
	atom.Math: true, atom.Mi: true, atom.Mo: true, atom.Mn: true, atom.Ms: true, atom.Mtext: true,
}

// words is the title and the text of a page that no tree is made of: a line a block,
// up to so many bytes, and whether there is more.
func words(ctx context.Context, content string, most int) (title, text string, more bool) {
	w := &writer{ctx: ctx, most: most}
	z := html.NewTokenizer(strings.NewReader(content))
	u := &unclosed{sheet: sheetIn(content), outside: map[string]int{}}
	inTitle := false
	for tokens := 0; !w.done(); tokens++ {
		if tokens%1024 == 0 && ctx.Err() != nil {
			break
		}
		switch kind := z.Next(); kind {
		case html.ErrorToken:
			return title, string(w.out) + "\n", false
		case html.DoctypeToken:
			u.standard = strings.EqualFold(strings.TrimSpace(string(z.Text())), "html")
		case html.TextToken:
			switch {
			case inTitle:
				title = cut(title+string(z.Text()), maxField)
			case len(u.hidden) == 0:
				w.text(string(z.Text()))
			}
		case html.StartTagToken, html.SelfClosingTagToken:
			name, next := z.TagName()
			n := &html.Node{Type: html.ElementNode, DataAtom: atom.Lookup(name), Data: string(name)}
			for next {
				var key, value []byte
				key, value, next = z.TagAttr()
				if len(n.Attr) < maxAttrs {
					n.Attr = append(n.Attr, html.Attribute{Key: string(key), Val: string(value)})
				}
			}
			if n.DataAtom == atom.Title && len(u.hidden) == 0 {
				inTitle = title == ""
				continue
			}
			if u.start(n, kind == html.SelfClosingTagToken) && blockwise(n.DataAtom) {
				w.line(1)
			}
		case html.EndTagToken:
			name, _ := z.TagName()
			tag := atom.Lookup(name)
			if tag == atom.Title {
				inTitle = false
				continue
			}
			if u.end(string(name)) && blockwise(tag) {
				w.line(1)
			}
		}
	}
	return title, string(w.out) + "\n", true
}

func blockwise(tag atom.Atom) bool { return tag != 0 && !formatting[tag] && !inline[tag] }

// sheetIn reads the style elements of a page that no tree is made of.
func sheetIn(content string) *sheet {
	s := newSheet()
	s.treeless = true
	if !styleTag.MatchString(content) {
		return s
	}
	left := maxSheet
	var mediaType, media string
	inStyle := false
	for z := html.NewTokenizer(strings.NewReader(content)); left > 0; {
		switch z.Next() {
		case html.ErrorToken:
			return s
		case html.TextToken:
			if inStyle {
				left -= s.add(cut(string(z.Text()), left), mediaType, media)
			}
		case html.StartTagToken:
			name, next := z.TagName()
			if inStyle = string(name) == "style"; !inStyle {
				continue
			}
			mediaType, media = "", ""
			for next {
				var key, value []byte
				key, value, next = z.TagAttr()
				switch string(key) {
				case "type":
					mediaType = string(value)
				case "media":
					media = string(value)
				}
			}
		case html.EndTagToken:
			inStyle = false
		}
	}
	return s
}

var styleTag = regexp.MustCompile(`(?i)<style[\s/>]`)

// Bounds on what is remembered of a page that no tree is made of.
const (
	maxAttrs   = 32  // of an element
	maxHidden  = 512 // elements in one that is hidden
	maxOutside = 1000
)

// unclosed tells, of a page that no tree is made of, which elements are hidden: where one
// ends, as browsers end it, or later.
type unclosed struct {
	sheet    *sheet
	standard bool           // a table ends a paragraph
	hidden   []string       // the element that is hidden, and those that are open in it
	lost     bool           // there were more of them than are remembered: nothing more is shown
	outside  map[string]int // how many elements of a name are open around it
}

// ends are what the start of an element ends that has no end tag, and what it does not
// look beyond.
var (
	listBounds  = []string{"ul", "ol", "dl", "menu", "dir", "nav", "aside", "header", "footer", "figure", "form", "table", "td", "th", "caption", "template", "object", "blockquote", "section", "article", "main", "fieldset", "details"}
	tableBounds = []string{"table", "template"}
	paraBounds  = []string{"table", "td", "th", "caption", "template", "object", "button", "applet", "marquee", "html"}
	ends        = map[string]struct{ what, bounds []string }{
		"li": {[]string{"li"}, listBounds}, "dt": {[]string{"dt", "dd"}, listBounds}, "dd": {[]string{"dt", "dd"}, listBounds},
		"td": {[]string{"td", "th"}, append(tableBounds, "tr")}, "th": {[]string{"td", "th"}, append(tableBounds, "tr")},
		"tr": {[]string{"tr"}, tableBounds}, "tbody": {[]string{"tbody", "thead", "tfoot"}, tableBounds}, "thead": {[]string{"tbody", "thead", "tfoot"}, tableBounds}, "tfoot": {[]string{"tbody", "thead", "tfoot"}, tableBounds},
		"option": {[]string{"option"}, []string{"select", "datalist"}}, "optgroup": {[]string{"option", "optgroup"}, []string{"select"}},
		"rt": {[]string{"rt", "rp"}, []string{"ruby"}}, "rp": {[]string{"rt", "rp"}, []string{"ruby"}},
	}
	endsParagraph = map[string]bool{"address": true, "article": true, "aside": true, "blockquote": true, "center": true, "details": true, "dialog": true, "dir": true, "div": true, "dl": true, "dt": true, "dd": true,
		"fieldset": true, "figcaption": true, "figure": true, "footer": true, "form": true, "h1": true, "h2": true, "h3": true, "h4": true, "h5": true, "h6": true, "header": true, "hgroup": true, "hr": true, "li": true, "listing": true,
		"main": true, "menu": true, "nav": true, "ol": true, "p": true, "pre": true, "search": true, "section": true, "summary": true, "ul": true, "xmp": true}
)

// endUpTo ends the innermost hidden element of some names, if no bound is in it.
func (u *unclosed) endUpTo(names, bounds []string) (ended bool) {
	for i := len(u.hidden) - 1; i >= 0 && !u.lost; i-- {
		if slices.Contains(names, u.hidden[i]) {
			u.hidden = u.hidden[:i]
			return true
		}
		if slices.Contains(bounds, u.hidden[i]) {
			return false
		}
	}
	return false
}

// start reports whether an element that begins is shown.
func (u *unclosed) start(n *html.Node, closed bool) bool {
	if len(u.hidden) > 0 {
		if endsParagraph[n.Data] || n.Data == "table" && u.standard {
			u.endUpTo([]string{"p"}, paraBounds)
		}
		if e, ok := ends[n.Data]; ok {
			u.endUpTo(e.what, e.bounds)
		}
	}
	foreign := n.DataAtom == atom.Svg || n.DataAtom == atom.Math || slices.Contains(u.hidden, "svg") || slices.Contains(u.hidden, "math")
	holds := !void[n.DataAtom] && !(closed && foreign)
	if len(u.hidden) == 0 {
		out := false
		if n.DataAtom != atom.Html && n.DataAtom != atom.Head && n.DataAtom != atom.Body {
			out = unseen(n) || n.DataAtom == atom.Rp
			if !out {
				var v veil
				out, v = u.sheet.look(n, veil{})
				out = out || v != veil{}
			}
		}
		if !out {
			if holds && (len(u.outside) < maxOutside || u.outside[n.Data] > 0) {
				u.outside[n.Data]++
			}
			return true
		}
	}
	if holds {
		if len(u.hidden) >= maxHidden {
			u.lost = true
			return false
		}
		u.hidden = append(u.hidden, n.Data)
	}
	return false
}

// end reports whether an element that ends was shown.
func (u *unclosed) end(name string) bool {
	if len(u.hidden) == 0 {
		if u.outside[name] > 0 {
			u.outside[name]--
		}
		return true
	}
	bounds := paraBounds
	if name == "li" {
		bounds = listBounds
	}
	if slices.Contains(paraBounds, name) {
		bounds = tableBounds
		if name == "table" || name == "html" {
			bounds = []string{"template"}
		}
	}
	if u.lost || u.endUpTo([]string{name}, bounds) {
		return false
	}
	// What is around it ends, and so does what is hidden, unless browsers begin that again.
	for i := len(u.hidden) - 1; i >= 0; i-- {
		if slices.Contains(bounds, u.hidden[i]) {
			return false
		}
	}
	if u.outside[name] > 0 && !formatting[atom.Lookup([]byte(u.hidden[0]))] && !formatting[atom.Lookup([]byte(name))] {
		u.outside[name]--
		u.hidden = u.hidden[:0]
		return true
	}
	return false
}
