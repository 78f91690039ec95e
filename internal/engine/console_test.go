package engine

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
)

func TestUnreturned(t *testing.T) {
	for in, want := range map[string]string{
		"a\r\nb\r\n":        "a\nb\n",
		"10%\r20%\r\n":      "10%\r20%\n",
		"a\r\r\n\r":         "a\r\n\r",
		"\n\r":              "\n\r",
		"no carriage, no\n": "no carriage, no\n",
		"":                  "",
	} {
		for size := 1; size <= len(in)+1; size++ { // however it is cut
			var out strings.Builder
			w := &unreturned{to: &out}
			for rest := in; rest != ""; {
				n := min(size, len(rest))
				if got, err := w.Write([]byte(rest[:n])); got != n || err != nil {
					t.Fatal(got, err)
				}
				rest = rest[n:]
			}
			if err := w.Close(); err != nil || out.String() != want {
				t.Errorf("%q in pieces of %d: %q, %v", in, size, out.String(), err)
			}
		}
	}
}

// What is written comes through in order, whatever its size; one who takes nothing is
// given up once there is no more room, and not before.
func TestUnstalled(t *testing.T) {
	var out bytes.Buffer
	s := unstalled(&out, func() { t.Error("given up") })
	var want []byte
	for i := range 3000 {
		piece := bytes.Repeat([]byte{byte(i)}, i)
		want = append(want, piece...)
		if n, err := s.Write(piece); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := s.Close(); err != nil || !bytes.Equal(out.Bytes(), want) {
		t.Errorf("%d bytes of %d came through: %v", out.Len(), len(want), err)
	}

	r, w := io.Pipe()
	defer r.Close()
	givenUp := false
	s = unstalled(w, func() { givenUp = true })
	piece, taken := make([]byte, 100<<10), 0
	for ; taken < 10*stallRoom; taken += len(piece) {
		if _, err := s.Write(piece); err != nil {
			break
		}
	}
	if taken < stallRoom-len(piece) || taken > 2*stallRoom+len(piece) || !givenUp {
		t.Errorf("%d bytes were taken, given up: %v", taken, givenUp)
	}

	r2, w2 := io.Pipe()
	r2.CloseWithError(syscall.EPIPE)
	s = unstalled(w2, func() {})
	_, _ = s.Write(piece)
	if err := s.Close(); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("nobody reads: %v", err)
	}
}

// Once a console is left, nothing of what its agent has said comes any more: what corral says
// then would be in the middle of it.
func TestNothingComesAfterAConsole(t *testing.T) {
	r, w := io.Pipe()
	defer r.Close()
	s := unstalled(w, func() {})
	if _, err := s.Write(bytes.Repeat([]byte("agent"), 10_000)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 5)); err != nil { // the rest of that piece is on its way
		t.Fatal(err)
	}
	go func() {
		s.drop()
		io.WriteString(w, "corral")
		w.Close()
	}()
	for { // until it is dropped
		if _, err := s.Write([]byte("x")); err != nil {
			break
		}
	}
	got, err := io.ReadAll(r)
	if err != nil || !bytes.HasSuffix(got, []byte("corral")) || len(got) > 4096+len("corral") {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
