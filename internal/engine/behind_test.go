package engine

import (
	"os"
	"testing"

	"golang.org/x/term"

	"github.com/corral-sandbox/corral/internal/testenv"
)

// Who was put in the background while they sat somewhere ends there all the same.
func TestRawTerminalInTheBackground(t *testing.T) {
	testenv.Behind(t, func() {
		before, err := term.GetState(int(os.Stdin.Fd()))
		if err != nil {
			panic(err)
		}
		raw := rawTerminal{os.Stdin, before}
		raw.again()
		raw.restore()
	})
}
