package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
	longLife   = 30 * time.Second // after which a crash counts as the first again

	// askTimeout bounds every question but a resolution, which has its own limit.
	askTimeout = 10 * time.Second
	// askTries is how many workers may die over one question.
	askTries = 3

	// A worker is asked every pingEvery whether it is there. One that has not
	// answered after pingWithin is ended, unless it does within pingGrace: PID 1
	// may have been frozen together with it.
	pingEvery  = 5 * time.Second
	pingWithin = 4 * time.Second
	pingGrace  = time.Second
)

// supervisor keeps one worker alive. The sockets outlive it: PID 1 holds them
// open and never reads from them, so that nobody else can take the port of a
// worker that is gone.
type supervisor struct {
	sockets []*os.File // names UDP, names TCP, records
	words   io.Writer  // the worker's standard error
	news    func(auditLine)

	mu       sync.Mutex
	table    table
	edition  int // of the table
	link     *link
	changed  chan struct{} // closed when link is set anew
	restarts int
}

// openSupervisor opens the sockets of the worker while nobody else can have
// them.
func openSupervisor(words io.Writer, news func(auditLine)) (*supervisor, error) {
	s := &supervisor{words: words, news: news, changed: make(chan struct{})}
	pc, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(namesServer))
	if err != nil {
		return nil, err
	}
	defer pc.Close()
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(namesServer))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	udp, err := pc.File()
	if err != nil {
		return nil, err
	}
	tcp, err := l.File()
	if err != nil {
		return nil, err
	}
	records, err := openRecords()
	if err != nil {
		return nil, fmt.Errorf("NFLOG: %w", err)
	}
	s.sockets = []*os.File{udp, tcp, records}
	return s, nil
}

// run starts workers, one after the other, until the context ends. Only if not
// even the first can be started is that an error.
func (s *supervisor) run(ctx context.Context) error {
	// The kernel ends the worker with the thread that started it.
	runtime.LockOSThread()
	pause := firstPause
	for {
		born := time.Now()
		started, err := s.live(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if !started && s.restarted() == 0 {
			return fmt.Errorf("worker: %w", err)
		}
		if time.Since(born) > longLife {
			pause = firstPause
		}
		fmt.Fprintf(s.words, "the worker ended (%v); starting another\n", err)
		s.mu.Lock()
		s.restarts++
		s.table.Base = uint64(s.restarts) << 32
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

// live is the life of one worker.
func (s *supervisor) live(ctx context.Context) (started bool, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	theirs := os.NewFile(uintptr(fds[1]), "link")
	defer theirs.Close()
	file := os.NewFile(uintptr(fds[0]), "link")
	conn, err := net.FileConn(file)
	file.Close()
	if err != nil {
		return false, err
	}
	defer conn.Close()

	cmd := exec.CommandContext(ctx, "/proc/self/exe", "worker")
	cmd.Args[0] = os.Args[0]
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.Stderr = s.words
	cmd.WaitDelay = time.Second
	cmd.ExtraFiles = slices.Concat([]*os.File{theirs}, s.sockets)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: spec.WorkerUID, Gid: spec.WorkerUID},
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := startFirstToGo(cmd); err != nil {
		return false, err
	}
	theirs.Close()
	l := &link{conn: conn, news: s.news, waiting: map[uint64]chan reply{}}
	read := make(chan error, 1)
	go func() { read <- l.run() }()
	var silent atomic.Bool
	go func() {
		if !ping(ctx, l) {
			silent.Store(true)
			stop()
		}
	}()
	for known := -1; !s.introduce(l, known); {
		s.mu.Lock()
		t := s.table
		known = s.edition
		s.mu.Unlock()
		if _, err := l.ask(ctx, request{Table: &t}); err != nil {
			l.conn.Close()
			break
		}
	}
	select {
	case err = <-read:
	case <-ctx.Done(): // who holds the other end may not be there to let go of it
		conn.Close()
		err = <-read
	}
	stop()
	ended := cmd.Wait()
	if silent.Load() {
		return true, errSilent
	}
	return true, errors.Join(err, ended)
}

// introduce makes a worker the current one, if it knows the newest table.
func (s *supervisor) introduce(l *link, known int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known != s.edition {
		return false
	}
	s.link = l
	close(s.changed)
	s.changed = make(chan struct{})
	return true
}

var errSilent = errors.New("it did not answer and was killed")

// ping asks a worker again and again whether it is there. It is false when the
// worker has not answered in time, and true when ctx or the worker has ended.
// The question goes where records and the account are, so that a worker that is
// stuck there does not count as one that answers.
func ping(ctx context.Context, l *link) bool {
	newest := uint64(math.MaxUint64 - 1) // nothing comes after it
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return true
		case <-tick.C:
		}
		answered := make(chan error, 1)
		within, cancel := context.WithCancel(ctx)
		go func() {
			_, err := l.ask(within, request{Verdicts: &newest})
			answered <- err
		}()
		there := false
		for _, wait := range []time.Duration{pingWithin, pingGrace} {
			select {
			case <-answered: // or it is gone, which others notice
				there = true
			case <-time.After(wait):
			}
			if there {
				break
			}
		}
		cancel()
		if !there && ctx.Err() == nil {
			return false
		}
	}
}

