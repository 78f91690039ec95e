// Package harness runs real harnesses against what corral puts beside them. The
// whole process is in a namespace of its own, without a way out.
package harness

import (
	"bufio"
	"bytes"
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
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
	"github.com/corral-sandbox/corral/test/lab"
)

func TestMain(m *testing.M) { lab.Alone(m) }

const (
	hermes = testenv.Hermes + "/bin/hermes"
	python = testenv.Hermes + "/bin/python"
	ours   = "../../profiles/hermes"
)

// build makes the bridge.
func build(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	c := exec.Command("go", "build", "-o", dir+"/", "../../cmd/corral-bridge")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		tb.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(dir, "corral-bridge")
}

// bridge is a corral-bridge that runs.
type bridge struct {
	tb       testing.TB
	document spec.Researcher
	program  string
	cmd      *exec.Cmd
	log      bytes.Buffer
}

func startBridge(tb testing.TB, d spec.Researcher) *bridge {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "corral-harness-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	d.Version, d.Listen, d.Directory = spec.Version, netip.MustParseAddrPort("127.0.0.1:0"), filepath.Join(dir, "calls")
	for _, sidecar := range []*string{&d.Search, &d.Fetch} {
		if *sidecar == "" {
			*sidecar = "http://127.0.0.1:1"
		}
	}
	b := &bridge{tb: tb, document: d, program: build(tb)}
	b.run()
	tb.Cleanup(func() {
		b.end()
		if entries, err := os.ReadDir(b.document.Directory); err != nil || len(entries) > 0 {
			tb.Errorf("%v is left, %v", entries, err)
		}
		if tb.Failed() {
			tb.Logf("the bridge said:\n%s", &b.log)
		}
	})
	return b
}

func (b *bridge) run() {
	b.tb.Helper()
	b.cmd = exec.Command(b.program, "serve")
	b.cmd.Env = []string{spec.BridgeEnv + "=" + string(spec.Encode(b.document))}
	b.cmd.Stderr = &b.log
	out, err := b.cmd.StdoutPipe()
	if err := errors.Join(err, b.cmd.Start()); err != nil {
		b.tb.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	at, ready := strings.CutPrefix(strings.TrimSpace(line), spec.BridgeReady+" on ")
	if err != nil || !ready {
		_ = b.cmd.Wait()
		b.tb.Fatalf("%q, %v: %s", line, err, &b.log)
	}
	b.document.Listen = netip.MustParseAddrPort(at)
}

func (b *bridge) end() {
	_ = b.cmd.Process.Signal(syscall.SIGTERM)
	_ = b.cmd.Wait()
}

func (b *bridge) url() string { return fmt.Sprintf("http://%s/mcp", b.document.Listen) }

// ask is one call, whose result comes back as it is.
func (b *bridge) ask(question string) string {
	b.tb.Helper()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(b.tb.Context(),
		&mcp.StreamableClientTransport{Endpoint: b.url(), DisableStandaloneSSE: true}, nil)
	if err != nil {
		b.tb.Fatal(err)
	}
	defer session.Close()
	r, err := session.CallTool(b.tb.Context(), &mcp.CallToolParams{Name: "research", Arguments: map[string]any{"question": question}})
	if err != nil {
		b.tb.Fatal(err)
	}
	return r.Content[0].(*mcp.TextContent).Text
}

// sidecars stand in for search and fetch.
type sidecars struct {
	*httptest.Server
	mu            sync.Mutex
	running, most int
	asked         map[string]int
	wait          chan struct{} // what each fetch waits for, if there is one
}

func serveSidecars(tb testing.TB) *sidecars {
	s := &sidecars{asked: map[string]int{}}
	s.Server = httptest.NewServer(s)
	tb.Cleanup(s.Close)
	return s
}

func (s *sidecars) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/search" {
		if strings.Contains(r.URL.Query().Get("q"), "suspended") {
			fmt.Fprint(w, `{"results":[],"unresponsive_engines":[["one","CAPTCHA"]]}`)
			return
		}
		fmt.Fprint(w, `{"results":[
			{"url":"http://44.10.0.10/low","title":"low","content":"c","score":0.5},
			{"url":"http://44.10.0.10/high","title":"high","content":"c","score":2}],"unresponsive_engines":[]}`)
		return
	}
	var ask spec.FetchRequest
	if r.URL.Path != spec.FetchPath || json.NewDecoder(r.Body).Decode(&ask) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.running++
	s.most = max(s.most, s.running)
	s.asked[ask.URL]++
	n := s.asked[ask.URL]
	full := s.running == 6
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.running--
		s.mu.Unlock()
	}()
	if s.wait != nil {
		if full {
			close(s.wait)
		}
		<-s.wait
	}
	busy := strings.Contains(ask.URL, "always-busy") || strings.Contains(ask.URL, "busy-thrice") && n <= 3 || strings.Contains(ask.URL, "busy-once") && n == 1
	switch {
	case busy:
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"error":"busy"}`)
	case strings.Contains(ask.URL, "blocked"):
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"error":"blocked_destination","detail":"private"}`)
	case strings.Contains(ask.URL, "missing"):
		_ = json.NewEncoder(w).Encode(spec.FetchAnswer{URL: ask.URL, FinalURL: ask.URL, Status: 404, ContentMarkdown: "no"})
	default:
		_ = json.NewEncoder(w).Encode(spec.FetchAnswer{URL: ask.URL, FinalURL: ask.URL + "/final", Status: 200, Title: "title of " + ask.URL, ContentMarkdown: "text of " + ask.URL})
	}
}

