package fetch

import (
	"bytes"
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

const (
	// maxIndents is how deep quotes and items of lists may stand in each other. Each
	// one is written before every line in it.
	maxIndents = 24
	// maxSpan bounds the columns that a cell holds, and the columns that are
	// remembered because a cell holds them for rows to come.
	maxSpan = 32
)

// writer writes a tree as Markdown, from its beginning to its end: it keeps nothing
// but what it has written, goes back over nothing, and stops when it has written as
// much as it may or its time is over. That is its bound, whatever the tree.
type writer struct {
	ctx     context.Context
	out     []byte
	most    int
	more    bool // there was more than may be written
	over    bool // the time
	nodes   int
	indents []indent
	marks   []mark // of the elements that are open, outermost first
	open    int    // how many of them are written
	lines   int    // line ends that are owed
	hard    bool   // one of them is part of the text
	blank   bool   // a blank is owed
	begun   bool   // the line
	heading bool   // in a heading,
	cell    bool   // or in a cell, no line ends
	linked  int    // links that are open,
	linking bool   // and whether one is written
	lineAt  int    // where the text of the line begins,
	codeAt  int    // and where code ended
}

// indent begins the lines of a quote or an item.
type indent struct {
	first, rest string
	used        bool
}

// mark is what stands before and after the text of an element.
type mark struct {
	before, after string
	link          bool
}

// written is a tree in Markdown, of at most so many bytes, and whether there was more.
func written(ctx context.Context, root *html.Node, most int) (s string, more bool, err error) {
	walk(root, func(n *html.Node) bool {
		if n.Type == html.ElementNode { // who renames an element forgets its atom
			n.DataAtom = atom.Lookup([]byte(n.Data))
		}
		return true
	})
	w := &writer{ctx: ctx, most: most}
	w.node(root)
	if w.over {
		return "", false, ended(ctx, nil)
	}
	return string(w.out), w.more, nil
}

func (w *writer) done() bool { return w.more || w.over }

// put writes what there is room for.
func (w *writer) put(s string) {
	if room := w.most - len(w.out); len(s) > room {
		s, w.more = cut(s, room), true
	}
	w.out = append(w.out, s...)
}

// line owes at least n line ends.
func (w *writer) line(n int) {
	if w.heading || w.cell || w.linking {
		w.blank = true
		return
	}
	for ; w.open > 0; w.open-- {
		w.put(w.marks[w.open-1].after)
	}
	w.lines = max(w.lines, n)
	w.blank = false
}

// start pays what is owed before text.
func (w *writer) start() {
	switch {
	case len(w.out) == 0:
		w.indent()
	case w.lines > 0:
		if w.hard && w.lines == 1 {
			w.put("  ")
		}
		w.put("\n")
		if w.lines > 1 {
			w.put(strings.TrimRight(w.prefix(false), " ") + "\n")
		}
		w.indent()
	case w.blank && w.begun:
		w.put(" ")
	}
	if len(w.out) == 0 || !w.begun || w.lines > 0 {
		w.lineAt = len(w.out)
	}
	w.lines, w.hard, w.blank, w.begun = 0, false, false, true
	for ; w.open < len(w.marks); w.open++ {
		m := w.marks[w.open]
		if n := len(w.out) - 1; m.link && n >= w.lineAt && w.out[n] == '!' { // it would be an image
			w.out = append(w.out[:n], `\!`...)
		}
		w.put(m.before)
		w.linking = w.linking || m.link
	}
}

func (w *writer) indent() { w.put(w.prefix(true)) }

// prefix is what begins a line here; a mark of an item is used once.
func (w *writer) prefix(use bool) string {
	var s string
	for i := range w.indents {
		in := &w.indents[i]
		switch {
		case in.used:
			s += in.rest
		case use:
			s += in.first
			in.used = true
		default:
			return s
		}
	}
	return s
}

func isSpace(r rune) bool { return r == ' ' || r == '\n' || r == '\t' || r == '\r' || r == '\f' }

func (w *writer) text(s string) {
	for s != "" && !w.done() {
		rest := strings.TrimLeftFunc(s, isSpace)
		if len(rest) < len(s) {
			w.blank = true
		}
		end := strings.IndexFunc(rest, isSpace)
		if end < 0 {
			end = len(rest)
		}
		if word := rest[:end]; word != "" {
			word = cut(word, w.most)
			first := !w.begun || w.lines > 0
			glued := !first && !w.blank
			w.start()
			if glued {
				w.glue(word)
			} else {
				w.put(w.escape(word, first))
			}
		}
		s = rest[end:]
	}
}

var (
	entity     = regexp.MustCompile(`^&(#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});`)
	numberMark = regexp.MustCompile(`^\d{1,9}[.)]$`)
)

// maxEntity is the longest of those, in bytes, and more.
const maxEntity = 40

// glue writes a piece of a word: with what stands before it, it makes nothing else.
func (w *writer) glue(word string) {
	line := w.out[w.lineAt:]
	if len(line)+len(word) <= maxEntity && numberMark.MatchString(string(line)+word) {
		last := len(word) - 1
		w.put(word[:last] + `\` + word[last:])
		return
	}
	tail := line[max(0, len(line)-maxEntity):]
	if i := bytes.LastIndexByte(tail, '&'); i >= 0 && !entity.Match(tail[i:]) && entity.MatchString(string(tail[i:])+word[:min(len(word), maxEntity)]) {
		at := len(w.out) - len(tail) + i + 1
		w.out = slices.Insert(w.out, at, []byte("amp;")...)
	}
	if word == "*" || word == "_" {
		word = `\` + word
		w.put(word)
		return
	}
	w.put(w.escape(word, false))
}

// lineMark is a word that makes something of a line that it begins.
var lineMark = regexp.MustCompile(`^(#{1,6}|[-+*_]|--+|=+|\d{1,9}[.)])$|^(~~|\|)`)

// escape is a word that reads as it is.
func (w *writer) escape(word string, first bool) string {
	first = first && lineMark.MatchString(word)
	if !first && !strings.ContainsAny(word, "\\`*_[]<>~|#&") {
		return word
	}
	var b strings.Builder
	for i := range len(word) {
		c := word[i]
		last := i == len(word)-1
		switch {
		case c == '<':
			b.WriteString("&lt;")
			continue
		case c == '>':
			b.WriteString("&gt;")
			continue
		case c == '&' && entity.MatchString(word[i:min(len(word), i+maxEntity)]):
			b.WriteString("&amp;")
			continue
		case c == '\\' || c == '`' || c == '[',
			(c == '*' || c == '_') && len(word) > 1,
			c == '~',
			c == ']' && w.linked > 0,
			c == '|' && w.cell,
			c == '#' && w.heading && last,
			first && i == 0 && (c < '0' || c > '9'),
			first && last && (c == '.' || c == ')'):
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	return b.String()
}

// node writes one node and what is in it.
func (w *writer) node(n *html.Node) {
	if w.nodes++; w.nodes%64 == 0 && w.ctx.Err() != nil {
		w.over = true
	}
	if w.done() {
		return
	}
	switch n.Type {
	case html.TextNode:
		w.text(n.Data)
		return
	case html.DocumentNode:
		w.children(n)
		return
	case html.ElementNode:
	default:
		return
	}
	switch n.DataAtom {
	case atom.Head, atom.Title, atom.Script, atom.Style, atom.Textarea:
	case atom.B, atom.Strong:
		w.marked(n, mark{before: "**", after: "**"})
	case atom.I, atom.Em:
		w.marked(n, mark{before: "*", after: "*"})
	case atom.Del, atom.S, atom.Strike:
		w.marked(n, mark{before: "~~", after: "~~"})
	case atom.A:
		w.link(n)
	case atom.Code, atom.Kbd, atom.Samp, atom.Tt, atom.Var:
		w.code(n)
	case atom.Pre, atom.Listing, atom.Xmp:
		w.pre(n)
	case atom.Img:
		if alt, src := strings.Join(strings.Fields(attr(n, "alt")), " "), attr(n, "src"); alt != "" && src != "" {
			w.start()
			w.linked++
			w.put("![" + w.escape(alt, false) + "](" + destination(src) + ")")
			w.linked--
		}
	case atom.Br:
		w.hard = true
		w.line(min(w.lines+1, 2))
	case atom.Hr:
		w.line(2)
		if w.lines == 2 {
			w.start()
			w.put("* * *")
			w.line(2)
		}
	case atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6:
		w.head(n, func() { w.children(n) })
	case atom.Blockquote:
		w.line(2)
		w.indented(n, "> ", "> ")
		w.line(2)
	case atom.Ul, atom.Ol, atom.Menu, atom.Dir:
		w.list(n)
	case atom.Table:
		w.table(n)
	case atom.Td, atom.Th:
		w.blank = true
		w.children(n)
		w.blank = true
	case atom.Dt, atom.Dd, atom.Li, atom.Option:
		w.line(1)
		w.children(n)
		w.line(1)
	default:
		if n.DataAtom == 0 || inline[n.DataAtom] || formatting[n.DataAtom] {
			w.children(n)
			return
		}
		w.line(2)
		w.children(n)
		w.line(2)
	}
}

func (w *writer) children(n *html.Node) {
	for c := n.FirstChild; c != nil && !w.done(); c = c.NextSibling {
		w.node(c)
	}
}

// marked writes an element between marks, if there is any text in it. Marks in the
// same marks say nothing.
func (w *writer) marked(n *html.Node, m mark) {
	for _, other := range w.marks {
		if other.before == m.before {
			w.children(n)
			return
		}
	}
	w.marks = append(w.marks, m)
	w.children(n)
	w.unmark()
}

func (w *writer) unmark() {
	last := len(w.marks) - 1
	m := w.marks[last]
	w.marks = w.marks[:last]
	if w.open > last {
		w.open = last
		w.put(m.after)
		if m.link {
			w.linking = false
		}
	}
}

func (w *writer) link(n *html.Node) {
	href := attr(n, "href")
	if href == "" || w.linked > 0 {
		w.children(n)
		return
	}
	if h := n.FirstChild; h != nil && h == n.LastChild { // a link to a heading is a heading
		switch h.DataAtom {
		case atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6:
			w.head(h, func() { w.linkTo(href, h) })
			return
		}
	}
	w.linkTo(href, n)
}

func (w *writer) linkTo(href string, n *html.Node) {
	w.linked++
	w.marks = append(w.marks, mark{before: "[", after: "](" + destination(href) + ")", link: true})
	w.children(n)
	w.unmark()
	w.linked--
}

// inURL are the characters of a URL that end it in Markdown.
var inURL = strings.NewReplacer(" ", "%20", "[", "%5B", "]", "%5D", "(", "%28", ")", "%29", "<", "%3C", ">", "%3E", `\`, "%5C", "`", "%60", "|", "%7C", "\n", "", "\r", "", "\t", "")

func destination(url string) string { return inURL.Replace(url) }

// head writes a heading, of what write writes.
func (w *writer) head(n *html.Node, write func()) {
	w.line(2)
	if w.lines < 2 && len(w.out) > 0 || w.heading || w.cell || w.linking { // within what holds no heading
		write()
		w.blank = true
		return
	}
	if strings.TrimSpace(textOf(n)) == "" {
		write()
		return
	}
	level := strings.Repeat("#", int(n.DataAtom.String()[1]-'0')) + " "
	w.heading = true
	w.marks = append([]mark{{before: level}}, w.marks...)
	write()
	w.marks = w.marks[1:]
	w.open = max(w.open-1, 0)
	w.heading = false
	w.line(2)
}

func (w *writer) indented(n *html.Node, first, rest string) {
	if len(w.indents) >= maxIndents || w.heading || w.cell || w.linking {
		w.children(n)
		return
	}
	w.indents = append(w.indents, indent{first: first, rest: rest})
	w.children(n)
	w.line(1)
	w.indents = w.indents[:len(w.indents)-1]
}

func (w *writer) list(n *html.Node) {
	apart := 2
	if inside(n, atom.Li) {
		apart = 1
	}
	w.line(apart)
	number, err := strconv.Atoi(attr(n, "start"))
	if err != nil || number < 0 || number > 999_999_999 {
		number = 1
	}
	for c := n.FirstChild; c != nil && !w.done(); c = c.NextSibling {
		if c.DataAtom != atom.Li {
			w.node(c)
			continue
		}
		bullet := "- "
		if n.DataAtom == atom.Ol {
			bullet = strconv.Itoa(number) + ". "
			number++
		}
		w.line(1)
		w.indented(c, bullet, strings.Repeat(" ", len(bullet)))
	}
	w.line(apart)
}

// fence is longer than any run of backquotes in s.
func fence(s string, least int) string {
	longest, run := 0, 0
	for i := range len(s) {
		if s[i] == '`' {
			run++
			longest = max(longest, run)
		} else {
			run = 0
		}
	}
	return strings.Repeat("`", max(longest+1, least))
}

func (w *writer) code(n *html.Node) {
	s := textOf(n)
	if s != "" && isSpace(rune(s[0])) {
		w.blank = true
	}
	code := cut(strings.Join(strings.Fields(s), " "), w.most)
	if code == "" {
		return
	}
	if w.cell {
		code = strings.ReplaceAll(code, "|", `\|`)
	}
	f := fence(code, 1)
	if code[0] == '`' || code[len(code)-1] == '`' {
		code = " " + code + " "
	}
	if w.codeAt == len(w.out) && w.open == len(w.marks) && w.lines == 0 { // it would be one with that before it
		w.blank = true
	}
	w.start()
	w.put(f + code + f)
	w.codeAt = len(w.out)
	if isSpace(rune(s[len(s)-1])) {
		w.blank = true
	}
}

var language = regexp.MustCompile(`(?:^|\s)lang(?:uage)?-([A-Za-z0-9+#._-]{1,20})(?:\s|$)`)

func (w *writer) pre(n *html.Node) {
	w.line(2)
	if w.heading || w.cell || w.linking {
		w.code(n)
		w.blank = true
		return
	}
	var b strings.Builder
	class := attr(n, "class")
	walk(n, func(n *html.Node) bool {
		switch {
		case n.Type == html.TextNode:
			b.WriteString(n.Data)
		case n.DataAtom == atom.Br:
			b.WriteByte('\n')
		case n.DataAtom == atom.Code:
			class += " " + attr(n, "class")
		}
		return b.Len() <= w.most
	})
	text := strings.Trim(cut(b.String(), w.most), "\n")
	if strings.TrimSpace(text) == "" {
		return
	}
	f := fence(text, 3)
	word := ""
	if m := language.FindStringSubmatch(class); m != nil {
		word = m[1]
	}
	marks := w.marks // nothing is marked in code
	w.marks = nil
	w.start()
	w.put(f + word)
	for s := range strings.SplitSeq(text, "\n") {
		if w.done() {
			break
		}
		w.put("\n")
		w.put(w.prefix(true))
		w.put(s)
	}
	w.put("\n" + w.prefix(true) + f)
	w.marks = marks
	w.line(2)
}

// rows are the rows of a table that is one; of those that are made for the look of a
// page, or hold what no cell can, there are none.
func rows(table *html.Node) (rows []*html.Node) {
	if role := attr(table, "role"); role == "presentation" || role == "none" {
		return nil
	}
	wide := false
	take := func(tr *html.Node) bool {
		cells := 0
		for c := tr.FirstChild; c != nil; c = c.NextSibling {
			switch {
			case c.DataAtom == atom.Td || c.DataAtom == atom.Th:
				cells++
				if !simpleCell(c) {
					return false
				}
			case c.Type == html.ElementNode:
				return false
			}
		}
		wide = wide || cells > 1
		rows = append(rows, tr)
		return true
	}
	for c := table.FirstChild; c != nil; c = c.NextSibling {
		switch c.DataAtom {
		case atom.Tr:
			if !take(c) {
				return nil
			}
		case atom.Thead, atom.Tbody, atom.Tfoot:
			for tr := c.FirstChild; tr != nil; tr = tr.NextSibling {
				if tr.DataAtom == atom.Tr && !take(tr) {
					return nil
				}
			}
		}
	}
	if !wide || len(rows) < 2 {
		return nil
	}
	return rows
}

// simpleCell reports whether a cell is one line.
func simpleCell(cell *html.Node) bool {
	simple, blocks := true, 0
	walk(cell, func(n *html.Node) bool {
		switch n.DataAtom {
		case atom.Table, atom.Hr, atom.Ul, atom.Ol, atom.Dl, atom.Blockquote, atom.Pre, atom.Br, atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6:
			simple = false
		case atom.P, atom.Div:
			blocks++
		}
		simple = simple && blocks < 2
		return simple
	})
	return simple
}

func span(cell *html.Node, name string, most int) int {
	n, err := strconv.Atoi(attr(cell, name))
	if err != nil || n < 1 {
		return 1
	}
	return min(n, most)
}

func (w *writer) table(n *html.Node) {
	w.line(2)
	all := rows(n)
	if len(all) == 0 || w.heading || w.cell || w.linking || len(w.marks) > 0 {
		w.children(n) // a row a paragraph
		w.line(2)
		return
	}
	held := make([]int, maxSpan) // rows for which a cell above holds a column
	headed := first(all[0], atom.Th) != nil || all[0].Parent.DataAtom == atom.Thead
	for i, tr := range all {
		if w.done() {
			return
		}
		if i == 0 && !headed {
			columns := 0
			for c := tr.FirstChild; c != nil; c = c.NextSibling {
				if c.Type == html.ElementNode {
					columns += span(c, "colspan", maxSpan)
				}
			}
			w.rule(columns, "  |")
			w.rule(columns, "---|")
		}
		columns := w.row(tr, held)
		if i == 0 && headed {
			w.rule(columns, "---|")
		}
	}
	w.line(2)
	if caption := first(n, atom.Caption); caption != nil {
		w.children(caption)
		w.line(2)
	}
}

func (w *writer) rule(columns int, cell string) {
	w.line(1)
	w.start()
	w.put("|")
	for range columns {
		w.put(cell)
		if w.done() {
			return
		}
	}
	w.line(1)
}

// row writes one row and returns its columns.
func (w *writer) row(tr *html.Node, held []int) (columns int) {
	w.line(1)
	w.start()
	w.put("|")
	empty := func() {
		for columns < len(held) && held[columns] > 0 {
			held[columns]--
			w.put("  |")
			columns++
		}
	}
	w.cell = true
	for c := tr.FirstChild; c != nil && !w.done(); c = c.NextSibling {
		if c.Type != html.ElementNode {
			continue
		}
		empty()
		w.put(" ")
		w.blank, w.begun = false, false
		w.children(c)
		w.blank, w.begun = false, true
		w.put(" |")
		down := span(c, "rowspan", 1<<16) - 1
		for i := range span(c, "colspan", maxSpan) {
			if i > 0 {
				w.put("  |")
			}
			if columns < len(held) {
				held[columns] = down
			}
			columns++
		}
	}
	empty()
	w.cell = false
	w.line(1)
	return columns
}
