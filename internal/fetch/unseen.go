package fetch

import (
	"context"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// silent are elements whose content is for machines, or for nobody.
var silent = map[atom.Atom]bool{
	atom.Script: true, atom.Style: true, atom.Noscript: true, atom.Template: true, atom.Iframe: true, atom.Frame: true, atom.Frameset: true, atom.Noframes: true,
	atom.Object: true, atom.Embed: true, atom.Applet: true, atom.Canvas: true, atom.Svg: true, atom.Audio: true, atom.Video: true, atom.Map: true,
	atom.Datalist: true, atom.Option: true, atom.Optgroup: true, atom.Progress: true, atom.Meter: true, atom.Link: true, atom.Noembed: true, atom.Annotation: true, atom.AnnotationXml: true,
}

// Names that sites give to what is said to screen readers alone, and to what is hidden,
// and those that take it back on a screen of some width.
var (
	readerOnly  = regexp.MustCompile(`^(sr-only|visually-?hidden(-focusable)?|screen-reader-text|screenreader|element-invisible)$`)
	hiddenName  = regexp.MustCompile(`^hidden$`)
	hiddenFirm  = regexp.MustCompile(`^(d-none|is-hidden)$`) // by frameworks that call it important
	shownAnyway = regexp.MustCompile(`^((sm|md|lg|xl|2xl|min-\[[^]]{1,20}\]):!?(block|inline|inline-block|flex|inline-flex|grid|inline-grid|contents|list-item|flow-root|table(-[a-z-]+)?|not-sr-only)|d-(sm|md|lg|xl|xxl)-(block|inline|inline-block|flex|inline-flex|grid|inline-grid|table(-row|-cell)?))$`)
)

// maxWord is the longest of those names, in bytes.
const maxWord = 48

// named reports whether one of the names of a class attribute matches.
func named(class string, pattern *regexp.Regexp) bool {
	for word := range strings.FieldsSeq(class) {
		if len(word) <= maxWord && pattern.MatchString(strings.ToLower(word)) {
			return true
		}
	}
	return false
}

// unseen reports whether an element says of itself that it is not shown, whatever style
// it has.
func unseen(n *html.Node) bool {
	switch {
	case silent[n.DataAtom]:
		return true
	case n.DataAtom == atom.Html, n.DataAtom == atom.Body: // hidden until scripts have run
		return false
	case strings.EqualFold(strings.TrimSpace(attr(n, "aria-hidden")), "true"), has(n, "popover"):
		return true
	case n.DataAtom == atom.Dialog && !has(n, "open"):
		return true
	case n.DataAtom == atom.Input && strings.EqualFold(attr(n, "type"), "hidden"):
		return true
	case n.DataAtom == atom.Img && dot.MatchString(attr(n, "width")) && dot.MatchString(attr(n, "height")): // it counts readers
		return true
	case n.DataAtom == atom.Rp && !bracket(n):
		return true
	}
	class := attr(n, "class")
	return named(class, readerOnly) && !named(class, shownAnyway)
}

var dot = regexp.MustCompile(`^\s*0*[01](px)?\s*$`)

// bracket reports whether there is one character in an element: the brackets around
// what helps with reading are worth keeping where it stands behind the word.
func bracket(n *html.Node) bool {
	s := strings.TrimSpace(textOf(n))
	r, size := utf8.DecodeRuneInString(s)
	return size == len(s) && (s == "" || unicode.IsPunct(r))
}

// dropUnseen takes away what a reader of the page would not see, and what there is no time
// left to tell of.
func dropUnseen(ctx context.Context, doc *html.Node) {
	sheet := sheetOf(doc)
	var gone []*html.Node // taken away at the end: selectors count siblings
	var visit func(*html.Node, veil)
	visit = func(n *html.Node, v veil) {
		switch n.Type {
		case html.CommentNode, html.DoctypeNode:
			gone = append(gone, n)
			return
		case html.TextNode:
			if v != (veil{}) {
				gone = append(gone, n)
			}
			return
		case html.ElementNode:
			if n.DataAtom == atom.Html || n.DataAtom == atom.Head || n.DataAtom == atom.Body {
				break
			}
			out := ctx.Err() != nil || unseen(n)
			if !out {
				out, v = sheet.look(n, v)
			}
			if out || n.DataAtom == atom.Img && v.hidden {
				gone = append(gone, n)
				return
			}
		}
		for c := n.FirstChild; c != nil; c = c.NextSibling {
			visit(c, v)
		}
	}
	visit(doc, veil{})
	for _, n := range gone {
		n.Parent.RemoveChild(n)
	}
}
