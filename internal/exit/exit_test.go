package exit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestReport(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		said   string
	}{
		{nil, OK, ""},
		{errors.New("plain"), Failed, "p: plain\n"},
		{Invalidf("do this", "no %s", "good"), Invalid, "p: no good\n  hint: do this\n"},
		{fmt.Errorf("outer: %w", Failedf("", "inner")), Failed, "p: outer: inner\n"},
		{Status(42), 42, ""},
		{errors.Join(Status(3), nil), 3, ""},
		{Invalidf("a\x1bb", "c\u202e\nd\x1b[8m"), Invalid, "p: c\\u202e\nd\\x1b[8m\n  hint: a\\x1bb\n"},
		{errors.New("e\x1b"), Failed, "p: e\\x1b\n"},
		{fmt.Errorf("outer: %w", context.Canceled), Interrupted, "p: interrupted\n"},
		{errors.Join(context.Canceled, errors.Join(nil, errors.New("left behind")), context.Canceled), Interrupted, "p: interrupted\np: left behind\n"},
	} {
		var b strings.Builder
		if got := Report(&b, "p", c.err); got != c.status || b.String() != c.said {
			t.Errorf("%v: status %d, %q", c.err, got, b.String())
		}
	}
}

// The second signal ends also what nobody listens to any more.
func TestSecondSignalToOneThatNobodyReads(t *testing.T) {
	t.Parallel()
	const asked = "CORRAL_TEST_UNREAD"
	if os.Getenv(asked) != "" {
		ctx := Context("p", "clear up")
		fmt.Println("begun")
		<-ctx.Done()
		fmt.Println("asked")
		select {}
	}
	c := exec.Command(os.Args[0], "-test.run=^TestSecondSignalToOneThatNobodyReads$")
	c.Env = append(os.Environ(), asked+"=yes")
	unread, errs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer unread.Close()
	if err := errs.SetWriteDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := errs.Write(make([]byte, 1<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("there is room left: %v", err)
	}
	errs.Fd() // and it blocks
	c.Stderr = errs
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	errs.Close()
	defer time.AfterFunc(time.Minute, func() { c.Process.Kill() }).Stop()
	lines := bufio.NewScanner(out)
	for _, said := range []string{"begun", "asked"} {
		for lines.Text() != said {
			if !lines.Scan() {
				t.Fatalf("ended before it said %q", said)
			}
		}
		if err := c.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
	}
	_ = c.Wait() // its status says it
	if got := c.ProcessState.ExitCode(); got != Interrupted {
		t.Errorf("status %d", got)
	}
}

// The first signal asks, the second ends, and is not silent about what that leaves.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	const asked = "CORRAL_TEST_SIGNALS"
	if hint, is := os.LookupEnv(asked); is {
		ctx := Context("p", hint)
		fmt.Println("begun")
		<-ctx.Done()
		fmt.Println("asked")
		select {}
	}
	for hint, want := range map[string]string{
		"clear up": "p: interrupted twice, and ended at once: what it had begun may be left\n  hint: clear up\n",
		"":         "p: interrupted twice, and ended at once\n",
	} {
		c := exec.Command(os.Args[0], "-test.run=^TestSecondSignal$")
		c.Env = append(os.Environ(), asked+"="+hint)
		var errs strings.Builder
		c.Stderr = &errs
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer c.Process.Kill()
		lines := bufio.NewScanner(out)
		for _, said := range []string{"begun", "asked"} {
			for lines.Text() != said {
				if !lines.Scan() {
					t.Fatalf("ended before it said %q: %q", said, errs.String())
				}
			}
			if err := c.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
		_ = c.Wait() // its status says it
		if got := c.ProcessState.ExitCode(); got != Interrupted {
			t.Errorf("status %d", got)
		}
		if errs.String() != want {
			t.Errorf("%q", errs.String())
		}
	}
}
