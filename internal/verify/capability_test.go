package verify

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

func TestNoSocket(t *testing.T) {
	if got := noSocket([]socketKind{{"a udp", unix.AF_INET, unix.SOCK_DGRAM, 0}}); got.result != spec.Failed {
		t.Errorf("a socket that can be made: %+v", got)
	}
	if got := noSocket([]socketKind{{"unheard-of", 250, unix.SOCK_STREAM, 0}}); got.result != spec.OK {
		t.Errorf("a family that does not exist: %+v", got)
	}
	if got := noSocket([]socketKind{{"nonsense", unix.AF_INET, 99, 0}}); got.result != spec.Untold {
		t.Errorf("an error that is no refusal: %+v", got)
	}
}

func TestPidsLimited(t *testing.T) {
	const v1, v2 = "8:pids:/docker/x\n0::/docker/x\n", "0::/\n"
	for _, tt := range []struct {
		name   string
		files  map[string]string
		result spec.Result
		detail string
	}{
		{"version 1", map[string]string{"/proc/self/cgroup": v1, "/sys/fs/cgroup/pids/pids.max": "2048\n"}, spec.OK, ""},
		{"version 1, no limit", map[string]string{"/proc/self/cgroup": v1, "/sys/fs/cgroup/pids/pids.max": "max\n"}, spec.Failed, "no limit"},
		{"the host's view", map[string]string{"/proc/self/cgroup": v1, "/sys/fs/cgroup/pids/pids.max": "max\n", "/sys/fs/cgroup/pids/docker/x/pids.max": "10\n"}, spec.OK, ""},
		{"version 2", map[string]string{"/proc/self/cgroup": v2, "/sys/fs/cgroup/pids.max": "2048\n"}, spec.OK, ""},
		{"version 2, no limit", map[string]string{"/proc/self/cgroup": v2, "/sys/fs/cgroup/pids.max": "max\n"}, spec.Failed, "no limit"},
		{"nothing to see", map[string]string{"/proc/self/cgroup": v2}, spec.Untold, "no pids.max"},
		{"nonsense", map[string]string{"/proc/self/cgroup": v2, "/sys/fs/cgroup/pids.max": "0\n"}, spec.Untold, `says "0"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want(t, tree(t, tt.files), spec.Check{Name: "pids-limited"}, tt.result, tt.detail)
		})
	}
}
