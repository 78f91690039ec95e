package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// post sends a body and returns the status and what came.
func post(t *testing.T, m *Model, path, body string) (int, string) {
	t.Helper()
	return call(t, m, http.MethodPost, path, body, "")
}

// call is a request; with a version it is that of a client of Anthropic.
func call(t *testing.T, m *Model, method, path, body, version string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, m.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if version != "" {
		req.Header.Set("Anthropic-Version", version)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	want := "application/json"
	if res.StatusCode == http.StatusOK && strings.Contains(body, `"stream":true`) {
		want = "text/event-stream; charset=utf-8"
	}
	if ct := res.Header.Get("Content-Type"); ct != want {
		t.Errorf("%s %s: content type %q, want %q", method, path, ct, want)
	}
	return res.StatusCode, string(got)
}

// Bodies with room for more fields.
const (
	chatBody     = `{"model":"m","messages":[{"role":"user","content":"hello"}],"tools":[{"type":"function","function":{"name":"bash"}}]%s}`
	messagesBody = `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hello"}],"tools":[{"name":"bash","input_schema":{}}]%s}`
)

func TestModelOnTheWire(t *testing.T) {
	for _, tt := range []struct {
		name, path, more string // fields of the body
		turn             Turn
		want             []string // one after the other
	}{
		{"chat text", "/v1/chat/completions", ``, Turn{Text: "Grüße"}, []string{
			`{"choices":[{"finish_reason":"stop","index":0,"message":{"content":"Grüße","role":"assistant"}}],"created":1700000000,"id":"chatcmpl-1","model":"m","object":"chat.completion","usage":{"completion_tokens":2,"prompt_tokens":30,"total_tokens":32}}`, "\n"}},
		{"chat call", "/v1/chat/completions", ``, Turn{Call: &ToolCall{Name: "bash", Args: object{"command": "ls"}}}, []string{
			`{"choices":[{"finish_reason":"tool_calls","index":0,"message":{"content":null,"role":"assistant","tool_calls":[{"function":{"arguments":"{\"command\":\"ls\"}","name":"bash"},"id":"call_1","type":"function"}]}}],"created":1700000000,"id":"chatcmpl-1","model":"m","object":"chat.completion","usage":{"completion_tokens":4,"prompt_tokens":30,"total_tokens":34}}`, "\n"}},
		{"chat stream", "/v1/chat/completions", `,"stream":true`,
			Turn{Text: "Grüße", Call: &ToolCall{Name: "bash", Args: object{"command": "ls"}}}, []string{
				chunk(`{"choices":[{"delta":{"content":"","role":"assistant"},"finish_reason":null,"index":0}],$}`),
				chunk(`{"choices":[{"delta":{"content":"Grü"},"finish_reason":null,"index":0}],$}`),
				chunk(`{"choices":[{"delta":{"content":"ße"},"finish_reason":null,"index":0}],$}`),
				chunk(`{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"","name":"bash"},"id":"call_1","index":0,"type":"function"}]},"finish_reason":null,"index":0}],$}`),
				chunk(`{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{\"comman"},"index":0}]},"finish_reason":null,"index":0}],$}`),
				chunk(`{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"d\":\"ls\"}"},"index":0}]},"finish_reason":null,"index":0}],$}`),
				chunk(`{"choices":[{"delta":{},"finish_reason":"tool_calls","index":0}],$}`),
				"data: [DONE]\n\n"}},
		{"chat stream with usage", "/v1/chat/completions", `,"stream":true,"stream_options":{"include_usage":true}`,
			Turn{Text: "hi"}, []string{
				chunk(`{"choices":[{"delta":{"content":"","role":"assistant"},"finish_reason":null,"index":0}],$,"usage":null}`),
				chunk(`{"choices":[{"delta":{"content":"h"},"finish_reason":null,"index":0}],$,"usage":null}`),
				chunk(`{"choices":[{"delta":{"content":"i"},"finish_reason":null,"index":0}],$,"usage":null}`),
				chunk(`{"choices":[{"delta":{},"finish_reason":"stop","index":0}],$,"usage":null}`),
				chunk(`{"choices":[],$,"usage":{"completion_tokens":1,"prompt_tokens":43,"total_tokens":44}}`),
				"data: [DONE]\n\n"}},
		{"messages text", "/v1/messages", ``, Turn{Text: "Grüße"}, []string{
			`{"content":[{"text":"Grüße","type":"text"}],"id":"msg_1","model":"m","role":"assistant","stop_reason":"end_turn","stop_sequence":null,"type":"message","usage":{"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"input_tokens":30,"output_tokens":2}}`, "\n"}},
		{"messages call", "/v1/messages?beta=true", ``, Turn{Text: "ok", Call: &ToolCall{Name: "bash"}}, []string{
			`{"content":[{"text":"ok","type":"text"},{"id":"toolu_1","input":{},"name":"bash","type":"tool_use"}],"id":"msg_1","model":"m","role":"assistant","stop_reason":"tool_use","stop_sequence":null,"type":"message","usage":{"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"input_tokens":30,"output_tokens":1}}`, "\n"}},
		{"messages stream", "/v1/messages", `,"stream":true`,
			Turn{Text: "Grüße", Call: &ToolCall{Name: "bash", Args: object{"command": "ls"}}}, []string{
				event("message_start", `{"message":{"content":[],"id":"msg_1","model":"m","role":"assistant","stop_reason":null,"stop_sequence":null,"type":"message","usage":{"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"input_tokens":34,"output_tokens":1}},"type":"message_start"}`),
				event("ping", `{"type":"ping"}`),
				event("content_block_start", `{"content_block":{"text":"","type":"text"},"index":0,"type":"content_block_start"}`),
				event("content_block_delta", `{"delta":{"text":"Grü","type":"text_delta"},"index":0,"type":"content_block_delta"}`),
				event("content_block_delta", `{"delta":{"text":"ße","type":"text_delta"},"index":0,"type":"content_block_delta"}`),
				event("content_block_stop", `{"index":0,"type":"content_block_stop"}`),
				event("content_block_start", `{"content_block":{"id":"toolu_1","input":{},"name":"bash","type":"tool_use"},"index":1,"type":"content_block_start"}`),
				event("content_block_delta", `{"delta":{"partial_json":"","type":"input_json_delta"},"index":1,"type":"content_block_delta"}`),
				event("content_block_delta", `{"delta":{"partial_json":"{\"comman","type":"input_json_delta"},"index":1,"type":"content_block_delta"}`),
				event("content_block_delta", `{"delta":{"partial_json":"d\":\"ls\"}","type":"input_json_delta"},"index":1,"type":"content_block_delta"}`),
				event("content_block_stop", `{"index":1,"type":"content_block_stop"}`),
				event("message_delta", `{"delta":{"stop_reason":"tool_use","stop_sequence":null},"type":"message_delta","usage":{"output_tokens":6}}`),
				event("message_stop", `{"type":"message_stop"}`)}},
		{"messages stream of a text", "/v1/messages", `,"stream":true`,
			Turn{Text: "x"}, []string{
				event("message_start", `{"message":{"content":[],"id":"msg_1","model":"m","role":"assistant","stop_reason":null,"stop_sequence":null,"type":"message","usage":{"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"input_tokens":34,"output_tokens":1}},"type":"message_start"}`),
				event("ping", `{"type":"ping"}`),
				event("content_block_start", `{"content_block":{"text":"","type":"text"},"index":0,"type":"content_block_start"}`),
				event("content_block_delta", `{"delta":{"text":"x","type":"text_delta"},"index":0,"type":"content_block_delta"}`),
				event("content_block_stop", `{"index":0,"type":"content_block_stop"}`),
				event("message_delta", `{"delta":{"stop_reason":"end_turn","stop_sequence":null},"type":"message_delta","usage":{"output_tokens":1}}`),
				event("message_stop", `{"type":"message_stop"}`)}},
		{"chat error", "/v1/chat/completions", ``, Turn{Status: 429, Text: "slow down"}, []string{
			`{"error":{"code":null,"message":"slow down","param":null,"type":"rate_limit_error"}}`, "\n"}},
		{"messages error", "/v1/messages", ``, Turn{Status: 529, Text: "busy"}, []string{
			`{"error":{"message":"busy","type":"overloaded_error"},"type":"error"}`, "\n"}},
		{"an error in the place of a stream", "/v1/messages", `,"stream":true`, Turn{Status: 500, Text: "no"}, []string{
			`{"error":{"message":"no","type":"api_error"},"type":"error"}`, "\n"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := ServeModel(t, tt.turn)
			status, got := post(t, m, tt.path, fmt.Sprintf(body(tt.path), tt.more))
			if diff := cmp.Diff(strings.SplitAfter(strings.Join(tt.want, ""), "\n"), strings.SplitAfter(got, "\n")); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
			if want := max(tt.turn.Status, http.StatusOK); status != want {
				t.Errorf("status %d, want %d", status, want)
			}
		})
	}
}

func body(path string) string {
	if strings.HasPrefix(path, "/v1/messages") {
		return messagesBody
	}
	return chatBody
}

func chunk(s string) string {
	return "data: " + strings.Replace(s, "$", `"created":1700000000,"id":"chatcmpl-1","model":"m","object":"chat.completion.chunk"`, 1) + "\n\n"
}

func event(kind, data string) string { return "event: " + kind + "\ndata: " + data + "\n\n" }

func TestModelCutsLongTexts(t *testing.T) {
	text := strings.Repeat("0123456789abcdeß", 3) + "!"
	want := []string{"0123456789abcdeß", "0123456789abcdeß", "0123456789abcdeß", "!"}
	if diff := cmp.Diff(want, pieces(text)); diff != "" {
		t.Error(diff)
	}
}

func TestModelCountsTokens(t *testing.T) {
	for size, want := range map[int]int{0: 0, 1: 1, 4: 1, 5: 2, 8: 2, 9: 3} {
		if got := tokens(size); got != want {
			t.Errorf("%d bytes: %d tokens, want %d", size, got, want)
		}
	}
}

func TestModelHears(t *testing.T) {
	m := ServeModel(t)
	for _, tt := range []struct {
		method, path, body, version string
		status                      int
		want                        string
	}{
		{"GET", "/v1/models", "", "", 200, `{"data":[{"created":1700000000,"id":"scripted","object":"model","owned_by":"lab"}],"object":"list"}`},
		{"GET", "/v1/models?limit=1000", "", "2023-06-01", 200, `{"data":[{"created_at":"2023-11-14T22:13:20Z","display_name":"scripted","id":"scripted","type":"model"}],"first_id":"scripted","has_more":false,"last_id":"scripted"}`},
		{"POST", "/v1/messages/count_tokens", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`, "", 200, `{"input_tokens":15}`},

		{"POST", "/v1/models", "", "", 405, `{"error":{"code":null,"message":"/v1/models takes GET only","param":null,"type":"invalid_request_error"}}`},
		{"GET", "/v1/messages", "", "", 405, `{"error":{"message":"/v1/messages takes POST only","type":"invalid_request_error"},"type":"error"}`},
		{"GET", "/models", "", "", 404, `{"error":{"code":null,"message":"unknown path /models","param":null,"type":"invalid_request_error"}}`},
		{"GET", "/v1/messages/batches", "", "", 404, `{"error":{"message":"unknown path /v1/messages/batches","type":"not_found_error"},"type":"error"}`},
		{"POST", "/v1/embeddings", "{}", "2023-06-01", 404, `{"error":{"message":"unknown path /v1/embeddings","type":"not_found_error"},"type":"error"}`},
	} {
		status, got := call(t, m, tt.method, tt.path, tt.body, tt.version)
		if status != tt.status || got != tt.want+"\n" {
			t.Errorf("%s %s: %d %s\nwant %d %s", tt.method, tt.path, status, got, tt.status, tt.want)
		}
	}
	if rs := m.Requests(); len(rs) != 8 || rs[1].Path != "/v1/models" || rs[7].Model != "" {
		t.Errorf("requests: %v", rs)
	}
}

func TestModelRefuses(t *testing.T) {
	m := ServeModel(t, Turn{Text: "the turn that none of them takes"})
	const chat, messages = "/v1/chat/completions", "/v1/messages"
	for _, tt := range []struct {
		path, body string
		status     int
		want       string // in the message
	}{
		{chat, ``, 400, "unexpected end of JSON input"},
		{chat, `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":"a"}}]`, 400, "unexpected end of JSON input"},
		{chat, `[]`, 400, "cannot unmarshal array"},
		{chat, `{"messages":[{"role":"user","content":"x"}]}`, 400, "model: field required"},
		{chat, `{"model":"m"}`, 400, "messages: at least one is required"},
		{chat, `{"model":"m","messages":[]}`, 400, "messages: at least one is required"},
		{chat, `{"model":"m","messages":[{"role":"user","content":7}]}`, 400, "cannot unmarshal number"},
		{chat, `{"model":"m","messages":[{"role":"nobody","content":"x"}]}`, 400, "messages.0.role: unknown "},
		{chat, `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"name":"a"}]}`, 400, "tools.0.function.name: field required"},
		{chat, `{"model":"m","messages":[{"role":"tool","tool_call_id":"call_1","content":"x"}]}`, 400, "message 0: the tool result answers no call before it"},
		{chat, `{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"","function":{"name":"a","arguments":"{}"}}]}]}`, 400, "message 0: a tool call without an id or a name"},
		{messages, `{"model":"m","messages":[{"role":"user","content":"x"}]}`, 400, "max_tokens: field required"},
		{messages, `{"model":"m","max_tokens":1,"messages":[{"role":"tool","content":"x"}]}`, 400, "messages.0.role: unknown "},
		{messages, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":"a"}}]}`, 400, "tools.0.name: field required"},
		{messages, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1"}]}]}`, 400, "message 0: the tool result answers no call before it"},
		{messages, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":7}]}]}`, 400, "messages.0: content of the tool_result: "},
		{messages, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_use","id":"toolu_1","name":"a"}]}]}`, 400, "messages.0: no tool_use may be in a message of the user"},
		{chat, strings.Repeat(" ", bodyLimit+1), 413, "larger than 33554432 bytes"},
		{chat, strings.Repeat(" ", bodyLimit), 400, "unexpected end of JSON input"},
	} {
		status, got := post(t, m, tt.path, tt.body)
		shape := `{"error":{`
		if tt.path == messages {
			shape = `{"error":{"message":`
		}
		if status != tt.status || !strings.Contains(got, tt.want) || !strings.HasPrefix(got, shape) {
			t.Errorf("%s %.200s:\n%d %s\nwant %d %s", tt.path, tt.body, status, got, tt.status, tt.want)
		}
	}
	if _, got := post(t, m, chat, fmt.Sprintf(chatBody, "")); !strings.Contains(got, "none of them takes") {
		t.Errorf("a request that was refused took a turn: %s", got)
	}
}

// A conversation with a call and its result, as each client gives it back.
func TestModelConversation(t *testing.T) {
	want := []ModelMessage{
		{Role: "system", Text: "be brief\nand kind"},
		{Role: "user", Text: "list"},
		{Role: "assistant", Text: "looking", Calls: []ToolCall{{Name: "bash", Args: object{"command": "ls"}}}},
		{Role: "tool", Text: "a.txt\nb.txt"},
		{Role: "user", Text: "go on"},
	}
	for _, tt := range []struct {
		path, id, first, second string
	}{
		{"/v1/chat/completions", "call_1",
			`{"model":"m","messages":[{"role":"system","content":[{"type":"text","text":"be brief"},{"type":"text","text":"and kind"}]},{"role":"user","content":"list"}],"tools":[{"function":{"name":"bash"}},{"function":{"name":"write"}}]}`,
			`{"model":"m","messages":[{"role":"system","content":"be brief\nand kind"},{"role":"user","content":[{"type":"text","text":"list"},{"type":"image_url","image_url":{"url":"data:"}}]},
				{"role":"assistant","content":"looking","tool_calls":[{"id":"call_1","type":"function","function":{"name":"bash","arguments":"{\"command\":\"ls\"}"}}]},
				{"role":"tool","tool_call_id":"call_1","content":"a.txt\nb.txt"},{"role":"user","content":"go on"}],"tools":[{"function":{"name":"bash"}},{"function":{"name":"write"}}],"stream":true}`},
		{"/v1/messages", "toolu_1",
			`{"model":"m","max_tokens":1,"system":"be brief\nand kind","messages":[{"role":"user","content":"list"}],"tools":[{"name":"bash"},{"name":"write"}]}`,
			`{"model":"m","max_tokens":1,"system":[{"type":"text","text":"be brief"},{"type":"text","text":"and kind","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"text","text":"list"}]},
				{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"looking"},{"type":"tool_use","id":"toolu_1","name":"bash","input":{"command":"ls"}}]},
				{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"text","text":"a.txt\nb.txt"}],"is_error":false},{"type":"text","text":"go on"}]}],"tools":[{"name":"bash"},{"name":"write"}],"stream":true}`},
	} {
		t.Run(tt.id, func(t *testing.T) {
			m := ServeModel(t, Turn{Text: "looking", Call: &ToolCall{Name: "bash", Args: object{"command": "ls"}}}, Turn{Text: "two files"})
			if _, got := post(t, m, tt.path, tt.first); !strings.Contains(got, `"id":"`+tt.id+`"`) {
				t.Errorf("no call %s in %s", tt.id, got)
			}
			if _, got := post(t, m, tt.path, tt.second); !strings.Contains(got, `"two f"`) || !strings.Contains(got, `"iles"`) {
				t.Errorf("the second turn is not in %s", got)
			}
			rs := m.Requests()
			if len(rs) != 2 {
				t.Fatalf("requests: %v", rs)
			}
			want[2].Calls[0].ID, want[3].Answers = tt.id, tt.id
			if diff := cmp.Diff(want[:2], rs[0].Messages); diff != "" {
				t.Errorf("first request:\n%s", diff)
			}
			if diff := cmp.Diff(want, rs[1].Messages); diff != "" {
				t.Errorf("second request:\n%s", diff)
			}
			for i, r := range rs {
				if r.Turn != i+1 || r.Model != "m" || r.Stream != (i == 1) || !cmp.Equal(r.Tools, []string{"bash", "write"}) || r.At.IsZero() {
					t.Errorf("request %d: %v at %v", i, r, r.At)
				}
			}
		})
	}
}

// Arguments that a model got wrong come back as they were.
func TestModelHearsBrokenArguments(t *testing.T) {
	m := ServeModel(t)
	post(t, m, "/v1/chat/completions", `{"model":"m","messages":[
		{"role":"assistant","content":null,"tool_calls":[{"id":"c","function":{"name":"a","arguments":"{\"x\":"}},{"id":"d","function":{"name":"b","arguments":""}}]},
		{"role":"developer","content":"x"}]}`)
	want := []ModelMessage{
		{Role: "assistant", Calls: []ToolCall{{ID: "c", Name: "a", Args: `{"x":`}, {ID: "d", Name: "b", Args: ""}}},
		{Role: "developer", Text: "x"},
	}
	if diff := cmp.Diff(want, m.Requests()[0].Messages); diff != "" {
		t.Error(diff)
	}
}

func TestModelFaults(t *testing.T) {
	for _, tt := range []struct {
		status            int
		openAI, anthropic string
	}{
		{400, "invalid_request_error", "invalid_request_error"},
		{401, "invalid_request_error", "authentication_error"},
		{403, "invalid_request_error", "permission_error"},
		{404, "invalid_request_error", "not_found_error"},
		{413, "invalid_request_error", "request_too_large"},
		{428, "invalid_request_error", "invalid_request_error"},
		{429, "rate_limit_error", "rate_limit_error"},
		{499, "invalid_request_error", "invalid_request_error"},
		{500, "server_error", "api_error"},
		{529, "server_error", "overloaded_error"},
		{599, "server_error", "api_error"},
	} {
		for d, want := range map[dialect]string{openAI{}: tt.openAI, anthropic{}: tt.anthropic} {
			if got := d.fault(&fault{tt.status, "x"})["error"].(object)["type"]; got != want {
				t.Errorf("%d in %T: %v, want %s", tt.status, d, got, want)
			}
		}
	}
}

// Which turn, or which fixed text, each request of a sequence gets.
func TestModelTurns(t *testing.T) {
	const (
		plain = `{"model":"m","messages":[{"role":"user","content":"title, please"}]}`
		empty = `{"model":"m","messages":[{"role":"user","content":"title, please"}],"tools":[]}`
		offer = `{"model":"m","messages":[{"role":"user","content":"work"}],"tools":[{"function":{"name":"bash"}}]}`
	)
	says := func(word string) func(ModelRequest) bool {
		return func(r ModelRequest) bool { return strings.Contains(r.Messages[len(r.Messages)-1].Text, word) }
	}
	for _, tt := range []struct {
		name   string
		script []Turn
		bodies []string
		want   []string
		turns  []int
	}{
		{"no script", nil, []string{offer, plain, offer}, []string{finished, aside, finished}, []int{0, 0, 0}},
		{"side requests take no turn", []Turn{{Text: "one"}, {Text: "two"}},
			[]string{plain, offer, empty, offer, plain, offer}, []string{aside, "one", aside, "two", aside, finished}, []int{0, 1, 0, 2, 0, 0}},
		{"a match takes a side request", []Turn{{Text: "one"}, {Text: "A title", Match: says("title")}, {Text: "two"}},
			[]string{plain, plain, offer, offer, offer}, []string{"A title", aside, "one", "two", finished}, []int{2, 0, 1, 3, 0}},
		{"a match goes before the order", []Turn{{Text: "one"}, {Text: "two", Match: says("work")}},
			[]string{offer, offer, offer}, []string{"two", "one", finished}, []int{2, 1, 0}},
		{"a match that never is takes nothing", []Turn{{Text: "never", Match: says("play")}, {Text: "one"}},
			[]string{offer, offer, plain}, []string{"one", finished, aside}, []int{2, 0, 0}},
		{"an error takes its turn", []Turn{{Status: 503, Text: "later"}, {Text: "one"}},
			[]string{offer, offer}, []string{"later", "one"}, []int{1, 2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := ServeModel(t, tt.script...)
			for i, body := range tt.bodies {
				if _, got := post(t, m, "/v1/chat/completions", body); !strings.Contains(got, `"`+tt.want[i]+`"`) {
					t.Errorf("request %d: %s, want %q", i+1, got, tt.want[i])
				}
			}
			var turns []int
			for _, r := range m.Requests() {
				turns = append(turns, r.Turn)
			}
			if diff := cmp.Diff(tt.turns, turns); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Match may look at what came before.
func TestModelMatchAsksForRequests(t *testing.T) {
	var m *Model
	m = ServeModel(t, Turn{Text: "the third", Match: func(ModelRequest) bool { return len(m.Requests()) == 2 }})
	for i := range 4 {
		_, got := post(t, m, "/v1/messages", fmt.Sprintf(messagesBody, ""))
		if third := strings.Contains(got, "the third"); third != (i == 2) {
			t.Errorf("request %d: %s", i+1, got)
		}
	}
}

func TestModelConcurrently(t *testing.T) {
	const clients, each = 8, 5
	var script []Turn
	for i := range clients * each {
		script = append(script, Turn{Text: fmt.Sprintf("<%d>", i)})
	}
	m := ServeModel(t, script...)
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		all strings.Builder
	)
	for i := range clients {
		path := []string{"/v1/chat/completions", "/v1/messages"}[i%2]
		wg.Go(func() {
			for range each {
				res, err := http.Post(m.URL()+path, "application/json", strings.NewReader(fmt.Sprintf(body(path), "")))
				if err != nil {
					t.Error(err)
					return
				}
				b, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				all.Write(b)
				mu.Unlock()
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := m.Await(ctx, clients*each); err != nil {
		t.Error(err)
	}
	wg.Wait()
	for i := range script {
		if n := strings.Count(all.String(), fmt.Sprintf(`\u003c%d\u003e`, i)); n != 1 {
			t.Errorf("turn %d was said %d times", i+1, n)
		}
	}
	if n := len(m.Requests()); n != clients*each {
		t.Errorf("%d requests", n)
	}
}

// idle returns once no answer is under way.
func (m *Model) idle(t *testing.T) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- m.Close() }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("an answer to nobody goes on")
	}
}

func TestModelClientGone(t *testing.T) {
	// More than all the buffers between the two hold.
	long := Turn{Text: strings.Repeat("long ", 1<<20)}
	for _, path := range []string{"/v1/chat/completions", "/v1/messages"} {
		t.Run(path, func(t *testing.T) {
			m := ServeModel(t, long, Turn{Text: "next"})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL()+path, strings.NewReader(fmt.Sprintf(body(path), `,"stream":true`)))
			if err != nil {
				t.Fatal(err)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(res.Body, make([]byte, 2000)); err != nil {
				t.Fatal(err)
			}
			cancel()
			res.Body.Close()
			if _, got := post(t, m, path, fmt.Sprintf(body(path), "")); !strings.Contains(got, "next") {
				t.Errorf("after a client that left: %s", got)
			}
			m.idle(t)
		})
	}
}

// A stream ends at the first event that cannot be sent, whichever that is.
func TestModelStopsWriting(t *testing.T) {
	turn := Turn{Text: "long", Call: &ToolCall{Name: "bash"}}
	for path, all := range map[string]int{"/v1/chat/completions": 9, "/v1/messages": 13} {
		for room := range all + 1 {
			m := ServeModel(t, turn)
			w := &deaf{ResponseRecorder: httptest.NewRecorder(), room: room}
			m.serve(w, httptest.NewRequest(http.MethodPost, path,
				strings.NewReader(fmt.Sprintf(body(path), `,"stream":true,"stream_options":{"include_usage":true}`))))
			if want := min(room+1, all); w.writes != want {
				t.Errorf("%s: %d events were tried where %d of %d could be sent", path, w.writes, room, all)
			}
		}
	}
}

// deaf takes so many writes.
type deaf struct {
	*httptest.ResponseRecorder
	room, writes int
}

func (d *deaf) Write(b []byte) (int, error) {
	if d.writes++; d.writes > d.room {
		return 0, io.ErrClosedPipe
	}
	return d.ResponseRecorder.Write(b)
}

func TestModelDelay(t *testing.T) {
	const delay = 20 * time.Millisecond
	m := ServeModel(t, Turn{Text: "late", Delay: delay}, Turn{Text: "never", Delay: math.MaxInt64}, Turn{Text: "next"}, Turn{Text: "never", Delay: math.MaxInt64})
	start := time.Now()
	if _, got := post(t, m, "/v1/messages", fmt.Sprintf(messagesBody, "")); !strings.Contains(got, "late") || time.Since(start) < delay {
		t.Errorf("after %v: %s", time.Since(start), got)
	}

	wait := func(n int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := m.Await(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(ctx context.Context) <-chan error {
		failed := make(chan error, 1)
		go func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL()+"/v1/messages", strings.NewReader(fmt.Sprintf(messagesBody, "")))
			if err == nil {
				_, err = http.DefaultClient.Do(req)
			}
			failed <- err
		}()
		return failed
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed := ask(ctx)
	wait(2)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("the client that left: %v", err)
	}
	if _, got := post(t, m, "/v1/messages", fmt.Sprintf(messagesBody, "")); !strings.Contains(got, "next") {
		t.Errorf("after a client that left: %s", got)
	}

	failed = ask(t.Context())
	wait(4)
	m.idle(t)
	if err := <-failed; err == nil {
		t.Error("an answer came from a server that was closed")
	}
}

func TestModelAwait(t *testing.T) {
	m := ServeModel(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Await(gone, 0); err != nil {
		t.Errorf("for none: %v", err)
	}
	if err := m.Await(gone, 1); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "0 of 1 requests") {
		t.Errorf("for one that does not come: %v", err)
	}
	call(t, m, http.MethodGet, "/nowhere", "", "")
	if err := m.Await(gone, 1); err != nil {
		t.Errorf("for one that came: %v", err)
	}
}

func TestModelKeepsHeaders(t *testing.T) {
	m := ServeModel(t)
	req, err := http.NewRequest(http.MethodPost, m.URL()+"/v1/messages?beta=true", strings.NewReader(fmt.Sprintf(messagesBody, "")))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "corral-host:8099"
	req.Header.Set("Authorization", "Bearer placeholder")
	req.Header.Set("X-Api-Key", "key")
	req.Header.Set("User-Agent", "harness/1")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	r := m.Requests()[0]
	got := []string{r.Method, r.Host, r.Path, r.Header.Get("Authorization"), r.Header.Get("X-Api-Key"), r.Header.Get("User-Agent")}
	if diff := cmp.Diff([]string{"POST", "corral-host:8099", "/v1/messages", "Bearer placeholder", "key", "harness/1"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestModelStarts(t *testing.T) {
	say := Turn{Text: "x"}
	for _, tt := range []struct {
		name, addr string
		turn       Turn
		want       string // empty is no error
	}{
		{"loopback", "127.0.0.1:0", say, ""},
		{"more loopback", "127.9.0.1:0", say, ""},
		{"every address", "0.0.0.0:0", say, "0.0.0.0 is not a loopback address"},
		{"every address of IPv6", "[::]:0", say, ":: is not a loopback address"},
		{"elsewhere", "44.10.0.10:80", say, "44.10.0.10 is not a loopback address"},
		{"a name", "localhost:0", say, "unable to parse IP"},
		{"no port", "127.0.0.1", say, "not an ip:port"},
		{"nothing", "", say, "not an ip:port"},

		{"a call without arguments", "127.0.0.1:0", Turn{Call: &ToolCall{Name: "a"}}, ""},
		{"an error without a text", "127.0.0.1:0", Turn{Status: 400}, ""},
		{"the last error", "127.0.0.1:0", Turn{Status: 599}, ""},
		{"not an error", "127.0.0.1:0", Turn{Status: 399}, "turn 1: status 399 is no error's"},
		{"not a status", "127.0.0.1:0", Turn{Status: 600}, "turn 1: status 600 is no error's"},
		{"an error that calls", "127.0.0.1:0", Turn{Status: 500, Call: &ToolCall{Name: "a"}}, "turn 1: an error calls no tool"},
		{"no words", "127.0.0.1:0", Turn{Delay: 1}, "turn 1: says nothing"},
		{"no name", "127.0.0.1:0", Turn{Call: &ToolCall{}}, "turn 1: the tool has no name"},
		{"a list of arguments", "127.0.0.1:0", Turn{Call: &ToolCall{Name: "a", Args: []int{1}}}, "turn 1: arguments of a are not an object: [1]"},
		{"arguments of no kind", "127.0.0.1:0", Turn{Call: &ToolCall{Name: "a", Args: func() {}}}, "turn 1: arguments of a: json: unsupported type: func()"},
	} {
		m, err := StartModel(tt.addr, tt.turn)
		if m != nil {
			if m.Port() == 0 || !strings.HasPrefix(m.URL(), "http://127.") || !strings.HasSuffix(m.URL(), fmt.Sprintf(":%d", m.Port())) {
				t.Errorf("%s: at %s, port %d", tt.name, m.URL(), m.Port())
			}
			if err := m.Close(); err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	m := ServeModel(t)
	if second, err := StartModel(fmt.Sprintf("127.0.0.1:%d", m.Port())); err == nil {
		second.Close()
		t.Error("two servers on one port")
	}
}

func TestPlayReplacesWhatIsLeft(t *testing.T) {
	m := ServeModel(t, Turn{Text: "one"}, Turn{Text: "two"})
	say := func() string {
		t.Helper()
		r, err := http.Post(m.URL()+"/v1/chat/completions", "application/json", strings.NewReader(
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"bash"}}]}`))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got := say(); !strings.Contains(got, `"one"`) {
		t.Error(got)
	}
	m.Play(t, Turn{Text: "three"})
	if got := say(); !strings.Contains(got, `"three"`) {
		t.Error(got)
	}
	if got := say(); strings.Contains(got, "two") || m.Requests()[1].Turn != 3 {
		t.Errorf("%s, turn %d", got, m.Requests()[1].Turn)
	}
}
