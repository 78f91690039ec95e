package engine

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/creack/pty"
)

// A window that is resized at any moment before a command is attached neither
// holds it up nor leaves it without a size.
func TestResizedBeforeItIsAttached(t *testing.T) {
	for _, moment := range []string{"never", "/containers/c/exec", "/exec/x/start", "both"} {
		t.Run(moment, func(t *testing.T) {
			screen, ours, err := pty.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer screen.Close()
			defer ours.Close()
			if err := pty.Setsize(ours, &pty.Winsize{Rows: 44, Cols: 99}); err != nil {
				t.Fatal(err)
			}
			seen := make(chan os.Signal, 1)
			signal.Notify(seen, syscall.SIGWINCH)
			defer signal.Stop(seen)
			// The second is seen only once everybody has been given the first.
			resize := func() {
				for range 2 {
					if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil {
						t.Error(err)
					}
					<-seen
				}
			}
			sized := make(chan string, 100)
			var end sync.Once
			done := make(chan struct{})
			e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
				if path == moment || moment == "both" && (path == "/containers/c/exec" || path == "/exec/x/start") {
					resize()
				}
				switch path {
				case "/containers/c/exec":
					w.WriteHeader(http.StatusCreated)
					io.WriteString(w, `{"Id":"x"}`)
				case "/exec/x/start":
					_, _ = io.Copy(io.Discard, r.Body) // what is left unread resets the connection
					conn, _, err := w.(http.Hijacker).Hijack()
					if err != nil {
						t.Error(err)
						return
					}
					fmt.Fprint(conn, "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nhello\r\n")
					<-done // it runs until it has its size
					conn.Close()
				case "/exec/x/resize":
					sized <- r.URL.Query().Get("h") + "x" + r.URL.Query().Get("w")
					end.Do(func() { close(done) })
				case "/exec/x/json":
					io.WriteString(w, `{"ID":"x","Running":false,"ExitCode":7}`)
				case "/containers/c/json":
					io.WriteString(w, `{"Id":"c","State":{"Status":"running","Running":true}}`)
				default:
					t.Errorf("asked for %s", path)
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), answerWithin)
			defer cancel()
			context.AfterFunc(ctx, func() { end.Do(func() { close(done) }) })
			ended := make(chan string, 1)
			go func() {
				code, err := e.Beside(ctx, "c", []string{"sh"}, nil, Terminal{TTY: true}, ours, ours, ours)
				ended <- fmt.Sprint(code, " ", err)
			}()
			select {
			case got := <-ended:
				if got != "7 <nil>" {
					t.Errorf("it ended with %s", got)
				}
			case <-ctx.Done():
				t.Fatal("it hangs")
			}
			select {
			case got := <-sized:
				if got != "44x99" {
					t.Errorf("the size given is %s", got)
				}
			default:
				t.Error("it was given no size")
			}
			if line, err := bufio.NewReader(screen).ReadString('\n'); err != nil || !strings.Contains(line, "hello") {
				t.Errorf("%q, %v", line, err)
			}
		})
	}
}

// A signal that comes before the engine knows the process of a command reaches
// it all the same; one for a command that has ended is not taken for sent.
func TestSignalBeforeTheProcessIsKnown(t *testing.T) {
	for name, known := range map[string]bool{"known later": true, "never": false} {
		t.Run(name, func(t *testing.T) {
			sleeper := exec.Command("sleep", "600")
			sleeper.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := sleeper.Start(); err != nil {
				t.Fatal(err)
			}
			defer sleeper.Process.Kill()
			asked := 0
			e := answered(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
				pid := 0
				if asked++; known && asked > 3 {
					pid = sleeper.Process.Pid
				}
				fmt.Fprintf(w, `{"ID":"x","Running":true,"Pid":%d}`, pid)
			})
			// Every process is in a group whose path has a slash.
			if got := e.kill(t.Context(), "/", "x", syscall.SIGTERM); got != known {
				t.Fatalf("sent: %v, after %d questions", got, asked)
			}
			if known {
				if err := sleeper.Wait(); err == nil || sleeper.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
					t.Errorf("%v", sleeper.ProcessState)
				}
			}
		})
	}
}
