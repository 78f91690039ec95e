package engine

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/command"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
	"github.com/corral-sandbox/corral/test/lab"
)

var update = flag.Bool("update", false, "write testdata anew")

// someMutants names an environment variable with a regular expression: the mutants
// to judge, by their ids. "." is all of them, "new" those that testdata does not
// know. Without it they are enough to turn every kind red that any does.
const someMutants = "CORRAL_TEST_MUTANTS"

// pens are how many mutants live side by side.
const pens = 3

// pen is a sandbox in which one mutant after the other lives: its containers
// are made by what corral asked the engine for, but for one thing.
type pen struct {
	*sandbox
	engine string // the engine as this pen's corral sees it
	relay  string // the container that carries its host service
	names  map[string]string
	gateID string // empty: the gate is a mutant, or gone
	odd    bool   // the service is a mutant, or gone

	mu        sync.Mutex
	bodies    map[string]any                        // what corral asked for, by the container's name
	documents map[string][]byte                     // what it put into a container, by the ID
	document  []byte                                // what it put into the gate
	asked     map[string]any                        // the body of the service that is judged
	files     map[string]*httptest.ResponseRecorder // by role and path: what the engine packs of a container's files
	as        map[string]string                     // the role of a container, by its ID
	current   mutant                                // what is judged
}

// ofFiles are the mutants that change which files are where.
var ofFiles = regexp.MustCompile(`Mounts|Binds|Volumes|Tmpfs|Image|Privileged|^guests|^image|^running`)

// steady says that what lies at a path of a container is in a mutant what it is
// elsewhere.
func (m mutant) steady(role, file string) bool {
	if strings.HasPrefix(file, spec.GuestDir) { // the volume, and in images what it is filled from
		return m.role != role || !strings.Contains(m.id, spec.GuestDir) && !strings.HasPrefix(m.id, "guests/")
	}
	return !ofFiles.MatchString(m.id) && (file != spec.GateFile || !strings.HasPrefix(m.id, "document/"))
}

// kept is what a mutant's process is in place of the handover, so that verify
// judges alone.
var kept = []any{"sleep", "infinity"}

func (p *pen) serve(engine http.Handler, w http.ResponseWriter, r *http.Request) {
	where := path.Dir(r.URL.Path)
	switch what := path.Base(r.URL.Path); {
	case r.Method == http.MethodPost && what == "create" && path.Base(where) == "containers":
		b := again(r)
		p.mu.Lock()
		p.bodies[r.URL.Query().Get("name")] = decoded(b)
		p.mu.Unlock()
	case r.Method == http.MethodPut && what == "archive":
		b := again(r)
		p.mu.Lock()
		p.documents[path.Base(where)] = b
		p.mu.Unlock()
	case r.Method == http.MethodGet && what == "archive" && p.steady(path.Base(where), r.URL.Query().Get("path")):
		// To pack the same 18 MB for each of hundreds takes the engine minutes.
		p.mu.Lock()
		name := p.as[path.Base(where)] + r.URL.Query().Get("path")
		got := p.files[name]
		p.mu.Unlock()
		if got == nil {
			got = httptest.NewRecorder()
			engine.ServeHTTP(got, r)
			if p.mu.Lock(); got.Code == http.StatusOK && r.Context().Err() == nil {
				p.files[name] = got
			}
			p.mu.Unlock()
		}
		maps.Copy(w.Header(), got.Header())
		w.WriteHeader(got.Code)
		w.Write(got.Body.Bytes())
		return
	case r.Method == http.MethodGet && what == "json" && path.Base(path.Dir(where)) == "containers":
		got := httptest.NewRecorder()
		engine.ServeHTTP(got, r)
		answer := p.told(got.Body.Bytes())
		maps.Copy(w.Header(), got.Header())
		w.Header().Del("Content-Length")
		w.WriteHeader(got.Code)
		w.Write(answer)
		return
	}
	engine.ServeHTTP(w, r)
}

func (p *pen) steady(id, file string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	role, known := p.as[id]
	return known && p.current.steady(role, file)
}

// again reads a request's body and leaves it to be read.
func again(r *http.Request) []byte {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	return b
}

// told is what the engine says of a container, as if its command were the one
// that the mutant asks for.
func (p *pen) told(answer []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	said, _ := decoded(answer).(map[string]any)
	config, _ := said["Config"].(map[string]any)
	if p.asked == nil || config == nil || fmt.Sprint(config["Entrypoint"]) != fmt.Sprint(kept) {
		return answer
	}
	config["Entrypoint"], config["Cmd"] = p.asked["Entrypoint"], p.asked["Cmd"]
	if all := slices.Concat(list(p.asked["Entrypoint"]), list(p.asked["Cmd"])); len(all) > 0 {
		said["Path"], said["Args"] = all[0], all[1:]
	}
	return encoded(said)
}

func list(v any) []any { l, _ := v.([]any); return l }

