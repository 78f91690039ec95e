package engine

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/corral-sandbox/corral/test/lab"
)

var updateLayers = flag.Bool("update-layers", false, "write testdata/layers.tsv anew")

// layersFile says which attempts get through where a layer is missing.
const layersFile = "testdata/layers.tsv"

// weakening takes layers of a service's container away. The gate and its rules
// stay, and nobody but a gate ever has NET_ADMIN.
type weakening struct {
	root, newPrivileges, capabilities, noSeccomp bool
}

func (w weakening) String() string {
	var words []string
	for _, layer := range []struct {
		gone bool
		word string
	}{{w.root, "user 0"}, {w.newPrivileges, "new privileges"}, {w.capabilities, "the engine's capabilities"}, {w.noSeccomp, "no seccomp"}} {
		if layer.gone {
			words = append(words, layer.word)
		}
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

// weakenings are each alone, each as root, and all of them.
var weakenings = []weakening{
	{},
	{newPrivileges: true}, {capabilities: true}, {noSeccomp: true},
	{root: true}, {root: true, newPrivileges: true}, {root: true, capabilities: true}, {root: true, noSeccomp: true},
	{root: true, newPrivileges: true, capabilities: true, noSeccomp: true},
}

// wire says whether a container with that taken away can write frames, which
// leave below every rule. Only there may anything leave.
func (w weakening) wire() bool { return w.root && w.capabilities && w.noSeccomp }

// createBody is the body of a request to make a container.
type createBody = map[string]any

// apply alters what the engine is asked for. What would notice on the agent's
// side and not start, the handover, is left out as well.
func (w weakening) apply(body createBody) {
	host := body["HostConfig"].(createBody)
	body["Entrypoint"] = []string{"/usr/bin/env"}
	if w.root {
		body["User"] = "0:0"
	}
	if w.capabilities {
		host["CapDrop"] = nil
	}
	var options []any
	for _, o := range host["SecurityOpt"].([]any) {
		switch o := o.(string); {
		case w.newPrivileges && strings.HasPrefix(o, "no-new-privileges"):
		case w.noSeccomp && strings.HasPrefix(o, "seccomp="):
			options = append(options, "seccomp=unconfined")
		default:
			options = append(options, o)
		}
	}
	host["SecurityOpt"] = options
}

// altering stands before the engine and alters the request for one container.
type altering struct {
	next  http.Handler
	name  string
	alter func(createBody)
	done  chan struct{} // closed once it was
	once  sync.Once
}

func (a *altering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/containers/create") && r.URL.Query().Get("name") == a.name {
		var body createBody
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		a.alter(body)
		b, err := json.Marshal(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		r.Header.Set("Content-Length", strconv.Itoa(len(b)))
		a.once.Do(func() { close(a.done) })
	}
	a.next.ServeHTTP(w, r)
}

// The same hostile agent where layers of its container are missing: what the
// others hold, they hold alone. Its program belongs to root and is set-user-ID,
// which is nothing as long as no new privileges are promised.
func TestLayers(t *testing.T) {
	// Alone: nothing of any sandbox may leave meanwhile, and nobody else may ask for a name.
	first := project(t, allowed)
	first.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	first.lab.Control(t, "corral")
	capture := first.lab.Capture(t, bridge)
	asked, heard := len(first.lab.DNS.Queries()), len(first.lab.Authority.Queries())
	want := readLayers(t)
	var mu sync.Mutex
	through := map[string][]string{}
	onTheWire := map[string]bool{} // addresses of those that can write frames
	t.Run("each", func(t *testing.T) {
		for i, w := range weakenings {
			t.Run(w.String(), func(t *testing.T) {
				t.Parallel()
				f := *first
				f.tb = t
				f.own(filepath.Join(filepath.Dir(first.dir), strconv.Itoa(i)))
				s := f.another(filepath.Join(filepath.Dir(first.dir), strconv.Itoa(i), "project"), allowed)
				t.Cleanup(func() {
					if r := s.corral("down"); r.code != 0 {
						t.Errorf("corral down: %v", r)
					}
					if left := s.containers(); len(left) > 0 {
						t.Errorf("left behind: %v", left)
					}
				})
				captive(t, s, nil)
				program := filepath.Join(s.dir, "corral-prisoner")
				if err := os.Chown(program, 0, 0); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(program, 0o755|os.ModeSetuid); err != nil {
					t.Fatal(err)
				}
				p, address := before(t, public(t), 0, refuse)
				a := &altering{next: p.next, name: s.agent(), alter: w.apply, done: make(chan struct{})}
				p.next = a
				host := tree(t, filepath.Dir(s.dir), s.dir)
				env := s.env
				s.env = append(slices.Clip(env), "DOCKER_HOST="+address)
				r := s.corral("run", "--", "sh", "-c", "hostname -i; ./corral-prisoner --json --targets targets.json")
				s.env = env
				select {
				case <-a.done:
				default:
					t.Fatalf("nothing was altered: %v", r)
				}
				all := attempted(t, r.out)
				if len(all) < 150 {
					t.Fatalf("%d attempts: %v", len(all), r)
				}
				if left := differs(host, tree(t, filepath.Dir(s.dir), s.dir)); len(left) > 0 {
					t.Errorf("the host's files were changed: %q", left)
				}
				own, _, _ := strings.Cut(r.out, "\n")
				mu.Lock()
				defer mu.Unlock()
				through[w.String()] = got(all, "escaped")
				if w.wire() {
					onTheWire[strings.TrimSpace(own)] = true
				}
				for name, a := range all {
					switch listed := slices.Contains(want[w.String()], name); {
					case *updateLayers:
					case a.Outcome == "escaped" && !listed:
						t.Errorf("got through: %v (%s)", a, a.Proves)
					case a.Outcome == "blocked" && listed:
						t.Errorf("no longer gets through: %v", a)
					}
				}
			})
		}
	})
	// Whatever is missing, the rules hold, but for those who write below them.
	frames := 0
	for _, p := range capture.Match(unlisted) {
		if onTheWire[p.Src.String()] && p.Dst == lab.Canary && string(p.Payload) == "prisoner frame" {
			frames++
			continue
		}
		t.Errorf("a packet to an unlisted address: %v", p)
	}
	if frames == 0 {
		t.Error("no frame was seen of those who can write frames: nothing can be told")
	}
	for _, q := range first.lab.DNS.Queries()[asked:] {
		if !strings.EqualFold(strings.TrimSuffix(q.Name, "."), "api.allowed.test") {
			t.Errorf("the name server was asked for %v", q)
		}
	}
	if q := first.lab.Authority.Queries()[heard:]; len(q) > 0 {
		t.Errorf("somebody's name server was asked for %v", q[0])
	}
	if through[weakening{}.String()] != nil {
		t.Errorf("through all layers: %v", through["none"])
	}
	if *updateLayers {
		var b strings.Builder
		for _, w := range weakenings {
			b.WriteString(w.String() + "\t" + strings.Join(through[w.String()], ",") + "\n")
		}
		if err := os.WriteFile(layersFile, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// readLayers reads which attempts get through, by weakening.
func readLayers(t *testing.T) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(layersFile)
	if err != nil && !*updateLayers {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(b)) {
		name, list, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if all[name] = strings.FieldsFunc(list, func(r rune) bool { return r == ',' }); list == "" {
			all[name] = nil
		}
	}
	for _, w := range weakenings {
		if _, found := all[w.String()]; !found && !*updateLayers {
			t.Errorf("%s says nothing of %s", layersFile, w)
		}
	}
	return all
}
