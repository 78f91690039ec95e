package fetch

import (
	"regexp"
	"strconv"
	"strings"
)

// Of CSS, what takes text out of sight is read, and what shows it again: no more of it,
// and nothing is laid out. All of it is bounded by the length of what is read.

// declaration gives one property a value, in lower case, with single blanks.
type declaration struct {
	name, value string
	important   bool
}

// telling are the properties that tell whether something is in sight.
var telling = map[string]bool{
	"display": true, "visibility": true, "content-visibility": true, "opacity": true, "filter": true, "scale": true, "transform": true, "translate": true,
	"font": true, "font-size": true, "text-indent": true, "color": true, "-webkit-text-fill-color": true,
	"background": true, "background-color": true, "background-image": true, "background-clip": true, "-webkit-background-clip": true,
	"position": true, "left": true, "right": true, "top": true, "bottom": true, "inset": true, "margin": true, "margin-left": true, "margin-top": true, "padding": true, "padding-left": true,
	"clip": true, "clip-path": true, "overflow": true, "overflow-x": true, "overflow-y": true,
	"height": true, "width": true, "max-height": true, "max-width": true, "animation": true, "animation-name": true, "animation-fill-mode": true,
}

// maxValue bounds the value of a property that is looked at, in bytes.
const maxValue = 256

// afterString is where a string ends that begins at i. A line's end ends it too.
func afterString(s string, i int) int {
	quote := s[i]
	for i++; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case quote, '\n':
			return i + 1
		}
	}
	return len(s)
}

// uncommented is CSS without its comments.
func uncommented(s string) string {
	if !strings.Contains(s, "/*") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		next := i + 1
		switch {
		case strings.HasPrefix(s[i:], "/*"):
			end := strings.Index(s[i+2:], "*/")
			b.WriteByte(' ')
			if end < 0 {
				return b.String()
			}
			i += end + 4
			continue
		case s[i] == '"' || s[i] == '\'':
			next = afterString(s, i)
		case s[i] == '\\':
			next = min(i+2, len(s))
		}
		b.WriteString(s[i:next])
		i = next
	}
	return b.String()
}

// scan is where in s the first of some characters is that stands neither in a string nor
// in brackets, or the end.
func scan(s, stops string) int {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\':
			i++
		case c == '"' || c == '\'':
			i = afterString(s, i) - 1
		case depth == 0 && strings.IndexByte(stops, c) >= 0:
			return i
		case c == '(' && i >= 3 && strings.EqualFold(s[i-3:i], "url"):
			bare := strings.TrimLeft(s[i+1:min(i+16, len(s))], " \t\r\n\f")
			end := strings.IndexByte(s[i:], ')')
			switch {
			case bare != "" && (bare[0] == '"' || bare[0] == '\''):
				depth++
			case end < 0:
				return len(s)
			default:
				i += end
			}
		case c == '(' || c == '[':
			depth++
		case (c == ')' || c == ']') && depth > 0:
			depth--
		}
	}
	return len(s)
}

// block is what stands in braces of which the first was read, and what follows.
func block(s string) (inner, rest string) {
	depth := 1
	for i := 0; ; i++ {
		i += scan(s[i:], "{}")
		switch {
		case i >= len(s):
			return s, ""
		case s[i] == '{':
			depth++
		default:
			if depth--; depth == 0 {
				return s[:i], s[i+1:]
			}
		}
	}
}

// unescaped reads the escapes of CSS in a word.
func unescaped(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			i++
			continue
		}
		c, n := escape(s[i:])
		b.WriteString(c)
		i += n
	}
	return b.String()
}

// escape is the character that the escape is which s begins with, and its length.
func escape(s string) (char string, n int) {
	for n = 1; n < len(s) && n < 7 && strings.IndexByte("0123456789abcdefABCDEF", s[n]) >= 0; n++ {
	}
	if n == 1 {
		n = min(2, len(s))
		return s[1:n], n
	}
	code, _ := strconv.ParseInt(s[1:n], 16, 32)
	if n < len(s) && isSpace(rune(s[n])) {
		n++
	}
	return string(rune(code)), n
}