// newPen is a project with a bit of everything that a policy can say.
func newPen(t *testing.T, n int) *pen {
	t.Helper()
	p := &pen{sandbox: cloned(t, 0, nothing), bodies: map[string]any{}, documents: map[string][]byte{}, files: map[string]*httptest.ResponseRecorder{}, as: map[string]string{}}
	root := filepath.Dir(p.dir)
	work, notes := filepath.Join(root, "work"), filepath.Join(root, "notes")
	p.own(work, work+"/deep", notes)
	if err := unix.Mount("none", work+"/deep", "tmpfs", 0, "mode=0777"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(work+"/deep", unix.MNT_DETACH) })
	p.host("git init -q; git config user.name x; git config user.email x@example.com; touch one; git add one; git commit -qm one")
	secrets := p.private("project.env", "TOKEN="+penSecret+"\n", 0o600)
	port := greet(t, "127.0.0.1:0").port
	yaml := fmt.Sprintf(`profile: shell
name: mutant-%d
mode: daemon
profile_options: {shell: {command: [sleep, infinity]}}
mounts: {rw: [%q, %q], ro: [%q]}
secrets: {env_file: %q}
host_services: [{name: greeter, port: %d}]
egress: {allow: [{domain: api.allowed.test, ports: [443]}]}
resources: {memory: 256m, cpus: 1, pids: 200}
`, n, p.dir, work, notes, secrets, port)
	p.write("corral.yaml", yaml)
	p.id = plan.ID(name(t, yaml), filepath.Join(p.dir, "corral.yaml"))
	p.relay = fmt.Sprintf("corral-relay-%d", port)
	p.engine = between(t, filepath.Join(public(t), "engine.sock"), func(engine http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(engine, w, r) })
	})
	p.names = map[string]string{
		"home": filepath.Join(root, "home"), "project": p.dir, "work": work, "secrets": secrets, "secret": penSecret,
		"uid": fmt.Sprint(ownerUID), "docker": fmt.Sprint(dockerGroups()[0]), "agent": p.agent(),
	}
	p.accept()
	return p
}

// penSecret is the value of a pen's only secret.
const penSecret = "0123456789abcdef"

// up brings the sandbox up as corral does, and notes what that asks of the engine.
func (p *pen) up() error {
	if r := p.through("up"); r.code != 0 {
		return fmt.Errorf("corral up: %v", r)
	}
	for role, name := range map[string]string{"service": p.agent(), "gate": p.gate(), "relay": p.relay} {
		id, err := identify(name)
		if err != nil {
			return err
		}
		p.as[id] = role
		if role == "gate" {
			p.gateID, p.document = id, p.documents[id]
		}
	}
	p.names["gate"] = p.gate()
	return nil
}

// through is a corral command by way of the pen's engine.
func (p *pen) through(args ...string) result {
	s := *p.sandbox
	s.env = append(slices.Clone(s.env), "DOCKER_HOST="+p.engine)
	return s.corral(args...)
}

// direct is the engine with nobody between.
var direct = &http.Client{Transport: toEngine()}

// refusal is the engine's answer to what it does not do.
type refusal string

func (r refusal) Error() string { return string(r) }

// call asks the engine for something.
func call(ctx context.Context, method, where string, body []byte) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://engine/v1.41"+where, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPut {
		req.Header.Set("Content-Type", "application/x-tar")
	}
	res, err := direct.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode < 400 {
		return res.Body, nil
	}
	defer res.Body.Close()
	var said struct{ Message string }
	_ = json.NewDecoder(res.Body).Decode(&said)
	return nil, refusal(cmp.Or(said.Message, res.Status))
}

