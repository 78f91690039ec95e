package engine

import (
	"bytes"
	"io"
	"strconv"
)

// leaver passes on what is typed until the keys that leave a console are among it: then
// its error is ErrLeft. What may be the beginning of them is held back until that is
// known, but for the part of a key that is in pieces.
//
// A program may have asked the terminal to write keys out, as xterm does for
// modifyOtherKeys and others by the kitty keyboard protocol: the keys are known in that
// writing, too.
type leaver struct {
	from io.Reader
	keys []byte
	// fallback is, of so many keys that were typed, how many of the last of these may
	// begin them anew.
	fallback []int
	held     [][]byte // as they came, those of the keys that were typed last

	buf     []byte
	partial []byte // of a key that is written out, passed on already
	kept    []byte // to be passed on
	end     error  // what comes after
}

func newLeaver(from io.Reader, keys []byte) *leaver {
	l := &leaver{from: from, keys: keys, fallback: make([]int, len(keys)+1), buf: make([]byte, 4096)}
	for i, k := 1, 0; i < len(keys); i++ {
		for k > 0 && keys[i] != keys[k] {
			k = l.fallback[k]
		}
		if keys[i] == keys[k] {
			k++
		}
		l.fallback[i+1] = k
	}
	return l
}

func (l *leaver) Read(b []byte) (int, error) {
	for len(l.kept) == 0 && l.end == nil {
		n, err := l.from.Read(l.buf)
		l.typed(l.buf[:n])
		if err != nil && l.end == nil {
			l.release(len(l.held))
			l.end = err
		}
	}
	if n := copy(b, l.kept); n > 0 {
		l.kept = l.kept[n:]
		return n, nil
	}
	return 0, l.end
}

// typed takes what was read at once.
func (l *leaver) typed(b []byte) {
	for len(b) > 0 && l.end == nil {
		whole := append(bytes.Clone(l.partial), b...)
		n, ended := written(whole)
		switch {
		case !ended: // the rest comes later: an Escape by itself must not wait for it
			for i, raw := range l.held { // these are no secret any more, and count all the same
				l.kept = append(l.kept, raw...)
				l.held[i] = nil
			}
			l.kept = append(l.kept, b...)
			if l.partial = whole; len(whole) > longestKey {
				l.partial = nil
			}
			return
		case n < len(l.partial): // it was none
			l.release(len(l.held))
			l.partial = nil
			continue
		}
		key, raw := whole[:n], b[:n-len(l.partial)]
		l.partial, b = nil, b[len(raw):]
		switch code, kind := decode(key); kind {
		case keyPressed:
			l.press(code, raw)
		case keyOther:
			l.release(len(l.held))
			l.kept = append(l.kept, raw...)
		case keyBeside:
			if n := len(l.held); n > 0 {
				l.held[n-1] = append(l.held[n-1], raw...)
			} else {
				l.kept = append(l.kept, raw...)
			}
		}
	}
}

// press takes one key that a byte stands for.
func (l *leaver) press(c byte, raw []byte) {
	for len(l.held) > 0 && l.keys[len(l.held)] != c {
		l.release(len(l.held) - l.fallback[len(l.held)])
	}
	if l.keys[len(l.held)] != c {
		l.kept = append(l.kept, raw...)
		return
	}
	if l.held = append(l.held, bytes.Clone(raw)); len(l.held) == len(l.keys) {
		l.end = ErrLeft
	}
}

// release passes on the first n keys that are held.
func (l *leaver) release(n int) {
	for _, raw := range l.held[:n] {
		l.kept = append(l.kept, raw...)
	}
	l.held = l.held[n:]
}

// longestKey is more than a key that is written out needs.
const longestKey = 64

// written is how many bytes of b are the first key, and whether all of that is there.
func written(b []byte) (n int, ended bool) {
	if b[0] != '\x1b' {
		return 1, true
	}
	switch {
	case len(b) == 1:
		return 1, false
	case b[1] != '[':
		return 1, true // an Escape, and another key
	}
	for i, c := range b[2:] {
		switch {
		case c >= 0x40 && c <= 0x7e:
			return i + 3, true
		case c < 0x20 || c > 0x7e:
			return 1, true // not written so by any terminal
		}
	}
	return len(b), false
}

// What a key is to who waits for others.
type keyKind int

const (
	keyOther   keyKind = iota // none that a byte stands for
	keyPressed                // one that a byte stands for
	keyBeside                 // let go, or one that only changes others
)

// Modifiers as terminals add them up, from 1 for none.
const (
	modShift = 1
	modCtrl  = 4
	modLocks = 64 | 128 // caps lock and num lock
)

// decode is the byte that a key stands for where it is not written out: of
// CSI 27;MODIFIERS;CODE~ (xterm) and CSI CODE;MODIFIERS:EVENT u (kitty, xterm).
func decode(key []byte) (byte, keyKind) {
	if len(key) == 1 {
		return key[0], keyPressed
	}
	fields := bytes.Split(key[2:len(key)-1], []byte(";"))
	var code, mods, event int
	switch last := key[len(key)-1]; {
	case last == 'u' && len(fields) >= 1:
		code, mods, event = number(fields[0], 0, 0), 1, 1
		if len(fields) > 1 {
			mods, event = number(fields[1], 0, 1), number(fields[1], 1, 1)
		}
	case last == '~' && len(fields) == 3 && number(fields[0], 0, 0) == 27:
		code, mods, event = number(fields[2], 0, 0), number(fields[1], 0, 1), 1
	default:
		return 0, keyOther
	}
	const (
		released                     = 3
		firstModifier, lastModifier  = 57441, 57454 // of Unicode's private use, by kitty
		capsLock, scrollLock, numKey = 57358, 57359, 57360
	)
	if event == released || code >= firstModifier && code <= lastModifier || code == capsLock || code == scrollLock || code == numKey {
		return 0, keyBeside
	}
	mods = (mods - 1) &^ modLocks
	letter := code >= 'a' && code <= 'z'
	switch {
	case code <= 0 || code > 0x7e:
		return 0, keyOther
	case mods == 0:
		return byte(code), keyPressed
	case mods == modShift && letter:
		return byte(code) - 'a' + 'A', keyPressed
	case mods&^modShift == modCtrl && (letter || code >= '@' && code <= '_'):
		return byte(code) & 0x1f, keyPressed
	}
	return 0, keyOther
}

// number is the nth of the numbers that colons part in a field, or what is meant where
// there is none.
func number(field []byte, n, missing int) int {
	parts := bytes.Split(field, []byte(":"))
	if n >= len(parts) || len(parts[n]) == 0 {
		return missing
	}
	v, err := strconv.Atoi(string(parts[n]))
	if err != nil {
		return -1
	}
	return v
}
