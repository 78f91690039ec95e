package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
)

// endsWithin is when something is taken to stand still.
const endsWithin = 30 * time.Second

// full is a stream that has taken all it has room for, and the other side of it.
func full(t *testing.T, open func() (ours, other *os.File, err error)) (ours, other *os.File) {
	t.Helper()
	ours, other, err := open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); other.Close() })
	fd := int(ours.Fd())
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := unix.Write(fd, []byte("x")); errors.Is(err, unix.EAGAIN) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	return ours, other
}

func openScreen() (screen, person *os.File, err error) {
	if person, screen, err = pty.Open(); err == nil {
		_, err = term.MakeRaw(int(screen.Fd()))
	}
	return screen, person, err
}

func openPipe() (w, r *os.File, err error) {
	r, w, err = os.Pipe()
	return w, r, err
}

// wordsAfter are the places where corral says something once an agent has had the terminal.
var wordsAfter = map[string]func(*app){
	"the reset":         func(a *app) { a.restore() },
	"a line":            func(a *app) { a.sayf("said") },
	"an interjection":   func(a *app) { a.interject(true, "said") },
	"the error":         func(a *app) { a.report(exit.Failedf("hint", "said")) },
	"no more":           func(a *app) { a.report(context.Canceled) },
	"what is done":      func(a *app) { a.watcher().Working("said", false)() },
	"what was changed":  func(a *app) { showFindings(a.err, "x", nil, errors.New("said")) },
	"times":             func(a *app) { (&timings{laps: []lap{{"said", 1}}}).tell(a.err) },
	"the end of a log":  func(a *app) { (&reader{app: a, names: []string{"main"}}).calmed() },
	"all of it at once": func(a *app) { a.restore(); a.sayf("said"); a.restore() },
}

// Whatever corral says after an agent, or meanwhile, to a terminal or a pipe that takes nothing
// any more, and to which what the agent said last may still be on its way: nothing waits for
// that, and the command ends. What is taken after all is all there.
func TestNothingWaitsForAStream(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	defer all.Wait()
	for where, open := range map[string]func() (*os.File, *os.File, error){"terminal": openScreen, "pipe": openPipe} {
		for what, say := range wordsAfter {
			for _, ends := range []string{"never", "later", "a signal"} {
				ours, other := full(t, open)
				all.Go(func() { // side by side: each waits
					if wrong := waits(t.Context(), ours, other, ends, say); wrong != "" {
						t.Errorf("%s, %s, that ends %s: %s", where, what, ends, wrong)
					}
				})
			}
		}
	}
}

// waits says what is wrong if something said to a stream that is full waits for it.
func waits(ctx context.Context, ours, other *os.File, ends string, say func(*app)) (wrong string) {
	writes := make(chan struct{})
	go func() { // what the agent said last
		close(writes)
		_, _ = ours.Write([]byte("y"))
	}()
	<-writes
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	a := &app{in: strings.NewReader(""), out: ours, err: ours}
	a.watcher()
	ended := make(chan string, 2)
	go func() {
		a.unhold(ends == "a signal")
		say(a)
		ended <- "said"
		if ends == "a signal" {
			stop()
		}
		a.flush(ctx)
		ended <- "over"
	}()
	if wrong := awaited(ended, "said"); wrong != "" || ends != "later" {
		return cmp.Or(wrong, awaited(ended, "over"))
	}
	var got strings.Builder
	go func() {
		_, _ = io.Copy(&got, other) // ends with our side
		ended <- "read"
	}()
	if wrong := awaited(ended, "over"); wrong != "" {
		return wrong
	}
	ours.Close()
	if wrong := awaited(ended, "read"); wrong != "" {
		return wrong
	}
	var direct strings.Builder
	say(&app{in: strings.NewReader(""), out: &direct, err: &direct})
	for word := range strings.FieldsSeq(direct.String()) {
		if !strings.Contains(got.String(), word) {
			return fmt.Sprintf("no %q came of it", word)
		}
	}
	return ""
}

func awaited(c <-chan string, want string) (wrong string) {
	select {
	case got := <-c:
		if got != want {
			return got + ", not " + want
		}
	case <-time.After(endsWithin):
		return "it stands still before it is " + want
	}
	return ""
}

// Where only standard output is a terminal, that is reset, and not waited for either.
func TestTheResetOfStandardOutputWaitsForNothing(t *testing.T) {
	t.Parallel()
	ours, _ := full(t, openScreen)
	ended := make(chan string, 2)
	go func() {
		a := &app{in: strings.NewReader(""), out: ours, err: io.Discard}
		a.restore()
		ended <- "said"
		a.flush(t.Context())
		ended <- "over"
	}()
	if wrong := cmp.Or(awaited(ended, "said"), awaited(ended, "over")); wrong != "" {
		t.Error(wrong)
	}
}

// A person who stopped the output to read it finds all of it when they let it go on.
func TestAStoppedOutputIsWaitedFor(t *testing.T) {
	t.Parallel()
	ours, other := full(t, openPipe)
	a := &app{out: ours, err: ours}
	a.unhold(true)
	a.sayf("said")
	u := a.late[0]
	if err := u.Close(); !errors.Is(err, engine.ErrStalled) { // longer than for a terminal that nobody looks at
		t.Fatal(err)
	}
	ended := make(chan string, 2)
	go func() {
		a.flush(t.Context())
		ours.Close()
		ended <- "over"
	}()
	got, err := io.ReadAll(other)
	if err != nil || !strings.HasSuffix(string(got), "corral: said\n") {
		t.Errorf("%q, %v", got[max(0, len(got)-20):], err)
	}
	if wrong := awaited(ended, "over"); wrong != "" {
		t.Error(wrong)
	}
}

// What stands still is left by whoever is asked to end.
func TestLeavable(t *testing.T) {
	stands := make(chan struct{})
	defer close(stands)
	ctx, stop := context.WithCancelCause(t.Context())
	why := errors.New("why")
	got := leavable(ctx, func() error {
		stop(why)
		<-stands
		return nil
	})
	if !errors.Is(got, why) {
		t.Error(got)
	}
	for _, want := range []error{nil, why} {
		if got := leavable(t.Context(), func() error { return want }); got != want {
			t.Error(got)
		}
		if got := leavable(ctx, func() error { return want }); got != want { // it is quick enough
			t.Error(got)
		}
	}
}
