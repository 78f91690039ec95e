package fetch

import (
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
// up to about so many bytes, and whether there is more.
func words(content string, most int) (title, text string, more bool) {
	z := html.NewTokenizer(strings.NewReader(content))
	var b strings.Builder
	within := "" // the element that is not shown, and how many of its name are open
	depth := 0
	inTitle := false
	ended := true // the line
	endLine := func() {
		if !ended {
			b.WriteByte('\n')
			ended = true
		}
	}
	for b.Len() < most {
		switch z.Next() {
		case html.ErrorToken:
			return title, tidy(b.String()), false
		case html.TextToken:
			switch {
			case inTitle:
				title = cut(title+string(z.Text()), maxField)
			case depth == 0:
				if t := string(z.Text()); strings.TrimSpace(t) != "" || !ended {
					b.WriteString(strings.ReplaceAll(cut(t, most), "\n", " "))
					ended = false
				}
			}
		case html.StartTagToken, html.SelfClosingTagToken:
			name, next := z.TagName()
			n := &html.Node{Type: html.ElementNode, DataAtom: atom.Lookup(name), Data: string(name)}
			for next {
				var key, value []byte
				key, value, next = z.TagAttr()
				switch k := string(key); k {
				case "hidden", "aria-hidden", "style", "class", "type", "open":
					n.Attr = append(n.Attr, html.Attribute{Key: k, Val: string(value)})
				}
			}
			tag := n.DataAtom
			if depth > 0 && n.Data == within {
				if !implied[tag] {
					depth++
					continue
				}
				depth = 0 // the one before ends here
			}
			switch {
			case depth > 0:
			case tag == atom.Title:
				inTitle = title == ""
			case !void[tag] && unseen(n):
				within, depth = n.Data, 1
			case !formatting[tag] && !inline[tag]:
				endLine()
			}
		case html.EndTagToken:
			name, _ := z.TagName()
			tag := atom.Lookup(name)
			switch {
			case tag == atom.Title:
				inTitle = false
			case depth > 0 && string(name) == within:
				depth--
			case depth == 0 && !formatting[tag] && !inline[tag]:
				endLine()
			}
		}
	}
	return title, tidy(b.String()), true
}

// tidy makes one blank of several, and leaves out empty lines.
func tidy(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			b.WriteString(line)
			b.WriteByte('\n')
		}
	}
	return b.String()
}
