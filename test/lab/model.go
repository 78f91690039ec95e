package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	modelName = "scripted"               // the only one in the list of models; requests may name any
	aside     = "a scripted side answer" // to requests that offer no tools, such as for a title
	finished  = "done"                   // once the script is at its end

	created = 1_700_000_000 // of every model and answer, in Unix seconds: a script gives the same bytes each time

	// bodyLimit is what the Messages API takes at most, in bytes.
	bodyLimit = 32 << 20
	// pieceLimit is how much text one event of a stream has at most, in runes:
	// about what real servers send at a time.
	pieceLimit = 16
)

// Turn is what the model says to one request: a text, the call of a tool, both
// in this order, or an error.
type Turn struct {
	Text string
	Call *ToolCall
	// Status, from 400 to 599, makes the turn an error in the API's own shape,
	// with Text as its message.
	Status int
	// Delay passes before the first byte of the answer.
	Delay time.Duration
	// Match lifts the turn out of the script's order: the first request for
	// which it is true takes the turn, whether it offers tools or not.
	Match func(ModelRequest) bool
}

// ToolCall is the call of a tool, as the model makes it or as a client gives
// it back.
type ToolCall struct {
	ID   string // made by the server, whatever a script says
	Name string
	// Args is whatever encodes as a JSON object; nil is the empty one. In a
	// request it is the decoded value, or a string if that is not JSON.
	Args any
}

// ModelRequest is one request to the model server. It is not to be changed.
type ModelRequest struct {
	At     time.Time // when its header had come
	Method string
	Host   string
	Path   string // without the query
	Header http.Header

	// What follows is zero in a request that was refused.

	Model    string
	Stream   bool
	Messages []ModelMessage
	Tools    []string // the names of those it offers
	Turn     int      // which of the script it took, counting from 1; 0 is none
}

func (r ModelRequest) String() string {
	return fmt.Sprintf("%s %s: model %q, stream %v, %d messages, tools %q, turn %d",
		r.Method, r.Path, r.Model, r.Stream, len(r.Messages), r.Tools, r.Turn)
}

// ModelMessage is one message of a conversation, the same for both APIs: a
// result of a tool is a message of its own, and the instructions come first.
type ModelMessage struct {
	Role    string // system, developer, user, assistant, tool
	Text    string // its parts, a line break between them
	Calls   []ToolCall
	Answers string // the id of the call whose result this is
}

// Model is a server that speaks the Chat Completions API of OpenAI and the
// Messages API of Anthropic and plays a script. It connects to nothing.
//
// A request that offers tools takes the next turn; at the script's end it gets
// a fixed text. One that offers none gets another fixed text and takes no
// turn, unless the turn's Match says so.
type Model struct {
	srv    *http.Server
	at     netip.AddrPort
	script []Turn
	args   []string // of each turn's call, encoded

	turns sync.Mutex // around taken; held while Match runs, which may ask for Requests
	taken []bool

	mu       sync.Mutex
	requests []ModelRequest
	more     chan struct{} // closed at the next request
	closed   bool
	serving  sync.WaitGroup
}

// ServeModel starts a model server on a free port of the host's loopback and
// closes it when the test ends.
func ServeModel(tb testing.TB, script ...Turn) *Model {
	tb.Helper()
	m, err := StartModel("127.0.0.1:0", script...)
	if err != nil {
		tb.Fatalf("lab: %v", err)
	}
	tb.Cleanup(func() {
		if err := m.Close(); err != nil {
			tb.Errorf("lab: close the model server: %v", err)
		}
	})
	return m
}

