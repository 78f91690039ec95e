package policy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/spelling"
)

const (
	maxBytes    = 1 << 20     // a policy is read by people
	maxDepth    = 16          // the schema needs 5
	maxKeys     = 64          // of one mapping: the schema needs 14
	maxEntries  = 5000        // of one list: longer than any that is meant, and quick to read
	maxMounts   = 1000        // of one list: each is looked up here, and bound at every start
	maxPrefixes = 256         // of one name: each is compared with every other
	maxText     = 4096        // bytes of a string: nothing that is named is longer than a path
	maxCommand  = 128<<10 - 1 // bytes of a command: Linux takes no longer argument (MAX_ARG_STRLEN)
	maxShown    = 400         // bytes of what a message repeats: a legal name still fits, quoted
	maxHint     = 1000        // bytes of a hint: a longer one helps nobody
	maxMistakes = 1000        // ten times what is printed: further ones cost time and tell nothing

	kind = "policy error"
)

// decoder turns YAML nodes into values and collects every mistake.
type decoder struct {
	file   string
	lines  []string
	marked map[int]bool // lines with a !
	errs   diag.List
	kept   struct { // of line
		n     int
		runes []rune
	}

	origins map[string]diag.Pos // of keys outside of lists, by their path
	onTable func(path string, keys []key)

	// Where values stand that are judged after decoding.
	profileNode *yaml.Node
	mountKeys   []string // of each mount, like mounts.rw[0]
}

// key is one word of a mapping. Without a reader it is not in this version.
type key struct {
	name string
	read func(n *yaml.Node)
}

func newDecoder(file string, src []byte) *decoder {
	lines := strings.Split(strings.TrimPrefix(string(src), "\ufeff"), "\n")
	marked := map[int]bool{}
	for i, l := range lines {
		lines[i] = strings.TrimSuffix(l, "\r")
		if strings.Contains(l, "!") {
			marked[i+1] = true
		}
	}
	return &decoder{file: file, lines: lines, marked: marked, origins: map[string]diag.Pos{}, onTable: func(string, []key) {}}
}

func (d *decoder) pos(n *yaml.Node) diag.Pos {
	return diag.Pos{File: d.file, Line: n.Line, Col: n.Column}
}

func (d *decoder) errorf(n *yaml.Node, hint, format string, args ...any) {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = clip(s)
		}
	}
	d.report(d.pos(n), hint, fmt.Sprintf(format, args...))
}

// clip is s, or the start of a long one.
func clip(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown/4], "") + "..."
}

// full reports whether there are mistakes enough.
func (d *decoder) full() bool { return len(d.errs) >= maxMistakes }

func (d *decoder) report(at diag.Pos, hint, message string) {
	if len(hint) > maxHint {
		hint = ""
	}
	e := diag.Diagnostic{Pos: at, Kind: kind, Message: message, Hint: hint}
	if at.Line > 0 && at.Line <= len(d.lines) {
		e.Source = d.lines[at.Line-1]
	}
	d.errs = append(d.errs, e)
}

// line is the text of a line, in the runes that columns count.
func (d *decoder) line(n int) []rune {
	if n < 1 || n > len(d.lines) {
		return nil
	}
	if d.kept.n != n { // a line can be as long as the file and full of nodes
		d.kept.n, d.kept.runes = n, []rune(d.lines[n-1])
	}
	return d.kept.runes
}

// document is the root node of src, nil if there is none to decode. Mistakes
// of the text and of YAML itself end here, since nothing after them can be
// placed.
func (d *decoder) document(src []byte) *yaml.Node {
	if len(src) > maxBytes {
		d.report(diag.Pos{File: d.file}, "", fmt.Sprintf("the file has %d bytes, a policy has at most %d", len(src), maxBytes))
		return nil
	}
	if !d.legible(src) {
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(src), yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(maxDepth))))
	if err != nil {
		panic(err) // the options are ours
	}
	var doc, next yaml.Node
	switch err := loader.Load(&doc); {
	case errors.Is(err, io.EOF):
		d.report(diag.Pos{File: d.file, Line: 1, Col: 1}, "remove it: corral init --profile shell writes one to start from", "the policy is empty")
		return nil
	case err != nil:
		d.syntax(err)
		return nil
	}
	switch err := loader.Load(&next); {
	case errors.Is(err, io.EOF):
	case err != nil:
		d.syntax(err)
		return nil
	default:
		d.errorf(&next, "", "a second document: a policy is one")
	}
	root := doc.Content[0]
	d.plain(root)
	return root
}