// answer is call for an answer that is read whole.
func answer(method, where string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	r, err := call(ctx, method, where, body)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// identify is a container's ID.
func identify(name string) (string, error) {
	b, err := answer(http.MethodGet, "/containers/"+name+"/json", nil)
	if err != nil {
		return "", err
	}
	return word(decoded(b), "Id"), nil
}

// word is a string of an object.
func word(v any, key string) string {
	s, _ := get(v, []any{key}).(string)
	return s
}

// gone takes a container away, if there is one.
func gone(name string) error {
	_, err := answer(http.MethodDelete, "/containers/"+name+"?force=1&v=1", nil)
	if err != nil && strings.Contains(err.Error(), "No such container") {
		return nil
	}
	return err
}

// made makes a container in place of the one of that name.
func (p *pen) made(role, name string, body any) (string, error) {
	if err := gone(name); err != nil {
		return "", err
	}
	b, err := answer(http.MethodPost, "/containers/create?name="+name, encoded(body))
	if err != nil {
		return "", err
	}
	id := word(decoded(b), "Id")
	p.mu.Lock()
	p.as[id] = role
	p.mu.Unlock()
	return id, nil
}

// saying starts a container and waits until it has said a line; it is
// stayedClosed if it ends before.
func saying(id, line string) error {
	if _, err := answer(http.MethodPost, "/containers/"+id+"/start", nil); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	r, err := call(ctx, http.MethodGet, "/containers/"+id+"/logs?follow=1&stdout=1&stderr=1", nil)
	if err != nil {
		return err
	}
	defer r.Close()
	var said []byte
	for b := make([]byte, 4096); ; {
		n, err := r.Read(b)
		said = append(said, b[:n]...)
		if bytes.Contains(said, []byte(line)) {
			return nil
		}
		if err != nil {
			return stayedClosed(oneLine(string(said[max(0, len(said)-most):])))
		}
	}
}

// stayedClosed is what ended without serving, in its own words.
type stayedClosed string

func (s stayedClosed) Error() string { return string(s) }

// runs runs a program in a container, as its user.
func runs(id string, args ...string) (said string, status string, err error) {
	b, err := answer(http.MethodPost, "/containers/"+id+"/exec", encoded(map[string]any{"Cmd": args, "AttachStdout": true, "AttachStderr": true, "Tty": true}))
	if err != nil {
		return "", "", err
	}
	made := word(decoded(b), "Id")
	b, err = answer(http.MethodPost, "/exec/"+made+"/start", []byte(`{"Tty":true}`))
	if err != nil {
		return "", "", err
	}
	ended, err := answer(http.MethodGet, "/exec/"+made+"/json", nil)
	if err != nil {
		return "", "", err
	}
	return string(b), fmt.Sprint(get(decoded(ended), []any{"ExitCode"})), nil
}

// outcome is what became of a mutant. The zero value has proven nothing.
type outcome string

const (
	survived   outcome = ""
	killed     outcome = "killed"
	impossible outcome = "impossible" // the engine refuses it
)

// Words that stand where no check does.
const (
	selfCheck = "self-check" // a gate or a relay did not serve
	untold    = "cannot-tell"
)

// judged is a mutant with what became of it.
type judged struct {
	mutant
	outcome  outcome
	kinds    []string // of the checks that went red
	handover []string // of those by which the harness would not have been started
	said     string
	took     time.Duration
}

// judge makes a mutant and has it verified. An error is one of the test's.
func (p *pen) judge(m mutant) (judged, error) {
	j := judged{mutant: m}
	p.mu.Lock()
	p.current = m
	p.mu.Unlock()
	service, undo, err := p.make(m)
	if undo != nil {
		defer undo()
	}
	if closed := stayedClosed(""); errors.As(err, &closed) {
		j.outcome, j.kinds, j.said = killed, []string{selfCheck}, string(closed)
		return j, nil
	}
	if refused := refusal(""); errors.As(err, &refused) {
		j.outcome, j.said = impossible, string(refused)
		return j, nil
	}
	if err != nil {
		return j, err
	}
	r := p.verified()
	j.kinds, j.said = red(r)
	if r.code == 1 && len(j.kinds) > 0 {
		j.outcome = killed
	}
	if r.code != 0 && r.code != 1 {
		return j, fmt.Errorf("corral verify: %v", r)
	}
	// A handover runs checks of the same kinds.
	if service != "" && slices.ContainsFunc(j.kinds, func(kind string) bool { return strings.Contains(p.handedOver(), `"name":"`+kind) }) {
		j.handover = refusedBy(service)
	}
	return j, nil
}

// handedOver is the document of the service's handover.
func (p *pen) handedOver() string {
	for _, v := range list(get(p.bodies[p.agent()], []any{"Env"})) {
		if name, value, _ := strings.Cut(v.(string), "="); name == spec.HandoverEnv {
			return value
		}
	}
	return ""
}

// make makes the containers of a mutant, and whatever else of the pen's is not
// as it was. It returns the service's ID, where that was made.
func (p *pen) make(m mutant) (service string, undo func(), err error) {
	if m.role != "gate" && p.gateID == "" {
		if _, _, err := p.make(mutant{role: "gate"}); err != nil {
			return "", nil, fmt.Errorf("a gate that is no mutant: %v", err)
		}
	}
	switch m.role {
	case "gate":
		p.gateID = ""
		p.odd = true
		if err := gone(p.agent()); err != nil {
			return "", nil, err
		}
		id, err := p.makeGate(m)
		if err != nil {
			return "", nil, err
		}
		if m.id == "" {
			p.gateID = id
		}
		p.bodies[p.agent()] = p.behind(id)
		if service, _, err = p.makeService(mutant{}); err == nil && m.tamper != nil {
			undo, err = m.tamper(p)
		}
		return service, undo, err
	case "relay":
		if p.odd {
			if _, _, err := p.makeService(mutant{}); err != nil {
				return "", nil, fmt.Errorf("a service that is no mutant: %v", err)
			}
		}
		return "", nil, p.makeRelay(m)
	}
	return p.makeService(m)
}

// body is what is asked for of a mutant's container.
func (p *pen) body(name string, m mutant) any {
	body := p.bodies[name]
	if m.alter != nil {
		body = m.alter(body)
	}
	return p.named(body)
}

// verified is what verify says. A busy machine has another chance: a timeout
// kills nothing.
func (p *pen) verified() (r result) {
	for range 3 {
		if r = p.through("verify", "--json"); !tooLate.MatchString(r.out) {
			break
		}
	}
	return r
}

// whole is the sandbox without a mutant.
func (p *pen) whole() (j judged, err error) {
	if err := p.makeRelay(mutant{}); err != nil {
		return j, err
	}
	for range 2 { // a gate on a busy machine may not get an answer in time
		if j, err = p.judge(mutant{role: "gate"}); err != nil || !slices.Contains(j.kinds, selfCheck) {
			break
		}
	}
	return j, err
}

// named is a body with the names of the pen's things in it.
func (p *pen) named(body any) any {
	b := encoded(body)
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(p.names))) { // the longer of two first
		b = bytes.ReplaceAll(b, []byte("$"+name), []byte(p.names[name]))
	}
	return decoded(b)
}