// declarations are those of a block that tell whether something is in sight.
func declarations(block string) (found []declaration) {
	for block = uncommented(block); block != ""; {
		end := scan(block, ";")
		name, value, _ := strings.Cut(block[:end], ":")
		block = block[min(end+1, len(block)):]
		name = strings.ToLower(unescaped(strings.TrimSpace(name)))
		if !telling[name] {
			continue
		}
		value = strings.TrimSpace(value)
		important := false
		if i := strings.LastIndexByte(value, '!'); i >= 0 {
			important = strings.EqualFold(unescaped(strings.TrimSpace(value[i+1:])), "important")
			value = value[:i]
		}
		value = strings.ToLower(strings.Join(strings.Fields(unescaped(cut(value, maxValue))), " "))
		if valid(name, value) {
			found = append(found, longhands(declaration{name, value, important})...)
		}
	}
	return found
}

var (
	displays     = regexp.MustCompile(`^(none|contents|((inline|block|run-in|flow|flow-root|table|flex|grid|ruby|math|list-item|inline-block|inline-table|inline-flex|inline-grid|-webkit-(inline-)?(box|flex)|-ms-(inline-)?(flexbox|grid)|table-(row|row-group|header-group|footer-group|column|column-group|cell|caption)|ruby-(base|text)(-container)?)( |$)){1,3})$`)
	visibilities = regexp.MustCompile(`^(visible|hidden|collapse)$`)
	sizes        = regexp.MustCompile(`^(xx-small|x-small|small|medium|large|x-large|xx-large|xxx-large|smaller|larger|math)$`)
	overflows    = regexp.MustCompile(`^((visible|hidden|clip|scroll|auto|overlay)( |$)){1,2}$`)
	global       = regexp.MustCompile(`^(inherit|initial|unset|revert|revert-layer)$`)
	unknowable   = regexp.MustCompile(`(^|[^a-z-])(var|env|attr|if|calc|min|max|clamp)\(`)
)

// valid reports whether a value is one: browsers pass over what is none.
func valid(name, value string) bool {
	switch {
	case value == "":
		return false
	case global.MatchString(value) || unknowable.MatchString(value):
		return true
	}
	ok := true
	switch name {
	case "display":
		ok = displays.MatchString(value)
	case "visibility":
		ok = visibilities.MatchString(value)
	case "opacity":
		_, _, ok = quantity(value)
	case "position":
		ok = value == "static" || value == "relative" || value == "absolute" || value == "fixed" || strings.HasSuffix(value, "sticky")
	case "left", "right", "top", "bottom", "text-indent", "margin-left", "margin-top", "padding-left", "height", "width", "max-height", "max-width":
		ok = isLength(value) || strings.Trim(value, "abcdefghijklmnopqrstuvwxyz-") == "" || strings.Contains(value, " ") || strings.Contains(value, "(")
	case "font-size":
		ok = isLength(value) || sizes.MatchString(value) || strings.Contains(value, "(")
	case "content-visibility", "overflow", "overflow-x", "overflow-y":
		ok = overflows.MatchString(value)
	case "clip", "clip-path", "transform", "filter", "scale", "translate":
		ok = value == "none" || value == "auto" || strings.Contains(value, "(") || value[0] <= '9'
	case "color", "background-color", "-webkit-text-fill-color":
		ok = strings.Trim(value, "abcdefghijklmnopqrstuvwxyz") == "" || value[0] == '#' || strings.Contains(value, "(")
	}
	return ok
}

