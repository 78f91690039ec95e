package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/pkg/stdcopy"
	"github.com/google/go-cmp/cmp"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/spec"
)

// R135: whatever differs of the corral network is named.
func TestNetworkDiff(t *testing.T) {
	want, err := plan.Divide(plan.DefaultSubnet)
	if err != nil {
		t.Fatal(err)
	}
	right := func() network.Inspect {
		return network.Inspect{
			Driver: "bridge", Scope: "local",
			IPAM:    network.IPAM{Config: []network.IPAMConfig{{Subnet: want.Subnet.String(), IPRange: want.Range.String(), Gateway: want.Gateway.String()}}},
			Options: map[string]string{optionICC: "false", optionBridge: bridge},
		}
	}
	if diff := networkDiff(want, right()); len(diff) > 0 {
		t.Fatal(diff)
	}
	for name, spoil := range map[string]func(*network.Inspect){
		"driver":          func(n *network.Inspect) { n.Driver = "macvlan" },
		"scope":           func(n *network.Inspect) { n.Scope = "swarm" },
		"IPv6":            func(n *network.Inspect) { n.EnableIPv6 = true },
		"internal":        func(n *network.Inspect) { n.Internal = true },
		"inter-container": func(n *network.Inspect) { n.Options[optionICC] = "true" },
		"no option":       func(n *network.Inspect) { n.Options = nil },
		"bridge":          func(n *network.Inspect) { n.Options[optionBridge] = "br-1" },
		"subnet":          func(n *network.Inspect) { n.IPAM.Config[0].Subnet = "172.30.0.0/16" },
		"range":           func(n *network.Inspect) { n.IPAM.Config[0].IPRange = "" },
		"gateway":         func(n *network.Inspect) { n.IPAM.Config[0].Gateway = "172.30.0.254" },
		"second subnet":   func(n *network.Inspect) { n.IPAM.Config = append(n.IPAM.Config, network.IPAMConfig{}) },
		"no subnet":       func(n *network.Inspect) { n.IPAM.Config = nil },
	} {
		got := right()
		spoil(&got)
		if len(networkDiff(want, got)) == 0 {
			t.Errorf("%s: no difference", name)
		}
	}
}

func TestOwnerLife(t *testing.T) {
	gonePID := func() int {
		c := exec.Command("true")
		if err := c.Run(); err != nil {
			t.Fatal(err)
		}
		return c.Process.Pid
	}()
	for label, want := range map[string]life{
		owner(os.Getpid()): alive,
		fmt.Sprintf("%s %d 1", bootID(), os.Getpid()):     gone, // the number was given to another process
		fmt.Sprintf("%s %d 12345", bootID(), gonePID):     gone,
		fmt.Sprintf("another-boot %d 12345", os.Getpid()): gone,
		"":              unknown,
		"garbage":       unknown,
		bootID() + " x": unknown,
	} {
		if got := ownerLife(label); got != want {
			t.Errorf("owner %q is %v, want %v", label, got, want)
		}
	}
}

func TestStaleLock(t *testing.T) {
	held := func(label string, age time.Duration) container.InspectResponse {
		return container.InspectResponse{
			ContainerJSONBase: &container.ContainerJSONBase{Created: time.Now().Add(-age).Format(time.RFC3339Nano)},
			Config:            &container.Config{Labels: map[string]string{labelOwner: label}},
		}
	}
	for _, c := range []struct {
		label string
		age   time.Duration
		want  bool
	}{
		{owner(os.Getpid()), time.Hour, false}, // alive, however long it takes
		{"another-boot 1 1", 0, true},
		{"", 0, false},
		{"", lockAge + time.Second, true},
	} {
		if got := stale(held(c.label, c.age)); got != c.want {
			t.Errorf("a lock of %q, %v old: stale is %v", c.label, c.age, got)
		}
	}
}

