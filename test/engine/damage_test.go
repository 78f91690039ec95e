package engine

import (
	cryptorand "crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/testenv"
	"github.com/corral-sandbox/corral/test/lab"
)

// harm is what somebody did to the containers of a sandbox with docker.
type harm struct {
	name   string
	do     func(x *trial)
	status []string // what status says of it, and ps the first
	up     string   // what corral up says
	// events are what corral up lets the engine do, in order.
	events []string
	kept   []string // main, gate, relay: those that are not touched
}

// of is the container that people call so.
func (x *trial) of(name string) string {
	switch name {
	case "gate":
		return x.gate()
	case "relay":
		return fmt.Sprintf("corral-relay-%d", x.served.port)
	}
	return x.agent()
}

// by gives docker commands a container.
func by(container string, commands ...string) func(x *trial) {
	return func(x *trial) {
		for _, c := range commands {
			docker(x.t, append(strings.Fields(c), x.of(container))...)
		}
	}
}

// then does one thing after the other.
func then(all ...func(x *trial)) func(x *trial) {
	return func(x *trial) {
		for _, do := range all {
			do(x)
		}
	}
}

// pruned is docker container prune, of this sandbox and its relay alone: on this
// machine others may have something that has ended.
func pruned(x *trial) {
	docker(x.t, "container", "prune", "--force", "--filter", "label=dev.corral.sandbox="+x.id)
	docker(x.t, "container", "prune", "--force", "--filter", fmt.Sprintf("label=dev.corral.relay=%d", x.served.port))
}

// unnamed takes away the image of a container, as far as it can be while that is there.
func unnamed(container string) func(x *trial) {
	return func(x *trial) {
		docker(x.t, "rmi", "--force", "--no-prune", docker(x.t, "inspect", "--format", "{{.Config.Image}}", x.of(container)))
	}
}

// fromNothing are the events of a sandbox that comes up from nothing.
var fromNothing = []string{"create gate", "create relay", "start relay", "start gate", "create main", "start main"}

