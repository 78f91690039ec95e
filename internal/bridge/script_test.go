package bridge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// The test binary is the bridge, its keepers and the researchers as well.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "serve", keepCommand:
			ctx, stop := context.WithCancel(context.Background())
			go func() {
				signals := make(chan os.Signal, 1)
				notifyTerm(signals)
				<-signals
				stop()
			}()
			os.Exit(Main(ctx, os.Stdout, os.Stderr, os.Args[1:]))
		case "researcher":
			os.Exit(researcher(os.Args[2], os.Args[3]))
		}
	}
	os.Exit(m.Run())
}

// mark is in the environment of every process that a bridge of this run starts.
const mark = "CORRAL_TEST_MARK"

// plain is a reply that nothing is wrong with.
const plain = `{"answer":"an answer","sources":[],"partial":false,"notes":""}`

// researcher does what the question says.
func researcher(prompt, usage string) int {
	_, question, _ := strings.Cut(prompt, "The question:\n")
	verb, rest, _ := strings.Cut(question, " ")
	say := func(answer string) int {
		b, _ := json.Marshal(map[string]any{"answer": answer, "sources": []string{}, "partial": false, "notes": ""})
		fmt.Println(string(b))
		return 0
	}
	sh := func(script string) error {
		cmd := exec.Command("sh", "-c", script)
		cmd.Stdout = os.Stdout // held open on purpose
		return cmd.Start()
	}
	switch verb {
	case "plain":
		fmt.Println(plain)
	case "print":
		fmt.Print(rest)
	case "big":
		chunk := bytes.Repeat([]byte("x"), 1<<16)
		for {
			if _, err := os.Stdout.Write(chunk); err != nil {
				return 1
			}
		}
	case "exit":
		fmt.Println(plain)
		fmt.Fprintln(os.Stderr, "hermes -z: agent failed: \x1b[31mno\x1b[0m")
		n, _ := strconv.Atoi(rest)
		return n
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "failed":
		_ = os.WriteFile(usage, []byte(`{"failed":true}`), 0o600)
		fmt.Println(plain)
	case "usage-pipe":
		_ = syscall.Mkfifo(usage, 0o600)
		fmt.Println(plain)
	case "tell": // tells by a pipe that it is there, and never ends
		tell(rest)
		forever()
	case "until": // tells, and ends when it is told
		in, out, _ := strings.Cut(rest, " ")
		tell(in)
		_, _ = os.ReadFile(out)
		fmt.Println(plain)
	case "look":
		return say(look())
	case "litter":
		for _, dir := range []string{os.Getenv("HOME"), ".", os.Getenv("TMPDIR"), rest, filepath.Dir(os.Getenv("HOME"))} {
			deep := filepath.Join(dir, "a", "b", "c")
			_ = os.MkdirAll(deep, 0o700)
			_ = os.WriteFile(filepath.Join(deep, "f"), []byte("left"), 0o400)
			_ = syscall.Mkfifo(filepath.Join(deep, "p"), 0o600)
			_ = os.Symlink("/etc", filepath.Join(deep, "l"))
			_ = os.Chmod(deep, 0)
			_ = os.Chmod(filepath.Join(dir, "a"), 0)
		}
		fmt.Println(plain)
	case "child":
		_ = sh("trap '' TERM HUP INT; sleep 1000")
		fmt.Println(plain)
	case "setsid":
		_ = sh("setsid sh -c \"trap '' TERM HUP; sleep 1000\" &")
		fmt.Println(plain)
	case "double-fork":
		_ = sh("(setsid sh -c '(sleep 1000 &) ; (sleep 1000 &)' &) ; exit")
		fmt.Println(plain)
	// Those that multiply end by themselves, should nobody end them.
	case "hop": // each of them starts the next, in a session of its own, and ends
		for range 3 {
			cmd := exec.Command("perl", "-MPOSIX", "-e", `my $end = time + 20; while (time < $end) { my $p = fork; POSIX::_exit(0) if $p; POSIX::setsid() }`)
			cmd.Stdout = os.Stdout
			_ = cmd.Start()
		}
		tell(rest)
		forever()
	case "bomb": // 128 of them, each of which starts others
		cmd := exec.Command("perl", "-MPOSIX", "-e", `my $first = $$; for (1..7) { fork; POSIX::setsid() if $$ != $first }
			if ($$ == $first) { open(my $f, '>', $ARGV[0]); print $f "there\n"; close $f }
			my $end = time + 20; while (time < $end) { my $p = fork; POSIX::_exit(0) if defined $p && !$p; waitpid($p, 0) }`, rest)
		_ = cmd.Start()
		forever()
	case "revive": // one wakes the others as soon as they are stopped
		cmd := exec.Command("perl", "-e", `my $end = time + 20; my @p; for (1..5) { my $p = fork; if (!$p) { while (time < $end) { kill 'CONT', getppid, map { $$ + $_ } -6..6 } exit } push @p, $p } open(my $f, '>', $ARGV[0]); print $f "there\n"; close $f; while (time < $end) { kill 'CONT', @p }`, rest)
		_ = cmd.Start()
		forever()
	case "murder": // its keeper, and what it can of the bridge
		_ = sh("sleep 1000")
		bridge := parentOf(os.Getppid())
		traced := unix.PtraceAttach(bridge)
		if traced == nil {
			_ = unix.PtraceDetach(bridge)
		}
		fd, err := unix.PidfdOpen(bridge, 0)
		if err == nil {
			_, err = unix.PidfdGetfd(fd, 3, 0)
		}
		_, readErr := os.ReadDir(fmt.Sprintf("/proc/%d/fd", bridge))
		_ = os.WriteFile(rest, fmt.Appendf(nil, "%v %v %v\n", traced, err, readErr), 0o600)
		_ = syscall.Kill(os.Getppid(), syscall.SIGKILL)
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		forever()
	case "web": // URL… to fetch, after a search for the first word
		words := strings.Fields(rest)
		_, err := web("GET", "/search?q="+words[0], "")
		if err != nil {
			return say(err.Error())
		}
		for _, page := range strings.Split(words[1], ",") {
			if page != "-" {
				b, _ := json.Marshal(map[string]string{"url": page})
				if _, err := web("POST", "/v1/fetch", string(b)); err != nil {
					return say(err.Error())
				}
			}
		}
		sources := []Source{}
		for _, page := range words[2:] {
			sources = append(sources, Source{URL: page, Title: "a page"})
		}
		b, _ := json.Marshal(Answer{Answer: "from the web", Sources: sources})
		fmt.Println(string(b))
	default:
		return 9
	}
	return 0
}