// StartModel starts a model server on a loopback address and port; port 0 is
// any free one. A turn that cannot be played is an error.
func StartModel(addr string, script ...Turn) (*Model, error) {
	local, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, fmt.Errorf("model server: %w", err)
	}
	if !local.Addr().IsLoopback() {
		return nil, fmt.Errorf("model server: %s is not a loopback address", local.Addr())
	}
	m := &Model{script: slices.Clone(script), args: make([]string, len(script)), taken: make([]bool, len(script)), more: make(chan struct{})}
	for i, t := range m.script {
		if m.args[i], err = t.check(); err != nil {
			return nil, fmt.Errorf("model server: turn %d: %w", i+1, err)
		}
	}
	ln, err := net.Listen("tcp", local.String())
	if err != nil {
		return nil, fmt.Errorf("model server: %w", err)
	}
	m.at = addrPort(ln.Addr())
	m.srv = &http.Server{
		Handler:           http.HandlerFunc(m.serve),
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0), // a client that hangs up is a test's business
	}
	m.serving.Go(func() { _ = m.srv.Serve(ln) })
	return m, nil
}

// check returns the encoded arguments of the turn's call.
func (t Turn) check() (string, error) {
	switch {
	case t.Status != 0 && (t.Status < 400 || t.Status > 599):
		return "", fmt.Errorf("status %d is no error's", t.Status)
	case t.Status != 0 && t.Call != nil:
		return "", errors.New("an error calls no tool")
	case t.Status == 0 && t.Call == nil && t.Text == "":
		return "", errors.New("says nothing")
	case t.Call == nil:
		return "", nil
	case t.Call.Name == "":
		return "", errors.New("the tool has no name")
	case t.Call.Args == nil:
		return "{}", nil
	}
	args, err := json.Marshal(t.Call.Args)
	if err != nil {
		return "", fmt.Errorf("arguments of %s: %w", t.Call.Name, err)
	}
	if args[0] != '{' {
		return "", fmt.Errorf("arguments of %s are not an object: %s", t.Call.Name, args)
	}
	return string(args), nil
}

// Close ends the server, every connection and every answer under way.
func (m *Model) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	err := m.srv.Close()
	m.serving.Wait()
	return err
}

// Port is where the server listens.
func (m *Model) Port() uint16 { return m.at.Port() }

// URL is the server's, without a path: clients of OpenAI want /v1 after it.
func (m *Model) URL() string { return "http://" + m.at.String() }

// Requests returns every request so far, refused ones included, in the order
// in which they were read to their end.
func (m *Model) Requests() []ModelRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.requests)
}

// Await returns once n requests have come in all.
func (m *Model) Await(ctx context.Context, n int) error {
	for {
		m.mu.Lock()
		have, more := len(m.requests), m.more
		m.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("model server: %d of %d requests came: %w", have, n, context.Cause(ctx))
		}
	}
}

// serve answers one request.
func (m *Model) serve(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	m.serving.Add(1)
	m.mu.Unlock()
	defer m.serving.Done()

	d := dialectOf(r)
	req := ModelRequest{At: time.Now(), Method: r.Method, Host: r.Host, Path: r.URL.Path, Header: r.Header.Clone()}
	ask, err := hear(w, r, d)
	if err != nil {
		m.record(&req)
		refuse(w, d, err)
		return
	}
	req.Model, req.Stream, req.Messages, req.Tools = ask.Model, ask.Stream, ask.messages, ask.tools

	switch req.Path {
	case pathModels:
		m.record(&req)
		give(w, http.StatusOK, d.models())
	case pathCount:
		m.record(&req)
		give(w, http.StatusOK, object{"input_tokens": ask.tokens})
	default:
		m.talk(w, r, d, ask, req)
	}
}