// longhands are the single properties of one that stands for several.
func longhands(d declaration) []declaration {
	sides := func(names [4]string /* top, right, bottom, left */, words []string) (all []declaration) {
		if len(words) == 0 || len(words) > 4 {
			return nil
		}
		which := [4][4]int{{0, 0, 0, 0}, {0, 1, 0, 1}, {0, 1, 2, 1}, {0, 1, 2, 3}}[len(words)-1]
		for i, name := range names {
			if name != "" {
				all = append(all, declaration{name, words[which[i]], d.important})
			}
		}
		return all
	}
	switch d.name {
	case "inset":
		return sides([4]string{"top", "right", "bottom", "left"}, strings.Fields(d.value))
	case "margin":
		return sides([4]string{"margin-top", "", "", "margin-left"}, strings.Fields(d.value))
	case "padding":
		return sides([4]string{3: "padding-left"}, strings.Fields(d.value))
	case "background":
		return []declaration{{"background-color", d.value, d.important}, {"background-image", d.value, d.important}}
	case "font":
		for word := range strings.FieldsSeq(d.value) {
			size, _, _ := strings.Cut(word, "/")
			if _, unit, ok := quantity(size); ok && (unit != "" || strings.Trim(size, "+-0.") == "") {
				return []declaration{{"font-size", size, d.important}}
			}
		}
		return nil
	case "overflow":
		return []declaration{{"overflow-x", d.value, d.important}}
	case "overflow-y":
		return []declaration{{"overflow-x", d.value, d.important}}
	}
	return []declaration{d}
}

var number = regexp.MustCompile(`^([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(%|[a-z]*)$`)

// quantity is a number and its unit.
func quantity(value string) (n float64, unit string, ok bool) {
	for strings.HasPrefix(value, "calc(") && strings.HasSuffix(value, ")") {
		value = strings.TrimSpace(value[5 : len(value)-1])
	}
	m := number.FindStringSubmatch(value)
	if m == nil {
		return 0, "", false
	}
	n, err := strconv.ParseFloat(m[1], 64)
	return n, m[2], err == nil || n != 0
}

// inPixels are the lengths that do not depend on what is around; those of a window are
// for one of usual size.
var inPixels = map[string]float64{"": 1, "px": 1, "pt": 4. / 3, "pc": 16, "in": 96, "cm": 37.8, "mm": 3.78, "em": 16, "rem": 16, "ex": 8, "ch": 8, "vw": 12.8, "vh": 8, "vmin": 8, "vmax": 12.8,
	"dvw": 12.8, "dvh": 8, "svw": 12.8, "svh": 8, "lvw": 12.8, "lvh": 8, "vi": 12.8, "vb": 8, "cqw": 12.8, "cqh": 8, "cqi": 12.8, "cqb": 8, "q": 0.94, "lh": 20, "rlh": 20, "ic": 16, "cap": 12}

func isLength(value string) bool {
	_, unit, ok := quantity(value)
	_, known := inPixels[unit]
	return ok && (known || unit == "%")
}

// pixels is a length; a part of what is around has none.
func pixels(value string) (px float64, ok bool) {
	n, unit, ok := quantity(value)
	factor, known := inPixels[unit]
	return n * factor, ok && (known || n == 0)
}

// basic are the colours that hide text in practice.
var basic = map[string]string{"white": "ffffff", "black": "000000", "red": "ff0000", "green": "008000", "blue": "0000ff", "yellow": "ffff00", "gray": "808080", "grey": "808080", "silver": "c0c0c0", "navy": "000080"}

var channels = regexp.MustCompile(`^(?:rgb|hsl|hwb|lab|lch|oklab|oklch|color)a?\(([^()]*)\)$`)

