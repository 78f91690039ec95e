package engine

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/pkg/stdcopy"

	"github.com/corral-sandbox/corral/internal/spec"
)

// The agent may end or stop the checker, whose user it is: what became of it is told,
// what that may come from, and what to do.
func TestCheckerMeddledWith(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		said   string
		hangs  bool
		want   string // of what is told
		hint   string
	}{
		{"killed", 137, "", false, "it ended with status 137, by signal 9 (SIGKILL), which a process of the sandbox's user can send; the kernel does, too, where memory is short", meddled},
		{"asked to end", 143, "", false, "it ended with status 143, by signal 15 (SIGTERM), which a process of the sandbox's user can send", meddled},
		{"the least signal", 129, "", false, "it ended with status 129, by signal 1 (SIGHUP), which a process of the sandbox's user can send", meddled},
		{"the last signal", 192, "", false, "it ended with status 192, by signal 64 (of no name), which a process of the sandbox's user can send", meddled},
		{"no signal", 128, "", false, "/opt/corral/bin/corral-verify ended with status 128", ""},
		{"above every signal", 193, "", false, "/opt/corral/bin/corral-verify ended with status 193", ""},
		{"broken", 2, "panic: x\n", false, "/opt/corral/bin/corral-verify ended with status 2: panic: x", ""},
		{"no room, and ended for it", 134, "failed to create new OS thread", false, "the sandbox may have no more processes and threads than it has", "fewer processes inside, or a larger resources.pids"},
		{"stopped", 0, "", true, "no answer within 50ms: a process of the sandbox's user may have stopped it", meddled},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			told := make(chan struct{})
			e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
				switch {
				case strings.HasSuffix(path, "/exec"):
					w.WriteHeader(http.StatusCreated)
					io.WriteString(w, `{"Id":"x"}`)
				case strings.HasSuffix(path, "/start"):
					conn, more, err := upgraded(w, r)
					if err != nil {
						return
					}
					defer conn.Close()
					if c.hangs {
						<-told
					}
					stdcopy.NewStdWriter(conn, stdcopy.Stderr).Write([]byte(c.said))
					io.Copy(io.Discard, more) // a line that is closed with something unread is cut
				default:
					json.NewEncoder(w).Encode(map[string]any{"Running": false, "ExitCode": c.status})
				}
			})
			most := time.Minute
			if c.hangs {
				most = 50 * time.Millisecond
			}
			_, err := e.check(t.Context(), "c", spec.Verify{Version: spec.Version}, most)
			close(told)
			if err == nil {
				t.Fatal("nothing is told")
			}
			s := notTold("main", err)
			if got := s.Events[0].Detail; strings.TrimPrefix(got, "/opt/corral/bin/corral-verify: ") != c.want || s.Hint != c.hint {
				t.Errorf("%q (%s)", got, s.Hint)
			}
		})
	}
}