func TestSameFiles(t *testing.T) {
	want := render.Tree{"bin/a": []byte("1"), "bin/b": []byte("2")}
	if err := sameFiles(want, want.Tar()); err != nil {
		t.Error(err)
	}
	for name, got := range map[string]render.Tree{
		"one missing": {"bin/a": []byte("1")},
		"one more":    {"bin/a": []byte("1"), "bin/b": []byte("2"), "bin/c": []byte("3")},
		"changed":     {"bin/a": []byte("1"), "bin/b": []byte("x")},
		"empty":       {},
	} {
		if err := sameFiles(want, got.Tar()); err == nil {
			t.Errorf("%s: the same", name)
		}
	}
	if err := sameFiles(want, strings.NewReader("not an archive, and long enough to be asked about it"+strings.Repeat("x", 600))); err == nil {
		t.Error("garbage is the same")
	}
}

// Whatever an archive holds, it passes only for the very files that were built.
func FuzzSameFiles(f *testing.F) {
	want := render.Tree{"bin/a": []byte("1"), "bin/b": []byte("2")}
	archive := func(names ...string) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, n := range names {
			if err := w.WriteHeader(&tar.Header{Name: n, Size: 1, Mode: 0o755, Typeflag: tar.TypeReg}); err != nil {
				f.Fatal(err)
			}
			if _, err := w.Write(want["bin/"+n[len(n)-1:]]); err != nil {
				f.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			f.Fatal(err)
		}
		return b.Bytes()
	}
	f.Add(archive("bin/a", "bin/b"))
	f.Add(archive("bin/a", "./bin/a"))
	f.Add(archive("bin/a", "bin/a"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := sameFiles(want, bytes.NewReader(b)); err != nil {
			return
		}
		got := render.Tree{}
		for r := tar.NewReader(bytes.NewReader(b)); ; {
			h, err := r.Next()
			if err != nil {
				break
			}
			if h.Uid != 0 || h.Gid != 0 || h.Mode&0o022 != 0 || h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir {
				t.Errorf("%+v passes", h)
			}
			if h.Typeflag == tar.TypeReg {
				content, _ := io.ReadAll(r)
				got[strings.TrimPrefix(h.Name, "./")] = content
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})
}

func TestVolumeName(t *testing.T) {
	for in, want := range map[string]string{"v1.2.3-4-gabc": "v1.2.3-4-gabc", "v1+dirty/x y": "v1_dirty_x_y", "ü": "_"} {
		if got := volumeName(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func TestOutputIsBounded(t *testing.T) {
	var b strings.Builder
	l := &limited{&b, 10}
	if _, err := l.Write([]byte("0123456789")); err != nil {
		t.Error(err)
	}
	if _, err := l.Write([]byte("x")); err == nil {
		t.Error("the eleventh byte was taken")
	}
}

func TestFreeSkipsUsed(t *testing.T) {
	n, err := plan.Divide(plan.DefaultSubnet)
	if err != nil {
		t.Fatal(err)
	}
	a, err := n.Free(map[netip.Addr]bool{netip.MustParseAddr("172.30.0.2"): true})
	if err != nil || a != netip.MustParseAddr("172.30.0.3") {
		t.Errorf("%v, %v", a, err)
	}
}

// An agent's exit status is told from everything else that may have ended its
// docker command.
func TestJudge(t *testing.T) {
	docker := errors.New("exit status 1")
	for _, c := range []struct {
		name  string
		state container.State
		err   error
		code  int
		ok    bool
	}{
		{"ended", container.State{Status: container.StateExited, ExitCode: 7}, docker, 7, true},
		{"ended well", container.State{Status: container.StateExited}, nil, 0, true},
		{"never started", container.State{Status: container.StateCreated}, docker, 0, false},
		{"never started, docker content", container.State{Status: container.StateCreated}, nil, 0, false},
		{"still running", container.State{Status: container.StateRunning, Running: true}, docker, 0, false},
		{"being removed", container.State{Status: container.StateRemoving, ExitCode: 137}, docker, 0, false},
		{"engine's error", container.State{Status: container.StateExited, ExitCode: 127, Error: "no such file"}, docker, 0, false},
		{"nothing known", container.State{}, nil, 0, false},
	} {
		code, err := judge(&c.state, c.err)
		if (err == nil) != c.ok || c.ok && code != c.code {
			t.Errorf("%s: %d, %v", c.name, code, err)
		}
	}
}

// Only what nobody needs any more is a leftover.
func TestLeftovers(t *testing.T) {
	me, dead := owner(os.Getpid()), "another-boot 1 1"
	gate := func(o string) Member { return Member{Role: RoleGate, Owner: o, Running: true} }
	service := func(o, purpose string, running bool) Member {
		return Member{Role: RoleService, Owner: o, Purpose: purpose, Running: running}
	}
	for _, c := range []struct {
		name       string
		members    []Member
		left       bool
		unattended bool
	}{
		{"nothing", nil, true, false},
		{"a dead bring-up", []Member{gate(dead)}, true, false},
		{"a living bring-up", []Member{gate(me)}, false, false},
		{"a gate of nobody known", []Member{gate("")}, false, false},
		{"an agent that is looked after", []Member{gate(me), service(me, PurposeRun, true)}, false, false},
		{"an agent on its own", []Member{gate(dead), service(dead, PurposeRun, true)}, false, true},
		{"an agent that ended on its own", []Member{gate(dead), service(dead, PurposeRun, false)}, true, false},
		{"a dead verify", []Member{gate(dead), service(dead, PurposeVerify, true)}, true, false},
		{"what is always on", []Member{{Role: RoleGate, Purpose: PurposeDaemon, Owner: dead}}, false, false},
		{"a living verify", []Member{gate(me), service(me, PurposeVerify, true)}, false, false},
	} {
		err := leftovers(c.members)
		var up *Running
		if (err == nil) != c.left || errors.As(err, &up) && up.Unattended != c.unattended {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// R032: what is wrong with a service, in plain words.
func TestHealth(t *testing.T) {
	me := owner(os.Getpid())
	service := Member{Service: "main", Running: true, State: "running", Instance: "i", Owner: me}
	gate := Member{Running: true}
	well := spec.GateStatus{State: spec.GateReady, Instance: "i", Applied: "d", ReadBack: "d"}
	change := func(f func(*spec.GateStatus)) *spec.GateStatus { s := well; f(&s); return &s }
	ended, alone := service, service
	ended.Running, ended.State = false, "exited"
	alone.Owner = "another-boot 1 1"
	for _, c := range []struct {
		service, gate Member
		status        *spec.GateStatus
		want          string
		ok            bool
	}{
		{service, gate, &well, "running", true},
		{service, Member{}, nil, "no network (gate is gone)", false},
		{service, Member{State: "exited", Ended: "it was killed"}, nil, "no network (gate is gone): it was killed", false},
		{service, Member{State: "paused"}, nil, "the gate is paused: it answers no lookup", false},
		{service, gate, nil, "gate does not answer", false},
		{Member{State: "paused", Instance: "i"}, gate, &well, "paused", false},
		{Member{State: "exited", Instance: "i", Ended: "it ended with status 3"}, gate, &well, "it ended with status 3", false},
		{Member{State: "running", Running: true, Instance: "i", Purpose: PurposeDaemon, Owner: "another-boot 1 1"}, gate, &well, "running", true},
		{ended, gate, &well, "exited", false},
		{service, gate, change(func(s *spec.GateStatus) { s.Instance = "j" }), "no network (gate was replaced)", false},
		{service, gate, change(func(s *spec.GateStatus) { s.State = spec.GateClosed }), "no network (gate is closed)", false},
		{service, gate, change(func(s *spec.GateStatus) { s.ReadBack = "e" }), "the gate's rules are not what it wrote", false},
		{service, gate, change(func(s *spec.GateStatus) { s.ReadBack, s.Differences = "e", []string{"chain x is missing", "y"} }), "the gate's rules are not what it wrote: chain x is missing", false},
		{service, gate, change(func(s *spec.GateStatus) { s.Applied, s.ReadBack = "", "" }), "the gate's rules are not what it wrote", false},
		{service, gate, &spec.GateStatus{Instance: "i"}, "no network (gate is closed)", false},
		{alone, gate, &well, "running on, but the corral that looked after it is gone (corral down ends it)", false},
	} {
		got := health(c.service, c.gate, c.status)
		if got.State != c.want || got.OK != c.ok {
			t.Errorf("%q, %v; want %q", got.State, got.OK, c.want)
		}
		if got.Alone != (c.service.Owner == alone.Owner && c.service.Purpose != PurposeDaemon && c.status == &well) {
			t.Errorf("%q: alone %v", got.State, got.Alone)
		}
	}
}

func TestGateFailed(t *testing.T) {
	said := "corral-gate: a.test (corral.yaml:4): no such name (NXDOMAIN)\nb.test (corral.yaml:5): no such name (NXDOMAIN)\n  hint: correct it\n"
	var failed *GateFailed
	if err := gateFailed(said); !errors.As(err, &failed) || len(failed.Reasons) != 2 || failed.Hint != "correct it" {
		t.Errorf("%+v", err)
	}
	if err := gateFailed(""); !strings.Contains(err.Error(), "said nothing") {
		t.Errorf("%v", err)
	}
}

func TestParseStart(t *testing.T) {
	rest := strings.Repeat("0 ", 18) + "4711 0 0"
	for stat, want := range map[string]string{
		"1 (init) S " + rest:          "4711",
		"1 (a) b) c (d) S " + rest:    "4711",
		"1 (sh) Z " + rest:            "",
		"1 (sh) S 0 0":                "",
		"":                            "",
		"no parentheses at all 1 2 3": "",
	} {
		if got := parseStart(stat); got != want {
			t.Errorf("%q: %q, want %q", stat, got, want)
		}
	}
}

// What a question does not answer in time is not waited for.
func TestWithin(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	hold, let := make(chan struct{}), make(chan int, 1)
	go cancel()
	_, err := within(ctx, func() (int, error) { <-hold; return 42, nil }, func(n int) { let <- n })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	close(hold)
	if n := <-let; n != 42 {
		t.Errorf("what came too late was not let go: %d", n)
	}
}

// What a gate said that did not become ready in time is told with that, in bounds.
func TestGateThatIsLateSaysWhy(t *testing.T) {
	long := strings.Repeat("long", 1000)
	over := make(chan struct{})
	e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
		switch path {
		case "/containers/g/attach":
			conn, _, err := upgraded(w, r)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			out, errs := stdcopy.NewStdWriter(conn, stdcopy.Stdout), stdcopy.NewStdWriter(conn, stdcopy.Stderr)
			io.WriteString(errs, "corral-gate: first\ncorral-gate: a.test: no answer\ncorral-gate: "+long+"\n  hint: look there\n")
			io.WriteString(out, "corral-gate: closed: all of it\n"+spec.GateNotice+"now\n")
			<-over
		case "/containers/g/start":
			w.WriteHeader(http.StatusNoContent)
		case "/containers/g/json":
			io.WriteString(w, `{"Id":"g","State":{"Status":"running","Running":true}}`)
		default:
			t.Errorf("asked for %s", path)
		}
	})
	defer close(over)
	ctx, late := context.WithCancelCause(t.Context())
	e.Progress = func(string, ...any) { late(&GateFailed{Reasons: []string{"it was not ready within a while"}}) }
	err := e.open(ctx, &Gate{ID: "g"})
	var failed *GateFailed
	if !errors.As(err, &failed) || failed.Hint != "look there" {
		t.Fatalf("%v", err)
	}
	want := []string{"it was not ready within a while", "it said: a.test: no answer", "it said: " + long[:mostSaid] + "…", "the last that it had done: "}
	if len(failed.Reasons) != len(want) || !slices.Equal(failed.Reasons[:3], want[:3]) || !strings.HasPrefix(failed.Reasons[3], want[3]) {
		t.Errorf("%q", failed.Reasons)
	}
	late(nil)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.open(gone, &Gate{ID: "g"}); !errors.Is(err, context.Canceled) {
		t.Errorf("an interruption: %v", err)
	}
}