// colour is a colour in one spelling, and whether it is none at all.
func colour(value string) (same string, clear bool) {
	if value == "transparent" {
		return value, true
	}
	if hex, ok := strings.CutPrefix(value, "#"); ok {
		if len(hex) == 3 || len(hex) == 4 {
			long := ""
			for _, c := range hex {
				long += string(c) + string(c)
			}
			hex = long
		}
		if len(hex) == 8 {
			if hex[6:] != "ff" { // what is behind it shines through
				return value, hex[6:] < "0d" // a twentieth
			}
			return hex[:6], false
		}
		return hex, false
	}
	if m := channels.FindStringSubmatch(value); m != nil {
		parts := strings.FieldsFunc(m[1], func(r rune) bool { return r == ',' || r == '/' || r == ' ' })
		space := strings.HasPrefix(value, "color(")
		if len(parts) > 3 && !space || len(parts) > 4 {
			n, unit, ok := quantity(parts[len(parts)-1])
			if unit == "%" {
				n /= 100
			}
			clear = ok && n < 0.05
			if !ok || n < 1 { // what is behind it shines through
				return value, clear
			}
		}
		if strings.HasPrefix(value, "rgb") && len(parts) >= 3 {
			for _, p := range parts[:3] {
				n, unit, ok := quantity(p)
				if !ok {
					return value, clear
				}
				if unit == "%" {
					n *= 2.55
				}
				same += strconv.FormatInt(0x100+min(max(int64(n+.5), 0), 255), 16)[1:]
			}
			return same, clear
		}
		return value, clear
	}
	if hex := basic[value]; hex != "" {
		return hex, false
	}
	return value, false
}

// style are the values that hold for an element.
type style map[string]declaration

func (s style) set(d declaration) {
	if old, ok := s[d.name]; !ok || d.important || !old.important {
		s[d.name] = d
	}
}

func (s style) is(name string, values ...string) bool {
	for _, v := range values {
		if s[name].value == v {
			return true
		}
	}
	return false
}

// veil is what an element passes on to what is in it: why the text there is not seen.
type veil struct {
	hidden, tiny, clear bool
	same                bool // its colour as its background's
}

var (
	function = regexp.MustCompile(`(translate(?:x|y|3d)?|scale(?:x|y|3d)?|rotate[xy]|matrix)\(([^()]*)\)`)
	nothing  = regexp.MustCompile(`^(inset\( ?(50|100)%|circle\( ?0|ellipse\( ?0|polygon\( ?0(px|%)? 0(px|%)?, ?0(px|%)? 0(px|%)?, ?0(px|%)? 0(px|%)?)`)
	clipped  = regexp.MustCompile(`^rect\( ?[01](px)?[ ,]`)
	fainted  = regexp.MustCompile(`opacity\( ?([0-9.e%+-]+) ?\)`)
)

// faint is the most opacity that nobody sees.
const faint = 0.1

func opacity(value string) (n float64, ok bool) {
	n, unit, ok := quantity(value)
	if unit == "%" {
		n /= 100
	}
	return n, ok
}

// hides reports whether an element of this style is out of sight with all that is in it,
// and else what it passes on.
func (s style) hides(above veil) (gone bool, below veil) {
	faraway := func(name string, most float64) bool {
		n, unit, _ := quantity(s[name].value)
		px, ok := pixels(s[name].value)
		return ok && (px <= -most || px >= 20*most) || unit == "%" && n <= -100
	}
	offset := 100. // of what is not moved from where it would be, whatever that is
	if s.is("position", "relative") {
		offset = 400
	}
	// Far down there is more of the page.
	up := func() bool {
		n, unit, _ := quantity(s["top"].value)
		px, ok := pixels(s["top"].value)
		return ok && px <= -offset || unit == "%" && n <= -100 || s.is("position", "fixed") && px >= 20*offset
	}
	indent, _ := pixels(s["text-indent"].value)
	room, _ := pixels(s["margin-left"].value)
	padding, _ := pixels(s["padding-left"].value)
	if n, ok := opacity(s["opacity"].value); ok && n < faint {
		return true, above
	}
	switch {
	case s.is("display", "none"), s.is("content-visibility", "hidden"):
		return true, above
	case faraway("text-indent", 100) && (indent >= 0 || indent+max(room, 0)+max(padding, 0) <= -100):
		return true, above
	case s.is("position", "absolute", "fixed", "relative") && (faraway("left", offset) || faraway("right", offset) || up() || faraway("bottom", offset)):
		return true, above
	case clipped.MatchString(s["clip"].value), nothing.MatchString(s["clip-path"].value):
		return true, above
	}
	for _, side := range []string{"margin-left", "margin-top"} {
		if px, ok := pixels(s[side].value); ok && px <= -1000 {
			return true, above
		}
	}
	if m := fainted.FindStringSubmatch(s["filter"].value); m != nil {
		if n, ok := opacity(m[1]); ok && n < faint {
			return true, above
		}
	}
	for _, m := range function.FindAllStringSubmatch(s["transform"].value, -1) {
		if vanishes(m[1], strings.Split(m[2], ",")) {
			return true, above
		}
	}
	if v := s["scale"].value; v != "" && vanishes("scale", strings.Fields(v)) || vanishes("translate", strings.Fields(s["translate"].value)) {
		return true, above
	}
	if s.is("overflow-x", "hidden", "clip") {
		for _, side := range []string{"height", "width", "max-height", "max-width"} {
			if px, ok := pixels(s[side].value); ok && px <= 1 {
				return true, above
			}
		}
		if n, unit, ok := quantity(s["text-indent"].value); ok && unit == "%" && n >= 100 {
			return true, above
		}
	}
	return false, s.passesOn(above)
}