// talk answers a request for a completion.
func (m *Model) talk(w http.ResponseWriter, r *http.Request, d dialect, ask *asked, req ModelRequest) {
	turn, args, number := m.take(&req)
	if turn.Delay > 0 {
		timer := time.NewTimer(turn.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	if turn.Status != 0 {
		refuse(w, d, &fault{turn.Status, turn.Text})
		return
	}
	a := &answer{number: number, model: req.Model, text: turn.Text, args: args, in: ask.tokens,
		out: tokens(len(turn.Text) + len(args)), usage: ask.StreamOptions.IncludeUsage}
	if turn.Call != nil {
		a.tool = turn.Call.Name
	}
	if !req.Stream {
		give(w, http.StatusOK, d.whole(a))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	flush := http.NewResponseController(w).Flush
	for event := range d.events(a) {
		if _, err := w.Write(event); err != nil {
			return
		}
		if err := flush(); err != nil {
			return
		}
	}
}

// Play puts turns in place of what is left of the script. Those taken keep
// their numbers.
func (m *Model) Play(tb testing.TB, turns ...Turn) {
	tb.Helper()
	var args []string
	for i, t := range turns {
		a, err := t.check()
		if err != nil {
			tb.Fatalf("lab: model server: turn %d: %v", i+1, err)
		}
		args = append(args, a)
	}
	m.turns.Lock()
	defer m.turns.Unlock()
	for i := range m.taken {
		m.taken[i] = true
	}
	m.script, m.args = append(m.script, turns...), append(m.args, args...)
	m.taken = append(m.taken, make([]bool, len(turns))...)
}

// take records a request and returns the turn that it takes, with the encoded
// arguments of its call, and the request's number.
func (m *Model) take(req *ModelRequest) (turn Turn, args string, number int) {
	m.turns.Lock()
	defer m.turns.Unlock()
	turn.Text = aside
	if len(req.Tools) > 0 {
		turn.Text = finished
	}
	if i := m.next(*req); i >= 0 {
		m.taken[i] = true
		turn, args, req.Turn = m.script[i], m.args[i], i+1
	}
	return turn, args, m.record(req)
}

// next is the turn that a request takes, or -1.
func (m *Model) next(req ModelRequest) int {
	plain := -1
	for i, t := range m.script {
		switch {
		case m.taken[i]:
		case t.Match != nil:
			if t.Match(req) {
				return i
			}
		case plain < 0 && len(req.Tools) > 0:
			plain = i
		}
	}
	return plain
}

func (m *Model) record(req *ModelRequest) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests = append(m.requests, *req)
	close(m.more)
	m.more = make(chan struct{})
	return len(m.requests)
}

// What the server serves.
const (
	pathModels   = "/v1/models"
	pathChat     = "/v1/chat/completions"
	pathMessages = "/v1/messages"
	pathCount    = "/v1/messages/count_tokens"
)

// fault is an answer that is an error.
type fault struct {
	status int
	text   string
}

func (f *fault) Error() string { return f.text }

func refuse(w http.ResponseWriter, d dialect, err error) {
	f := &fault{http.StatusBadRequest, err.Error()}
	errors.As(err, &f)
	give(w, f.status, d.fault(f))
}

func give(w http.ResponseWriter, status int, v object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(encode(v), '\n'))
}

// object is a JSON object; its keys are sent in their order.
type object = map[string]any

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("lab: encode %v: %v", v, err)) // it is made of text and numbers
	}
	return b
}

// tokens is about how many tokens so many bytes are.
func tokens(size int) int { return (size + 3) / 4 }

// pieces cuts a text as a stream sends it: in two at least, if it can be.
func pieces(s string) []string {
	runes := []rune(s)
	size := max(1, min(pieceLimit, (len(runes)+1)/2))
	var out []string
	for p := range slices.Chunk(runes, size) {
		out = append(out, string(p))
	}
	return out
}

// halves cuts encoded arguments in two.
func halves(s string) [2]string {
	runes := []rune(s)
	middle := len(runes) / 2
	return [2]string{string(runes[:middle]), string(runes[middle:])}
}

// hear reads a request. Its error is for the client.
func hear(w http.ResponseWriter, r *http.Request, d dialect) (*asked, error) {
	method := http.MethodPost
	switch r.URL.Path {
	case pathModels:
		method = http.MethodGet
	case pathChat, pathMessages, pathCount:
	default:
		return nil, &fault{http.StatusNotFound, "unknown path " + r.URL.Path}
	}
	if r.Method != method {
		return nil, &fault{http.StatusMethodNotAllowed, fmt.Sprintf("%s takes %s only", r.URL.Path, method)}
	}
	if method == http.MethodGet {
		return &asked{}, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyLimit))
	if errors.As(err, new(*http.MaxBytesError)) {
		return nil, &fault{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", bodyLimit)}
	}
	if err != nil {
		return nil, fmt.Errorf("body: %w", err)
	}
	ask := &asked{tokens: tokens(len(body))}
	if err := json.Unmarshal(body, ask); err != nil {
		return nil, fmt.Errorf("body: %w", err)
	}
	if ask.Model == "" {
		return nil, errors.New("model: field required")
	}
	if len(ask.Messages) == 0 {
		return nil, errors.New("messages: at least one is required")
	}
	if err := d.parse(ask, r.URL.Path); err != nil {
		return nil, err
	}
	return ask, ask.paired()
}

