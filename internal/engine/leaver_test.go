package engine

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// words are all of up to so many letters.
func words(letters string, most int) []string {
	out, last := []string{""}, []string{""}
	for range most {
		var next []string
		for _, w := range last {
			for _, c := range letters {
				next = append(next, w+string(c))
			}
		}
		out, last = append(out, next...), next
	}
	return out
}

// Whatever the keys are and whatever is typed: they leave where they are typed first,
// whatever came before, and what came before is passed on, all of it and nothing else.
func TestLeaver(t *testing.T) {
	for _, keys := range words("pq", 4)[1:] {
		for _, typed := range words("pqx", 6) {
			before, _, left := strings.Cut(typed, keys)
			end := error(nil) // that of io.ReadAll at the end of a file
			if left {
				end = ErrLeft
			}
			for how, from := range map[string]io.Reader{
				"at once":     strings.NewReader(typed),
				"one by one":  iotest.OneByteReader(strings.NewReader(typed)),
				"with an end": iotest.DataErrReader(strings.NewReader(typed)),
			} {
				got, err := io.ReadAll(newLeaver(from, []byte(keys)))
				if string(got) != before || !errors.Is(err, end) {
					t.Errorf("keys %s, %q %s: %q, %v; want %q, %v", keys, typed, how, got, err, before, end)
				}
			}
		}
	}
}

// However much is typed at once, and however little is taken, it comes in order.
func TestLeaverMuch(t *testing.T) {
	text := bytes.Repeat([]byte("\x10\x10x\x11\x10"), 5000)
	got, err := io.ReadAll(iotest.OneByteReader(newLeaver(io.MultiReader(bytes.NewReader(text), strings.NewReader("\x10\x11more")), []byte("\x10\x11"))))
	want := text
	if !bytes.Equal(got, want) || !errors.Is(err, ErrLeft) {
		t.Errorf("%d bytes, want %d; %v", len(got), len(want), err)
	}
}

// What is held back is not before its time: it may be the beginning of the keys.
func TestLeaverHolds(t *testing.T) {
	r, w := io.Pipe()
	got := make(chan string, 1)
	go func() {
		b := make([]byte, 10)
		n, _ := newLeaver(r, []byte("pq")).Read(b)
		got <- string(b[:n])
	}()
	for _, typed := range []string{"p", "p"} {
		if _, err := io.WriteString(w, typed); err != nil {
			t.Fatal(err)
		}
	}
	if s := <-got; s != "p" {
		t.Errorf("%q", s)
	}
	w.Close()
}

// A key that the terminal writes out, as a program inside may ask of it, is the same
// key: in both ways of writing, with locks on, held down, with what is said of keys that
// are let go, and in whatever pieces it comes.
func TestLeaverKeysWrittenOut(t *testing.T) {
	p := []string{"\x10", "\x1b[27;5;112~", "\x1b[112;5u", "\x1b[112;5:1u", "\x1b[112;5:2u", "\x1b[112:80;5u", "\x1b[112;69u", "\x1b[112;133:1u", "\x1b[112;6u"}
	beside := []string{"", "\x1b[112;5:3u", "\x1b[57442;5:1u\x1b[57442;1:3u", "\x1b[57358;65:1u"}
	for _, first := range p {
		for _, second := range p {
			for _, between := range beside {
				typed := "x" + first + between + strings.ReplaceAll(second, "112", "113") + "y"
				if second == "\x10" {
					typed = "x" + first + between + "\x11y"
				}
				typed = strings.ReplaceAll(typed, "113:80", "113:81")
				for size := 1; size <= len(typed); size++ {
					got, err := io.ReadAll(newLeaver(&pieces{typed, size}, []byte("\x10\x11")))
					if !errors.Is(err, ErrLeft) || !strings.HasPrefix(typed, string(got)) || strings.HasSuffix(string(got), "y") || got[0] != 'x' {
						t.Errorf("%q by %d: %q, %v", typed, size, got, err)
					}
				}
			}
		}
	}
	for _, other := range []string{"\x1b[112;3u\x1b[113;5u", "\x1b[112;5u\x1b[113u", "\x1b[112;5:3u\x1b[113;5:3u", "\x1b[112;5~\x1b[113;5~", "\x1b[1;5p\x1b[113;5u", "\x1b[A\x1b[B",
		"\x1b[<0;1;2M", "\x1b[27;5;112~a\x11", "\x1b[\x10\x1b\x11", "\x1b[112;5u\x1b", "\x1b[11\x032;5u\x11", "\x1bO\x10", "\x1b[999999999999999999999;5u\x11", "\x1b[;u", "\x1b[u", "\x1b[~"} {
		for size := 1; size <= len(other); size++ {
			got, err := io.ReadAll(newLeaver(&pieces{other, size}, []byte("\x10\x11")))
			if err != nil || string(got) != other {
				t.Errorf("%q by %d: %q, %v", other, size, got, err)
			}
		}
	}
	// Letters, where a program asks for all keys to be written out; an Escape is one.
	for _, typed := range []string{"\x1b[97;5u\x1b[100u", "\x01d", "\x1b[97;5u\x1b[100;1:1u", "\x1b[27;5;97~d"} {
		if _, err := io.ReadAll(newLeaver(strings.NewReader(typed), []byte("\x01d"))); !errors.Is(err, ErrLeft) {
			t.Errorf("%q: %v", typed, err)
		}
	}
	for size := range 2 {
		if _, err := io.ReadAll(newLeaver(&pieces{"\x1bq", size + 1}, []byte("\x1bq"))); !errors.Is(err, ErrLeft) {
			t.Errorf("Escape and q by %d: %v", size+1, err)
		}
	}
}

// pieces gives a text in pieces of a size.
type pieces struct {
	text string
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	n := copy(b, p.text[:min(p.size, len(p.text))])
	p.text = p.text[n:]
	return n, nil
}

// Whatever is typed, nothing is lost or made up before the keys.
func FuzzLeaver(f *testing.F) {
	f.Add("x\x1b[112;5u\x1b[113;5uy", 3)
	f.Add("\x1b[27;5;112~\x10\x11", 1)
	f.Fuzz(func(t *testing.T, typed string, size int) {
		got, err := io.ReadAll(newLeaver(&pieces{typed, max(1, size&0xff)}, []byte("\x10\x11")))
		if !strings.HasPrefix(typed, string(got)) || err == nil && string(got) != typed || err != nil && !errors.Is(err, ErrLeft) {
			t.Errorf("%q by %d: %q, %v", typed, size, got, err)
		}
	})
}