// legible refuses what a reader would not see as it is decoded: bytes that are
// not UTF-8, control and direction characters, and line ends that editors and
// YAML count differently.
func (d *decoder) legible(src []byte) bool {
	line, col := 1, 0
	for i, size := 0, 0; i < len(src); i += size {
		var r rune
		r, size = utf8.DecodeRune(src[i:])
		col++
		var message string
		switch {
		case r == utf8.RuneError && size == 1:
			message = fmt.Sprintf("byte 0x%02x: the file is not UTF-8 text", src[i])
		case r == '\n':
			line, col = line+1, 0
		case i == 0 && r == '\ufeff': // a byte order mark
			col = 0
		case r == '\t', r == '\r' && bytes.HasPrefix(src[i+1:], []byte("\n")):
		case unicode.IsControl(r), r == '\u2028', r == '\u2029', r == '\ufeff', unicode.Is(unicode.Bidi_Control, r):
			message = fmt.Sprintf("character U+%04X does not belong in a policy", r)
		}
		if message != "" {
			d.report(diag.Pos{File: d.file, Line: line, Col: col}, "", message)
			return false
		}
	}
	return true
}

// syntax places what the YAML library says.
func (d *decoder) syntax(err error) {
	var e *yaml.LoadError
	if !errors.As(err, &e) {
		d.report(diag.Pos{File: d.file}, "", "not YAML: "+err.Error())
		return
	}
	place := diag.Pos{File: d.file, Line: e.Mark.Line, Col: e.Mark.Column}
	if strings.HasPrefix(e.Message, "exceeded max depth") {
		d.report(place, "", fmt.Sprintf("nested too deep: a policy has at most %d levels", maxDepth))
		return
	}
	message, hint := e.Message, ""
	if e.ContextMsg != "" {
		message += " " + e.ContextMsg
		if e.ContextMark.Line != e.Mark.Line {
			message += fmt.Sprintf(" that starts in line %d", e.ContextMark.Line)
		}
	}
	line := d.line(place.Line)
	indent := slices.IndexFunc(line, func(r rune) bool { return r != ' ' && r != '\t' })
	if indent < 0 {
		indent = len(line)
	}
	if tab := slices.Index(line, '\t'); tab >= 0 && tab < indent && place.Col <= indent+1 {
		place.Col = tab + 1
		d.report(place, "indent with spaces", "a tab indents this line: YAML knows spaces only")
		return
	}
	first := at(line, place.Col)
	switch {
	case strings.HasPrefix(e.Message, "mapping values"):
		hint = `a value that holds ": " is written in quotes; a key is indented like its neighbours`
	case strings.HasPrefix(e.Message, "found incompatible YAML"):
		hint = "remove the line"
	case first == '-' && d.closed(place.Line):
		hint = "[] is a whole list: remove it where lines with a dash follow"
	case strings.ContainsRune("@`%", first):
		hint = fmt.Sprintf("a value that starts with %c is written in quotes", first)
	}
	d.report(place, hint, "not YAML: "+message)
}

// closed reports whether what stands before a line, comments aside, is an empty list.
func (d *decoder) closed(line int) bool {
	for line--; line > 0; line-- {
		text, _, _ := strings.Cut(string(d.line(line)), "#")
		if text = strings.TrimSpace(text); text != "" {
			return strings.HasSuffix(text, "[]")
		}
	}
	return false
}

// at is the rune in a column, 0 outside the line.
func at(line []rune, col int) rune {
	if col < 1 || col > len(line) {
		return 0
	}
	return line[col-1]
}

// plain refuses what makes a YAML text mean something else than it shows:
// anchors, aliases, merge keys and tags, anywhere.
func (d *decoder) plain(n *yaml.Node) {
	if n.Anchor != "" {
		d.errorf(n, "write the value out", "anchor &%s: a policy has no anchors", n.Anchor)
	}
	// The library keeps no trace of the tag !, but a plain value cannot start so.
	if n.Style&yaml.TaggedStyle != 0 || d.marked[n.Line] && at(d.line(n.Line), n.Column) == '!' {
		d.errorf(n, "remove it; a string is written in quotes", "tag %s: a policy has no tags", n.Tag)
	}
	if n.Kind == yaml.AliasNode {
		d.errorf(n, "write the value out", "alias *%s: a policy has no aliases", n.Value)
		return
	}
	for i, c := range n.Content {
		if d.full() {
			return
		}
		if n.Kind == yaml.MappingNode && i%2 == 0 && c.Tag == "!!merge" {
			d.errorf(c, "write the entries out", "<<: a policy has no merge keys")
		}
		d.plain(c)
	}
}

