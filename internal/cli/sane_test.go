package cli

import (
	"slices"
	"strings"
	"testing"
)

// shown plays what is written to a terminal: the text that a person sees, and the
// control sequences that were obeyed.
func shown(written string) (text string, obeyed []string) {
	var out strings.Builder
	state, sequence := "text", ""
	for _, c := range written {
		switch {
		case c == '\x18' || c == '\x1a':
			state = "text"
		case c == '\x1b' && state == "string":
			state = "string ends"
		case state == "string ends" && c != '\\':
			state = "escape" // what comes is no part of it any more
			fallthrough
		case state == "escape":
			switch {
			case strings.ContainsRune("P]_^X", c):
				state = "string"
			case c == '[':
				state, sequence = "sequence", "["
			case c == '\x1b':
			default:
				obeyed = append(obeyed, string(c))
				state = "text"
			}
		case state == "string ends":
			state = "text"
		case c == '\x1b':
			state = "escape"
		case state == "string":
			if c == '\a' { // as xterm ends an OSC
				state = "text"
			}
		case state == "sequence":
			sequence += string(c)
			if c >= 0x40 && c <= 0x7e {
				obeyed = append(obeyed, sequence)
				state = "text"
			}
		default:
			out.WriteRune(c)
		}
	}
	return out.String(), obeyed
}

// Whatever an agent left a terminal in the middle of, what brings it back is obeyed,
// all of it, and what corral says then is seen.
func TestSaneWhateverIsOpen(t *testing.T) {
	_, all := shown(sane)
	for _, want := range []string{"[?1049l", "[!p", "[?1003l", "[?2004l", "[?25h", "[<u", "[=0u", "[>4m"} {
		if !slices.Contains(all, want) {
			t.Errorf("%s is not asked for", want)
		}
	}
	for _, open := range []string{"", "\x1bPq", "\x1b]0;title", "\x1b_Ga=T", "\x1b^pm", "\x1bXsos", "\x1b[1;2", "\x1b[", "\x1b", "\x1bP\x1b", "\x1b]8;;http://x\x1b", "\x1bPtmux;\x1b\x1b]"} {
		for what, again := range map[string]string{"sane": sane, "heard": heard} {
			before, _ := shown(open)
			text, obeyed := shown(open + again + "corral: seen")
			text = strings.ReplaceAll(text, "\r", "")
			if text != before+"corral: seen" || what == "sane" && !slices.Equal(obeyed[max(0, len(obeyed)-len(all)):], all) {
				t.Errorf("after %q, %s: %q, %q", open, what, text, obeyed)
			}
		}
	}
}
