package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/docker/docker/pkg/stdcopy"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/test/lab"
)

// meddling is what is done to the answer of one command inside a container, or
// to what the engine says of one.
type meddling struct {
	of string // how the command begins, without its directory

	refuse bool // the engine does not make it
	hang   bool // no answer, and no end
	out    func([]byte) []byte
	status func(int) int

	inspect func(container map[string]any) // nil is as the engine says
	mute    bool                           // no word about the service's container, and no end
}

// meddler stands before the engine.
type meddler struct {
	meddling
	engine http.Handler
	mu     sync.Mutex
	ours   map[string]bool // executions of it, by identity
	met    int
	about  string // the service's identity

	requests []string // method and path of each
}

var (
	execPath    = regexp.MustCompile(`^(?:/v[0-9.]+)?/containers/[^/]+/exec$`)
	startPath   = regexp.MustCompile(`^(?:/v[0-9.]+)?/exec/([0-9a-f]+)/start$`)
	endPath     = regexp.MustCompile(`^(?:/v[0-9.]+)?/exec/([0-9a-f]+)/json$`)
	inspectPath = regexp.MustCompile(`^(?:/v[0-9.]+)?/containers/[^/]+/json$`)
)

// meddle puts a meddler in front of the engine and returns its address.
func meddle(t *testing.T, how meddling) (*meddler, string) {
	t.Helper()
	socket := filepath.Join(public(t), "engine.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	m := &meddler{meddling: how, ours: map[string]bool{}}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	transport := toEngine()
	proxy.Transport, proxy.FlushInterval, proxy.ModifyResponse = transport, -1, m.answer
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	m.engine = proxy
	server := &http.Server{Handler: m, ErrorLog: proxy.ErrorLog}
	go server.Serve(l)
	t.Cleanup(func() {
		server.Close()
		transport.CloseIdleConnections()
	})
	return m, "unix://" + socket
}

// asked marks a request whose answer is to be meddled with.
type asked struct{}

func (m *meddler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	m.requests = append(m.requests, r.Method+" "+r.URL.Path)
	m.mu.Unlock()
	if m.mute && strings.Contains(r.URL.Path, "/"+m.about+"/") {
		m.meet()
		<-r.Context().Done()
		return
	}
	if execPath.MatchString(r.URL.Path) {
		b, err := io.ReadAll(r.Body)
		var create struct{ Cmd []string }
		if err != nil || json.Unmarshal(b, &create) != nil || len(create.Cmd) == 0 {
			http.Error(w, "{}", http.StatusBadRequest)
			return
		}
		create.Cmd[0] = filepath.Base(create.Cmd[0])
		r.Body = io.NopCloser(bytes.NewReader(b))
		if m.of != "" && strings.HasPrefix(strings.Join(create.Cmd, " ")+" ", m.of+" ") {
			m.meet()
			if m.refuse {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusConflict)
				fmt.Fprint(w, `{"message":"refused by the test"}`)
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), asked{}, true))
		}
	}
	m.engine.ServeHTTP(w, r)
}

func (m *meddler) meet() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.met++
}

func (m *meddler) isOurs(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ours[id]
}

// answer meddles with what the engine answers.
func (m *meddler) answer(res *http.Response) error {
	path := res.Request.URL.Path
	alter := func(v any, how func()) error {
		b, err := io.ReadAll(res.Body)
		if err == nil {
			err = json.Unmarshal(b, v)
		}
		if err != nil {
			return err
		}
		how()
		if b, err = json.Marshal(v); err != nil {
			return err
		}
		res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		res.Header.Set("Content-Length", strconv.Itoa(len(b)))
		return nil
	}
	switch {
	case res.Request.Context().Value(asked{}) != nil:
		var made struct{ ID string }
		return alter(&made, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.ours[made.ID] = true
		})
	case startPath.MatchString(path) && res.StatusCode == http.StatusSwitchingProtocols && m.isOurs(startPath.FindStringSubmatch(path)[1]):
		if engine, both := res.Body.(io.ReadWriteCloser); both && (m.hang || m.out != nil) {
			res.Body = &meddled{ReadWriteCloser: engine, m: m, closed: make(chan struct{})}
		}
	case endPath.MatchString(path) && m.status != nil && m.isOurs(endPath.FindStringSubmatch(path)[1]):
		var end map[string]any
		return alter(&end, func() {
			code, _ := end["ExitCode"].(float64)
			end["ExitCode"] = m.status(int(code))
		})
	case inspectPath.MatchString(path) && m.inspect != nil && res.StatusCode == http.StatusOK:
		var c map[string]any
		return alter(&c, func() {
			m.meet()
			m.inspect(c)
		})
	}
	return nil
}

// meddled is the line to a command whose standard output is altered as a whole.
type meddled struct {
	io.ReadWriteCloser
	m      *meddler
	once   sync.Once
	closed chan struct{}
	close  sync.Once
	out    bytes.Buffer
}

