package gate

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

// Whatever is new, gone or otherwise is named.
func TestMadeDiffers(t *testing.T) {
	was := made{is: map[string]string{"link eth0": "veth, number 2", "net.ipv4.ip_forward": "0", "route to default via 44.10.9.1 dev eth0": ""}}
	now := made{is: map[string]string{"link eth0": "veth, number 2", "net.ipv4.ip_forward": "1", "route to default via 44.10.9.2 dev eth0": ""}}
	want := []string{"net.ipv4.ip_forward is 1, not 0", "route to default via 44.10.9.1 dev eth0 is gone", "route to default via 44.10.9.2 dev eth0 is new"}
	if got := was.diff(now); !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
	if got := was.diff(was); got == nil || len(got) > 0 {
		t.Errorf("%q of itself", got)
	}
}

// Packet and raw sockets are told, but for those that are gone at a second look and
// those of the gate's process and its own children: not of a process of another
// session, which somebody sent in.
func TestPacketSocketsAreTold(t *testing.T) {
	root := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	process := func(pid, parent, session, socket string) {
		t.Helper()
		put(filepath.Join("proc", pid, "stat"), fmt.Sprintf("%s (a b) S %s %s %s 0", pid, parent, session, session))
		dir := filepath.Join(root, "proc", pid, "fd")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("socket:["+socket+"]", filepath.Join(dir, "3")); err != nil {
			t.Fatal(err)
		}
	}
	packet := func(uid, inode string) string { return "0000 3 3 0003 0 1 0 " + uid + " " + inode + "\n" }
	raw := func(uid, inode string) string {
		return " 255: 00000000:00FF 00000000:0000 07 00000000:00000000 00:00000000 00000000 " + uid + " 0 " + inode + " 2 0000 0\n"
	}
	process("1", "0", "1", "101")
	process("20", "1", "1", "102")
	process("30", "0", "30", "103")
	process("31", "1", "30", "104") // an orphan of it
	put("proc/net/packet", "sk RefCnt Type Proto Iface R Rmem User Inode\n"+packet("0", "101")+packet("1000", "105"))
	put("proc/net/raw", "  sl  local_address\n"+raw("0", "102")+raw("0", "103")+raw("0", "104"))
	got, err := packetSockets(root, "1")
	want := []string{"a packet socket of user 1000", "a raw socket of user 0", "a raw socket of user 0"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; not %q", got, err, want)
	}
	put("proc/net/packet", "heading\n")
	put("proc/net/raw", "heading\n"+raw("0", "102"))
	if got, err := packetSockets(root, "1"); err != nil || got == nil || len(got) > 0 {
		t.Errorf("%q, %v", got, err)
	}
	put("proc/net/raw6", "heading\n"+raw("7", "106"))
	if got, err := packetSockets(root, "1"); err != nil || !slices.Equal(got, []string{"a raw6 socket of user 7"}) {
		t.Errorf("%q, %v", got, err)
	}
	put("proc/net/raw6", "heading\n"+strings.Repeat("x ", 9)+"\n")
	if got, err := packetSockets(root, "1"); err == nil {
		t.Errorf("%q", got)
	}
}

// A range of ports that has one of the proofs', or that cannot be read, is strange.
func TestHoldsProbePorts(t *testing.T) {
	for text, want := range map[string]bool{
		"32768 60999": false, "32768 61000": true, "61099 65535": true, "61100 65535": false, "61050 61050": true, "1024 65535": true,
		"": true, "32768": true, "x y": true,
	} {
		if got := holdsProbePorts(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// Settings that come with a part of the kernel are as they will be.
func TestSettingsThatComeLater(t *testing.T) {
	root := t.TempDir()
	read := func() made {
		t.Helper()
		m := made{is: map[string]string{}}
		if err := m.readSettings(root, []string{"eth0"}); err != nil {
			t.Fatal(err)
		}
		return m
	}
	was := read()
	if err := os.MkdirAll(filepath.Join(root, "netfilter"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, is := range unloaded {
		if err := os.WriteFile(filepath.Join(root, name), []byte(is+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := was.diff(read()); len(got) > 0 {
		t.Errorf("%q", got)
	}
	if err := os.WriteFile(filepath.Join(root, "netfilter/nf_conntrack_tcp_be_liberal"), []byte("1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := was.diff(read()); len(got) != 1 {
		t.Errorf("%q", got)
	}
}

// One way out is the sandbox's; a second one has to be that between the gates, with an
// address of its own, and none is a third.
func TestWaysOut(t *testing.T) {
	of := func(outer []string, addrs ...string) made {
		m := made{is: map[string]string{}, outer: outer}
		for _, a := range addrs {
			m.add("address "+a, "")
		}
		return m
	}
	alone := spec.Gate{Address: netip.MustParseAddr("172.30.0.2")}
	linked := alone
	linked.Link = netip.MustParseAddr("172.30.128.2")
	for what, tt := range map[string]struct {
		m    made
		doc  spec.Gate
		want string
	}{
		"one":                        {of([]string{"eth0"}, "172.30.0.2/17 on eth0"), alone, ""},
		"a second":                   {of([]string{"eth0", "eth1"}, "172.30.0.2/17 on eth0", "172.30.128.2/28 on eth1"), alone, "2 links that lead out"},
		"that between gates":         {of([]string{"eth0", "eth1"}, "172.30.0.2/17 on eth0", "172.30.128.2/28 on eth1"), linked, ""},
		"a third":                    {of([]string{"eth0", "eth1", "eth2"}, "172.30.0.2/17 on eth0", "172.30.128.2/28 on eth1"), linked, "3 links that lead out"},
		"both addresses on one":      {of([]string{"eth0", "eth1"}, "172.30.0.2/17 on eth0", "172.30.128.2/28 on eth0"), linked, "no link of its own for 172.30.128.2"},
		"another address":            {of([]string{"eth0", "eth1"}, "172.30.0.2/17 on eth0", "172.30.128.22/28 on eth1"), linked, "no link of its own for 172.30.128.2"},
		"none where one was planned": {of([]string{"eth0"}, "172.30.0.2/17 on eth0"), linked, "no link of its own for 172.30.128.2"},
		"an address that begins so":  {of([]string{"eth0", "eth1"}, "172.30.0.2/17 on eth0", "172.30.128.2/28 on eth10"), linked, "no link of its own for 172.30.128.2"},
	} {
		err := tt.m.strangely(tt.doc)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", what, err, tt.want)
		}
	}
}
