package engine

import (
	"bytes"
	"io"
	"strconv"
	"strings"
)

// leaver passes on what is typed until the keys that leave a console are among it: then
// its error is ErrLeft. What may be the beginning of them is held back until that is
// known.
//
// A program inside can make a terminal send keys as sequences (modifyOtherKeys, the
// keyboard protocol of kitty): the keys are looked for among the bytes, and among the
// keys that these stand for.
type leaver struct {
	from  io.Reader
	bytes matcher
	keys  matcher

	buf  []byte
	kept []byte // to be passed on
	end  error  // what comes after

	typed   []byte // what was typed last and is not kept
	at      int    // how much was typed before that
	pending []byte // what was typed last and may be the beginning of a sequence
}

func newLeaver(from io.Reader, keys []byte) *leaver {
	return &leaver{from: from, bytes: newMatcher(keys), keys: newMatcher(keys), buf: make([]byte, 4096)}
}

func (l *leaver) Read(b []byte) (int, error) {
	for len(l.kept) == 0 && l.end == nil {
		n, err := l.from.Read(l.buf)
		for _, c := range l.buf[:n] {
			if begin, left := l.take(c); left {
				l.pass(begin)
				l.end = ErrLeft
				break
			}
		}
		switch now := l.at + len(l.typed); {
		case l.end != nil:
		case err != nil:
			l.pass(now)
			l.end = err
		case string(l.pending) == "\x1b":
			// The key of that name is for the program, at once. If more comes, it is looked
			// at as if it had been held back.
			l.pass(l.bytes.begin(now))
		default:
			l.pass(min(l.bytes.begin(now), l.keys.begin(now), now-len(l.pending)))
		}
	}
	if n := copy(b, l.kept); n > 0 {
		l.kept = l.kept[n:]
		return n, nil
	}
	return 0, l.end
}

// pass keeps, to be passed on, what was typed before a place, unless it was already.
func (l *leaver) pass(place int) {
	if n := place - l.at; n > 0 {
		l.kept, l.typed, l.at = append(l.kept, l.typed[:n]...), l.typed[n:], place
	}
}

// take takes one byte. If that completes the keys, it says where they begin.
func (l *leaver) take(c byte) (begin int, left bool) {
	place := l.at + len(l.typed)
	l.typed = append(l.typed, c)
	if begin, left := l.bytes.take(int(c), place); left {
		return begin, true
	}
	start := place - len(l.pending)
	switch n := len(l.pending); {
	case n == 1 && c == '[', n > 1 && n < longestKey && c >= ' ' && c < '@':
		l.pending = append(l.pending, c)
		return 0, false
	case n > 1 && n < longestKey && c >= '@' && c <= '~':
		what := meant(string(append(l.pending, c)))
		l.pending = nil
		return l.keys.take(what, start)
	case n > 0: // it was none
		l.pending = nil
		l.keys.take(another, start)
	}
	if c == '\x1b' {
		l.pending = []byte{c}
		return 0, false
	}
	return l.keys.take(int(c), place)
}

// longestKey bounds what is held back of a sequence that does not end.
const longestKey = 64

// What is no byte that a key is typed as.
const (
	another = -1 // another key
	nothing = -2 // no key: one that is released, that changes others, an answer of the terminal
)

// matcher looks for keys among what is typed.
type matcher struct {
	keys []byte
	// fallback is, of so many keys that were typed, how many of the last of these may
	// begin them anew.
	fallback []int
	starts   []int // where each of the keys that were typed last begins
}

func newMatcher(keys []byte) matcher {
	m := matcher{keys: keys, fallback: make([]int, len(keys)+1)}
	for i, k := 1, 0; i < len(keys); i++ {
		for k > 0 && keys[i] != keys[k] {
			k = m.fallback[k]
		}
		if keys[i] == keys[k] {
			k++
		}
		m.fallback[i+1] = k
	}
	return m
}

// begin is where the keys may have begun, now if they have not.
func (m *matcher) begin(now int) int {
	if len(m.starts) == 0 {
		return now
	}
	return m.starts[0]
}

// take takes what was typed at a place. If that completes the keys, it says where they
// begin.
func (m *matcher) take(what, place int) (begin int, left bool) {
	if what == nothing {
		return 0, false
	}
	for n := len(m.starts); n > 0 && int(m.keys[n]) != what; n = len(m.starts) {
		m.starts = m.starts[n-m.fallback[n]:]
	}
	if int(m.keys[len(m.starts)]) == what {
		m.starts = append(m.starts, place)
	}
	if len(m.starts) < len(m.keys) {
		return 0, false
	}
	return m.starts[0], true
}

// Modifiers of a key, as terminals send them: less one.
const (
	shift = 1
	ctrl  = 4
	locks = 64 | 128 // caps and num
)

// meant is the byte that a key is typed as, where the terminal sent a control sequence
// for it; else it is another key, or nothing.
func meant(sequence string) int {
	body, final := sequence[2:len(sequence)-1], sequence[len(sequence)-1]
	if body != "" && strings.ContainsRune("<=>?", rune(body[0])) || bytes.IndexByte([]byte("IORcnty"), final) >= 0 {
		return nothing
	}
	var fields [3][]int
	for i, field := range strings.Split(body, ";") {
		if i == len(fields) {
			return another
		}
		for number := range strings.SplitSeq(field, ":") {
			n, err := strconv.Atoi(number)
			if err != nil {
				n = -1
			}
			fields[i] = append(fields[i], n)
		}
	}
	part := func(field, i, otherwise int) int {
		if i < len(fields[field]) && fields[field][i] >= 0 {
			return fields[field][i]
		}
		return otherwise
	}
	switch final {
	case 'u': // code:shifted:base;modifiers:event;text
		const release = 3
		code, modifiers := part(0, 0, another), part(1, 0, 1)
		if part(1, 1, 1) == release || changes(code) {
			return nothing
		}
		if code > '~'+1 { // a key of another script
			code = part(0, 2, code)
		}
		if text := part(2, 0, 0); text > 0 && len(fields[2]) == 1 && (modifiers-1)&ctrl == 0 {
			return typedAs(text, text, modifiers)
		}
		return typedAs(code, part(0, 1, 0), modifiers)
	case '~': // 27;modifiers;code
		if code := part(2, 0, another); part(0, 0, 0) == '\x1b' {
			return typedAs(code, code, part(1, 0, 1))
		}
	}
	return another
}

// changes says of a key of kitty's protocol whether it only changes what others do:
// shift, the locks and so on.
func changes(code int) bool { return code >= 57441 && code <= 57454 || code >= 57358 && code <= 57360 }

// typedAs is the byte that a key with modifiers is typed as. shifted is the one it is
// with shift, 0 if that is not known.
func typedAs(code, shifted, modifiers int) int {
	with := (modifiers - 1) &^ locks
	if modifiers < 1 || with&^(shift|ctrl) != 0 || code < 0 || code > '~'+1 {
		return another
	}
	letter := code >= 'a' && code <= 'z' || code >= 'A' && code <= 'Z'
	if with&shift != 0 {
		switch {
		case shifted > 0 && shifted <= '~':
			code = shifted
		case letter:
			code &^= ' '
		case with&ctrl == 0:
			return another // that depends on the keyboard
		}
	}
	if with&ctrl == 0 {
		return code
	}
	switch {
	case code >= '@' && code <= '_' || letter:
		return code & 0x1f
	case code == ' ' || code == '2':
		return 0
	case code >= '3' && code <= '7':
		return code - '3' + 0x1b
	case code == '/' || code == '-':
		return 0x1f
	case code == '8' || code == '?':
		return 0x7f
	}
	return another
}
