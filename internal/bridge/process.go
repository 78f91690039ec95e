package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// keepCommand is how a bridge starts itself as a keeper. It is nobody else's to
// call.
const keepCommand = "keep"

// becomeReaper makes this process the parent of whatever below it loses its own,
// so that nothing that was started here can leave the tree.
func becomeReaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the reaper of what a researcher leaves: %w", err)
	}
	return nil
}

// hide keeps a researcher, which has the same uid, from tracing this process and
// from taking its listening socket.
func hide() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide from tracers: %w", err)
	}
	return nil
}

// closeOnExec keeps from a researcher what whoever started this process left open.
// All that it opens itself is closed for its children.
func closeOnExec() error {
	entries, err := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return err
}

// keep is a keeper: it starts a researcher and adopts what that one leaves, so
// that calls side by side can be told apart by whom they are below. It ends with
// its researcher; what is left then falls to the bridge.
func keep(command []string, stderr io.Writer) int {
	runtime.LockOSThread() // the researcher ends with the thread that started it
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	if err := errors.Join(becomeReaper(), hide()); err != nil {
		fmt.Fprintln(stderr, err)
		return unstarted
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		fmt.Fprintln(stderr, err)
		return unstarted
	}
	child, err := os.StartProcess(path, command, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		fmt.Fprintln(stderr, err)
		return unstarted
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return unstarted
		case pid == child.Pid && status.Exited():
			return status.ExitStatus()
		case pid == child.Pid && status.Signaled():
			return 128 + int(status.Signal())
		}
	}
}

// unstarted is a keeper's status when there is no researcher.
const unstarted = 125

// family is every process below this one.
type family struct {
	mu sync.Mutex
	// started are the keepers that somebody waits for; kept are those of them whose
	// call is under way.
	started, kept map[int]bool

	starts   chan func() // run by one thread, whose end would be that of what it started
	sweeping sync.Mutex
}

func newFamily() *family {
	f := &family{started: map[int]bool{}, kept: map[int]bool{}, starts: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for start := range f.starts {
			start()
		}
	}()
	return f
}

// close is for a family that starts nothing any more.
func (f *family) close() { close(f.starts) }

// ran is what a researcher's process came to.
type ran struct {
	out    []byte // what it printed, at most replyLimit
	over   bool   // it printed more
	words  []byte // the end of what it complained
	status int    // its exit status, if it ended by itself
}

const wordsLimit = 4 << 10

// run starts a command under a keeper and returns when no process of it is left:
// it has ended, has printed too much, or ctx has. Only the last is an error, besides
// that it cannot be started.
func (f *family) run(ctx context.Context, command, environ []string, dir string) (ran, error) {
	out, errs := newCatch(replyLimit, true), newCatch(wordsLimit, false)
	defer out.close()
	defer errs.close()
	if err := errors.Join(out.open(), errs.open()); err != nil {
		return ran{}, err
	}
	cmd := exec.Command("/proc/self/exe", append([]string{keepCommand}, command...)...)
	cmd.Args[0] = os.Args[0]
	cmd.Env, cmd.Dir = environ, dir
	cmd.Stdout, cmd.Stderr = out.theirs, errs.theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := f.start(cmd); err != nil {
		return ran{}, err
	}
	out.theirs.Close()
	errs.theirs.Close()
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		f.forget(cmd.Process.Pid)
		ended <- err
	}()
	var err error
	waited := false
	select {
	case <-ended:
		waited = true
	case <-out.full:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	f.end(cmd.Process.Pid)
	if !waited {
		<-ended
	}
	return ran{out: out.wait(), over: out.overflowed(), words: errs.wait(), status: cmd.ProcessState.ExitCode()}, err
}

// start starts a keeper, which no sweep may take for a stray meanwhile.
func (f *family) start(cmd *exec.Cmd) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	started := make(chan error)
	f.starts <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return err
	}
	f.started[cmd.Process.Pid], f.kept[cmd.Process.Pid] = true, true
	return nil
}

func (f *family) forget(pid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.started, pid)
}

// end ends a call's processes and every stray.
func (f *family) end(keeper int) {
	f.mu.Lock()
	delete(f.kept, keeper)
	f.mu.Unlock()
	f.sweep()
}

const (
	// freezeRounds is how often those found are stopped before they are killed all
	// the same. A stopped process starts no other, and keeps its place in the
	// container's number of them.
	freezeRounds = 64
	sweepPause   = time.Millisecond
	sweepPauses  = 100 * time.Millisecond // at most
)

// quietRounds is how often in a row nothing must be found where calls are under way
// whose keepers are children as well, so that the kernel cannot be asked.
const quietRounds = 32

// sweep kills and reaps every process below this one but those of calls under
// way. It returns when there is none: what cannot be killed yet keeps it waiting.
func (f *family) sweep() {
	f.sweeping.Lock()
	defer f.sweeping.Unlock()
	for range freezeRounds {
		if fresh, _ := f.round(unix.SIGSTOP); fresh == 0 {
			break
		}
	}
	pause := sweepPause
	for quiet := 0; quiet < quietRounds; {
		if _, left := f.round(unix.SIGKILL); left > 0 {
			quiet = 0
			time.Sleep(pause)
			pause = min(2*pause, sweepPauses)
			continue
		}
		// One that starts its successor and ends can be between two places where a
		// round looks. A process without children has nobody below it.
		if childless() {
			return
		}
		f.strike()
		if f.busy() {
			quiet++
		}
	}
}