func (p *pen) makeService(m mutant) (id string, undo func(), err error) {
	p.odd = m.id != ""
	body := p.body(p.agent(), m)
	p.mu.Lock()
	p.asked = body.(map[string]any)
	p.mu.Unlock()
	if id, err = p.made("service", p.agent(), set(set(body, nil, "Cmd"), kept, "Entrypoint")); err != nil {
		return "", nil, err
	}
	if m.touch != nil {
		if err := m.touch(p, id); err != nil {
			return "", nil, err
		}
	}
	if _, err = answer(http.MethodPost, "/containers/"+id+"/start", nil); err == nil && m.tamper != nil {
		undo, err = m.tamper(p)
	}
	return id, undo, err
}

// makeGate makes the gate and waits until it serves.
func (p *pen) makeGate(m mutant) (string, error) {
	id, err := p.made("gate", p.gate(), p.body(p.gate(), m))
	if err != nil {
		return "", err
	}
	if _, err := answer(http.MethodPut, "/containers/"+id+"/archive?path=/", p.document); err != nil {
		return "", err
	}
	if m.touch != nil {
		if err := m.touch(p, id); err != nil {
			return "", err
		}
	}
	return id, saying(id, spec.ReadyLine)
}

// makeRelay makes the relay and tells it whom it serves, as the engine does.
func (p *pen) makeRelay(m mutant) error {
	id, err := p.made("relay", p.relay, p.body(p.relay, m))
	if err != nil {
		return err
	}
	if err := saying(id, spec.RelayReady); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	address := get(p.bodies[p.gate()], dots("NetworkingConfig.EndpointsConfig.corral.IPAMConfig.IPv4Address"))
	doc := encoded(map[string]any{"version": spec.Version, "sources": []any{address}})
	_, err = command.Run(ctx, bytes.NewReader(doc), "docker", "exec", "--interactive", id, spec.GuestDir+"/bin/corral-gate", "relay-sources")
	if err != nil {
		return stayedClosed(oneLine(err.Error()))
	}
	return nil
}

// behind is the service's body for another gate.
func (p *pen) behind(gate string) any {
	body := set(p.bodies[p.agent()], "container:"+gate, dots("HostConfig.NetworkMode")...)
	said, _, err := runs(gate, spec.GuestDir+"/bin/corral-gate", "status", "--json")
	var status spec.GateStatus
	if err != nil || json.Unmarshal([]byte(said), &status) != nil {
		return body // verify will say that it does not answer
	}
	body = set(body, status.Instance, "Labels", "dev.corral.gate-instance")
	env := slices.Clone(list(get(body, []any{"Env"})))
	for i, v := range env {
		if name, _, _ := strings.Cut(v.(string), "="); name == spec.HandoverEnv {
			env[i] = joins.ReplaceAllString(v.(string), fmt.Sprintf(`"gate":{"instance":%q,"netns":%d}`, status.Instance, status.NetNS))
		}
	}
	return set(body, env, "Env")
}

var joins = regexp.MustCompile(`"gate":\{"instance":"[^"]*","netns":[0-9]+\}`)

// tooLate is what cannot be told on a machine that is busy.
var tooLate = regexp.MustCompile(`no (result|answer) within |deadline exceeded| does not say | could not be read$`)

// red are the kinds of the checks that do not hold, and what they say. Those of
// another service than the agent's have its role before them.
func red(r result) (kinds []string, said string) {
	for line := range strings.Lines(r.out) {
		var ev spec.Event
		if json.Unmarshal([]byte(line), &ev) != nil || ev.Check == "" || ev.Result != spec.Failed && ev.Result != spec.Untold {
			continue
		}
		if ev.Result == spec.Untold && tooLate.MatchString(ev.Detail) {
			continue // a machine that is busy, which kills nothing
		}
		kind := spec.Check{Name: ev.Check}.Kind()
		if role, _, _ := strings.Cut(ev.Service, "-"); role != "main" && role != "" {
			kind = role + ":" + kind
		}
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
			said += ev.Check + ": " + ev.Detail + "; "
		}
	}
	if r.code != 0 && !strings.Contains(r.out, `"check"`) {
		return []string{untold}, oneLine(r.err)
	}
	slices.Sort(kinds)
	return kinds, oneLine(said)
}

