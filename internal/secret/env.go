package secret

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/printable"
)

const (
	// maxBytes bounds a file: it holds keys, not data.
	maxBytes = 1 << 20
	// maxVar bounds NAME=VALUE: with its ending NUL, no program can be given more
	// (MAX_ARG_STRLEN of the kernel).
	maxVar = 128<<10 - 1
	// maxPrinted bounds the mistakes that are told of one file.
	maxPrinted = 100
)

// Var is one variable of the environment.
type Var struct {
	Name  string
	Value Secret
}

// fault is what a line can have wrong. Its words are all that is ever said of
// a line: what looks like a name may be a value in the wrong place.
type fault struct{ what, hint string }

var (
	notUTF8  = fault{"not UTF-8", "save the file as UTF-8"}
	control  = fault{"a control character or another line's end", "one NAME=VALUE a line, which ends with LF or CRLF; only a value in quotes has tabs"}
	indented = fault{"a blank before the name", "start the line with the name"}
	noEquals = fault{"no =", "one NAME=VALUE a line; a value has one line"}
	spaced   = fault{"a blank beside the =", "write NAME=VALUE without blanks, or the value in quotes if they are part of it"}
	badName  = fault{"what stands before the = is not a name", "letters, digits and underscores, no digit first"}
	tooLong  = fault{"longer than a variable of the environment can be", "128 KiB at most, the name included"}
	hash     = fault{"a # at the start of a value or after a blank, in a value without quotes", "put the value in single quotes if the # is part of it, and a comment on a line of its own"}
	trailing = fault{"a blank at the end of a value without quotes", "take it away, or put the value in quotes if it is part of it"}
	joins    = fault{"a backslash at the end of a line", "a value has one line; put it in single quotes if the backslash is part of it"}
	open     = fault{"a quote that does not end on its line", "a value has one line; one that starts with a quote needs the other quotes around it"}
	after    = fault{"something after the closing quote", "quotes go around the whole value; a comment has a line of its own"}
	inside   = fault{"the quote of the value is also inside it", "put the other quotes around the value"}
	escape   = fault{"a backslash in double quotes, which some readers take for an escape", "put the value in single quotes: there it is a backslash"}
	repeated = fault{"the same name as in line", "keep one of them"}
	reserved = fault{"a name that is not for secrets:", "take it away, or choose another name"}
	noLimit  = fault{"a GOMEMLIMIT that Go cannot read: no program of Go's would start, the checker neither", "write a whole number and GiB, MiB, KiB or B, or off"}
	tooMuch  = fault{"the file is longer than 1 MiB", "it holds keys, not data"}
)

// others are the names that corral or its programs inside depend on. One that
// ends in * stands for all that begin so.
var others = []struct{ name, reason string }{
	{"HOME", "corral sets it, and looks there for credentials that must not be there"},
	{"USER", "corral sets it"},
	{"PATH", "corral finds the harness by it, and looks along it for programs that change users"},
	{"CORRAL_*", "corral speaks to its own programs by these"},
	{"TINI_*", "the first process of a container obeys these"},
	{"GODEBUG", "it changes how the checker works, which proves the fence"},
	{"LD_*", "they put code into every program that starts"},
}

func taken(name string) (row string, found bool) {
	for _, o := range others {
		prefix, all := strings.CutSuffix(o.name, "*")
		if name == o.name || all && strings.HasPrefix(name, prefix) {
			return o.name + ": " + o.reason, true
		}
	}
	return "", false
}

var nameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Parse reads variables in the order written. The file is UTF-8, 1 MiB at
// most, a byte order mark at its start skipped; its lines end with LF or CRLF.
//
//	line  = "" | blanks | [blanks] "#" anything | ["export "] NAME "=" value
//	NAME  = [A-Za-z_][A-Za-z0-9_]*
//	value = bare | "'" without ' "'" | '"' without " or \ '"'
//
// Every value is byte for byte what is written, less the quotes around it:
// there are no escapes, no interpolation and no comments behind a value, and
// $, =, \, quotes and # may be anywhere in a bare one. What readers of such
// files understand differently is a mistake: in double quotes, a backslash; in
// a bare value, a blank at either end, a # at the start or after a blank, a
// backslash at the end; after quotes, anything. So are a name written twice, a
// name that corral depends on, a GOMEMLIMIT with which no Go program starts, and
// control characters but a tab in quotes.
//
// The error is an *exit.Error with all mistakes in order of line, which holds
// nothing of the file but its name and numbers of lines.
func Parse(file string, src []byte) ([]Var, error) {
	var (
		vars     []Var
		mistakes []mistake
		seen     = map[string]int{}
	)
	if len(src) > maxBytes {
		return nil, tell(file, []mistake{{fault: tooMuch}})
	}
	n := 0
	for line := range bytes.Lines(bytes.TrimPrefix(src, []byte("\ufeff"))) {
		n++
		v, wrong := parseLine(text(line))
		if v.Name != "" {
			if first, again := seen[v.Name]; again && wrong == nil {
				wrong = &mistake{fault: repeated, detail: fmt.Sprint(first)}
			} else if !again {
				seen[v.Name] = n
			}
		}
		if wrong != nil {
			wrong.line = n
			mistakes = append(mistakes, *wrong)
		} else if v.Name != "" {
			vars = append(vars, v)
		}
	}
	if len(mistakes) > 0 {
		return nil, tell(file, mistakes)
	}
	return vars, nil
}

// text is a line without its end.
func text(line []byte) string {
	s, ended := strings.CutSuffix(string(line), "\n")
	if ended {
		s = strings.TrimSuffix(s, "\r")
	}
	return s
}

// parseLine reads one line. A line without a variable has no name; one whose
// value is wrong has.
func parseLine(line string) (Var, *mistake) {
	switch {
	case !utf8.ValidString(line):
		return Var{}, &mistake{fault: notUTF8}
	case strings.ContainsFunc(line, func(r rune) bool { return r != '\t' && endsOrControls(r) }):
		return Var{}, &mistake{fault: control}
	}
	if written := strings.TrimLeft(line, " \t"); written == "" || written[0] == '#' {
		return Var{}, nil
	}
	name, value, found := strings.Cut(strings.TrimPrefix(line, "export "), "=")
	switch row, is := taken(name); {
	case !found:
		return Var{}, &mistake{fault: noEquals}
	case strings.TrimLeftFunc(name, blank) != name:
		return Var{}, &mistake{fault: indented}
	case strings.TrimRightFunc(name, blank) != name:
		return Var{}, &mistake{fault: spaced}
	case !nameForm.MatchString(name):
		return Var{}, &mistake{fault: badName}
	case is:
		return Var{}, &mistake{fault: reserved, detail: row}
	}
	value, wrong := unquote(value)
	if wrong == nil && len(name)+1+len(value) > maxVar {
		wrong = &mistake{fault: tooLong}
	}
	if wrong == nil && name == "GOMEMLIMIT" && !memoryLimit(value) {
		wrong = &mistake{fault: noLimit}
	}
	return Var{name, New(value)}, wrong
}

var limitForm = regexp.MustCompile(`^([0-9]+)(B|KiB|MiB|GiB|TiB|)$`)