// busy reports whether calls are under way, whose keepers are children that stay.
func (f *family) busy() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.kept) > 0
}

// strike kills the children of this process that a round would come to too late: they
// are listed apart, by threads, where the kernel does that.
func (f *family) strike() {
	f.mu.Lock()
	defer f.mu.Unlock()
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		b, _ := os.ReadFile(list) // a thread may have ended
		for _, word := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(word); err == nil && !f.kept[pid] {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}

// childless asks the kernel whether this process has no child, not even one that
// has ended.
func childless() bool {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
		if err != unix.EINTR {
			return err == unix.ECHILD
		}
	}
}

// round sends a signal to every stray that is not yet where it leads and reaps
// those that are ended. It tells how many it was sent to and how many are left.
func (f *family) round(sig unix.Signal) (fresh, left int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	self := os.Getpid()
	strays, later := map[int]bool{self: true}, map[int]process{}
	meet := func(p process) {
		if f.kept[p.pid] {
			return
		}
		strays[p.pid] = true
		left++
		switch {
		case p.state == 'Z' || p.state == 'X':
			if p.parent == self && !f.started[p.pid] {
				if pid, _ := unix.Wait4(p.pid, nil, unix.WNOHANG, nil); pid == p.pid {
					left--
				}
			}
		case sig == unix.SIGSTOP && p.state == 'T':
		default:
			fresh++
			_ = unix.Kill(p.pid, sig) // it may have ended
		}
	}
	// Parents come before their children, most often: whoever is found is dealt with
	// at once, before it has a child that this round does not see.
	processes(func(p process) {
		if strays[p.parent] {
			meet(p)
		} else {
			later[p.pid] = p
		}
	})
	for more := true; more; {
		more = false
		for pid, p := range later {
			if strays[p.parent] {
				delete(later, pid)
				meet(p)
				more = true
			}
		}
	}
	return fresh, left
}

type process struct {
	pid, parent int
	state       byte
}

// processes calls yield for each process that can be seen, by rising number.
func processes(yield func(process)) {
	dir, err := os.Open("/proc")
	if err != nil {
		panic(fmt.Sprintf("bridge: no /proc, no way to tell what a researcher left: %v", err))
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(64) // few at a time: what is born meanwhile is seen
		for _, name := range names {
			pid, err := strconv.Atoi(name)
			if err != nil {
				continue
			}
			b, err := os.ReadFile(filepath.Join("/proc", name, "stat"))
			if err != nil {
				continue
			}
			fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
			if len(fields) < 2 {
				continue
			}
			parent, err := strconv.Atoi(fields[1])
			if err != nil {
				continue
			}
			yield(process{pid, parent, fields[0][0]})
		}
		if err != nil {
			return
		}
	}
}

// reap collects orphans between calls, until ctx ends.
func (f *family) reap(ctx context.Context) {
	born := make(chan os.Signal, 1)
	signal.Notify(born, syscall.SIGCHLD)
	defer signal.Stop(born)
	for {
		select {
		case <-born:
			f.collect()
		case <-ctx.Done():
			return
		}
	}
}

// collect reaps children that have ended and that nobody waits for: what an exec
// into the container left, or a call's keeper.
func (f *family) collect() {
	f.mu.Lock()
	defer f.mu.Unlock()
	self := os.Getpid()
	processes(func(p process) {
		if p.parent == self && p.state == 'Z' && !f.started[p.pid] {
			_, _ = unix.Wait4(p.pid, nil, unix.WNOHANG, nil)
		}
	})
}

// catch takes what a process prints, from its beginning or its end.
type catch struct {
	limit        int
	first        bool
	ours, theirs *os.File
	full         chan struct{} // closed when there is more than limit, of a beginning
	done         chan struct{}
	b            []byte
}

func newCatch(limit int, first bool) *catch {
	return &catch{limit: limit, first: first, full: make(chan struct{}), done: make(chan struct{})}
}

func (c *catch) open() error {
	var err error
	if c.ours, c.theirs, err = os.Pipe(); err != nil {
		return err
	}
	go c.read()
	return nil
}

func (c *catch) read() {
	defer close(c.done)
	buf := make([]byte, 32<<10)
	for {
		n, err := c.ours.Read(buf)
		c.b = append(c.b, buf[:n]...)
		if over := len(c.b) - c.limit; over > 0 {
			if c.first {
				close(c.full)
				return
			}
			c.b = append(c.b[:0], c.b[over:]...)
		}
		if err != nil {
			return
		}
	}
}

// leftOpen is how long a pipe may stay open when no process is left: one that was
// handed to somebody else by a socket does.
const leftOpen = time.Second

func (c *catch) wait() []byte {
	_ = c.ours.SetReadDeadline(time.Now().Add(leftOpen))
	<-c.done
	return c.b[:min(len(c.b), c.limit)]
}

func (c *catch) overflowed() bool {
	select {
	case <-c.full:
		return true
	default:
		return false
	}
}

func (c *catch) close() {
	if c.ours != nil {
		c.theirs.Close()
		c.ours.Close()
		<-c.done
	}
}
