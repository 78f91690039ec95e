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