// is reports whether n is of that kind, and complains if not. What plain has
// refused is not complained about again.
func (d *decoder) is(n *yaml.Node, path, want string, kind yaml.Kind) bool {
	switch {
	case n.Kind == yaml.AliasNode || n.Style&yaml.TaggedStyle != 0:
		return false
	case n.Kind == kind && !null(n):
		return true
	case path == "":
		hint := ""
		if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, ":") {
			hint = "a key has a colon and a blank after it"
		}
		d.errorf(n, hint, "the policy must be %s, this is %s", want, describe(n))
	case null(n) && n.Value == "":
		d.errorf(n, "give it one or remove it", "%s has no value: it must be %s", path, want)
	default:
		d.errorf(n, meant(n, path, want), "%s must be %s, this is %s", path, want, describe(n))
	}
	return false
}

// meant is what somebody most likely wanted to write.
func meant(n *yaml.Node, path, want string) string {
	switch {
	case path == "host_services" && n.Kind == yaml.ScalarNode:
		return "write [{name: NAME, port: PORT}]"
	case strings.HasSuffix(path, ".command") && n.Kind == yaml.ScalarNode:
		return "write every word as an entry of its own, like [sh, -c, ls]"
	case want == "a string" && n.Kind == yaml.MappingNode && n.Style&yaml.FlowStyle == 0:
		return `a string that holds ": " is written in quotes`
	case want != "a list" || n.Kind != yaml.ScalarNode || null(n) || n.Value == "" || len(n.Value) > 60 || strings.ContainsAny(n.Value, "\n\""):
		return ""
	case n.Style == 0 && strings.HasPrefix(n.Value, "-"):
		return "the dash of an entry has a blank after it"
	case n.Style == 0 && !strings.ContainsAny(n.Value, " ,:#[]{}&*!|>'%@`"):
		return "write [" + n.Value + "]"
	}
	return fmt.Sprintf("write [%q]", n.Value)
}

func null(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		return "a string"
	case n.Tag == "!!null":
		return "null"
	case n.Tag == "!!bool":
		return "a boolean"
	case n.Tag == "!!int", n.Tag == "!!float":
		return "a number"
	case n.Tag == "!!timestamp":
		return "a date"
	}
	return "a string"
}

// mapping reads the keys of n, each at most once, and returns those it met,
// mistyped ones under the name that was meant.
func (d *decoder) mapping(n *yaml.Node, path string, keys ...key) (met map[string]bool) {
	met = map[string]bool{}
	if !d.is(n, path, "a mapping", yaml.MappingNode) {
		return met
	}
	d.onTable(path, keys)
	for i := 0; i < len(n.Content) && !d.full(); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if i == 2*maxKeys {
			d.errorf(k, "", "%s has %d keys, at most %d are read", cmp.Or(path, "the policy"), len(n.Content)/2, maxKeys)
			return met
		}
		if k.Tag == "!!merge" || k.Kind == yaml.AliasNode {
			continue
		}
		if k.Kind != yaml.ScalarNode {
			d.errorf(k, "", "a key must be a word, this is %s", describe(k))
			continue
		}
		if f := earlier(n, i); f != nil {
			d.errorf(k, "keep one of the two", "duplicate key %q: it is first in line %d", k.Value, f.Line)
			continue
		}
		at := slices.IndexFunc(keys, func(c key) bool { return c.name == k.Value })
		switch {
		case at < 0:
			met[d.unknown(k, path, keys)] = true
		case keys[at].read == nil:
			d.errorf(k, "remove it", "%s is not in this version", join(path, k.Value))
		default:
			met[k.Value] = true
			if !null(v) && !strings.Contains(path, "[") {
				d.origins[join(path, k.Value)] = d.pos(k)
			}
			keys[at].read(v)
		}
	}
	return met
}

// earlier is the first key of a mapping that is spelled as the one at i, nil if
// that is it.
func earlier(n *yaml.Node, i int) *yaml.Node {
	for j := 0; j < i; j += 2 {
		if k := n.Content[j]; k.Kind == yaml.ScalarNode && k.Tag != "!!merge" && k.Value == n.Content[i].Value {
			return k
		}
	}
	return nil
}

