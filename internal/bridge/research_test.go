package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/corral-sandbox/corral/internal/spec"
)

// Whatever a researcher does, its caller gets an answer or the right failure,
// nothing of it is left, and the next call is as good as the first.
func TestResearch(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	c := b.caller()
	for _, tt := range []struct {
		name, question string
		why, reason    string // none is an answer
	}{
		{"an answer", "plain", "", ""},
		{"nothing", "print ", whyMalformed, "it is empty"},
		{"blanks", "print \n \n", whyMalformed, "it is empty"},
		{"text", "print I think so", whyMalformed, "not exactly one JSON object"},
		{"a complaint of Hermes", "print HTTP 400: no", whyMalformed, "not exactly one JSON object"},
		{"text before it", "print Here: " + plain, whyMalformed, "not exactly one JSON object"},
		{"text after it", "print " + plain + " so", whyMalformed, "not exactly one JSON object"},
		{"two", "print " + plain + plain, whyMalformed, "not exactly one JSON object"},
		{"a fence", "print ```json\n" + plain + "\n```", whyMalformed, "not exactly one JSON object"},
		{"cut short", "print " + plain[:30], whyMalformed, "not exactly one JSON object"},
		{"a source of its own", `print {"answer":"a","sources":[{"url":"https://example.org/","title":"t"}],"partial":false,"notes":""}`, whyMalformed, "neither found nor fetched"},
		{"without end", "big", whyMalformed, "more than 262144 bytes"},
		{"an error", "exit 1", whyFailed, "status 1"},
		{"an error of its arguments", "exit 2", whyFailed, "status 2"},
		{"interrupted", "exit 130", whyFailed, "status 130"},
		{"killed", "kill", whyFailed, "status 137"},
		{"failed by its account", "failed", whyFailed, "model gave no answer"},
		{"an account that is a pipe", "usage-pipe", "", ""},
		{"litter", "litter " + b.document.Scratch[0], "", ""},
		{"a child", "child", "", ""},
		{"a child in a session of its own", "setsid", "", ""},
		{"children of nobody", "double-fork", "", ""},
		{"an answer again", "plain", "", ""},
	} {
		s := c.question(t, tt.question)
		if s.Why != tt.why || !strings.Contains(s.Reason, tt.reason) || (tt.why == "") != (s.Answer.Answer == "an answer") {
			t.Errorf("%s: %+v", tt.name, s)
		}
		if strings.Contains(s.Reason, "example.org") || strings.Contains(s.Reason, "think") {
			t.Errorf("%s: words of the reply pass: %+v", tt.name, s)
		}
		b.nothingLeft()
	}
	if !strings.Contains(b.log.String(), `agent failed`) || strings.Contains(b.log.String(), "\x1b") {
		t.Errorf("what a researcher complains of is not in the log, or not escaped: %s", b.log)
	}
}

// Each call begins with nothing but what the document gives it.
func TestFresh(t *testing.T) {
	t.Parallel()
	b := startAs(t, nobody, nil) // root is stopped by no mode
	c := b.caller()
	want := "config.yaml|||CORRAL_TEST_MARK,CORRAL_WEB,HERMES_HOME,HOME,PATH,TMPDIR|0,1,2|stdin 0 <nil>|a: b\n"
	for range 2 {
		if got := c.question(t, "look").Answer.Answer; got != want {
			t.Errorf("a researcher sees %q, want %q", got, want)
		}
		if s := c.question(t, "litter "+b.document.Scratch[0]); s.Why != "" {
			t.Errorf("%+v", s)
		}
	}
}

// nobody is a user who may do nothing.
const nobody = 65534

// A researcher that does not come to an end is ended, with all that it started,
// however fast that starts others.
func TestLimit(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"tell", "hop", "bomb", "revive"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			b := start(t, func(d *spec.Researcher) { d.Limit = 3000 })
			c := b.caller()
			name, heard := pipe(t)
			answered := make(chan said, 1)
			go func() { answered <- c.question(t, verb+" "+name) }()
			within(t, verb, func() { heard() })
			if s := <-answered; s.Why != whyTimeout || !strings.Contains(s.Reason, "3s") {
				t.Errorf("%+v", s)
			}
			b.nothingLeft()
			if s := c.question(t, "plain"); s.Why != "" {
				t.Errorf("the next call: %+v", s)
			}
		})
	}
}