// asked is the body of a request, as far as both APIs agree, and what a
// dialect makes of the rest.
type asked struct {
	Model         string
	Stream        bool
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	MaxTokens *int `json:"max_tokens"`
	System    content
	Messages  []struct {
		Role      string
		Content   content
		ToolCalls []struct {
			ID       string
			Function struct {
				Name      string
				Arguments string
			}
		} `json:"tool_calls"`
		ToolCallID string `json:"tool_call_id"`
	}
	Tools []struct {
		Name     string
		Function struct{ Name string }
	}

	messages []ModelMessage
	tools    []string
	tokens   int
}

// paired tells whether every result answers a call before it, as both APIs
// demand.
func (a *asked) paired() error {
	calls := map[string]bool{}
	for i, msg := range a.messages {
		for _, c := range msg.Calls {
			if c.ID == "" || c.Name == "" {
				return fmt.Errorf("message %d: a tool call without an id or a name", i)
			}
			calls[c.ID] = true
		}
		if msg.Role == "tool" && !calls[msg.Answers] {
			return fmt.Errorf("message %d: the tool result answers no call before it: %q", i, msg.Answers)
		}
	}
	return nil
}

// content is a list of parts, or a text in the place of one.
type content []part

type part struct {
	Type      string
	Text      string
	ID        string // of a tool_use
	Name      string
	Input     any
	ToolUseID string          `json:"tool_use_id"` // of a tool_result
	Content   json.RawMessage // as each type has it
}

func (c *content) UnmarshalJSON(b []byte) error {
	if bytes.HasPrefix(b, []byte(`"`)) {
		*c = content{{Type: "text"}}
		return json.Unmarshal(b, &(*c)[0].Text)
	}
	var parts []part
	err := json.Unmarshal(b, &parts)
	*c = parts
	return err
}

