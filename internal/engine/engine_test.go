package engine

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/render"
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

// The agent's container, as asked of the engine.
func TestBindsAreIdenticalPaths(t *testing.T) {
	g := &Gate{Guests: "corral-guest-x"}
	got := binds(g, plan.Service{Mounts: []plan.Mount{{Path: "/p"}, {Path: "/r: ,x", ReadOnly: true}}})
	if len(got) != 3 || !got[0].ReadOnly || got[1].ReadOnly || !got[2].ReadOnly {
		t.Fatalf("%+v", got)
	}
	for _, m := range got[1:] {
		if m.Source != m.Target || m.BindOptions == nil || m.BindOptions.CreateMountpoint {
			t.Errorf("%+v", m)
		}
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