// oomScore is where a process says how gladly the kernel may end it when memory
// is short, from -1000 to 1000.
const oomScore = "/proc/self/oom_score_adj"

// startFirstToGo starts a worker as the process that the kernel ends first when
// memory is short: it can be replaced, PID 1 cannot. The worker inherits that,
// since whether it could write it itself depends on who may read its program.
func startFirstToGo(cmd *exec.Cmd) error {
	own, err := os.ReadFile(oomScore)
	if err != nil {
		return err
	}
	if err := os.WriteFile(oomScore, []byte("1000"), 0); err != nil {
		return err
	}
	err = cmd.Start()
	if back := os.WriteFile(oomScore, bytes.TrimSpace(own), 0); back != nil {
		return errors.Join(err, back)
	}
	return err
}

// current is the line to the worker, once there is one.
func (s *supervisor) current(ctx context.Context) (*link, error) {
	for {
		s.mu.Lock()
		l, changed := s.link, s.changed
		s.mu.Unlock()
		if l != nil && l.alive() {
			return l, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// ask puts a question to the worker, and to its successor if it dies over it.
func (s *supervisor) ask(ctx context.Context, q request) (reply, error) {
	if q.Resolve == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, askTimeout, errors.New("the worker does not answer"))
		defer cancel()
	}
	for range askTries {
		l, err := s.current(ctx)
		if err != nil {
			return reply{}, err
		}
		r, err := l.ask(ctx, q)
		if errors.Is(err, errWorkerGone) {
			continue
		}
		if err == nil && r.Err != "" {
			err = &lookupFailed{errors.New(plain(r.Err)), r.Kind}
		}
		return r, err
	}
	return reply{}, errWorkerGone
}

// set gives this worker and all to come a new table. On return no other is in use: a
// worker that does not say that it has it is ended, and that none is there is no
// failure. One call at a time.
func (s *supervisor) set(ctx context.Context, t table) {
	s.mu.Lock()
	t.Base = s.table.Base
	s.table = t
	s.edition++
	l := s.link
	s.mu.Unlock()
	if l == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if r, err := l.ask(ctx, request{Table: &t}); err != nil || r.Err != "" {
		l.conn.Close()
	}
}

func (s *supervisor) restarted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restarts
}

// reapOrphans collects children that PID 1 got because their parents died,
// such as those of an exec. Its own are waited for by whoever started them;
// what tells them apart is the session, which an exec has of its own.
func reapOrphans() {
	self, session := os.Getpid(), sessionOf("self")
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		fields := stat(e.Name())
		if len(fields) < 4 || fields[0] != "Z" || fields[1] != strconv.Itoa(self) || fields[3] == session {
			continue
		}
		unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
}

func sessionOf(pid string) string {
	if fields := stat(pid); len(fields) > 3 {
		return fields[3]
	}
	return ""
}

// stat is /proc/PID/stat from the state on: state, parent, group, session.
func stat(pid string) []string {
	return statIn("/", pid)
}

func statIn(root, pid string) []string {
	b, err := os.ReadFile(filepath.Join(root, "proc", pid, "stat"))
	if err != nil {
		return nil
	}
	i := bytes.LastIndexByte(b, ')')
	return strings.Fields(string(b[i+1:]))
}
