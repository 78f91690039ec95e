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

func TestNameservers(t *testing.T) {
	for in, want := range map[string]string{
		"nameserver 10.0.0.1\n":                               "[10.0.0.1]",
		"nameserver 127.0.0.53\n":                             "[]",
		"# nameserver 1.2.3.4\nnameserver\t192.168.1.1 # x\n": "[192.168.1.1]",
		"nameserver fe80::1%eth0\nnameserver 10.1.1.1":        "[10.1.1.1]",
		"nameserver 0.0.0.0\nsearch example\n":                "[]",
		"":                                                    "[]",
	} {
		if got := fmt.Sprint(nameservers(strings.NewReader(in))); got != want {
			t.Errorf("nameservers(%q) = %s, want %s", in, got, want)
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
