package engine

import (
	"bufio"
	"bytes"
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
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
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

// rawNow says whether a terminal passes keys as bytes.
func rawNow(t *testing.T, f *os.File) bool {
	t.Helper()
	got, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return got.Lflag&(unix.ICANON|unix.ISIG|unix.ECHO) == 0
}

// A shell that brings back what was stopped has set the terminal to what it needs itself:
// it passes keys as bytes again, and has its size. At the end it is as it was.
func TestRawAgainAfterAStop(t *testing.T) {
	for _, how := range []string{"console", "beside"} {
		t.Run(how, func(t *testing.T) {
			screen, ours, err := pty.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer screen.Close()
			defer ours.Close()
			if err := pty.Setsize(ours, &pty.Winsize{Rows: 44, Cols: 99}); err != nil {
				t.Fatal(err)
			}
			cooked, err := unix.IoctlGetTermios(int(ours.Fd()), unix.TCGETS)
			if err != nil {
				t.Fatal(err)
			}
			sized, done := make(chan string, 100), make(chan struct{})
			e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
				switch path {
				case "/containers/c/exec":
					w.WriteHeader(http.StatusCreated)
					io.WriteString(w, `{"Id":"x"}`)
				case "/exec/x/start", "/containers/c/attach":
					_, _ = io.Copy(io.Discard, r.Body)
					conn, _, err := w.(http.Hijacker).Hijack()
					if err != nil {
						t.Error(err)
						return
					}
					fmt.Fprint(conn, "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
					<-done
					conn.Close()
				case "/exec/x/resize", "/containers/c/resize":
					sized <- r.URL.Query().Get("h") + "x" + r.URL.Query().Get("w")
				case "/exec/x/json":
					io.WriteString(w, `{"ID":"x","Running":false,"ExitCode":7}`)
				case "/containers/c/json":
					state := `{"Status":"running","Running":true}`
					select {
					case <-done:
						if how == "console" {
							state = `{"Status":"exited","ExitCode":7}`
						}
					default:
					}
					io.WriteString(w, `{"Id":"c","Config":{"Tty":true,"OpenStdin":true},"State":`+state+`}`)
				default:
					t.Errorf("asked for %s", path)
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), answerWithin)
			defer cancel()
			end := sync.OnceFunc(func() { close(done) })
			context.AfterFunc(ctx, end)
			size := func() {
				t.Helper()
				for {
					select {
					case got := <-sized:
						if got == "44x99" {
							return
						}
					case <-ctx.Done():
						t.Fatal("it is given no size")
					}
				}
			}
			ended := make(chan string, 1)
			go func() {
				code, err := 0, error(nil)
				if how == "console" {
					code, err = e.Console(ctx, "c", Console{Leave: []byte{16, 17}, Input: true}, ours, ours, ours)
				} else {
					code, err = e.Beside(ctx, "c", []string{"sh"}, nil, Terminal{TTY: true}, ours, ours, ours)
				}
				ended <- fmt.Sprint(code, " ", err)
			}()
			size()
			if !rawNow(t, ours) {
				t.Error("it is not raw at first")
			}
			if err := unix.IoctlSetTermios(int(ours.Fd()), unix.TCSETS, cooked); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(os.Getpid(), syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			size()
			if !rawNow(t, ours) {
				t.Error("it is not raw again")
			}
			end()
			if got := <-ended; got != "7 <nil>" {
				t.Error(got)
			}
			if rawNow(t, ours) {
				t.Error("it is left raw")
			}
		})
	}
}

// Who does not see what they type has their terminal as it was: Ctrl-C is a signal.
func TestNotRawWithoutAScreen(t *testing.T) {
	screen, ours, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	defer ours.Close()
	e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
		switch path {
		case "/containers/c/attach":
			if rawNow(t, ours) {
				t.Error("raw before it is connected")
			}
			_, _ = io.Copy(io.Discard, r.Body)
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			fmt.Fprint(conn, "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nhello")
			conn.Close()
		case "/containers/c/json":
			io.WriteString(w, `{"Id":"c","Config":{"Tty":true,"OpenStdin":true},"State":{"Status":"exited","ExitCode":7}}`)
		default:
			t.Errorf("asked for %s", path)
		}
	})
	raw := false
	_, _ = e.Console(t.Context(), "c", Console{Leave: []byte{16, 17}, Input: true}, ours, writing(func() { raw = rawNow(t, ours) }), io.Discard)
	if raw {
		t.Error("it is raw")
	}
}

// writing is called for each write.
type writing func()

func (w writing) Write(b []byte) (int, error) {
	w()
	return len(b), nil
}

// What stands still beside an agent, because nobody takes what it says, is left by whoever
// ends it, or says so often enough.
func TestBesideThatStalls(t *testing.T) {
	for name, signals := range map[string]int{"it ends": 1, "it ends later": 2, "it goes on": patience + 1} {
		t.Run(name, func(t *testing.T) { besideStalls(t, signals, name != "it goes on") })
	}
}

func besideStalls(t *testing.T, signals int, ends bool) {
	other, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer other.Close()
	sleeper := exec.Command("sleep", "600")
	sleeper.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	done, asking, sent := make(chan struct{}), make(chan struct{}, 100), 0
	e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
		switch path {
		case "/containers/:/exec": // it is in the group of every process
			w.WriteHeader(http.StatusCreated)
			io.WriteString(w, `{"Id":"x"}`)
		case "/exec/x/start":
			_, _ = io.Copy(io.Discard, r.Body)
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprint(conn, "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
			_, _ = conn.Write(bytes.Repeat([]byte("x"), 1<<20)) // more than a pipe has room for
			<-done
		case "/exec/x/json":
			fmt.Fprintf(w, `{"ID":"x","Running":%v,"Pid":%d}`, !ends || sent < signals, sleeper.Process.Pid)
			sent++ // each asks once
			asking <- struct{}{}
		default:
			t.Errorf("asked for %s", path)
		}
	})
	defer close(done)
	ended := make(chan error, 1)
	go func() {
		_, err := e.Beside(t.Context(), ":", []string{"sh"}, nil, Terminal{TTY: true}, strings.NewReader(""), ours, io.Discard)
		ended <- err
	}()
	if _, err := other.Read(make([]byte, 1)); err != nil { // it is there
		t.Fatal(err)
	}
	for range signals {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case <-asking:
		case <-t.Context().Done():
			t.Fatal("nothing is sent on")
		}
	}
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "nobody takes the output any more") {
			t.Error(err)
		}
	case <-time.After(answerWithin):
		t.Fatal("it stands still")
	}
}