// researcher is a real Hermes with corral's provider, as the profile sets it up.
func researcher(tb testing.TB, model *lab.Model, s *sidecars) *bridge {
	tb.Helper()
	testenv.Require(tb, "hermes", "netns")
	config, err := os.ReadFile(ours + "/researcher/config.yaml")
	if err != nil {
		tb.Fatal(err)
	}
	return startBridge(tb, spec.Researcher{
		Command:     []string{hermes, "-z", spec.BridgePrompt, "-t", "web", "--usage-file", spec.BridgeUsage},
		Environment: map[string]string{"PATH": "/usr/bin:/bin", "HERMES_BUNDLED_PLUGINS": plugins(tb), "PYTHONDONTWRITEBYTECODE": "1"},
		Home: map[string]string{"config.yaml": string(config) + fmt.Sprintf(
			"model: {provider: custom, base_url: %q, default: scripted, context_length: 65536}\n", model.URL()+"/v1")},
		Search: s.URL, Fetch: s.URL,
	})
}

// plugins is Hermes' own tree of plugins with ours in it, as an image has it.
func plugins(tb testing.TB) string {
	tb.Helper()
	found, err := filepath.Glob(testenv.Hermes + "/lib/python3*/site-packages/plugins")
	if err != nil || len(found) != 1 {
		tb.Fatalf("%v, %v", found, err)
	}
	dir := tb.TempDir()
	for _, tree := range []string{found[0], ours + "/researcher/plugins"} {
		if err := os.CopyFS(dir, os.DirFS(tree)); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

func tool(name string, args any) lab.Turn {
	return lab.Turn{Call: &lab.ToolCall{Name: name, Args: args}}
}

// A real Hermes searches and reads by the bridge, and what it says of itself is not
// believed.
func TestResearcher(t *testing.T) {
	testenv.Require(t, "hermes", "netns")
	model, s := lab.ServeModel(t), serveSidecars(t)
	b := researcher(t, model, s)
	answer := func(pages ...string) lab.Turn {
		sources := []map[string]string{}
		for _, p := range pages {
			sources = append(sources, map[string]string{"url": p, "title": "t"})
		}
		text, err := json.Marshal(map[string]any{"answer": "so it is", "sources": sources, "partial": false, "notes": ""})
		if err != nil {
			t.Fatal(err)
		}
		return lab.Turn{Text: string(text)}
	}
	const at = "http://44.10.0.10/"
	model.Play(t, tool("web_search", map[string]any{"query": "the first thing"}),
		tool("web_extract", map[string]any{"urls": []string{at + "busy-once", at + "blocked", at + "a", at + "missing", at + "high"}}),
		answer(at+"high", at+"a", at+"busy-once", at+"a/final", at+"low"))
	if got := b.ask("what is the first thing?"); !strings.Contains(got, `"answer":"so it is"`) || strings.Count(got, `"url"`) != 5 {
		t.Errorf("%s", got)
	}
	var tools, results []string
	for _, r := range model.Requests() {
		if r.Turn > 0 {
			tools = r.Tools
			for _, m := range r.Messages {
				if m.Role == "tool" && !slices.Contains(results, m.Text) {
					results = append(results, m.Text)
				}
			}
		}
	}
	slices.Sort(tools)
	if !slices.Equal(tools, []string{"web_extract", "web_search"}) {
		t.Errorf("the researcher's tools: %q", tools)
	}
	if len(results) != 2 {
		t.Fatalf("results of tools: %q", results)
	}
	inOrder(t, results[0], "high", "low")
	inOrder(t, results[1], "text of "+at+"busy-once", "blocked_destination: private", "text of "+at+"a", "HTTP status 404", "text of "+at+"high")
	if s.asked[at+"busy-once"] != 2 || s.asked[at+"a"] != 1 {
		t.Errorf("asked: %v", s.asked)
	}

	first := len(model.Requests())
	for _, tt := range []struct {
		name, want string
		turns      []lab.Turn
	}{
		{"a page of another call", `"error":"malformed_answer"`, []lab.Turn{answer(at + "high")}},
		{"a page that is not there", `"error":"malformed_answer"`, []lab.Turn{tool("web_extract", map[string]any{"urls": []string{at + "blocked"}}), answer(at + "blocked")}},
		{"talk", `"error":"malformed_answer"`, []lab.Turn{{Text: "I would say yes"}}},
		{"a model that refuses", `"error":"researcher_failed"`, []lab.Turn{{Status: 400, Text: "no"}}},
		{"engines that do not answer", `"engines_failed":["one: CAPTCHA"]`, []lab.Turn{tool("web_search", map[string]any{"query": "suspended"}), answer()}},
	} {
		model.Play(t, tt.turns...)
		if got := b.ask("a second question"); !strings.Contains(got, tt.want) || strings.Contains(got, "I would") {
			t.Errorf("%s: %s", tt.name, got)
		}
	}
	for _, r := range model.Requests()[first:] {
		for _, m := range r.Messages {
			if strings.Contains(m.Text, "the first thing") {
				t.Errorf("a later call knows the first question: %q", m.Text)
			}
		}
	}
}

func inOrder(t *testing.T, text string, words ...string) {
	t.Helper()
	rest := text
	for _, w := range words {
		_, after, found := strings.Cut(rest, w)
		if !found {
			t.Errorf("no %q where it should be in %s", w, text)
			return
		}
		rest = after
	}
}

// Pages come in waves of at most 6, in their order, and one that is refused as busy
// is asked for four times at most.
func TestWaves(t *testing.T) {
	testenv.Require(t, "hermes", "netns")
	s := serveSidecars(t)
	s.wait = make(chan struct{}) // until 6 are there
	at := filepath.Join(t.TempDir(), "web")
	l, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: s}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	pages := []string{"a", "busy-once", "b", "always-busy", "c", "blocked", "d", "busy-thrice", "e", "f", "missing", "g", "h"}
	for i := range pages {
		pages[i] = "http://p.test/" + pages[i]
	}
	urls, err := json.Marshal(pages)
	if err != nil {
		t.Fatal(err)
	}
	script := `import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("provider", sys.argv[1])
provider = importlib.util.module_from_spec(spec)
spec.loader.exec_module(provider)
p = provider.CorralWebProvider()
assert p.is_available() and p.supports_extract() and p.supports_search()
print(json.dumps(p.extract(json.loads(sys.argv[2]), format="markdown")))`
	cmd := exec.CommandContext(t.Context(), python, "-B", "-c", script, ours+"/researcher/plugins/web/corral/provider.py", string(urls))
	cmd.Env = []string{spec.BridgeWebEnv + "=" + at, "HOME=" + t.TempDir(), "HERMES_HOME=" + t.TempDir()}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &errs)
	}
	var results []struct{ URL, Title, Content, Error string }
	if err := json.Unmarshal(out, &results); err != nil || len(results) != len(pages) {
		t.Fatalf("%v: %s", err, out)
	}
	for i, r := range results {
		want := map[string]string{"http://p.test/always-busy": "busy", "http://p.test/blocked": "blocked_destination: private", "http://p.test/missing": "HTTP status 404"}[pages[i]]
		if r.URL != pages[i] || !strings.Contains(r.Error, want) || (want == "") != (r.Content == "text of "+pages[i]) || (want == "") != (r.Error == "") {
			t.Errorf("%d: %+v", i, r)
		}
	}
	for page, want := range map[string]int{"a": 1, "busy-once": 2, "busy-thrice": 4, "always-busy": 4, "blocked": 1} {
		if got := s.asked["http://p.test/"+page]; got != want {
			t.Errorf("%s was asked for %d times, want %d", page, got, want)
		}
	}
	if s.most != 6 {
		t.Errorf("%d at a time, want 6", s.most)
	}
}

