package host

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// R130: a split-DNS resolver on loopback counts only where nothing else does.
func TestResolvers(t *testing.T) {
	for _, c := range []struct{ name, etc, behind, want string }{
		{"one", "nameserver 10.0.0.1\n", "", "[10.0.0.1]"},
		{"several, in order, once each", "nameserver 10.0.0.2\nnameserver 10.0.0.1\nnameserver 10.0.0.2\n", "", "[10.0.0.2 10.0.0.1]"},
		{"comments and blanks", "# nameserver 1.2.3.4\nnameserver\t192.168.1.1 # x\nnameserver\nnameserver x\n", "", "[192.168.1.1]"},
		{"no end of line", "nameserver fe80::1%eth0\nnameserver 10.1.1.1", "", "[10.1.1.1]"},
		{"a stub before systemd's list", "nameserver 127.0.0.53\n", "nameserver 10.0.0.1\n", "[10.0.0.1]"},
		{"one beside a stub", "nameserver 127.0.0.53\nnameserver 10.0.0.2\n", "nameserver 10.0.0.1\n", "[10.0.0.2]"},
		{"a stub alone", "nameserver 127.0.0.53\noptions edns0\n", "", "[127.0.0.53]"},
		{"a stub before a list that a gate cannot ask", "nameserver 127.0.0.53\n", "nameserver 2001:db8::1\nnameserver 127.0.0.54\n", "[127.0.0.53]"},
		{"loopback of both families", "nameserver ::1\nnameserver 127.1.2.3\n", "", "[::1 127.1.2.3]"},
		{"neighbours of loopback", "nameserver 126.255.255.255\nnameserver 128.0.0.0\nnameserver ::2\n", "", "[126.255.255.255 128.0.0.0]"},
		{"mapped, with a zone", "nameserver ::ffff:127.0.0.1\nnameserver ::1%lo\nnameserver ::ffff:10.0.0.1\n", "", "[]"},
		{"no server", "nameserver 0.0.0.0\nnameserver ::\nnameserver 224.0.0.251\nnameserver 255.255.255.255\nsearch example\n", "", "[]"},
		{"systemd's list alone", "", "nameserver 10.0.0.1\n", "[10.0.0.1]"},
		{"nothing", "", "", "[]"},
	} {
		root := t.TempDir()
		for file, text := range map[string]string{"etc/resolv.conf": c.etc, "run/systemd/resolve/resolv.conf": c.behind} {
			if text == "" {
				continue
			}
			file = filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := fmt.Sprint(resolversAt(root)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestReservedIdentities(t *testing.T) {
	for uid, want := range map[uint32]bool{0: true, 64998: true, 64999: true, 1: false, 1000: false, 65000: false, 64997: false, 4294967295: true} {
		if reserved(uid) != want {
			t.Errorf("reserved(%d) = %v", uid, !want)
		}
	}
}

func TestGuestsMissing(t *testing.T) {
	_, err := guestsAt(t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "corral-gate") {
		t.Fatalf("no guest binaries: got %v", err)
	}
}

func TestGuestsNotStatic(t *testing.T) {
	dir := t.TempDir()
	for _, name := range GuestNames {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	_, err := guestsAt(dir)
	if err == nil || !strings.Contains(err.Error(), "static") {
		t.Fatalf("a script as guest binary: got %v", err)
	}
}

// HOME is a claim; what the machine's own records say counts as well.
func TestHomes(t *testing.T) {
	t.Setenv("HOME", "/somewhere/else/")
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if got := Homes(uint32(os.Getuid())); !slices.Contains(got, "/somewhere/else") || !slices.Contains(got, filepath.Clean(me.HomeDir)) {
		t.Errorf("homes %v", got)
	}
	for _, home := range []string{"", "relative"} {
		t.Setenv("HOME", home)
		if got := Homes(4000000000); len(got) != 1 || !filepath.IsAbs(got[0]) {
			t.Errorf("HOME %q: homes %v", home, got)
		}
	}
}