func (c *meddled) Read(b []byte) (int, error) {
	if c.m.hang {
		<-c.closed
		return 0, io.EOF
	}
	c.once.Do(func() {
		var out, errs bytes.Buffer
		_, _ = stdcopy.StdCopy(&out, &errs, c.ReadWriteCloser)
		_, _ = stdcopy.NewStdWriter(&c.out, stdcopy.Stderr).Write(errs.Bytes())
		_, _ = stdcopy.NewStdWriter(&c.out, stdcopy.Stdout).Write(c.m.out(out.Bytes()))
	})
	return c.out.Read(b)
}

func (c *meddled) Close() error {
	c.close.Do(func() { close(c.closed) })
	return c.ReadWriteCloser.Close()
}

func (c *meddled) CloseWrite() error {
	return c.ReadWriteCloser.(interface{ CloseWrite() error }).CloseWrite()
}

// meddled is corral verify on an engine that is meddled with.
func (s *sandbox) meddled(t *testing.T, how meddling) (*meddler, result) {
	t.Helper()
	m, address := meddle(t, how)
	if how.mute {
		m.about = docker(t, "inspect", "--format", "{{.Id}}", s.agent())
	}
	o := *s
	o.tb, o.env = t, append(slices.Clone(s.env), "DOCKER_HOST="+address)
	return m, o.corral("verify")
}

// Ways to spoil what a command prints.
func said(text string) func([]byte) []byte { return func([]byte) []byte { return []byte(text) } }

func half(b []byte) []byte { return b[:len(b)/2] }

// eachLine alters the lines of an answer.
func eachLine(how func([]string) []string) func([]byte) []byte {
	return func(b []byte) []byte {
		all := strings.SplitAfter(strings.TrimSuffix(string(b), "\n"), "\n")
		all[len(all)-1] += "\n"
		return []byte(strings.Join(how(all), ""))
	}
}

// verdicts alters the verdicts of an answer.
func verdicts(how func(*spec.Verdicts)) func([]byte) []byte {
	return func(b []byte) []byte {
		var v spec.Verdicts
		if err := spec.Decode(bytes.NewReader(b), &v); err != nil {
			return b
		}
		how(&v)
		return spec.Encode(v)
	}
}

