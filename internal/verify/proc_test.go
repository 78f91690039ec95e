package verify

import (
	"testing"
)

func TestParseStatus(t *testing.T) {
	good := statusFile(1000, 1001, "1001 27 ", "00000000a80425fb", 1, 2)
	s, err := parseStatus([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if s.name != "agent" || s.uids[3] != 1000 || s.gids[0] != 1001 || len(s.groups) != 2 || s.groups[1] != 27 || s.caps[3] != 0xa80425fb || s.noNewPrivs != 1 || s.seccomp != 2 {
		t.Errorf("%+v", s)
	}
	for _, bad := range []string{
		"",
		statusFile(1000, 1000, "x", noCaps, 1, 2),
		statusFile(1000, 1000, "", "", 1, 2),
		statusFile(1000, 1000, "", "0x0", 1, 2),
		statusFile(-1, 1000, "", noCaps, 1, 2),
		good[:len(good)/2],
	} {
		if s, err := parseStatus([]byte(bad)); err == nil {
			t.Errorf("%q is read as %+v", bad, s)
		}
	}
}

func FuzzParseStatus(f *testing.F) {
	f.Add([]byte(statusFile(1000, 1000, "1000 ", noCaps, 1, 2)))
	f.Add([]byte("Uid:\t0\n"))
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = parseStatus(b) })
}

func TestCgroupPath(t *testing.T) {
	v1 := "9:name=systemd:/docker/x\n8:pids,misc:/docker/075e\n0::/docker/x\n"
	for _, tt := range []struct {
		file, controller, path string
		found                  bool
	}{
		{v1, "pids", "/docker/075e", true},
		{v1, "", "/docker/x", true},
		{"0::/\n", "", "/", true},
		{"0::/\n", "pids", "", false},
		{"0::/../../../x\n", "", "/x", true},
		{"rubbish", "", "", false},
		{"", "pids", "", false},
	} {
		if p, found := cgroupPath([]byte(tt.file), tt.controller); p != tt.path || found != tt.found {
			t.Errorf("%q in %q: %q %v", tt.controller, tt.file, p, found)
		}
	}
}

func FuzzCgroupPath(f *testing.F) {
	f.Add([]byte("8:pids:/docker/x\n0::/\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, found := cgroupPath(b, "pids"); found && p[0] != '/' {
			t.Errorf("%q", p)
		}
	})
}