// shimless kills the engine's own process over the gate's first one.
func shimless(x *trial) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid(x.t, x.gate())))
	if err != nil {
		x.t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^PPid:\t(\d+)$`).FindSubmatch(status)
	shim, err := strconv.Atoi(string(m[1]))
	if err != nil || shim <= 1 {
		x.t.Fatalf("process %d, %v", shim, err)
	}
	signal(x.t, shim, syscall.SIGKILL)
	docker(x.t, "wait", x.gate())
}

// orphaned is the end of a relay that serves nobody. Whichever corral of the machine comes
// first does it.
const orphaned = "(destroy relay)"

// harms are what can be done to one container, by the container that it is about.
var harms = map[string][]harm{
	"main": {
		{"stopped", by("main", "stop"), []string{"main: it ended with status 143"}, "main is started again (it ended with status 143)", []string{"start main"}, []string{"gate", "relay"}},
		{"killed", by("main", "kill"), []string{"main: it was killed, status 137"}, "main is started again (it was killed, status 137)", []string{"start main"}, []string{"gate", "relay"}},
		{"stopped and pruned", then(by("main", "stop"), pruned), []string{"main: not started (there is a gate only)"}, "main is made anew (it is gone)", []string{"create main", "start main"}, []string{"gate", "relay"}},
		{"removed with its image", then(unnamed("main"), by("main", "rm --force")), []string{"main: not started (there is a gate only)"}, "building the image of service main", []string{"create main", "start main"}, []string{"gate", "relay"}},
		{"its image is gone", unnamed("main"), []string{"image of main: is gone", "main: running"}, "building the image of service main", nil, []string{"main", "gate", "relay"}},
	},
	"gate": {
		{"stopped", by("gate", "stop"), []string{"main: no network (gate is gone)"}, "the gate is made anew (it is gone", slices.Concat([]string{"destroy main", "destroy relay", "destroy gate"}, fromNothing), nil},
		{"stopped and pruned", then(by("gate", "stop"), pruned), []string{"main: no network (gate is gone)"}, "the gate is made anew (it is gone)", slices.Concat([]string{"destroy main", orphaned}, fromNothing), nil},
		// R031: as where a machine loses its power.
		{"without who looks after it for the engine", shimless, []string{"main: no network (gate is gone)"}, "the gate is made anew (it is gone", slices.Concat([]string{"destroy main", "destroy relay", "destroy gate"}, fromNothing), nil},
		{"removed", by("gate", "rm --force"), []string{"main: no network (gate is gone)"}, "the gate is made anew (it is gone), and main with it", slices.Concat([]string{"destroy main", orphaned}, fromNothing), nil},
	},
	"relay": {
		{"stopped", by("relay", "stop"), []string{"host port PORT: relay exited (corral up makes it anew)", "main: running"}, "the relay of host port PORT is made anew (it ended)", []string{"destroy relay", "create relay", "start relay"}, []string{"main", "gate"}},
		{"stopped and pruned", then(by("relay", "stop"), pruned), []string{"host port PORT: relay is gone (corral up makes it anew)", "main: running"}, "the relay of host port PORT is made anew (it is gone)", []string{"create relay", "start relay"}, []string{"main", "gate"}},
		{"removed", by("relay", "rm --force"), []string{"host port PORT: relay is gone (corral up makes it anew)", "main: running"}, "the relay of host port PORT is made anew (it is gone)", []string{"create relay", "start relay"}, []string{"main", "gate"}},
		{"all of it is gone", then(by("main", "rm --force"), by("gate", "rm --force"), by("relay", "rm --force")), []string{"not up"}, " is up\n", fromNothing, nil},
	},
}

// Whatever somebody does to one container with docker, status and ps say what is
// missing, and corral up mends that and touches nothing else.
func TestDamage(t *testing.T) {
	t.Parallel()
	for _, about := range []string{"main", "gate"} {
		t.Run(about, func(t *testing.T) {
			t.Parallel()
			damage(t, harms[about])
		})
	}
}

// Alone: every corral of the machine takes away a relay that it finds ended.
func TestDamageToARelay(t *testing.T) { damage(t, harms["relay"]) }

func damage(t *testing.T, list []harm) {
	t.Helper()
	x := damaged(t, "damage")
	for _, h := range list {
		x.harmed(h)
	}
	if r := x.corral("verify"); r.code != 0 {
		t.Error(r)
	}
}

// damaged is a sandbox that is up, with a port of this machine opened to it.
func damaged(t *testing.T, name string) *trial {
	t.Helper()
	s := cloned(t, 0, always(name, forever))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	x := &trial{sandbox: s, t: t, served: greet(t, "127.0.0.1:0")}
	s.write("corral.yaml", always(name, forever)+fmt.Sprintf("host_services: [{name: served, port: %d}]\n", x.served.port))
	s.must("up", "--accept")
	return x
}

func (x *trial) harmed(h harm) {
	x.t.Helper()
	port := fmt.Sprint(x.served.port)
	h.up = strings.ReplaceAll(h.up, "PORT", port)
	before := map[string]string{}
	for _, name := range h.kept {
		before[name] = x.identity(x.of(name))
	}
	h.do(x)
	r, ps := x.corral("status"), x.corral("ps")
	for i, want := range h.status {
		want = strings.ReplaceAll(want, "PORT", port)
		if r.code != 1 || !strings.Contains(r.out, want) {
			x.t.Errorf("%s: status: %v", h.name, r)
		}
		if row := rowOf(ps.out, x.id); i == 0 && strings.Contains(row, want) == (want == "not up") {
			x.t.Errorf("%s: ps: %v", h.name, ps)
		}
	}
	happened := x.events()
	if r := x.corral("up"); r.code != 0 || !strings.Contains(r.err, h.up) || wholeID.MatchString(r.err) {
		x.t.Errorf("%s: up: %v", h.name, r)
	}
	want, got := h.events, happened()
	if i := slices.Index(want, orphaned); i >= 0 {
		want = slices.Delete(slices.Clone(want), i, i+1)
		got = slices.DeleteFunc(got, func(e string) bool { return e == "destroy relay" })
	}
	if diff := cmp.Diff(want, got); diff != "" {
		x.t.Errorf("%s: what corral up did (-want +got): %s", h.name, diff)
	}
	for _, name := range h.kept {
		if x.identity(x.of(name)) != before[name] {
			x.t.Errorf("%s: %s was touched", h.name, name)
		}
	}
	if r := x.corral("status"); r.code != 0 {
		x.t.Errorf("%s: status after corral up: %v", h.name, r)
	}
	if r := x.corral("up"); r.code != 0 || !strings.Contains(r.err, "is up already") {
		x.t.Errorf("%s: a second up: %v", h.name, r)
	}
	if !x.hears(x.t, x.served.port) {
		x.t.Errorf("%s: the host's service does not answer", h.name)
	}
}

// rowOf is the row of a sandbox in what ps prints, empty if there is none.
func rowOf(out, id string) string {
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, id+" ") {
			return line
		}
	}
	return ""
}

// events begins to listen to the engine. The result says what it made, started and
// destroyed of the sandbox and its relay until then.
func (x *trial) events() (until func() []string) {
	x.t.Helper()
	names := map[string]string{x.agent(): "main", x.gate(): "gate"}
	if x.served != nil {
		names[x.of("relay")] = "relay"
	}
	// From then on, and not from when the engine begins to tell.
	since := fmt.Sprintf("%.9f", float64(time.Now().UnixNano())/1e9)
	c := exec.Command("docker", "events", "--since", since, "--filter", "type=container", "--filter", "event=create", "--filter", "event=start",
		"--filter", "event=destroy", "--format", "{{.Action}} {{.Actor.Attributes.name}}")
	said := &lines{news: make(chan struct{}, 1)}
	c.Stdout = said
	if err := c.Start(); err != nil {
		x.t.Fatal(err)
	}
	end := sync.OnceFunc(func() { _ = c.Process.Kill(); _ = c.Wait() })
	x.t.Cleanup(end)
	mark := func() { // what came before it has been told
		x.t.Helper()
		name := "corral-test-" + strings.ToLower(cryptorand.Text())
		docker(x.t, "create", "--name", name, testenv.BaseImage)
		docker(x.t, "rm", name)
		said.await(x.t, 0, "destroy "+name)
	}
	mark() // it listens
	return func() (all []string) {
		x.t.Helper()
		mark()
		end()
		for line := range strings.Lines(said.String()) {
			if f := strings.Fields(line); len(f) == 2 && names[f[1]] != "" {
				all = append(all, f[0]+" "+names[f[1]])
			}
		}
		return all
	}
}

// While nothing of a sandbox runs the engine's prunes take away all that it stood on,
// the corral network included: corral up brings it back, and a corral run says what
// does.
func TestPruned(t *testing.T) {
	// Alone: it takes the corral network away.
	x := damaged(t, "pruned")
	s := x.sandbox
	t.Cleanup(func() {
		if r := s.corral("install"); r.code != 0 {
			t.Error(r)
		}
	})
	subnet := corralSubnet(t)
	network := func() { docker(t, "network", "prune", "--force", "--filter", "label=dev.corral.role=network") }
	there := func() bool { return exec.Command("docker", "network", "inspect", plan.NetworkName).Run() == nil }
	gate, agent := s.identity(s.gate()), s.identity(s.agent())
	if network(); !there() {
		t.Fatal("the network went from under what runs")
	}
	if r := s.corral("up"); r.code != 0 || !strings.Contains(r.err, "is up already") || s.identity(s.gate()) != gate || s.identity(s.agent()) != agent {
		t.Errorf("a prune of what is in use: %v", r)
	}
	for _, all := range []bool{false, true} {
		docker(t, "stop", s.agent(), s.gate(), x.of("relay"))
		if network(); there() {
			t.Fatal("the network is there still")
		}
		want := "the corral network of this machine is gone"
		if all {
			pruned(x)
			want = "not up"
		}
		if r := s.corral("status"); r.code != 1 || !strings.Contains(r.out, want) {
			t.Errorf("status: %v", r)
		}
		if r := s.corral("ps"); r.code != 0 {
			t.Errorf("ps: %v", r)
		}
		if r := s.corral("up"); r.code != 0 || !strings.Contains(r.err, "the corral network is made anew (it is gone)") {
			t.Errorf("up: %v", r)
		}
		if now := corralSubnet(t); now != subnet {
			t.Errorf("%v became %v", subnet, now)
		}
		if r := s.corral("verify"); r.code != 0 {
			t.Error(r)
		}
	}
	s.must("down")
	network()
	if r := s.corral("up"); r.code != 1 || !strings.Contains(r.err, "it does not exist") || !strings.Contains(r.err, "hint: corral install makes it") {
		t.Errorf("of what was taken down: %v", r)
	}
	if left := s.containers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// The image of gates goes, under one or with the last of them: status says so, corral up
// makes it anew, and corral down takes away a relay that nobody needs any more.
func TestLostGateImage(t *testing.T) {
	// Alone: it is everybody's.
	x := damaged(t, "imageless")
	const builds = "building the gate image"
	for _, h := range []harm{
		{"its image is gone", unnamed("gate"), []string{"image of gate: is gone", "main: running"}, builds, nil, []string{"main", "gate", "relay"}},
		{"main is gone, and the gate's image", then(unnamed("gate"), by("main", "rm --force")), []string{"main: not started (there is a gate only)", "image of gate: is gone"}, builds,
			[]string{"create main", "start main"}, []string{"gate", "relay"}},
		{"the relay is gone, and the gate's image", then(unnamed("gate"), by("relay", "rm --force")), []string{"host port PORT: relay is gone", "image of gate: is gone"}, builds,
			[]string{"create relay", "start relay"}, []string{"main", "gate"}},
		{"the gate is gone with its image", then(unnamed("gate"), by("gate", "rm --force")), []string{"main: no network (gate is gone)"}, builds, slices.Concat([]string{"destroy main", "destroy relay"}, fromNothing), nil},
	} {
		x.harmed(h)
	}
	if r := x.corral("verify"); r.code != 0 {
		t.Error(r)
	}
	image := docker(t, "inspect", "--format", "{{.Image}}", x.gate())
	docker(t, "rm", "--force", x.agent(), x.gate())
	docker(t, "kill", x.of("relay"))
	docker(t, "rmi", "--force", "--no-prune", image)
	if r := x.corral("down"); r.code != 0 || len(relays(t, x.served.port)) > 0 {
		t.Errorf("down: %v, left %v", r, relays(t, x.served.port))
	}
	if r := x.corral("up"); r.code != 0 || !strings.Contains(r.err, builds) {
		t.Errorf("up: %v", r)
	}
	if r := x.corral("verify"); r.code != 0 {
		t.Error(r)
	}
}

// Where what corral keeps can be neither read nor written, corral down ends all that runs
// all the same, and says what of it may not last.
func TestDownWithoutWhatIsKept(t *testing.T) {
	t.Parallel()
	s := project(t, always("unkept", forever))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	kept := filepath.Join(s.home(), ".local/share/corral")
	of := filepath.Join(kept, s.id)
	for _, damage := range []struct {
		what       string
		env        []string
		dir        string
		mode, well os.FileMode
		says       string
	}{
		{what: "no home", env: []string{"HOME="}, says: "neither XDG_DATA_HOME nor HOME is set"},
		{what: "a home that is elsewhere and closed", env: []string{"XDG_DATA_HOME=/root/none"}, says: "permission denied"},
		{what: "read-only", dir: of, mode: 0o500, well: 0o700, says: "permission denied"},
		{what: "unreadable", dir: kept, mode: 0o000, well: 0o700, says: "permission denied"},
	} {
		s.must("up")
		if damage.dir != "" {
			if err := os.Chmod(damage.dir, damage.mode); err != nil {
				t.Fatal(err)
			}
		}
		r := s.with(damage.env, "down")
		if left := s.containers(); r.code != 1 || !strings.Contains(r.err, "what ran is ended, but what is kept of it cannot be read or written: ") || !strings.Contains(r.err, damage.says) ||
			!strings.Contains(r.err, "corral up --watch of yours may bring it up again") || len(left) > 0 {
			t.Errorf("%s: left %v: %v", damage.what, left, r)
		}
		if r := s.with(damage.env, "down", "--purge", "--yes"); r.code != 1 {
			t.Errorf("%s: purged: %v", damage.what, r)
		}
		if damage.dir != "" {
			if err := os.Chmod(damage.dir, damage.well); err != nil {
				t.Fatal(err)
			}
		}
		s.must("down")
	}
}
