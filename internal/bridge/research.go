package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Why a call gives no answer: all there are.
const (
	whyBusy        = "busy"
	whyTimeout     = "timeout"
	whyMalformed   = "malformed_answer"
	whyFailed      = "researcher_failed"
	whyUnavailable = "search_unavailable"
	whyStopped     = "stopped"
	whyInternal    = "internal_error"
)

// failure is a call without an answer, as its caller gets it. Its reason is the
// bridge's own words.
type failure struct {
	Why           string   `json:"error"`
	Reason        string   `json:"reason"`
	EnginesFailed []string `json:"engines_failed,omitempty"`
}

func (f *failure) Error() string { return f.Why + ": " + f.Reason }

var (
	errGone    = errors.New("the caller is gone")
	errStopped = errors.New("the bridge is stopping")
	errLimit   = errors.New("it takes too long")
)

var tool = &mcp.Tool{
	Name: "research",
	Description: "Ask a researcher that searches and reads the public web. It knows nothing of this conversation and keeps nothing, " +
		"so the question must say all that matters, and nothing that must not leave. It takes minutes. " +
		"The result is a JSON object: answer, sources (url, title, perhaps a quote), partial (something is missing) and notes; " +
		"or error and reason.",
	InputSchema: json.RawMessage(fmt.Sprintf(`{"type":"object","additionalProperties":false,"required":["question"],"properties":{
		"question":{"type":"string","minLength":1,"description":"the whole question, at most %d bytes"},
		"max_sources":{"type":"integer","minimum":1,"maximum":%d,"description":"how many sources at most (%d)"}}}`, questionLimit, sourcesMost, sourcesUsual)),
}

// request is what a caller asks.
type request struct {
	question string
	sources  int
}

// parseRequest reads the arguments of a call. Its error is for the caller.
func parseRequest(raw json.RawMessage) (request, error) {
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	fields, err := object(raw, "arguments", []string{"question", "max_sources"})
	if err != nil {
		return request{}, err
	}
	r := request{sources: sourcesUsual}
	q := fields["question"]
	switch {
	case q == nil:
		return request{}, errors.New("question: it is missing")
	case q[0] != '"' || json.Unmarshal(q, &r.question) != nil:
		return request{}, errors.New("question: it is no string")
	case strings.TrimSpace(r.question) == "":
		return request{}, errors.New("question: it is empty")
	case len(r.question) > questionLimit:
		return request{}, fmt.Errorf("question: it has %d bytes, at most %d can be asked", len(r.question), questionLimit)
	case !utf8.ValidString(r.question), strings.ContainsRune(r.question, 0):
		return request{}, errors.New("question: it has a character that no argument of a program can have")
	}
	if n := fields["max_sources"]; n != nil {
		if json.Unmarshal(n, &r.sources) != nil || r.sources < 1 || r.sources > sourcesMost {
			return request{}, fmt.Errorf("max_sources: it is no whole number from 1 to %d", sourcesMost)
		}
	}
	return r, nil
}

// teller tells a caller how its call goes.
type teller struct {
	ctx   context.Context
	req   *mcp.CallToolRequest
	token any
	count float64
}

// tell sends a progress notice, if the caller wants any. One call at a time.
func (t *teller) tell(message string) {
	if t.token == nil {
		return
	}
	t.count++
	_ = t.req.Session.NotifyProgress(t.ctx, &mcp.ProgressNotificationParams{ProgressToken: t.token, Progress: t.count, Message: message})
}

// call is the tool. Whatever happens in it, the caller gets a result.
func (b *bridge) call(ctx context.Context, req *mcp.CallToolRequest) (result *mcp.CallToolResult, err error) {
	defer func() {
		if p := recover(); p != nil {
			b.log.Error("a call panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			result, err = outcome(nil, &failure{Why: whyInternal, Reason: "the bridge met a fault of its own"})
		}
	}()
	asked, err := parseRequest(req.Params.Arguments)
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	b.running.Add(1) // a caller that is gone does not wait for the end of what it asked for
	defer b.running.Done()
	ctx, cancel := b.bind(ctx, req)
	defer cancel()
	t := &teller{ctx: ctx, req: req, token: req.Params.GetProgressToken()}
	log := b.log.With("call", b.calls.Add(1))
	began := time.Now()
	a, err := b.research(ctx, asked, t, log)
	if err != nil {
		log.Info("no answer", "why", err.Error(), "after", time.Since(began).Round(time.Millisecond))
	} else {
		log.Info("answered", "sources", len(a.Sources), "partial", a.Partial, "after", time.Since(began).Round(time.Millisecond))
	}
	return outcome(a, err)
}

// outcome is a result in MCP's form.
func outcome(a *Answer, err error) (*mcp.CallToolResult, error) {
	var v any = a
	if err != nil {
		f := &failure{Why: whyInternal, Reason: "the bridge could not run a researcher; its log says why"}
		errors.As(err, &f)
		v = f
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.TrimSpace(text.String())}}, IsError: err != nil}, nil
}