// client is Hermes' own MCP client, which takes a question a line.
type client struct {
	tb  testing.TB
	in  io.Writer
	out *bufio.Reader
}

const clientScript = `import json, sys
from tools import mcp_tool
from tools.registry import registry
names = mcp_tool.register_mcp_servers({"corral": {"url": sys.argv[1], "timeout": int(sys.argv[2]), "connect_timeout": 10}})
print(json.dumps(names), flush=True)
for line in sys.stdin:
    print(json.dumps(registry.dispatch(names[0], {"question": line.rstrip("\n")})), flush=True)
mcp_tool.shutdown_mcp_servers()`

// startClient starts one whose calls may take so many seconds.
func startClient(tb testing.TB, url, limit string) *client {
	tb.Helper()
	cmd := exec.Command(python, "-B", "-c", clientScript, url, limit)
	cmd.Env = []string{"HOME=" + tb.TempDir(), "HERMES_HOME=" + tb.TempDir(), "PATH=/usr/bin:/bin"}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err, err2, cmd.Start()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil || tb.Failed() {
			tb.Logf("Hermes' client: %v\n%s", err, &errs)
		}
	})
	c := &client{tb: tb, in: in, out: bufio.NewReader(out)}
	if names := c.line(); !strings.Contains(names, "research") {
		tb.Fatalf("tools: %s\n%s", names, &errs)
	}
	return c
}

