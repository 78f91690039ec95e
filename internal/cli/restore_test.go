package cli

import (
	"io"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
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