func (c content) text() string {
	var texts []string
	for _, p := range c {
		if p.Type == "text" {
			texts = append(texts, p.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// answer is what is said to one request.
type answer struct {
	number  int
	model   string
	text    string
	tool    string // empty is no call
	args    string
	in, out int  // tokens
	usage   bool // asked for in a stream
}

// dialect is one of the two APIs.
type dialect interface {
	parse(ask *asked, path string) error
	models() object
	whole(a *answer) object
	events(a *answer) iter.Seq[[]byte]
	fault(f *fault) object
}

func dialectOf(r *http.Request) dialect {
	if strings.HasPrefix(r.URL.Path, pathMessages) || r.Header.Get("Anthropic-Version") != "" {
		return anthropic{}
	}
	return openAI{}
}

// openAI is the Chat Completions API.
type openAI struct{}

func (openAI) parse(ask *asked, _ string) error {
	for i, msg := range ask.Messages {
		parsed := ModelMessage{Role: msg.Role, Text: msg.Content.text()}
		switch msg.Role {
		case "system", "developer", "user":
		case "assistant":
			for _, c := range msg.ToolCalls {
				parsed.Calls = append(parsed.Calls, ToolCall{c.ID, c.Function.Name, decoded(c.Function.Arguments)})
			}
		case "tool":
			parsed.Answers = msg.ToolCallID
		default:
			return fmt.Errorf("messages.%d.role: unknown %q", i, msg.Role)
		}
		ask.messages = append(ask.messages, parsed)
	}
	for i, t := range ask.Tools {
		if t.Function.Name == "" {
			return fmt.Errorf("tools.%d.function.name: field required", i)
		}
		ask.tools = append(ask.tools, t.Function.Name)
	}
	return nil
}

func decoded(args string) any {
	var v any
	if json.Unmarshal([]byte(args), &v) != nil {
		return args
	}
	return v
}

func (openAI) models() object {
	return object{"object": "list", "data": []object{{"id": modelName, "object": "model", "created": created, "owned_by": "lab"}}}
}

func (openAI) reason(a *answer) string {
	if a.tool != "" {
		return "tool_calls"
	}
	return "stop"
}

func (openAI) usage(a *answer) object {
	return object{"prompt_tokens": a.in, "completion_tokens": a.out, "total_tokens": a.in + a.out}
}

func (d openAI) whole(a *answer) object {
	message := object{"role": "assistant", "content": a.text}
	if a.tool != "" {
		if a.text == "" {
			message["content"] = nil
		}
		message["tool_calls"] = []object{{"id": fmt.Sprintf("call_%d", a.number), "type": "function",
			"function": object{"name": a.tool, "arguments": a.args}}}
	}
	return object{"id": fmt.Sprintf("chatcmpl-%d", a.number), "object": "chat.completion", "created": created, "model": a.model,
		"choices": []object{{"index": 0, "message": message, "finish_reason": d.reason(a)}}, "usage": d.usage(a)}
}

func (d openAI) events(a *answer) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		chunk := func(choices []object, usage any) bool {
			c := object{"id": fmt.Sprintf("chatcmpl-%d", a.number), "object": "chat.completion.chunk", "created": created, "model": a.model, "choices": choices}
			if a.usage {
				c["usage"] = usage
			}
			return yield(fmt.Appendf(nil, "data: %s\n\n", encode(c)))
		}
		delta := func(delta object, reason any) bool {
			return chunk([]object{{"index": 0, "delta": delta, "finish_reason": reason}}, nil)
		}
		call := func(c object) bool {
			c["index"] = 0
			return delta(object{"tool_calls": []object{c}}, nil)
		}
		if !delta(object{"role": "assistant", "content": ""}, nil) {
			return
		}
		for _, p := range pieces(a.text) {
			if !delta(object{"content": p}, nil) {
				return
			}
		}
		if a.tool != "" {
			if !call(object{"id": fmt.Sprintf("call_%d", a.number), "type": "function", "function": object{"name": a.tool, "arguments": ""}}) {
				return
			}
			for _, h := range halves(a.args) {
				if !call(object{"function": object{"arguments": h}}) {
					return
				}
			}
		}
		if !delta(object{}, d.reason(a)) {
			return
		}
		if a.usage && !chunk([]object{}, d.usage(a)) {
			return
		}
		yield([]byte("data: [DONE]\n\n"))
	}
}

func (openAI) fault(f *fault) object {
	kind := "invalid_request_error"
	switch {
	case f.status == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case f.status >= 500:
		kind = "server_error"
	}
	return object{"error": object{"message": f.text, "type": kind, "param": nil, "code": nil}}
}

// anthropic is the Messages API.
type anthropic struct{}

func (anthropic) parse(ask *asked, path string) error {
	if path == pathMessages && ask.MaxTokens == nil {
		return errors.New("max_tokens: field required")
	}
	if len(ask.System) > 0 {
		ask.messages = append(ask.messages, ModelMessage{Role: "system", Text: ask.System.text()})
	}
	for i, msg := range ask.Messages {
		if msg.Role != "user" && msg.Role != "assistant" {
			return fmt.Errorf("messages.%d.role: unknown %q", i, msg.Role)
		}
		parsed, bare := ModelMessage{Role: msg.Role, Text: msg.Content.text()}, true
		for _, p := range msg.Content {
			switch {
			case p.Type == "tool_use" && msg.Role == "assistant":
				parsed.Calls = append(parsed.Calls, ToolCall{p.ID, p.Name, p.Input})
			case p.Type == "tool_result" && msg.Role == "user":
				var result content
				if len(p.Content) > 0 {
					if err := json.Unmarshal(p.Content, &result); err != nil {
						return fmt.Errorf("messages.%d: content of the tool_result: %w", i, err)
					}
				}
				ask.messages = append(ask.messages, ModelMessage{Role: "tool", Text: result.text(), Answers: p.ToolUseID})
				bare = false
			case p.Type == "tool_use" || p.Type == "tool_result":
				return fmt.Errorf("messages.%d: no %s may be in a message of the %s", i, p.Type, msg.Role)
			}
		}
		if bare || parsed.Text != "" {
			ask.messages = append(ask.messages, parsed)
		}
	}
	for i, t := range ask.Tools {
		if t.Name == "" {
			return fmt.Errorf("tools.%d.name: field required", i)
		}
		ask.tools = append(ask.tools, t.Name)
	}
	return nil
}

func (anthropic) models() object {
	return object{"data": []object{{"type": "model", "id": modelName, "display_name": modelName, "created_at": time.Unix(created, 0).UTC()}},
		"has_more": false, "first_id": modelName, "last_id": modelName}
}

func (anthropic) message(a *answer, blocks []object, reason any, out int) object {
	return object{"id": fmt.Sprintf("msg_%d", a.number), "type": "message", "role": "assistant", "model": a.model,
		"content": blocks, "stop_reason": reason, "stop_sequence": nil,
		"usage": object{"input_tokens": a.in, "output_tokens": out, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}}
}

func (anthropic) reason(a *answer) string {
	if a.tool != "" {
		return "tool_use"
	}
	return "end_turn"
}

func (anthropic) call(a *answer, input string) object {
	return object{"type": "tool_use", "id": fmt.Sprintf("toolu_%d", a.number), "name": a.tool, "input": json.RawMessage(input)}
}

func (d anthropic) whole(a *answer) object {
	var blocks []object
	if a.text != "" {
		blocks = append(blocks, object{"type": "text", "text": a.text})
	}
	if a.tool != "" {
		blocks = append(blocks, d.call(a, a.args))
	}
	return d.message(a, blocks, d.reason(a), a.out)
}

func (d anthropic) events(a *answer) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		event := func(kind string, v object) bool {
			v["type"] = kind
			return yield(fmt.Appendf(nil, "event: %s\ndata: %s\n\n", kind, encode(v)))
		}
		index := 0
		block := func(start object, deltas ...object) bool {
			if !event("content_block_start", object{"index": index, "content_block": start}) {
				return false
			}
			for _, delta := range deltas {
				if !event("content_block_delta", object{"index": index, "delta": delta}) {
					return false
				}
			}
			index++
			return event("content_block_stop", object{"index": index - 1})
		}

		if !event("message_start", object{"message": d.message(a, []object{}, nil, 1)}) || !event("ping", object{}) {
			return
		}
		if a.text != "" {
			var deltas []object
			for _, p := range pieces(a.text) {
				deltas = append(deltas, object{"type": "text_delta", "text": p})
			}
			if !block(object{"type": "text", "text": ""}, deltas...) {
				return
			}
		}
		if a.tool != "" {
			h := halves(a.args)
			if !block(d.call(a, "{}"),
				object{"type": "input_json_delta", "partial_json": ""},
				object{"type": "input_json_delta", "partial_json": h[0]},
				object{"type": "input_json_delta", "partial_json": h[1]}) {
				return
			}
		}
		if !event("message_delta", object{"delta": object{"stop_reason": d.reason(a), "stop_sequence": nil}, "usage": object{"output_tokens": a.out}}) {
			return
		}
		event("message_stop", object{})
	}
}

func (anthropic) fault(f *fault) object {
	kind := "invalid_request_error"
	switch f.status {
	case http.StatusUnauthorized:
		kind = "authentication_error"
	case http.StatusForbidden:
		kind = "permission_error"
	case http.StatusNotFound:
		kind = "not_found_error"
	case http.StatusRequestEntityTooLarge:
		kind = "request_too_large"
	case http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case 529: // the API's own
		kind = "overloaded_error"
	default:
		if f.status >= 500 {
			kind = "api_error"
		}
	}
	return object{"type": "error", "error": object{"type": kind, "message": f.text}}
}
