package testenv

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// stoppedThere is the status that says that something was stopped in the background.
const stoppedThere = 3

// Behind runs do in a process of its own in the background of a terminal, which do gets as
// its standard streams, and returns once that has ended: it is an error if that was stopped,
// or wrote anything. It is to be the first that a test calls.
func Behind(t *testing.T, do func()) {
	t.Helper()
	const role = "CORRAL_TEST_BEHIND"
	as := func(which string) *exec.Cmd {
		c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		c.Env = append(os.Environ(), role+"="+which, "TERM=xterm")
		return c
	}
	switch os.Getenv(role) {
	case "behind":
		do()
		os.Exit(0)
	case "front":
		c := as("behind")
		c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := c.Start(); err != nil {
			os.Exit(1)
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(c.Process.Pid, &status, unix.WUNTRACED, nil); err != nil {
			os.Exit(1)
		}
		if status.Stopped() {
			_ = unix.Kill(c.Process.Pid, unix.SIGKILL)
			os.Exit(stoppedThere)
		}
		os.Exit(status.ExitStatus())
	}
	person, screen, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer person.Close()
	defer screen.Close()
	c := as("front")
	c.Stdin, c.Stdout, c.Stderr = screen, screen, screen
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	_ = c.Run() // its status says it
	switch got := c.ProcessState.ExitCode(); got {
	case 0:
	case stoppedThere:
		t.Error("it was stopped")
	default:
		t.Errorf("status %d", got)
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(person.Fd()), Events: unix.POLLIN}}, 0); err != nil {
		t.Error(err)
	} else if n != 0 {
		b := make([]byte, 4096)
		if n, _ := person.Read(b); n > 0 {
			t.Errorf("it wrote %q", strings.TrimSpace(string(b[:n])))
		}
	}
}