// A researcher has the bridge's uid. It cannot have its socket.
func TestSameUser(t *testing.T) {
	t.Parallel()
	b := startAs(t, nobody, nil)
	c := b.caller()
	dir, err := os.MkdirTemp("", "corral-bridge-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	note := filepath.Join(dir, "note")
	if s := c.question(t, "murder "+note); s.Why != whyFailed {
		t.Errorf("whose keeper was killed: %+v", s)
	}
	b.nothingLeft()
	said, err := os.ReadFile(note)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(said), "<nil>") || strings.Count(string(said), "perm") != 3 {
		t.Errorf("a researcher traces the bridge or reads what it has open: %s", said)
	}
	if s := c.question(t, "plain"); s.Why != "" {
		t.Errorf("the next call: %+v", s)
	}
}

// A call ends with its caller.
func TestCallerGone(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	c := b.caller()
	name, heard := pipe(t)
	ctx, leave := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	raw := func() error {
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"research","arguments":{"question":"tell ` + name + `"}}}`
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url(), strings.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			_, err = resp.Body.Read(make([]byte, 1))
			for err == nil {
				_, err = resp.Body.Read(make([]byte, 1<<10))
			}
			resp.Body.Close()
		}
		return err
	}
	go func() { answered <- raw() }()
	within(t, "the researcher", func() { heard() })
	leave()
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller that left: %v", err)
	}
	// The only slot is free when nothing of the call is left.
	if s := c.question(t, "plain"); s.Why != "" {
		t.Errorf("the next call: %+v", s)
	}
	b.nothingLeft()
}

// A call ends with its bridge, which says so.
func TestStop(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	c := b.caller()
	for range 2 {
		name, heard := pipe(t)
		type result struct {
			said
			err error
		}
		answered := make(chan result, 1)
		go func() {
			s, err := c.ask(t.Context(), map[string]any{"question": "hop " + name})
			answered <- result{s, err}
		}()
		within(t, "the researcher", func() { heard() })
		if status := b.end(syscall.SIGTERM); status != 0 {
			t.Errorf("status %d", status)
		}
		b.nothingLeft()
		if r := <-answered; r.err != nil || r.Why != whyStopped {
			t.Errorf("the call under way: %+v", r)
		}
		b.run()
		if s := c.question(t, "plain"); s.Why != "" {
			t.Errorf("the first call of the next bridge, by the same session: %+v", s)
		}
	}
}

// What a bridge that was killed left is removed by the next one.
func TestKilled(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	c := b.caller()
	name, heard := pipe(t)
	answered := make(chan error, 1)
	go func() {
		_, err := c.ask(t.Context(), map[string]any{"question": "tell " + name})
		answered <- err
	}()
	said := ""
	within(t, "the researcher", func() { said = heard() })
	pid, err := strconv.Atoi(strings.TrimSpace(said))
	if err != nil {
		t.Fatal(err)
	}
	gone := []func(){ended(t, pid), ended(t, parentOf(pid))}
	b.end(syscall.SIGKILL)
	within(t, "the end of the researcher and its keeper", func() {
		for _, wait := range gone {
			wait()
		}
	})
	if err := <-answered; err == nil {
		t.Error("a call was answered by nobody")
	}
	if entries, err := os.ReadDir(b.document.Directory); err != nil || len(entries) == 0 {
		t.Fatalf("nothing was left: %v", err)
	}
	b.run()
	b.nothingLeft()
	if s := b.caller().question(t, "plain"); s.Why != "" {
		t.Errorf("%+v", s)
	}
}

// Calls wait for their turn, and are told so; one too many is refused.
func TestBusy(t *testing.T) {
	t.Parallel()
	b := start(t, func(d *spec.Researcher) { d.Queue = 1 })
	in, heard := pipe(t)
	out, _ := pipe(t)
	first, second := b.caller(), b.caller()
	results := make(chan said, 2)
	go func() { results <- first.question(t, "until "+in+" "+out) }()
	within(t, "the researcher", func() { heard() })
	waits := make(chan struct{})
	go func() {
		b.tb.Helper()
		results <- second.question(t, "plain")
	}()
	go func() {
		defer close(waits)
		for {
			second.mu.Lock()
			for _, n := range second.notices {
				if strings.Contains(n, "waiting: 1 call before this one") {
					second.mu.Unlock()
					return
				}
			}
			second.mu.Unlock()
		}
	}()
	within(t, "the call that waits", func() { <-waits })
	if s := b.caller().question(t, "plain"); s.Why != whyBusy || !strings.Contains(s.Reason, "1 call run and 1 wait") {
		t.Errorf("the third: %+v", s)
	}
	if err := os.WriteFile(out, []byte("go on"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if s := <-results; s.Why != "" {
			t.Errorf("%+v", s)
		}
	}
}

// Side by side, the end of one call is not the end of another.
func TestSlots(t *testing.T) {
	t.Parallel()
	b := start(t, func(d *spec.Researcher) { d.Slots = 2 })
	in, heard := pipe(t)
	out, _ := pipe(t)
	c := b.caller()
	answered := make(chan said, 1)
	go func() { answered <- c.question(t, "until "+in+" "+out) }()
	within(t, "the researcher", func() { heard() })
	for _, q := range []string{"double-fork", "litter " + b.document.Scratch[0], "plain"} {
		if s := b.caller().question(t, q); s.Why != "" {
			t.Errorf("%s: %+v", q, s)
		}
	}
	if n := len(b.processesMarked()); n != 2 {
		t.Errorf("%d processes beside the call under way, want its keeper and itself", n)
	}
	if err := os.WriteFile(out, []byte("go on"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := <-answered; s.Why != "" {
		t.Errorf("%+v", s)
	}
	b.nothingLeft()
}

// A long call is heard of again and again: by notices if its caller wants them,
// and by its stream in any case.
func TestBeat(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	in, heard := pipe(t)
	out, _ := pipe(t)
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"research","_meta":{"progressToken":"p"},"arguments":{"question":"until ` + in + ` ` + out + `"}}}`
	for _, body := range []string{body, strings.Replace(body, `"_meta":{"progressToken":"p"},`, "", 1)} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url(), strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		within(t, "the researcher", func() { heard() })
		want := "event: message"
		if !strings.Contains(body, "progressToken") {
			want = strings.TrimSpace(string(keepAlive))
		}
		var all strings.Builder
		buf := make([]byte, 4<<10)
		for strings.Count(all.String(), want) < 4 {
			n, err := resp.Body.Read(buf)
			all.Write(buf[:n])
			if err != nil {
				t.Fatalf("%v after %s", err, all.String())
			}
		}
		if err := os.WriteFile(out, []byte("go on"), 0o600); err != nil {
			t.Fatal(err)
		}
		for !strings.Contains(all.String(), `"result"`) {
			n, err := resp.Body.Read(buf)
			all.Write(buf[:n])
			if err != nil && !strings.Contains(all.String(), `"result"`) {
				t.Fatalf("%v after %s", err, all.String())
			}
		}
		resp.Body.Close()
		for event := range strings.SplitSeq(strings.TrimSpace(all.String()), "\n\n") {
			var message json.RawMessage
			data := ""
			for line := range strings.SplitSeq(event, "\n") {
				if d, is := strings.CutPrefix(line, "data: "); is {
					data = d
				} else if line != "event: message" && line != strings.TrimSpace(string(keepAlive)) && !strings.HasPrefix(line, "id:") {
					t.Errorf("odd line %q", line)
				}
			}
			if data != "" && json.Unmarshal([]byte(data), &message) != nil {
				t.Errorf("odd event %q", event)
			}
		}
		if resp.Header.Get("Content-Type") != "text/event-stream" {
			t.Error(resp.Header)
		}
	}
}