// research waits for a slot, runs a researcher in it and judges its reply.
func (b *bridge) research(ctx context.Context, asked request, t *teller, log *slog.Logger) (*Answer, error) {
	var state atomic.Value
	state.Store("waiting")
	stop := b.telling(t, &state)
	defer stop()
	release, err := b.queue.enter(ctx, func(n int) { state.Store(fmt.Sprintf("waiting: %s before this one", printable.Count(n, "call"))) })
	if err != nil {
		return nil, b.given(err)
	}
	defer release()
	if b.broken.Load() {
		return nil, &failure{Why: whyInternal, Reason: "what an earlier call left could not be removed; the researcher must be restarted"}
	}
	state.Store("researching")
	return b.one(ctx, asked, log)
}

// telling sends a notice at once and with each beat, until stop is called.
func (b *bridge) telling(t *teller, state *atomic.Value) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(b.beat)
		defer tick.Stop()
		for began := time.Now(); ; {
			t.tell(fmt.Sprintf("%s, %d s", state.Load(), int(time.Since(began).Seconds())))
			select {
			case <-tick.C:
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

// given is an error that ended a call, for its caller.
func (b *bridge) given(err error) error {
	switch {
	case errors.Is(err, errBusy):
		return &failure{Why: whyBusy, Reason: fmt.Sprintf("%s run and %d wait already; ask again later", printable.Count(b.slots, "call"), b.waiting)}
	case errors.Is(err, errLimit):
		return &failure{Why: whyTimeout, Reason: fmt.Sprintf("the researcher did not answer in %v", b.limit)}
	case errors.Is(err, errStopped):
		return &failure{Why: whyStopped, Reason: "the bridge is stopping; ask again when it is back"}
	}
	return err
}

// one runs a researcher from its folder's making to its removal.
func (b *bridge) one(ctx context.Context, asked request, log *slog.Logger) (a *Answer, err error) {
	dir, err := b.scratch.take()
	if err != nil {
		return nil, err
	}
	defer func() {
		if left := b.scratch.giveBack(dir); left != nil {
			b.broken.Store(true)
			log.Error("what a call left could not be removed", "error", left)
			a, err = nil, &failure{Why: whyInternal, Reason: "what the call left could not be removed"}
		}
	}()
	home, work, tmp := filepath.Join(dir, "home"), filepath.Join(dir, "work"), filepath.Join(dir, "tmp")
	for _, d := range []string{home, work, tmp} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return nil, err
		}
	}
	for name, content := range b.document.Home {
		if err := os.WriteFile(filepath.Join(home, name), []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	web, at, err := openRecord(dir, b.document.Search, b.document.Fetch)
	if err != nil {
		return nil, err
	}
	defer web.close()
	environ := []string{"HOME=" + home, "HERMES_HOME=" + home, "TMPDIR=" + tmp, spec.BridgeWebEnv + "=" + at}
	for name, value := range b.document.Environment {
		environ = append(environ, name+"="+value)
	}
	usage := filepath.Join(dir, "usage")
	command := slices.Clone(b.document.Command)
	for i, arg := range command {
		if arg == spec.BridgePrompt {
			command[i] = prompt(asked.question, asked.sources)
		} else {
			command[i] = strings.ReplaceAll(arg, spec.BridgeUsage, usage)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, b.limit, errLimit)
	defer cancel()
	r, err := b.family.run(ctx, command, environ, work)
	if len(r.words) > 0 {
		log.Info("the researcher complained", "end", printable.Escape(string(r.words)))
	}
	if err != nil {
		return nil, b.given(err)
	}
	return judge(r, account(usage), asked.sources, web)
}

// judge makes an answer of what a researcher came to, or says why it is none.
func judge(r ran, failed bool, sources int, web *record) (*Answer, error) {
	switch engines := web.unavailable(); {
	case r.over:
		return nil, &failure{Why: whyMalformed, Reason: fmt.Sprintf("the reply: it has more than %d bytes", replyLimit)}
	case len(engines) > 0:
		return nil, &failure{Why: whyUnavailable, Reason: "no search engine answered, so that nothing was found does not mean that there is nothing", EnginesFailed: engines}
	case r.status != 0:
		return nil, &failure{Why: whyFailed, Reason: fmt.Sprintf("the researcher ended with status %d", r.status)}
	case failed:
		// Hermes prints what the model's server complained of as if it were an answer,
		// with status 0.
		return nil, &failure{Why: whyFailed, Reason: "the researcher's model gave no answer"}
	}
	a, err := parseAnswer(r.out, sources, web.knows)
	if err != nil {
		return nil, &failure{Why: whyMalformed, Reason: "the reply: " + err.Error()}
	}
	return &a, nil
}

const usageLimit = 64 << 10

// account says whether a researcher's account of its run calls it failed. One that
// is missing says nothing.
func account(file string) (failed bool) {
	f, err := os.OpenFile(file, os.O_RDONLY|oNonblock, 0) // a pipe would never end
	if err != nil {
		return false
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return false
	}
	b, err := readAll(io.Reader(f), usageLimit)
	var u struct {
		Failed bool `json:"failed"`
	}
	return err == nil && json.Unmarshal(b, &u) == nil && u.Failed
}