func forever() {
	for {
		_ = unix.Pause()
	}
}

func tell(pipe string) {
	f, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	if err == nil {
		fmt.Fprintln(f, os.Getpid())
		f.Close()
	}
}

func parentOf(pid int) (parent int) {
	processes(func(p process) {
		if p.pid == pid {
			parent = p.parent
		}
	})
	return parent
}

// look is what a researcher finds around it.
func look() string {
	var words []string
	for _, dir := range []string{os.Getenv("HOME"), ".", os.Getenv("TMPDIR")} {
		names := []string{}
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		words = append(words, strings.Join(names, ","))
	}
	var names []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	words = append(words, strings.Join(names, ","))
	var open []string
	for fd := range 64 {
		// But for what the runtime of the program itself opens.
		target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err == nil && !strings.HasPrefix(target, "anon_inode:") && !strings.HasPrefix(target, "/sys/fs/cgroup/") && !strings.HasPrefix(target, "/proc/") {
			open = append(open, strconv.Itoa(fd))
		}
	}
	in, err := io.ReadAll(os.Stdin)
	words = append(words, strings.Join(open, ","), fmt.Sprintf("stdin %d %v", len(in), err))
	b, _ := os.ReadFile(filepath.Join(os.Getenv("HERMES_HOME"), "config.yaml"))
	return strings.Join(append(words, string(b)), "|")
}

func web(method, target, body string) (string, error) {
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", os.Getenv(spec.BridgeWebEnv))
	}}}
	req, err := http.NewRequest(method, "http://bridge"+target, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return fmt.Sprintf("%d %s", resp.StatusCode, b), err
}

// tried is a bridge under test.
type tried struct {
	tb       testing.TB
	document spec.Researcher
	cmd      *exec.Cmd
	at       string
	mark     string
	log      *lockedBuffer
	self     string // the program
	uid      uint32 // whose it is; 0 is who runs the tests
}