// What is no call is refused by MCP's errors, and nothing is started for it.
func TestBadCalls(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	c := b.caller()
	for name, arguments := range map[string]any{
		"no question":          map[string]any{},
		"no arguments":         nil,
		"a list":               []int{1},
		"null":                 map[string]any{"question": nil},
		"a number":             map[string]any{"question": 1},
		"an object":            map[string]any{"question": map[string]any{}},
		"empty":                map[string]any{"question": ""},
		"blank":                map[string]any{"question": " \n\t"},
		"too long":             map[string]any{"question": strings.Repeat("q", questionLimit+1)},
		"much too long":        map[string]any{"question": strings.Repeat("q", 200<<10)},
		"a zero byte":          map[string]any{"question": "a\x00b"},
		"another argument":     map[string]any{"question": "plain", "depth": 1},
		"another's spelling":   map[string]any{"Question": "plain"},
		"no source":            map[string]any{"question": "plain", "max_sources": 0},
		"negative sources":     map[string]any{"question": "plain", "max_sources": -1},
		"too many sources":     map[string]any{"question": "plain", "max_sources": sourcesMost + 1},
		"half a source":        map[string]any{"question": "plain", "max_sources": 1.5},
		"sources in words":     map[string]any{"question": "plain", "max_sources": "3"},
		"sources without end":  map[string]any{"question": "plain", "max_sources": 1e300},
		"sources are no value": map[string]any{"question": "plain", "max_sources": []int{}},
	} {
		_, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "research", Arguments: arguments})
		var e *jsonrpc.Error
		if !errors.As(err, &e) || e.Code != jsonrpc.CodeInvalidParams {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "search", Arguments: map[string]any{"question": "plain"}}); err == nil {
		t.Error("a tool that is none was called")
	}
	// The greatest that is none too long, whatever the number of sources.
	long := "plain " + strings.Repeat("é", (questionLimit-len("plain "))/2)
	if s, err := c.ask(t.Context(), map[string]any{"question": long, "max_sources": sourcesMost}); err != nil || s.Why != "" {
		t.Errorf("a long question: %+v, %v", s, err)
	}
	b.nothingLeft()
}