// unknown complains about k and returns the key that was meant, if any.
func (d *decoder) unknown(k *yaml.Node, path string, keys []key) (meant string) {
	where := ""
	if path != "" {
		where = " in " + path
	}
	var names, now []string
	for _, c := range keys {
		names = append(names, c.name)
		if c.read != nil {
			now = append(now, c.name)
		}
	}
	hint := "there is " + strings.Join(now, ", ")
	if meant = spelling.Nearest(k.Value, names); meant != "" {
		hint = fmt.Sprintf("did you mean %q?", meant)
	}
	d.errorf(k, hint, "unknown key %q%s", k.Value, where)
	return meant
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// list reads every entry of n, of which there are at most so many, with the
// entry's own path.
func (d *decoder) list(n *yaml.Node, path string, most int, read func(n *yaml.Node, path string)) {
	if !d.is(n, path, "a list", yaml.SequenceNode) {
		return
	}
	for i, c := range n.Content {
		if d.full() {
			return
		}
		if i == most {
			d.errorf(c, "", "%s has %d entries, at most %d are read", path, len(n.Content), most)
			return
		}
		read(c, path+"["+strconv.Itoa(i)+"]")
	}
}

// bare are the strings that other readers of YAML take for a boolean.
var bare = []string{"yes", "no", "on", "off"}

// text is a string that every reader of YAML takes for one.
func (d *decoder) text(n *yaml.Node, path string) (string, bool) { return d.string(n, path, maxText) }

// string is a text of at most so many bytes.
func (d *decoder) string(n *yaml.Node, path string, most int) (string, bool) {
	if n.Kind == yaml.ScalarNode && n.Style == 0 && n.Value != "" && describe(n) != "a string" {
		d.errorf(n, quoted(n, path), "%s must be a string: bare %s is %s", path, n.Value, describe(n))
		return "", false
	}
	if !d.is(n, path, "a string", yaml.ScalarNode) {
		return "", false
	}
	if n.Style == 0 && slices.Contains(bare, strings.ToLower(n.Value)) {
		d.errorf(n, quoted(n, path), "%s must be a string: bare %s is a boolean to some readers of YAML", path, n.Value)
		return "", false
	}
	if len(n.Value) > most {
		d.errorf(n, "", "%s has %d bytes, at most %d are read", path, len(n.Value), most)
		return "", false
	}
	return n.Value, true
}

// quoted shows how the bare word is written as a string.
func quoted(n *yaml.Node, path string) string {
	if strings.HasSuffix(path, "]") {
		return fmt.Sprintf("write %q", n.Value)
	}
	return fmt.Sprintf("write %s: %q", path[strings.LastIndexByte(path, '.')+1:], n.Value)
}

// otherWord is what a key has for another key's word.
var otherWord = map[string]string{"rw": "writable", "writable": "rw"}

// oneOf is the index of the word in words, -1 after a complaint.
func (d *decoder) oneOf(n *yaml.Node, path string, words ...string) int {
	s, ok := d.text(n, path)
	if !ok {
		return -1
	}
	i := slices.Index(words, s)
	if i < 0 {
		hint, meant := "", spelling.Nearest(s, words)
		if w := otherWord[s]; slices.Contains(words, w) {
			meant = w
		}
		if meant != "" {
			hint = fmt.Sprintf("did you mean %q?", meant)
		}
		d.errorf(n, hint, "%s must be %s, not %q", path, strings.Join(words, " or "), s)
	}
	return i
}

// boolean is true or false, spelled so.
func (d *decoder) boolean(n *yaml.Node, path string) (value, ok bool) {
	if n.Kind == yaml.ScalarNode && n.Style == 0 && (n.Value == "true" || n.Value == "false") {
		return n.Value == "true", true
	}
	if !d.is(n, path, "true or false", yaml.ScalarNode) {
		return false, false
	}
	hint := ""
	switch strings.ToLower(n.Value) {
	case "y", "yes", "on", "true":
		hint = "write true"
	case "n", "no", "off", "false":
		hint = "write false"
	}
	d.errorf(n, hint, "%s must be true or false, this is %s", path, shown(n))
	return false, false
}

// shown is a scalar as its author wrote it, quotes included.
func shown(n *yaml.Node) string {
	if n.Style == 0 {
		return clip(n.Value)
	}
	return fmt.Sprintf("%q", clip(n.Value))
}
