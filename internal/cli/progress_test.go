package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/creack/pty"
)

// The line says what is done and for how long, gives way to what is said meanwhile,
// and is gone at the end.
func TestLiveLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		l := &live{w: &b, columns: func() int { return 40 }}
		said := func(want string) {
			t.Helper()
			synctest.Wait()
			l.mu.Lock()
			defer l.mu.Unlock()
			if got := b.String(); got != want {
				t.Errorf("%q, want %q", got, want)
			}
			b.Reset()
		}
		pass := func(d time.Duration) { <-time.After(d) }
		outer := l.working("building the image\x1b", false)
		said("\r\x1b[Kcorral: building the image\\x1b")
		pass(1500 * time.Millisecond)
		said("\r\x1b[Kcorral: building the image\\x1b (1 s)")
		l.over(func() { fmt.Fprintln(&b, "corral: warning") })
		said("\r\x1b[Kcorral: warning\n")
		inner := l.working("a moment", true)
		said("")
		pass(time.Second)
		said("\r\x1b[Kcorral: a moment")
		inner()
		inner()
		said("\r\x1b[K")
		pass(time.Second)
		said("\r\x1b[Kcorral: building the image\\x1b (3 s)")
		outer()
		said("\r\x1b[K")
		pass(10 * time.Second)
		said("")
		wide := l.working(strings.Repeat("x", 100), false)
		said("\r\x1b[Kcorral: " + strings.Repeat("x", 30) + "…")
		wide()
		said("\r\x1b[K")
		quick := l.working("over at once", true)
		quick()
		said("")
	})
}

// Without a line there is a plain one for what takes long, and none for the rest.
func TestPlainProgress(t *testing.T) {
	var b bytes.Buffer
	a := &app{err: &b}
	w := a.watcher()
	w.Working("building", false)()
	w.Working("a moment", true)()
	a.sayf("more")
	if got := b.String(); got != "corral: building\ncorral: more\n" {
		t.Errorf("%q", got)
	}
}

// What moves or paints is for terminals of people who want it.
func TestMoving(t *testing.T) {
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer tty.Close()
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, c := range []struct {
		stream   any
		no, term string
		want     bool
	}{
		{tty, "", "xterm", true}, {tty, "1", "xterm", false}, {tty, "", "dumb", false}, {file, "", "xterm", false}, {&bytes.Buffer{}, "", "xterm", false},
	} {
		t.Setenv("NO_COLOR", c.no)
		t.Setenv("TERM", c.term)
		if got := moving(c.stream); got != c.want {
			t.Errorf("%T with NO_COLOR=%s TERM=%s: %v", c.stream, c.no, c.term, got)
		}
	}
}

func TestTimings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		now := time.Now()
		w := &timings{begun: now, last: now}
		<-time.After(12 * time.Millisecond)
		w.lap("policy read")
		<-time.After(1500 * time.Millisecond)
		w.lap("gate\x1b created")
		w.tell(&b)
		w.lap("later")
		w.tell(&b)
		if want := "corral: time      12 ms  policy read\ncorral: time    1500 ms  gate\\x1b created\ncorral: time    1512 ms  in all\n"; b.String() != want {
			t.Errorf("%q", b.String())
		}
		b.Reset()
		var unasked *timings
		unasked.lap("nobody's")
		unasked.tell(&b)
		(&timings{begun: now, last: now}).tell(&b)
		if b.Len() > 0 {
			t.Errorf("unasked, or of nothing: %q", b.String())
		}
	})
}

// Only a reader of what was asked for may go away without a word.
func TestBrokenPipe(t *testing.T) {
	pipe := &fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}
	other := errors.New("the engine: broken pipe")
	for _, c := range []struct {
		err  error
		want bool
	}{
		{pipe, true}, {errors.Join(pipe, pipe), true}, {fmt.Errorf("nobody takes the output any more: %w", pipe), false},
		{errors.Join(pipe, other), false}, {other, false}, {syscall.EPIPE, false}, {fmt.Errorf("%w, %w", other, pipe), false},
		{&fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}, false},
		{&fs.PathError{Op: "write", Path: "/some/file", Err: syscall.EPIPE}, false},
		{&fs.PathError{Op: "open", Path: "/dev/stdout", Err: syscall.EPIPE}, false},
	} {
		if got := brokenPipe(c.err, "/dev/stdout"); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}