// What a proof rests on is taken away, one thing after the other, from a
// sandbox that is as it should be: that never passes, and no one waits for it
// without end. R120: nothing that was refused counts without the gate's own
// word for it, with a list of names or an empty one.
func TestCannotTell(t *testing.T) {
	t.Parallel()
	// Proofs of one sandbox wait for each other, so there are several.
	first := project(t, allowed)
	first.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	listing, empty := make(chan *sandbox, 3), make(chan *sandbox, 1)
	up := func(where chan *sandbox, s *sandbox) {
		s.accept()
		s.up("echo up; read -r _", "up") // ends after the cases
		where <- s
	}
	up(listing, first)
	for i := range cap(listing) - 1 {
		up(listing, first.another(filepath.Join(filepath.Dir(first.dir), fmt.Sprint("listing", i)), allowed))
	}
	up(empty, first.another(filepath.Join(filepath.Dir(first.dir), "empty"), nothing))
	const (
		status  = "corral-gate status"
		mark    = "corral-gate verdicts --after 0"
		answer  = "corral-gate verdicts"
		checker = "corral-verify"
	)
	untold := func(check, why string) string {
		return `(?m)^FAIL ` + regexp.QuoteMeta(check) + `: cannot tell: .*` + why
	}
	for _, tt := range []struct {
		name string
		how  meddling
		want string // of what is said
	}{
		{"the gate cannot be asked how it is", meddling{of: status, refuse: true}, "gate does not answer"},
		{"the gate does not answer", meddling{of: status, hang: true}, "gate does not answer"},
		{"the gate says nothing", meddling{of: status, out: said("")}, "gate does not answer"},
		{"the gate says nonsense", meddling{of: status, out: said("well\n")}, "gate does not answer"},
		{"the gate breaks off", meddling{of: status, out: half}, "gate does not answer"},
		{"the gate is of another version", meddling{of: status, out: func(b []byte) []byte {
			return regexp.MustCompile(`"version": ?1`).ReplaceAll(b, []byte(`"version":2`))
		}}, "gate does not answer"},
		{"the gate's command fails", meddling{of: status, status: func(int) int { return 1 }}, "gate does not answer"},

		{"verdicts cannot be asked for", meddling{of: answer, refuse: true}, "refused by the test"},
		{"no verdicts come", meddling{of: answer, hang: true}, "no answer within"},
		{"verdicts are nonsense", meddling{of: answer, out: said("[]\n")}, "answer to verdicts"},
		{"verdicts are of another version", meddling{of: answer, out: verdicts(func(v *spec.Verdicts) { v.Version++ })}, "version"},
		{"verdicts break off", meddling{of: answer, out: half}, "answer to verdicts"},
		{"verdicts are empty", meddling{of: answer, out: verdicts(func(v *spec.Verdicts) { v.Verdicts = nil })}, untold("unlisted-host-blocked", "no record")},
		{"the mark is another gate's", meddling{of: mark, out: verdicts(func(v *spec.Verdicts) { v.Mark += 1 << 40 })}, untold("unlisted-host-blocked", "no record")},
		{"verdicts name no rule", meddling{of: answer, out: verdicts(func(v *spec.Verdicts) {
			for i := range v.Verdicts {
				v.Verdicts[i].Rule = ""
			}
		})}, untold("udp-closed", "no record")},
		{"verdicts are another probe's", meddling{of: answer, out: verdicts(func(v *spec.Verdicts) {
			for i := range v.Verdicts {
				v.Verdicts[i].Source -= 200
			}
		})}, untold("metadata-blocked", "no record")},
		{"some verdicts are missing", meddling{of: answer, out: verdicts(func(v *spec.Verdicts) {
			v.Verdicts = slices.DeleteFunc(v.Verdicts, func(v spec.Verdict) bool { return v.Proto == "udp" })
		})}, untold("udp-closed", "no record")},

		{"the checker cannot be started", meddling{of: checker, refuse: true}, "cannot tell: .*refused by the test"},
		{"the checker does not answer", meddling{of: checker, hang: true}, "cannot tell: .*no answer within"},
		{"the checker says nothing", meddling{of: checker, out: said("")}, "cannot tell|the checker said nothing"},
		{"the checker says nonsense", meddling{of: checker, out: said("ok\n")}, "cannot tell: .*event 1"},
		{"the checker breaks off", meddling{of: checker, out: half}, "cannot tell: .*event"},
		{"the checker breaks off between two", meddling{of: checker, out: eachLine(func(l []string) []string { return l[:len(l)/2] })}, "cannot tell"},
		{"the checker leaves out the first", meddling{of: checker, out: eachLine(func(l []string) []string { return l[1:] })}, "cannot tell"},
		{"the checker answers twice", meddling{of: checker, out: eachLine(func(l []string) []string { return append(l, l[0]) })}, "cannot tell"},
		{"the checker answers what nobody asked", meddling{of: checker, out: eachLine(func(l []string) []string {
			return append(l, strings.Replace(l[0], `"check":"`, `"check":"x`, 1))
		})}, "cannot tell"},
		{"the checker answers for no probe", meddling{of: checker, out: func(b []byte) []byte {
			return regexp.MustCompile(`,"probes":\[.*\]`).ReplaceAll(b, nil)
		}}, untold("unlisted-host-blocked", "no probe was sent")},
		{"the checker skips", meddling{of: checker, out: func(b []byte) []byte {
			return bytes.ReplaceAll(b, []byte(`"result":"ok"`), []byte(`"result":"skip"`))
		}}, "cannot tell"},
		{"the checker's answer has no end", meddling{of: checker, out: func(b []byte) []byte { return bytes.Repeat(b, 17<<20/len(b)) }}, "cannot tell: .*more than"},
		{"the checker fails for no reason", meddling{of: checker, status: func(int) int { return 1 }}, "cannot tell: .*disagree"},
		{"the checker is killed", meddling{of: checker, status: func(int) int { return 137 }}, "cannot tell: .*status 137"},

		{"the engine says nothing of networks", meddling{inspect: func(c map[string]any) { delete(c, "NetworkSettings") }}, "cannot tell"},
		{"the engine says nothing about the service", meddling{mute: true}, "cannot tell"},
		{"the engine says nothing of what was asked", meddling{inspect: func(c map[string]any) { delete(c, "HostConfig") }}, "cannot tell"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for i, of := range []chan *sandbox{listing, empty} {
				if i > 0 && (tt.how.hang || tt.how.mute || tt.how.of == checker) {
					continue // once is long enough, and the checker's list is not what counts
				}
				s := <-of
				m, r := s.meddled(t, tt.how)
				of <- s
				if m.met == 0 {
					t.Fatalf("nothing was met: %v", r)
				}
				if r.code != 1 || !regexp.MustCompile(tt.want).MatchString(r.out+r.err) {
					t.Errorf("%s: want %q in %v", filepath.Base(s.dir), tt.want, r)
				}
			}
		})
	}
	t.Run("not meddled with", func(t *testing.T) {
		t.Parallel()
		for _, of := range []chan *sandbox{listing, empty} {
			s := <-of
			defer func() { of <- s }()
			how := meddling{of: checker, out: eachLine(func(l []string) []string { return l }), inspect: func(map[string]any) {}}
			if m, r := s.meddled(t, how); r.code != 0 || m.met == 0 {
				t.Errorf("%s: %v", filepath.Base(s.dir), r)
			}
		}
	})
}