func (c *client) line() string {
	c.tb.Helper()
	s, err := c.out.ReadString('\n')
	if err != nil {
		c.tb.Fatal(err)
	}
	return s
}

func (c *client) say(question string) {
	c.tb.Helper()
	if _, err := fmt.Fprintln(c.in, question); err != nil {
		c.tb.Fatal(err)
	}
}

func (c *client) ask(question string) string {
	c.tb.Helper()
	c.say(question)
	return c.line()
}

// R071 to R075: Hermes' own client, of one connection and many bridges. A bridge that
// was made anew while nobody called is not even noticed; one that ended in a call fails
// that call alone.
func TestClient(t *testing.T) {
	testenv.Require(t, "hermes", "netns")
	dir := t.TempDir()
	there, goOn := filepath.Join(dir, "there"), filepath.Join(dir, "go-on")
	if err := errors.Join(syscall.Mkfifo(there, 0o600), syscall.Mkfifo(goOn, 0o600)); err != nil {
		t.Fatal(err)
	}
	const plain = `{"answer":"here it is","sources":[],"partial":false,"notes":""}`
	script := fmt.Sprintf(`case "$1" in *wait*) echo there >%s; cat %s >/dev/null;; *bad*) echo no; exit;; esac; echo '%s'`, there, goOn, plain)
	b := startBridge(t, spec.Researcher{
		Command:     []string{"/bin/sh", "-c", script, "sh", spec.BridgePrompt},
		Environment: map[string]string{"PATH": "/usr/bin:/bin"}, Beat: 50,
	})
	c := startClient(t, b.url(), "15")
	good := func(when, got string) {
		t.Helper()
		if !strings.Contains(got, "here it is") || strings.Contains(got, `\"error\"`) {
			t.Errorf("%s: %s", when, got)
		}
	}
	good("at first", c.ask("plain"))
	if got := c.ask("bad"); !strings.Contains(got, "malformed_answer") {
		t.Errorf("a call that fails: %s", got)
	}
	good("after a failure", c.ask("plain"))
	b.end()
	b.run()
	good("of the next bridge", c.ask("plain"))

	c.say("wait")
	await(t, there)
	b.end()
	if got := c.line(); !strings.Contains(got, "stopped") {
		t.Errorf("a call whose bridge ended: %s", got)
	}
	b.run()
	good("of the bridge after that", c.ask("plain"))

	// Its client does not see that the stream broke off, and waits to its own limit.
	c.say("wait")
	await(t, there)
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait()
	b.run()
	if got := c.line(); !strings.Contains(got, "error") {
		t.Errorf("a call whose bridge was killed: %s", got)
	}
	good("of the bridge after the killed one", c.ask("plain"))
}

// callEnv is how long the long call takes, as sleep understands it: make long has one
// beyond the 300 s for which Hermes' client bears silence.
const callEnv = "CORRAL_TEST_CALL"

// R072, R074: a call that takes long is answered, whatever its client thinks of silence.
func TestLongCall(t *testing.T) {
	testenv.Require(t, "hermes", "netns")
	long := os.Getenv(callEnv)
	if long == "" {
		long = "1"
	}
	b := startBridge(t, spec.Researcher{
		Command:     []string{"/bin/sh", "-c", `sleep ` + long + `; echo '{"answer":"here it is","sources":[],"partial":false,"notes":""}'`, "sh", spec.BridgePrompt},
		Environment: map[string]string{"PATH": "/usr/bin:/bin"},
	})
	c := startClient(t, b.url(), "660")
	if got := c.ask("a question"); !strings.Contains(got, "here it is") {
		t.Errorf("%s", got)
	}
}

func await(t *testing.T, pipe string) {
	t.Helper()
	if _, err := os.ReadFile(pipe); err != nil {
		t.Fatal(err)
	}
}