// memory is a folder in memory, gone with the test.
func memory(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "corral-bridge-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = remove(dir) })
	return dir
}

var marks atomic.Int64

// documentFor is what a bridge of a test runs.
func documentFor(tb testing.TB) spec.Researcher {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	dir := memory(tb)
	others := filepath.Join(dir, "other")
	if err := os.Mkdir(others, 0o700); err != nil {
		tb.Fatal(err)
	}
	return spec.Researcher{
		Version: spec.Version, Listen: netip.MustParseAddrPort("127.0.0.1:0"),
		Command:     []string{self, "researcher", spec.BridgePrompt, spec.BridgeUsage},
		Environment: map[string]string{"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", mark: fmt.Sprintf("%d-%d", os.Getpid(), marks.Add(1))},
		Home:        map[string]string{"config.yaml": "a: b\n"},
		Directory:   filepath.Join(dir, "calls"), Scratch: []string{others},
		Search: "http://127.0.0.1:1", Fetch: "http://127.0.0.1:1",
		Beat: 50,
	}
}

// start starts a bridge, with its usual document as change has it.
func start(tb testing.TB, change func(*spec.Researcher)) *tried {
	tb.Helper()
	d := documentFor(tb)
	if change != nil {
		change(&d)
	}
	b := &tried{tb: tb, document: d, mark: d.Environment[mark], log: &lockedBuffer{}, self: d.Command[0]}
	return b.begin()
}

// startAs is start as another user, if that can be.
func startAs(tb testing.TB, uid uint32, change func(*spec.Researcher)) *tried {
	tb.Helper()
	if os.Geteuid() != 0 {
		return start(tb, change)
	}
	d := documentFor(tb)
	dir, err := os.MkdirTemp("", "corral-bridge-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	program, err := os.ReadFile(d.Command[0])
	self := filepath.Join(dir, "bridge.test")
	if err := errors.Join(err, os.WriteFile(self, program, 0o755), os.Chmod(dir, 0o755)); err != nil {
		tb.Fatal(err)
	}
	for _, place := range []string{filepath.Dir(d.Directory), d.Scratch[0]} {
		if err := os.Chown(place, int(uid), int(uid)); err != nil {
			tb.Fatal(err)
		}
	}
	d.Command[0] = self
	if change != nil {
		change(&d)
	}
	b := &tried{tb: tb, document: d, mark: d.Environment[mark], log: &lockedBuffer{}, self: self, uid: uid}
	return b.begin()
}

func (b *tried) begin() *tried {
	tb := b.tb
	b.run()
	tb.Cleanup(func() {
		b.end(syscall.SIGTERM)
		b.nothingLeft()
		if tb.Failed() {
			tb.Logf("the bridge said:\n%s", b.log)
		}
	})
	return b
}

func (b *tried) run() {
	b.tb.Helper()
	b.cmd = exec.Command(b.self, "serve")
	if b.uid != 0 {
		b.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: b.uid, Gid: b.uid}}
		b.cmd.Dir = "/"
	}
	b.cmd.Env = append(os.Environ(), spec.BridgeEnv+"="+string(spec.Encode(b.document)))
	b.cmd.Stderr = b.log
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		b.tb.Fatal(err)
	}
	if err := b.cmd.Start(); err != nil {
		b.tb.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	at, ready := strings.CutPrefix(strings.TrimSpace(line), spec.BridgeReady+" on ")
	if err != nil || !ready {
		_ = b.cmd.Wait()
		b.tb.Fatalf("the bridge did not start: %q, %v\n%s", line, err, b.log)
	}
	b.at = at
	b.document.Listen = netip.MustParseAddrPort(at) // the next one is at the same place
}

// end ends the bridge and returns its status.
func (b *tried) end(sig syscall.Signal) int {
	_ = b.cmd.Process.Signal(sig)
	_ = b.cmd.Wait()
	return b.cmd.ProcessState.ExitCode()
}

func (b *tried) url() string { return "http://" + b.at + path }