// R070: engines that do not answer are no empty page, and only what the sidecars
// gave counts as a source.
func TestWeb(t *testing.T) {
	t.Parallel()
	const page = "https://Pages.test/a?b=c#d"
	b := start(t, sidecars(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/fetch" {
			var ask struct{ URL string }
			_ = json.NewDecoder(r.Body).Decode(&ask)
			switch {
			case strings.Contains(ask.URL, "busy"):
				w.WriteHeader(http.StatusServiceUnavailable)
				fmt.Fprint(w, `{"error":"busy"}`)
			case strings.Contains(ask.URL, "missing"):
				fmt.Fprintf(w, `{"url":%q,"final_url":%q,"status":404}`, ask.URL, ask.URL)
			default:
				fmt.Fprintf(w, `{"url":%q,"final_url":"https://final.test/","status":200,"content_markdown":"text"}`, ask.URL)
			}
			return
		}
		if r.URL.Query().Get("format") != "json" || r.URL.Query().Get("pageno") != "1" {
			w.WriteHeader(http.StatusBadRequest)
		}
		switch r.URL.Query().Get("q") {
		case "found":
			fmt.Fprintf(w, `{"results":[{"url":%q,"title":"t","content":"c","score":1},{"url":"javascript:1"}],"unresponsive_engines":[["one","timeout"]]}`, page)
		case "suspended":
			fmt.Fprint(w, `{"results":[],"unresponsive_engines":[["one","CAPTCHA"],["two","Suspended: access denied\u001b"]]}`)
		case "nothing":
			fmt.Fprint(w, `{"results":[],"unresponsive_engines":[]}`)
		case "broken":
			fmt.Fprint(w, `<html>`)
		default:
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	c := b.caller()
	for _, tt := range []struct {
		question string
		why      string
		engines  string
		sources  int
	}{
		{"web found - " + page, "", "", 1},
		{"web found - https://pages.test:443/a?b=c", "", "", 1},
		{"web found - http://pages.test/a?b=c", whyMalformed, "", 0},
		{"web found - https://pages.test/a", whyMalformed, "", 0},
		{"web found - " + page + " https://invented.test/", whyMalformed, "", 0},
		{"web found - javascript:1", whyMalformed, "", 0},
		{"web found https://read.test/x https://read.test/x https://final.test", "", "", 2},
		{"web found https://read.test/busy https://read.test/busy", whyMalformed, "", 0},
		{"web found https://read.test/missing https://read.test/missing", whyMalformed, "", 0},
		{"web nothing -", "", "", 0},
		{"web nothing - " + page, whyMalformed, "", 0}, // found in another call
		{"web suspended -", whyUnavailable, "one: CAPTCHA,two: Suspended: access denied", 0},
		{"web suspended https://read.test/x https://read.test/x", "", "", 1},
		{"web broken -", whyUnavailable, "search: it gave no answer that can be read", 0},
		{"web refused -", whyUnavailable, "search: it answered with status 429", 0},
	} {
		s := c.question(t, tt.question)
		if s.Why != tt.why || strings.Join(s.EnginesFailed, ",") != tt.engines || len(s.Sources) != tt.sources {
			t.Errorf("%s: %+v", tt.question, s)
		}
	}
	s, err := c.ask(t.Context(), map[string]any{"question": "web found https://read.test/x https://read.test/x " + page, "max_sources": 1})
	if err != nil || s.Why != whyMalformed || !strings.Contains(s.Reason, "at most 1") {
		t.Errorf("more sources than asked for: %+v, %v", s, err)
	}
}