var handoverSaid = regexp.MustCompile(`(?m)^corral-verify: handover refused: ([a-z0-9-]+)`)

// refusedBy are the kinds of the checks by which a handover in a container does
// not start a harness.
func refusedBy(id string) []string {
	said, status, err := runs(id, spec.GuestDir+"/bin/corral-verify", "handover", "--", "true")
	var kinds []string
	for _, m := range handoverSaid.FindAllStringSubmatch(said, -1) {
		kinds = append(kinds, m[1])
	}
	if len(kinds) == 0 && (err != nil || status != "0") {
		kinds = []string{"error"}
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// most of what is said is told.
const most = 400

// oneLine is something said, short and on a line.
func oneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }), " ")
	return s[:min(len(s), most)]
}

const mutantsFile = "testdata/mutants.tsv"

// expectations are the lines of testdata: what each mutant is, and the kinds
// that go red every time, or why none does.
type expectations map[string][2]string

const (
	explained = "explained: "
	refused_  = "impossible: the engine refuses it"
)

func expected(t *testing.T) expectations {
	t.Helper()
	b, err := os.ReadFile(mutantsFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	all := expectations{}
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 3 {
			t.Fatalf("%s: %q", mutantsFile, line)
		}
		all[f[0]] = [2]string{f[1], f[2]}
	}
	return all
}

// line is what testdata is to say of a mutant: what it says already, as far as
// that is so, since only what goes red every time belongs there.
func (e expectations) line(j judged) [2]string {
	before := e[j.id][1]
	last := "SURVIVED"
	switch {
	case j.outcome == impossible:
		last = refused_
	case j.outcome == survived && strings.HasPrefix(before, explained):
		last = before
	case j.outcome == killed:
		always := slices.DeleteFunc(slices.Clone(j.kinds), func(k string) bool { return !slices.Contains(strings.Split(before, ","), k) })
		if len(always) == 0 {
			always = j.kinds
		}
		last = strings.Join(always, ",")
	}
	return [2]string{j.what, last}
}

// write writes them down in order, whole or not at all; a mutant that was not
// judged yet is left out.
func (e expectations) write(t *testing.T, all []mutant) {
	t.Helper()
	var b strings.Builder
	for _, m := range all {
		if line, known := e[m.id]; known {
			fmt.Fprintf(&b, "%s\t%s\t%s\n", m.id, m.what, line[1])
		}
	}
	fresh := mutantsFile + ".new"
	if err := errors.Join(os.WriteFile(fresh, []byte(b.String()), 0o644), os.Rename(fresh, mutantsFile)); err != nil {
		t.Fatal(err)
	}
}

// enough are the first mutants by which every kind goes red that any turns red,
// and those of which nothing is known.
func (e expectations) enough(all []mutant) []mutant {
	turned := map[string]bool{}
	return slices.DeleteFunc(all, func(m mutant) bool {
		line, known := e[m.id]
		more := !known
		if !strings.HasPrefix(line[1], explained) && line[1] != refused_ {
			for kind := range strings.SplitSeq(line[1], ",") {
				more = more || !turned[m.role+kind]
				turned[m.role+kind] = true
			}
		}
		return !more
	})
}