// processesMarked are those of this bridge's researchers.
func (b *tried) processesMarked() (all []string) {
	processes(func(p process) {
		if p.state == 'Z' && p.parent != b.cmd.Process.Pid {
			return
		}
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
		if p.parent == b.cmd.Process.Pid || err == nil && bytes.Contains(environ, []byte(mark+"="+b.mark+"\x00")) {
			all = append(all, fmt.Sprintf("%d %c, child of %d", p.pid, p.state, p.parent))
		}
	})
	return all
}

// nothingLeft fails unless no process and no file of any call is there.
func (b *tried) nothingLeft() {
	b.tb.Helper()
	for range 3 { // a hopper may be between two processes
		if left := b.processesMarked(); len(left) > 0 {
			b.tb.Errorf("processes are left: %q", left)
		}
	}
	for _, dir := range append([]string{b.document.Directory}, b.document.Scratch...) {
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) > 0 {
			b.tb.Errorf("%s: %v is left, %v", dir, entries, err)
		}
	}
}

// caller is an MCP client.
type caller struct {
	*mcp.ClientSession
	mu      sync.Mutex
	notices []string
}

func (b *tried) caller() *caller {
	b.tb.Helper()
	c := &caller{}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.notices = append(c.notices, r.Params.Message)
		},
	})
	s, err := client.Connect(b.tb.Context(), &mcp.StreamableClientTransport{Endpoint: b.url(), DisableStandaloneSSE: true, MaxRetries: -1}, nil)
	if err != nil {
		b.tb.Fatalf("connect: %v\n%s", err, b.log)
	}
	c.ClientSession = s
	b.tb.Cleanup(func() { _ = s.Close() })
	return c
}

// said is what a call came to: an answer, or a failure.
type said struct {
	Answer
	failure
}

func (c *caller) ask(ctx context.Context, arguments map[string]any) (said, error) {
	params := &mcp.CallToolParams{Name: "research", Arguments: arguments}
	params.SetProgressToken("a call")
	r, err := c.CallTool(ctx, params)
	if err != nil {
		return said{}, err
	}
	text, ok := r.Content[0].(*mcp.TextContent)
	if !ok || len(r.Content) != 1 {
		return said{}, fmt.Errorf("content: %v", r.Content)
	}
	var s said
	if r.IsError {
		err = json.Unmarshal([]byte(text.Text), &s.failure)
	} else {
		err = json.Unmarshal([]byte(text.Text), &s.Answer)
	}
	if r.IsError != (s.Why != "") {
		return said{}, fmt.Errorf("neither an answer nor a failure: %v %s", r.IsError, text.Text)
	}
	return s, err
}

// question asks and fails the test if there is no result.
func (c *caller) question(tb testing.TB, q string) said {
	tb.Helper()
	s, err := c.ask(tb.Context(), map[string]any{"question": q})
	if err != nil {
		tb.Fatalf("%.60s: %v", q, err)
	}
	return s
}

// pipe is a named pipe outside what a bridge empties; heard returns the line that
// somebody writes into it.
func pipe(tb testing.TB) (name string, heard func() string) {
	tb.Helper()
	name = filepath.Join(tb.TempDir(), "pipe")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		tb.Fatal(err)
	}
	return name, func() string {
		tb.Helper()
		b, err := os.ReadFile(name)
		if err != nil {
			tb.Fatal(err)
		}
		return string(b)
	}
}

// ended returns what waits for the end of a process.
func ended(tb testing.TB, pid int) (wait func()) {
	tb.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		tb.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "process")
	tb.Cleanup(func() { _ = f.Close() })
	return func() {
		for {
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); err != unix.EINTR {
				return
			}
		}
	}
}

// sidecars are a search and a fetch that play what they are given.
func sidecars(tb testing.TB, handler http.HandlerFunc) func(*spec.Researcher) {
	tb.Helper()
	s := httptest.NewServer(handler)
	tb.Cleanup(s.Close)
	return func(d *spec.Researcher) { d.Search, d.Fetch = s.URL, s.URL }
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func notifyTerm(c chan os.Signal) {
	signal.Notify(c, syscall.SIGTERM)
}

var errUnheard = errors.New("nobody said anything")

// within runs f and gives up after a while, which is a failure.
func within(tb testing.TB, what string, f func()) {
	tb.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		tb.Fatalf("%s: %v", what, errUnheard)
	}
}
