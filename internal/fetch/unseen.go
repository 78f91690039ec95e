package fetch

import (
	"regexp"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// silent are elements whose content is for machines, or for nobody.
var silent = map[atom.Atom]bool{
	atom.Script: true, atom.Style: true, atom.Noscript: true, atom.Template: true, atom.Iframe: true, atom.Frame: true, atom.Frameset: true, atom.Noframes: true,
	atom.Object: true, atom.Embed: true, atom.Applet: true, atom.Canvas: true, atom.Svg: true, atom.Audio: true, atom.Video: true, atom.Map: true,
	atom.Datalist: true, atom.Option: true, atom.Optgroup: true, atom.Progress: true, atom.Meter: true, atom.Link: true, atom.Noembed: true, atom.Annotation: true, atom.Plaintext: false,
}

// readerOnly are the names that sites give to what is said to screen readers alone.
var readerOnly = regexp.MustCompile(`(?i)(^|\s)(sr-only|visually-?hidden|screen-reader-text|screenreader|element-invisible|d-none|is-hidden|hidden)(\s|$)`)

// unseen reports whether an element says of itself that it is not shown. What only a
// style sheet elsewhere or a script hides cannot be told.
func unseen(n *html.Node) bool {
	switch {
	case silent[n.DataAtom]:
		return true
	case n.DataAtom == atom.Html, n.DataAtom == atom.Body: // hidden until scripts have run
		return false
	case has(n, "hidden"), strings.EqualFold(strings.TrimSpace(attr(n, "aria-hidden")), "true"):
		return true
	case n.DataAtom == atom.Dialog && !has(n, "open"):
		return true
	case n.DataAtom == atom.Input && strings.EqualFold(attr(n, "type"), "hidden"):
		return true
	}
	return hides(attr(n, "style")) || readerOnly.MatchString(attr(n, "class"))
}

var (
	cssComment = regexp.MustCompile(`(?s)/\*.*?(\*/|$)`)
	zero       = regexp.MustCompile(`^[+-]?0*\.?0*(px|em|rem|pt|%|vh|vw)?$`)
	faraway    = regexp.MustCompile(`^-\d{3,}(\.\d+)?(px|em|rem|pt|%|vw|vh)?$`)
	opaque     = regexp.MustCompile(`^(0?\.0\d*|0*\.?0*%?)$`)
)

// hides reports whether declarations of CSS take what they are about out of sight.
func hides(style string) bool {
	if style == "" {
		return false
	}
	d := declarations(style)
	is := func(name string, values ...string) bool {
		for _, v := range values {
			if d[name] == v {
				return true
			}
		}
		return false
	}
	switch {
	case is("display", "none"), is("visibility", "hidden", "collapse"), is("content-visibility", "hidden"):
		return true
	case d["opacity"] != "" && opaque.MatchString(d["opacity"]), d["font-size"] != "" && zero.MatchString(d["font-size"]):
		return true
	case is("color", "transparent"), is("-webkit-text-fill-color", "transparent"):
		return true
	case d["color"] != "" && (d["color"] == d["background-color"] || d["color"] == d["background"]):
		return true
	case faraway.MatchString(d["text-indent"]):
		return true
	case is("position", "absolute", "fixed") && (faraway.MatchString(d["left"]) || faraway.MatchString(d["top"]) || faraway.MatchString(d["right"])):
		return true
	case strings.HasPrefix(d["clip"], "rect(0") || strings.HasPrefix(d["clip"], "rect(1px") || strings.HasPrefix(d["clip-path"], "inset(50%") || strings.HasPrefix(d["clip-path"], "inset(100%") || strings.HasPrefix(d["clip-path"], "circle(0"):
		return true
	case strings.HasPrefix(d["transform"], "scale(0)"):
		return true
	case is("overflow", "hidden", "clip"):
		for _, side := range []string{"height", "width", "max-height", "max-width"} {
			if d[side] != "" && (zero.MatchString(d[side]) || d[side] == "1px") {
				return true
			}
		}
	}
	return false
}

// declarations are the last value of each property, in lower case and without white
// space.
func declarations(style string) map[string]string {
	d := map[string]string{}
	for decl := range strings.SplitSeq(cssComment.ReplaceAllString(strings.ToLower(style), ""), ";") {
		name, value, _ := strings.Cut(decl, ":")
		value = strings.TrimSuffix(strings.Join(strings.Fields(value), ""), "!important")
		if len(d) < 64 {
			d[strings.TrimSpace(name)] = value
		}
	}
	return d
}

// Bounds on the style sheets in a page that are read.
const (
	maxSheet = 256 << 10
	maxNames = 2000
)

// sheet holds the classes and ids that a page's own style sheets hide, as .class and
// #id.
type sheet map[string]bool

var (
	simple = regexp.MustCompile(`^[a-z0-9]*([.#][a-z0-9_-]+)$`)
	naming = regexp.MustCompile(`[.#][a-z0-9_-]+`)
)

// hiddenBy reads the style elements. Only selectors of one class or id count, and
// only if no other rule shows what has it.
func hiddenBy(doc *html.Node) sheet {
	hidden, shown := sheet{}, sheet{}
	left := maxSheet
	walk(doc, func(n *html.Node) bool {
		if n.DataAtom != atom.Style {
			return true
		}
		css := strings.ToLower(cut(textOf(n), left))
		left -= len(css)
		css = cssComment.ReplaceAllString(css, "")
		for css != "" && len(hidden)+len(shown) < maxNames {
			selectors, rest, ok := strings.Cut(css, "{")
			if !ok {
				break
			}
			if strings.HasPrefix(strings.TrimSpace(selectors), "@") { // holds on some screens only
				css = afterBlock(rest)
				continue
			}
			var body string
			body, css, _ = strings.Cut(rest, "}")
			d := declarations(body)
			hide := hides(body)
			for selector := range strings.SplitSeq(selectors, ",") {
				selector = strings.TrimSpace(selector)
				m := simple.FindStringSubmatch(selector)
				switch {
				case m != nil && hide:
					hidden[m[1]] = true
				case d["display"] != "" && d["display"] != "none" || d["visibility"] == "visible" || d["opacity"] == "1":
					for _, name := range naming.FindAllString(selector, -1) {
						shown[name] = true
					}
				}
			}
		}
		return false
	})
	for name := range shown {
		delete(hidden, name)
	}
	return hidden
}

// afterBlock is what follows a block whose opening brace was read.
func afterBlock(css string) string {
	depth := 1
	for i := range len(css) {
		switch css[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return css[i+1:]
			}
		}
	}
	return ""
}

func (s sheet) hides(n *html.Node) bool {
	if len(s) == 0 || n.DataAtom == atom.Html || n.DataAtom == atom.Body {
		return false
	}
	if id := attr(n, "id"); id != "" && s["#"+strings.ToLower(id)] {
		return true
	}
	for class := range strings.FieldsSeq(attr(n, "class")) {
		if s["."+strings.ToLower(class)] {
			return true
		}
	}
	return false
}
