package engine

import "io"

// leaver passes on what is typed until the keys that leave a console are among it: then
// its error is ErrLeft. What may be the beginning of them is held back until that is
// known.
type leaver struct {
	from io.Reader
	keys []byte
	// fallback is, of so many keys that were typed, how many of the last of these may
	// begin them anew.
	fallback []int
	held     int // so many of the keys were typed last

	buf  []byte
	kept []byte // to be passed on
	end  error  // what comes after
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
		for _, c := range l.buf[:n] {
			if l.typed(c); l.held == len(l.keys) {
				l.end = ErrLeft
				break
			}
		}
		if err != nil && l.end == nil {
			l.kept, l.held, l.end = append(l.kept, l.keys[:l.held]...), 0, err
		}
	}
	if n := copy(b, l.kept); n > 0 {
		l.kept = l.kept[n:]
		return n, nil
	}
	return 0, l.end
}

// typed takes one byte.
func (l *leaver) typed(c byte) {
	for l.held > 0 && l.keys[l.held] != c {
		less := l.fallback[l.held]
		l.kept = append(l.kept, l.keys[:l.held-less]...)
		l.held = less
	}
	if l.keys[l.held] == c {
		l.held++
	} else {
		l.kept = append(l.kept, c)
	}
}