// memoryLimit reports whether Go starts with a value as its limit: it is a number of
// bytes that an int64 holds.
func memoryLimit(value string) bool {
	if value == "" || value == "off" {
		return true
	}
	m := limitForm.FindStringSubmatch(value)
	if m == nil {
		return false
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	unit := map[string]uint{"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}[m[2]]
	return err == nil && n <= math.MaxInt64>>unit
}

// unquote is what a value as written stands for.
func unquote(s string) (string, *mistake) {
	if s == "" {
		return "", nil
	}
	if quote := s[:1]; quote == `'` || quote == `"` {
		value, rest, found := strings.Cut(s[1:], quote)
		switch {
		case quote == `"` && strings.Contains(s, `\`):
			return "", &mistake{fault: escape}
		case !found:
			return "", &mistake{fault: open}
		case strings.HasSuffix(rest, quote):
			return "", &mistake{fault: inside}
		case rest != "":
			return "", &mistake{fault: after}
		}
		return value, nil
	}
	switch {
	case strings.TrimLeftFunc(s, blank) != s:
		return "", &mistake{fault: spaced}
	case strings.TrimRightFunc(s, blank) != s:
		return "", &mistake{fault: trailing}
	case strings.Contains(s, "\t"):
		return "", &mistake{fault: control}
	case comment(s):
		return "", &mistake{fault: hash}
	case strings.HasSuffix(s, `\`):
		return "", &mistake{fault: joins}
	}
	return s, nil
}

// endsOrControls reports control characters, and the separators of Unicode that
// some readers end a line at.
func endsOrControls(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }

// blank is every character that some reader trims.
func blank(r rune) bool { return unicode.IsSpace(r) || r == '\ufeff' }

// comment reports whether a bare value has a # that is not joined to what
// stands before it: there, many readers see a comment begin.
func comment(s string) bool {
	before := ' '
	for _, r := range s {
		if r == '#' && blank(before) {
			return true
		}
		before = r
	}
	return false
}

type mistake struct {
	fault
	line   int    // 0: the whole file
	detail string // ours, never the file's
}

func (m mistake) String() string {
	s := m.what
	if m.detail != "" {
		s += " " + m.detail
	}
	if m.line > 0 {
		s = fmt.Sprintf("line %d: %s", m.line, s)
	}
	return s
}

// tell makes one error of at least one mistake.
func tell(file string, all []mistake) error {
	var lines, hints []string
	for i, m := range all {
		if i == maxPrinted {
			lines = append(lines, fmt.Sprintf("and %d more", len(all)-i))
			break
		}
		lines = append(lines, m.String())
		if !slices.Contains(hints, m.hint) {
			hints = append(hints, m.hint)
		}
	}
	between := " "
	if len(lines) > 1 {
		between = "\n  "
	}
	return &exit.Error{
		Status: exit.Invalid,
		Err:    errors.New("secrets file " + printable.Escape(file) + ":" + between + strings.Join(lines, "\n  ")),
		Hint:   strings.Join(hints, "; "),
	}
}

// Load reads the file at path, whose directories are resolved already, once:
// a regular file of one of the owners that nobody else can write, no link
// followed, no FIFO waited for. Without owners, nobody's will do.
func Load(path string, owners ...uint32) ([]Var, error) {
	shown := printable.Escape(path)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, exit.Invalidf("make it, with chmod 600, or name another one", "secrets file %s: there is no such file", shown)
	case errors.Is(err, unix.ELOOP):
		return nil, exit.Invalidf("name the file itself", "secrets file %s: a symbolic link, not a regular file", shown)
	case errors.Is(err, unix.ENXIO): // of a socket
		return nil, irregular(shown)
	case err != nil:
		return nil, exit.Invalidf("", "secrets file %s: %w", shown, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, exit.Invalidf("", "secrets file %s: %w", shown, cause(err))
	}
	st := fi.Sys().(*syscall.Stat_t)
	switch {
	case !fi.Mode().IsRegular():
		return nil, irregular(shown)
	case !slices.Contains(owners, st.Uid):
		return nil, exit.Invalidf("keep secrets in a file of your own", "secrets file %s: it belongs to uid %d, who is somebody else", shown, st.Uid)
	case writable(st):
		return nil, exit.Invalidf(fmt.Sprintf("chmod 600 %q", path), "secrets file %s: it is writable by others (mode %04o)", shown, st.Mode&0o777)
	}
	// One byte more than is accepted, so that too much is seen as such.
	src, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, exit.Failedf("", "secrets file %s: %w", shown, cause(err))
	}
	return Parse(path, src)
}

func irregular(shown string) error {
	return exit.Invalidf("keep secrets in a file", "secrets file %s: not a regular file", shown)
}

// writable reports whether somebody else than the owner can write. A group of
// the owner's own number is theirs alone, as distributions make them.
func writable(st *syscall.Stat_t) bool {
	return st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && st.Gid != st.Uid
}

// cause is err without the path, which was said already.
func cause(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
