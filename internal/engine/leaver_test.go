package engine

import (
	"bytes"
	"errors"
	"fmt"
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

// spellings are what terminals send for a key that a byte stands for.
func spellings(key byte) []string {
	switch {
	case key >= 1 && key <= 26:
		code := int(key) + 'a' - 1
		return []string{string(rune(key)),
			fmt.Sprintf("\x1b[27;5;%d~", code), fmt.Sprintf("\x1b[27;5;%d~", code-32), fmt.Sprintf("\x1b[27;69;%d~", code),
			fmt.Sprintf("\x1b[%d;5u", code), fmt.Sprintf("\x1b[%d;5:1u", code), fmt.Sprintf("\x1b[%d;5:2u", code),
			fmt.Sprintf("\x1b[%d;69u", code), fmt.Sprintf("\x1b[%d;133u", code), fmt.Sprintf("\x1b[%d;197:1u", code),
			fmt.Sprintf("\x1b[%d:%d;5u", code, code-32), fmt.Sprintf("\x1b[1079::%d;5u", code), fmt.Sprintf("\x1b[%d;5;u", code),
			fmt.Sprintf("\x1b[57442;5u\x1b[%d;5u\x1b[%d;5:3u\x1b[57442;1:3u", code, code),
			fmt.Sprintf("\x1b[%d;5u\x1b[0n\x1b[?62;22c\x1b[<35;1;1M", code),
		}
	case key >= 'a' && key <= 'z':
		return []string{string(rune(key)), fmt.Sprintf("\x1b[%du", key), fmt.Sprintf("\x1b[%d;1u", key), fmt.Sprintf("\x1b[%d;129:2u", key), fmt.Sprintf("\x1b[%d;;%du", key, key), fmt.Sprintf("\x1b[27;1;%d~", key)}
	case key == 0x1d:
		return []string{"\x1d", "\x1b[27;5;93~", "\x1b[93;5u", "\x1b[93;133:1u", "\x1b[53;5u"}
	case key == 0x1e:
		return []string{"\x1e", "\x1b[27;6;94~", "\x1b[54;6u", "\x1b[54:94;6u"}
	case key == 0x1f:
		return []string{"\x1f", "\x1b[27;6;95~", "\x1b[45:95;6u", "\x1b[45;6u"}
	case key == 0x1b:
		return []string{"\x1b", "\x1b[91;5u", "\x1b[27u"}
	}
	return []string{string(rune(key))}
}

// However a terminal sends the keys, and wherever a read ends: they leave, what came
// before is passed on, and of the keys nothing is unless a read ended after an escape.
func TestLeaverSequences(t *testing.T) {
	for _, keys := range []string{"\x10\x11", "\x1d", "\x01d", "\x10\x10\x11", "\x1e\x1f", "\x01aa"} {
		typed := []string{""}
		for _, k := range []byte(keys) {
			var longer []string
			for _, before := range typed {
				for _, s := range spellings(k) {
					longer = append(longer, before+s)
				}
			}
			typed = longer
		}
		for _, seq := range typed {
			for _, before := range []string{"", "x", "\x10", "\x1b", "\x1b[A", "\x1b[112;5u\x1b[120;5u", "\x1b[27;5;112~", "\x1b[1;5"} {
				got, err := io.ReadAll(newLeaver(strings.NewReader(before+seq+"more"), []byte(keys)))
				if passed := string(got); !errors.Is(err, ErrLeft) || !strings.HasPrefix(before+seq, passed) || !strings.HasPrefix(passed+seq, before) || len(passed) > len(before)+len("\x1b[57442;5u") {
					t.Fatalf("keys %q, typed %q after %q: %q, %v", keys, seq, before, got, err)
				}
			}
			for cut := range len(seq) {
				got, err := io.ReadAll(newLeaver(io.MultiReader(strings.NewReader("x"+seq[:cut]), strings.NewReader(seq[cut:]+"more")), []byte(keys)))
				if !errors.Is(err, ErrLeft) || !strings.HasPrefix("x"+seq, string(got)) {
					t.Fatalf("keys %q, typed %q, cut after %d: %q, %v", keys, seq, cut, got, err)
				}
			}
			got, err := io.ReadAll(newLeaver(iotest.OneByteReader(strings.NewReader("x"+seq+"more")), []byte(keys)))
			if !errors.Is(err, ErrLeft) || !strings.HasPrefix("x"+seq, string(got)) {
				t.Fatalf("keys %q, typed %q one by one: %q, %v", keys, seq, got, err)
			}
		}
	}
}

// Other keys are passed on as they came: those with other modifiers, those that are
// released, what is no key at all.
func TestLeaverOthers(t *testing.T) {
	for _, other := range []string{
		"\x1b[113;5:3u", "\x1b[113;7u", "\x1b[113;13u", "\x1b[113u", "\x1b[27;7;113~", "\x1b[28;5;113~",
		"\x1b[113;5", "\x1b[113;5~", "\x1b[113;5A", "[113;5u", "\x1b[1113;5u", "\x1b[27;5;113", "\x1b[113;5;1;1u", "\x1b[113;0u", "\x1b\x1b[114;5u", "\x1b[<113;5u",
		"\x1b[", "\x1b[99999999999999999999u", "\x1b[113" + strings.Repeat("0", 100) + ";5u",
	} {
		typed := "\x10" + other + "\x00"
		for _, from := range []io.Reader{strings.NewReader(typed), iotest.OneByteReader(strings.NewReader(typed))} {
			if got, err := io.ReadAll(newLeaver(from, []byte("\x10\x11"))); string(got) != typed || err != nil {
				t.Errorf("%q: %q, %v", typed, got, err)
			}
		}
	}
}

// The escape key is the program's at once: nothing else may ever be typed.
func TestLeaverEscape(t *testing.T) {
	for _, typed := range []string{"\x1b", "\x10\x1b", "\x1b[112;5u\x1b", "\x1b[A\x1b"} {
		r, w := io.Pipe()
		go io.WriteString(w, typed)
		b := make([]byte, 20)
		if n, err := newLeaver(r, []byte("\x10\x11")).Read(b); string(b[:n]) != typed || err != nil {
			t.Errorf("%q: %q, %v", typed, b[:n], err)
		}
		r.Close()
	}
}

// Whatever is typed, and however it comes: nothing is lost or added before they leave.
func FuzzLeaver(f *testing.F) {
	f.Add("\x10\x11", "x\x1b[112;5u\x1b[27;5;113~", 3)
	f.Add("\x1b[", "\x1b[\x1b", 1)
	f.Fuzz(func(t *testing.T, keys, typed string, size int) {
		if keys == "" {
			return
		}
		read := func(from io.Reader) (string, error) {
			got, err := io.ReadAll(newLeaver(from, []byte(keys)))
			if s := string(got); !strings.HasPrefix(typed, s) || err == nil && s != typed || err != nil && !errors.Is(err, ErrLeft) {
				t.Errorf("%q of %q, %v", got, typed, err)
			}
			return string(got), err
		}
		once, end := read(strings.NewReader(typed))
		slowly, also := read(iotest.OneByteReader(strings.NewReader(typed)))
		if !errors.Is(also, end) || !strings.HasPrefix(slowly, once) {
			t.Errorf("%q, %v at once, %q, %v one by one", once, end, slowly, also)
		}
		if strings.Contains(typed, keys) && end == nil {
			t.Errorf("%q does not leave by %q", typed, keys)
		}
	})
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
