package gate

import (
	"slices"
	"strings"
	"testing"
)

// What covers is what counts, whichever was mounted last; what changes by itself
// does not.
func TestUncovered(t *testing.T) {
	const honest = "500 400 0:50 / / rw,relatime master:7 - overlay overlay rw,lowerdir=/l\n" +
		"501 500 0:51 / /proc rw,nosuid - proc proc rw\n" +
		"502 500 254:0 /v/hosts /etc/hosts rw - ext4 /dev/vda rw,discard\n" +
		"503 500 254:0 /v/_data /opt/corral-guest ro - ext4 /dev/vda rw,discard\n"
	read := func(text string) made {
		t.Helper()
		m := made{is: map[string]string{}}
		mounts, err := uncovered(text)
		if err != nil {
			t.Fatal(err)
		}
		m.addMounts(mounts)
		return m
	}
	was := read(honest)
	if was.is["mount at /opt/corral-guest"] != "ext4 254:0, ro, number 503" || len(was.is) != 4 || len(was.strange) > 0 {
		t.Errorf("%+v", was)
	}
	for what, tt := range map[string]struct {
		now     string
		want    []string
		strange string
	}{
		"nothing":                    {now: honest},
		"a disk of another name":     {now: strings.ReplaceAll(honest, "/dev/vda", "/dev/mapper/x")},
		"another lower directory":    {now: strings.Replace(honest, "lowerdir=/l", "lowerdir=/m", 1)},
		"a file replaced there":      {now: strings.Replace(honest, "/v/hosts", "/v/hosts//deleted", 1)},
		"another tag":                {now: strings.Replace(honest, "master:7", "shared:8 master:7", 1)},
		"files copied by the engine": {now: strings.Replace(honest, "503 500", "503 600", 1) + "600 500 254:0 /v/_data /opt/corral-guest rw - ext4 /dev/vda rw\n"},
		"a program": {honest + "600 500 254:0 /fake /usr/sbin/xtables-nft-multi rw - ext4 /dev/vda rw\n",
			[]string{"mount at /usr/sbin/xtables-nft-multi is new"}, "a mount at /usr/sbin/xtables-nft-multi"},
		"over one that is there": {honest + "600 502 0:60 / /etc/hosts rw - tmpfs x rw\n", []string{"mount at /etc/hosts is tmpfs 0:60, rw, number 600, not ext4 254:0, rw, number 502"}, ""},
		"over the root":          {honest + "600 500 0:60 / / rw - tmpfs x rw\n", []string{"mount at / is tmpfs 0:60, rw, number 600, not overlay 0:50, rw,relatime, number 500"}, ""},
		"another part of a disk": {strings.Replace(honest, "503 500 254:0 /v/_data", "600 500 254:0 /v/_other", 1), []string{"mount at /opt/corral-guest is ext4 254:0, ro, number 600, not ext4 254:0, ro, number 503"}, ""},
		"one that can be written": {strings.Replace(honest, "/opt/corral-guest ro", "/opt/corral-guest rw", 1),
			[]string{"mount at /opt/corral-guest is ext4 254:0, rw, number 503, not ext4 254:0, ro, number 503"}, ""},
		"one less": {strings.Join(strings.SplitAfter(honest, "\n")[:3], ""), []string{"mount at /opt/corral-guest is gone"}, ""},
	} {
		now := read(tt.now)
		if got := was.diff(now); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, not %q", what, got, tt.want)
		}
		if got := strings.Join(now.strange, "; "); got != tt.strange {
			t.Errorf("%s: %q, not %q", what, got, tt.strange)
		}
	}
	for _, text := range []string{"", "\n", "500 400 0:50 / / rw\n", "500 400 0:50 / / - x\n", "500 400 0:50 / / rw master:7 overlay overlay rw\n", honest + "500 400 0:50 / / rw -\n"} {
		if got, err := uncovered(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestHoldsPrograms(t *testing.T) {
	for path, want := range map[string]bool{
		"/usr": true, "/usr/lib/x86_64-linux-gnu/xtables/libxt_u32.so": true, "/lib": true, "/lib/x": true, "/lib64/ld.so": true,
		"/opt": true, "/opt/corral": true, "/opt/corral/bin/corral-gate": true, "/etc/alternatives/iptables": true,
		"/": false, "/usrx": false, "/libx": false, "/opt/corral-guest": false, "/opt/x": false, "/etc/hosts": false, "/etc/resolv.conf": false, "/etc/hostname": false,
		"/etc/corral/gate.json": false, "/dev/pts": false, "/proc/kcore": false, "/sys/firmware": false, "/run/.containerenv": false, "/sbin/docker-init": false,
	} {
		if got := holdsPrograms(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}