// vanishes reports whether a function of transform leaves nothing to see.
func vanishes(name string, args []string) bool {
	for i, arg := range args {
		arg = strings.TrimSpace(arg)
		n, unit, ok := quantity(arg)
		px, _ := pixels(arg)
		switch {
		case !ok:
		case strings.HasPrefix(name, "translate"):
			if px <= -1000 || px >= 5000 {
				return true
			}
		case strings.HasPrefix(name, "scale"):
			if n > -0.05 && n < 0.05 || unit == "%" && n > -5 && n < 5 {
				return true
			}
		case strings.HasPrefix(name, "rotate"):
			if n == 90 || n == 270 || n == -90 || n == 0.25 {
				return true
			}
		case name == "matrix" && (i == 0 || i == 3) && n > -0.05 && n < 0.05 && len(args) == 6:
			turned, _, _ := quantity(strings.TrimSpace(args[1]))
			if turned == 0 {
				return true
			}
		case name == "matrix" && i > 3 && (n <= -1000 || n >= 5000):
			return true
		}
	}
	return false
}

// passesOn is what holds in an element, of what text takes from the element that it is in.
func (s style) passesOn(v veil) veil {
	switch value := s["visibility"].value; value {
	case "hidden", "collapse":
		v.hidden = true
	case "visible", "initial":
		v.hidden = false
	}
	if n, unit, ok := quantity(s["font-size"].value); ok {
		px, _ := pixels(s["font-size"].value)
		switch unit {
		case "%":
			v.tiny = v.tiny || n < 10
		case "em", "ex", "ch":
			v.tiny = v.tiny || px < 2
		default:
			v.tiny = px < 2
		}
	} else if value := s["font-size"].value; value != "" && !global.MatchString(value) && value != "smaller" && value != "larger" {
		v.tiny = false
	}
	color, background := s["color"].value, s["background-color"].value
	if fill := s["-webkit-text-fill-color"].value; fill != "" && fill != "currentcolor" && !global.MatchString(fill) {
		color = fill
	}
	painted := (s.is("background-clip", "text") || s.is("-webkit-background-clip", "text")) && (s["background-image"].value != "" || background != "")
	if color != "" && color != "currentcolor" && !global.MatchString(color) {
		name, clear := colour(color)
		behind, _ := colour(background)
		v.clear = clear && !painted
		v.same = name == behind && !painted
	} else if background != "" {
		v.same = false
	}
	return v
}

// hides reports whether declarations take what they are about out of sight.
func hides(found []declaration) bool {
	s := style{}
	for _, d := range found {
		s.set(d)
	}
	gone, below := s.hides(veil{})
	return gone || below != veil{}
}
