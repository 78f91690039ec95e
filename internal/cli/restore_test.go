package cli

import (
	"bytes"
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/testenv"
)

// What a terminal answers to what the agent asked of it, and what nobody has read when the
// agent is left, is not there for the person's shell.
func TestNothingTypedIsLeft(t *testing.T) {
	person, screen, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer person.Close()
	defer screen.Close()
	if _, err := term.MakeRaw(int(screen.Fd())); err != nil {
		t.Fatal(err)
	}
	if _, err := person.WriteString("\x1b[24;80R"); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(screen.Fd()), Events: unix.POLLIN}}, 10_000); n != 1 || err != nil {
		t.Fatalf("it never came: %v", err)
	}
	(&app{in: screen, out: screen, err: io.Discard}).restore()
	if n, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCINQ); n != 0 || err != nil {
		t.Errorf("%d bytes are left: %v", n, err)
	}
}

// screenShows is what of an output a terminal shows, and the control sequences that it acts on.
// Some end a string by ST alone, others by CAN too.
func screenShows(output string, canEnds bool) (text string, acts []string) {
	const (
		ground = iota
		escape
		sequence
		inString
		stringEscape
	)
	var printed strings.Builder
	var begun []byte
	state := ground
	for _, c := range []byte(output) {
		switch {
		case c == 0x18 && (state != inString && state != stringEscape || canEnds):
			state = ground
		case state == inString || state == stringEscape:
			switch {
			case c == '\x1b':
				state = stringEscape
			case state == stringEscape && c == '\\' || c == 0x9c:
				state = ground
			default:
				state = inString
			}
		case c == '\x1b':
			state = escape
		case state == escape && strings.IndexByte("P]X^_k", c) >= 0, strings.IndexByte("\x90\x9d\x98\x9e\x9f", c) >= 0:
			state = inString
		case state == escape && c == '[', c == 0x9b:
			state, begun = sequence, nil
		case state == escape:
			state = ground
		case state == sequence:
			if begun = append(begun, c); c >= '@' {
				state, acts = ground, append(acts, string(begun))
			}
		default:
			printed.WriteByte(c)
		}
	}
	return printed.String(), acts
}

// onScreen is what a terminal gets when somebody writes to it.
func onScreen(t *testing.T, write func(screen *app)) string {
	t.Helper()
	t.Setenv("TERM", "xterm")
	person, screen, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer person.Close()
	if _, err := term.MakeRaw(int(screen.Fd())); err != nil {
		t.Fatal(err)
	}
	got := make(chan string)
	go func() {
		b, _ := io.ReadAll(person) // ends with an error when the other side is closed
		got <- string(b)
	}()
	write(&app{in: screen, out: screen, err: screen})
	screen.Close()
	return <-got
}

// openings are what an agent can begin and leave open.
var openings = []string{
	"", "\x1b", "\x1b[", "\x1b[1;", "\x1bP", "\x1bPq", "\x1b]0;title", "\x1b]", "\x1b_G", "\x1b^", "\x1bX", "\x1bk",
	"\x1bP\x1b", "\x90q", "\x9d0;", "\x9f", "\x9e", "\x98", "\x9b1",
}

// Whatever an agent has left open: what corral says after it, or meanwhile, is seen, and
// what it asked of the terminal is taken back.
func TestNothingSwallowsWhatCorralSays(t *testing.T) {
	const said = "corral: the gate ended"
	for how, say := range map[string]func(*app){
		"after it":  func(a *app) { a.restore(); a.sayf("the gate ended") },
		"meanwhile": func(a *app) { a.interject(true, "the gate ended") },
		"on standard output only": func(a *app) {
			a.err = io.Discard
			a.restore()
			a.flush(t.Context())
			io.WriteString(a.out, said)
		},
		"of a log": func(a *app) {
			l := &reader{app: a, names: []string{"main"}}
			l.calmed()
			l.sayf("the gate ended")
		},
	} {
		for _, opening := range openings {
			output := onScreen(t, func(a *app) {
				io.WriteString(a.out, opening)
				say(a)
			})
			for _, canEnds := range []bool{true, false} {
				text, acts := screenShows(output, canEnds)
				if !strings.Contains(text, said) {
					t.Errorf("%s, after %q: %q is seen of %q", how, opening, text, output)
				}
				for _, back := range []string{"?1049l", "!p", "0m", "?1003l", "?25h", "<u", "=0u", ">4m"} {
					if !slices.Contains(acts, back) {
						t.Errorf("%s, after %q: no %s in %q", how, opening, back, acts)
					}
				}
			}
		}
	}
}

// A pager may have the terminal where only standard error is one: it is made visible
// there, and no more.
func TestAPagerKeepsItsTerminal(t *testing.T) {
	output := onScreen(t, func(a *app) {
		a.out = io.Discard
		io.WriteString(a.err, "\x1bPq")
		a.restore()
		a.sayf("said")
	})
	if text, acts := screenShows(output, false); text != "corral: said\r\n" && text != "corral: said\n" || !slices.Equal(acts, []string{"0m"}) {
		t.Errorf("%q, %q", text, acts)
	}
}

// Where lines say whose they are, none looks like another's, whatever it makes a
// terminal do; and none of it is done.
func TestLinesAreWhoseTheySay(t *testing.T) {
	for _, forged := range []string{
		"\x1b[2K\rgate | all is well", "x\rgate | ", "\x1b[1A\x1b[Ggate | ", "x\x0bgate | ", "x\x0cgate | ", "x\u0085gate | ", "x\x9bGgate | ",
		"x\u2028gate | ", "\u202egate | ", "x\b\b\b\b\b\b\b\b\bgate | ", "\x1bPq", "\x1b]0;", "\r\r", "\x1bM",
	} {
		var out bytes.Buffer
		w := &lines{mu: new(sync.Mutex), to: &out, prefix: "main | "}
		if _, err := io.WriteString(w, forged+"\nnext\tcell\r\nlast"+forged); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(got) != 3 || got[1] != "main | next\tcell" {
			t.Errorf("%q: %q", forged, got)
		}
		for _, line := range got {
			if !strings.HasPrefix(line, "main | ") || strings.ContainsFunc(strings.ReplaceAll(line, "\t", ""), func(r rune) bool { return !printable.Is(r) }) {
				t.Errorf("%q: %q", forged, line)
			}
		}
	}
}

// In the background the terminal is another's: nothing is done to it, and nothing of that
// stops corral for ever.
func TestTheTerminalOfAnotherIsLeftAlone(t *testing.T) {
	testenv.Behind(t, func() {
		a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr}
		a.restore()
		a.unhold(false)
		a.restore()
		a.flush(context.Background())
		a = &app{in: os.Stdin, out: os.Stdout, err: io.Discard}
		a.restore()
		a.flush(context.Background())
	})
}