// Verify is not blind: whatever one thing of a container is not as corral asks
// the engine for it, a check goes red, and names it. Each mutant is made on the
// real engine.
func TestMutants(t *testing.T) {
	// Alone: with labels that make no sense a mutant is in everybody's way.
	began := time.Now()
	want := expected(t)
	all := make([]*pen, pens)
	for i := range all {
		all[i] = newPen(t, i)
	}
	first := all[0]
	first.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	neighbour := docker(t, "run", "--detach", "--network", "corral", testenv.BaseImage, "sleep", "infinity")
	t.Cleanup(func() { docker(t, "rm", "--force", "--volumes", neighbour) })
	var wait sync.WaitGroup
	for _, p := range all {
		p.names["neighbour"] = neighbour
		wait.Go(func() {
			if err := p.up(); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if t.Failed() {
		return
	}
	work := first.mutants(t)
	generated := slices.Clone(work)
	switch only := os.Getenv(someMutants); only {
	case "":
		work = want.enough(work)
	case "new":
		work = slices.DeleteFunc(work, func(m mutant) bool { _, known := want[m.id]; return known })
	default:
		work = slices.DeleteFunc(work, func(m mutant) bool { return !regexp.MustCompile(only).MatchString(m.id) })
	}
	t.Logf("%d pens after %v", pens, time.Since(began).Round(time.Second))

	queue, results := make(chan mutant, len(work)), make(chan judged)
	for _, m := range work {
		queue <- m
	}
	close(queue)
	for _, p := range all {
		wait.Go(func() {
			for m := range queue {
				at := time.Now()
				j, err := p.judge(m)
				if err != nil {
					t.Errorf("%s: %v", m.id, err)
					continue
				}
				j.took = time.Since(at)
				results <- j
			}
			// Whatever went on here, what is no mutant holds.
			if j, err := p.whole(); err != nil || len(j.kinds) > 0 {
				t.Errorf("no mutant: %v %s", err, j.said)
			}
		})
	}
	go func() {
		wait.Wait()
		close(results)
	}()
	done, count, now := 0, map[string]int{}, maps.Clone(want)
	for j := range results {
		done++
		count[want.judge(t, j)]++
		now[j.id] = want.line(j)
		if *update {
			now.write(t, generated)
		}
	}
	if !*update && len(want) != len(generated) {
		t.Errorf("%d mutants, and %s has %d: go test ./test/engine -run Mutants -update", len(generated), mutantsFile, len(want))
	}
	possible := done - count["impossible"] - count["explained"]
	fmt.Printf("container mutants: %d mutants, %d killed, %d survived, %d explained, %d impossible: kill rate %d %% (%v)\n", done, count["killed"], count["survived"], count["explained"],
		count["impossible"], 100*count["killed"]/max(1, possible), time.Since(began).Round(time.Second))
}

// judge compares what became of a mutant with what testdata says, and tells.
func (e expectations) judge(t *testing.T, j judged) string {
	before, known := e[j.id]
	said := j.said
	if len(j.handover) > 0 {
		said += " (handover: " + strings.Join(j.handover, ",") + ")"
	}
	is := string(j.outcome)
	switch {
	case j.outcome == survived && strings.HasPrefix(before[1], explained):
		is, said = "explained", strings.TrimPrefix(before[1], explained)
	case j.outcome == survived:
		is = "survived"
		t.Errorf("survived: %s: %s", j.id, j.what)
	}
	fmt.Printf("mutant %-60s %s %s: %s (%v)\n", j.id, is, strings.Join(j.kinds, ","), said, j.took.Round(10*time.Millisecond))
	switch {
	case *update:
	case !known:
		t.Errorf("%s is not in %s", j.id, mutantsFile)
	case j.outcome == killed && !strings.HasPrefix(before[1], explained) && before[1] != refused_: // of another engine's defaults less is told
		for kind := range strings.SplitSeq(before[1], ",") {
			if !slices.Contains(j.kinds, kind) {
				t.Errorf("%s: %s did not go red", j.id, kind)
			}
		}
	}
	return is
}

// mutants are all of them, in order.
func (p *pen) mutants(t *testing.T) []mutant {
	t.Helper()
	r := p.verified()
	if kinds, said := red(r); len(kinds) > 0 {
		t.Fatalf("no mutant: %s", said)
	}
	service, gate, relay := p.bodies[p.agent()], p.bodies[p.gate()], p.bodies[p.relay]
	if service == nil || gate == nil || relay == nil || p.document == nil {
		t.Fatalf("corral did not ask for all of it: %v", slices.Collect(maps.Keys(p.bodies)))
	}
	all := slices.Concat(walk("service", service), added("service", service), image(r.out), p.guests(t),
		walk("gate", gate), added("gate", gate), documents(p.document), running, walk("relay", relay), added("relay", relay))
	seen := map[string]bool{}
	for i := range all {
		if seen[all[i].id] {
			t.Errorf("%s comes twice", all[i].id)
		}
		seen[all[i].id] = true
	}
	return all
}

// image are the mutants of what the service's image holds: it goes into the
// container before that is started. events name the paths that are root's.
func image(events string) []mutant {
	var out []mutant
	add := func(name, what string, touch func(p *pen, id string) error) {
		out = append(out, mutant{id: "image/" + name, role: "service", what: what, touch: touch})
	}
	for _, f := range []struct {
		name, what, path string
		mode             int64
		content          string
	}{
		{"sudo", "there is a sudo", "usr/bin/sudo", 0o755, "#!/bin/sh\n"},
		{"doas", "there is a doas", "usr/local/bin/doas", 0o755, "#!/bin/sh\n"},
		{"pkexec", "there is a pkexec", "usr/bin/pkexec", 0o755, "#!/bin/sh\n"},
		{"setuid", "a set-user-ID program of root's in a corner", "var/lib/misc/become", 0o4755, "#!/bin/sh\n"},
		{"docker.sock", "something where the engine's socket would be", "var/run/docker.sock", 0o666, ""},
		{"gate.json", "a gate's document", spec.GateFile, 0o644, "{}"},
		{"ssh", "somebody's key in the agent's home", "home/agent/.ssh/id_ed25519", 0o644, "key\n"},
		{"secret", "the secret in a file", "etc/leak", 0o644, "x=" + penSecret + "\n"},
	} {
		add(f.name, f.what, func(_ *pen, id string) error {
			return put(id, "/", &tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(f.path, "/"), Mode: f.mode, Size: int64(len(f.content))}, f.content)
		})
	}
	var dirs []string
	for _, m := range regexp.MustCompile(`"check":"root-owned:([^"]+)"`).FindAllStringSubmatch(events, -1) {
		switch file := m[1]; path.Base(file) {
		case "corral-verify": // in the volume
		case "hosts", "resolv.conf": // the gate's, on the host
			out = append(out, mutant{id: "image/owned:" + file, role: "service", what: file + " is the agent's",
				tamper: func(p *pen) (func(), error) { return p.chownOfGate(path.Base(file)) }})
		default:
			add("owned:"+file, file+" is the agent's", func(_ *pen, id string) error { return chown(id, file) })
			dirs = append(dirs, path.Dir(file))
		}
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		add("owned:"+dir, dir+" is the agent's", func(_ *pen, id string) error { return chown(id, dir) })
	}
	return out
}

// put puts a file into a container.
func put(id, where string, h *tar.Header, content string) error {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	if _, err := io.WriteString(w, content); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	_, err := answer(http.MethodPut, "/containers/"+id+"/archive?path="+where, b.Bytes())
	return err
}

// chown makes a file or a directory of a container's the agent's, and nothing
// that lies in it.
func chown(id, at string) error {
	b, err := answer(http.MethodGet, "/containers/"+id+"/archive?path="+at, nil)
	if err != nil {
		return err
	}
	r := tar.NewReader(bytes.NewReader(b))
	h, err := r.Next()
	if err != nil {
		return err
	}
	content, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	h.Uid, h.Gid, h.Uname, h.Gname = ownerUID, ownerGID, "", ""
	return put(id, path.Dir(at), h, string(content))
}

// chownOfGate gives the agent a file that the engine keeps for the gate.
func (p *pen) chownOfGate(name string) (undo func(), err error) {
	b, err := answer(http.MethodGet, "/containers/"+p.gate()+"/json", nil)
	if err != nil {
		return nil, err
	}
	file := word(decoded(b), map[string]string{"hosts": "HostsPath", "resolv.conf": "ResolvConfPath"}[name])
	return func() { os.Chown(file, 0, 0) }, os.Chown(file, ownerUID, ownerGID)
}

// guests are the mutants of the volume that holds what runs inside: another
// volume in its place, with the same programs.
func (p *pen) guests(t *testing.T) []mutant {
	t.Helper()
	at := func(name string) string {
		return docker(t, "volume", "inspect", "--format", "{{.Mountpoint}}", name)
	}
	i := slices.IndexFunc(list(get(p.bodies[p.agent()], dots("HostConfig.Mounts"))), func(m any) bool { return word(m, "Target") == spec.GuestDir })
	source := word(list(get(p.bodies[p.agent()], dots("HostConfig.Mounts")))[i], "Source")
	var out []mutant
	for _, c := range []struct{ name, what, file string }{
		{"another", "another volume with the same programs", ""},
		{"owned", "a volume whose programs are the agent's", "bin/corral-verify"},
		{"directory", "a volume whose directory is the agent's", "bin"},
	} {
		volume := docker(t, "volume", "create")
		t.Cleanup(func() { docker(t, "volume", "rm", volume) })
		run(t, "cp", "-a", at(source)+"/.", at(volume))
		if c.file != "" {
			if err := os.Chown(filepath.Join(at(volume), c.file), ownerUID, ownerGID); err != nil {
				t.Fatal(err)
			}
		}
		out = append(out, mutant{id: "guests/" + c.name, role: "service", what: c.what, alter: func(body any) any {
			return set(body, volume, "HostConfig", "Mounts", i, "Source")
		}})
	}
	return out
}

// documents are the mutants of what a gate is told.
func documents(archive []byte) []mutant {
	var out []mutant
	for _, c := range []struct {
		name, what string
		at         []any
		value      string
	}{
		{"names", "a name more", []any{"names"}, `[{"domain":"evil.allowed.test","ports":[443],"origin":"corral.yaml:1"}]`},
		{"ports", "a port more of a name", []any{"names", 0, "ports"}, `[8443]`},
		{"any", "every port of a name", []any{"names", 0, "any_port"}, `true`},
		{"private", "a name may be in private space", []any{"names", 0, "private"}, `["10.0.0.0/8"]`},
		{"host-ports", "a port more of the host", []any{"host_ports"}, `[22]`},
		{"never", "no address is forbidden", []any{"never"}, `null`},
	} {
		out = append(out, mutant{id: "document/" + c.name, role: "gate", what: "the gate's document: " + c.what, touch: func(p *pen, id string) error {
			r := tar.NewReader(bytes.NewReader(p.document))
			for {
				h, err := r.Next()
				if err != nil {
					return err
				}
				if path.Base(h.Name) != path.Base(spec.GateFile) {
					continue
				}
				b, err := io.ReadAll(r)
				if err != nil {
					return err
				}
				body, _ := altered(decoded(b), c.at, func(v any) (any, bool) { return joined(v, decoded([]byte(c.value))), true })
				b = encoded(body)
				h.Size = int64(len(b))
				return put(id, "/", h, string(b))
			}
		}})
	}
	return out
}

// running are the mutants that somebody makes of containers that run.
var running = []mutant{
	{id: "running/gate-network", role: "gate", what: "the gate is put on a network more", tamper: func(p *pen) (func(), error) {
		_, err := answer(http.MethodPost, "/networks/bridge/connect", encoded(map[string]any{"Container": p.gate()}))
		return nil, err
	}},
	{id: "running/gate-process", role: "gate", what: "a program is left running in the gate", tamper: func(p *pen) (func(), error) {
		b, err := answer(http.MethodGet, "/containers/"+p.gate()+"/json", nil)
		if err != nil {
			return nil, err
		}
		first, err := strconv.Atoi(fmt.Sprint(get(decoded(b), dots("State.Pid"))))
		if err != nil {
			return nil, err
		}
		return lodge(first, "sleep", "infinity")
	}},
	{id: "running/gate-file", role: "gate", what: "a file is put into the gate", tamper: func(p *pen) (func(), error) {
		return nil, put(p.gate(), "/", &tar.Header{Typeflag: tar.TypeReg, Name: "usr/bin/more", Mode: 0o755}, "")
	}},
	{id: "running/gate-pids", role: "gate", what: "the gate's bound of processes is raised", tamper: updated((*sandbox).gate, `{"PidsLimit":4096}`)},
	{id: "running/gate-listener", role: "gate", what: "a program of the host's listens in the gate's namespace", tamper: listening},
	{id: "running/root-process", role: "service", what: "a program of root's is left running in it", tamper: left((*sandbox).agent, "0:0", "sleep", "infinity")},
	{id: "running/beside-the-gate", role: "service", what: "another container is in the gate's network namespace", tamper: beside(func(p *pen) []string {
		return []string{"--network", "container:" + p.gate()}
	})},
	{id: "running/with-its-volumes", role: "service", what: "another container has its volumes", tamper: beside(func(p *pen) []string {
		return []string{"--network", "none", "--volumes-from", p.agent()}
	})},
	{id: "running/among-its-processes", role: "service", what: "another container is among its processes", tamper: beside(func(p *pen) []string {
		return []string{"--network", "none", "--pid", "container:" + p.agent()}
	})},
	{id: "running/pids", role: "service", what: "the bound of processes is raised", tamper: updated((*sandbox).agent, `{"PidsLimit":4096}`)},
	{id: "running/memory", role: "service", what: "the bound of memory is raised", tamper: updated((*sandbox).agent, `{"Memory":1073741824,"MemorySwap":1073741824}`)},
	{id: "running/cpus", role: "service", what: "the bound of processors is raised", tamper: updated((*sandbox).agent, `{"NanoCpus":2000000000}`)},
	{id: "running/restart", role: "service", what: "it is to start by itself", tamper: updated((*sandbox).agent, `{"RestartPolicy":{"Name":"always"}}`)},
}

// left leaves a program running in a container.
func left(where func(*sandbox) string, user string, args ...string) func(*pen) (func(), error) {
	return func(p *pen) (func(), error) {
		b, err := answer(http.MethodPost, "/containers/"+where(p.sandbox)+"/exec", encoded(map[string]any{"Cmd": args, "User": user}))
		if err != nil {
			return nil, err
		}
		_, err = answer(http.MethodPost, "/exec/"+word(decoded(b), "Id")+"/start", []byte(`{"Detach":true}`))
		return nil, err
	}
}

// updated alters what a container may use, as docker update does.
func updated(where func(*sandbox) string, what string) func(*pen) (func(), error) {
	return func(p *pen) (func(), error) {
		_, err := answer(http.MethodPost, "/containers/"+where(p.sandbox)+"/update", []byte(what))
		return nil, err
	}
}

// beside puts another container there, which nobody of corral's made.
func beside(how func(*pen) []string) func(*pen) (func(), error) {
	return func(p *pen) (func(), error) {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		args := slices.Concat([]string{"docker", "run", "--detach"}, how(p), []string{testenv.BaseImage, "sleep", "infinity"})
		id, err := command.Run(ctx, nil, args...)
		return func() { gone(strings.TrimSpace(string(id))) }, err
	}
}

// listen is a program that listens on a port of every address, and says so.
const listen = `use IO::Socket::INET; my $l = IO::Socket::INET->new(Listen => 1, LocalPort => 9999) or die; $| = 1; print "ready\n"; sleep`

// listening leaves one in the gate's network namespace.
func listening(p *pen) (func(), error) {
	b, err := answer(http.MethodGet, "/containers/"+p.gate()+"/json", nil)
	if err != nil {
		return nil, err
	}
	c := exec.Command("nsenter", "--target", fmt.Sprint(get(decoded(b), dots("State.Pid"))), "--net", "perl", "-e", listen)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		return nil, err
	}
	_, err = io.ReadFull(out, make([]byte, len("ready\n")))
	return func() { c.Process.Kill(); c.Wait() }, err
}
