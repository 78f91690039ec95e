package verify

import (
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

func TestLimits(t *testing.T) {
	const v1 = "8:pids:/docker/x\n7:memory:/docker/x\n6:cpu,cpuacct:/docker/x\n0::/docker/x\n"
	const v2 = "0::/\n"
	for _, tt := range []struct {
		kind, cgroup string
		limit        int64
		files        map[string]string
		result       spec.Result
		detail       string
	}{
		{"pids-limited", v2, 10, map[string]string{"/pids.max": "10"}, spec.OK, ""},
		{"pids-limited", v2, 9, map[string]string{"/pids.max": "10"}, spec.Failed, "more than 9"},

		{"memory-limited", v1, 1 << 30, map[string]string{"/memory/memory.limit_in_bytes": "1073741824"}, spec.OK, ""},
		{"memory-limited", v1, 1 << 30, map[string]string{"/memory/memory.limit_in_bytes": "1073741825"}, spec.Failed, "more than"},
		{"memory-limited", v1, 1 << 30, map[string]string{"/memory/memory.limit_in_bytes": "9223372036854771712"}, spec.Failed, "more than"},
		{"memory-limited", v2, 1 << 30, map[string]string{"/memory.max": "1073741824"}, spec.OK, ""},
		{"memory-limited", v2, 1 << 30, map[string]string{"/memory.max": "max"}, spec.Failed, "no limit"},
		{"memory-limited", v2, 1 << 30, map[string]string{}, spec.Untold, "no memory.max"},
		{"memory-limited", v2, 1 << 30, map[string]string{"/memory.max": "-1"}, spec.Untold, `says "-1"`},

		{"cpus-limited", v1, 15e8, map[string]string{"/cpu/cpu.cfs_quota_us": "150000", "/cpu/cpu.cfs_period_us": "100000"}, spec.OK, ""},
		{"cpus-limited", v1, 15e8, map[string]string{"/cpu/cpu.cfs_quota_us": "150001", "/cpu/cpu.cfs_period_us": "100000"}, spec.Failed, "more than"},
		{"cpus-limited", v1, 15e8, map[string]string{"/cpu/cpu.cfs_quota_us": "-1", "/cpu/cpu.cfs_period_us": "100000"}, spec.Failed, "no limit"},
		{"cpus-limited", v1, 15e8, map[string]string{"/cpu/cpu.cfs_quota_us": "150000"}, spec.Untold, `of ""`},
		{"cpus-limited", v2, 15e8, map[string]string{"/cpu.max": "150000 100000"}, spec.OK, ""},
		{"cpus-limited", v2, 14e8, map[string]string{"/cpu.max": "150000 100000"}, spec.Failed, "more than"},
		{"cpus-limited", v2, 15e8, map[string]string{"/cpu.max": "max 100000"}, spec.Failed, "no limit"},
		{"cpus-limited", v2, 15e8, map[string]string{"/cpu.max": "150000 0"}, spec.Untold, `of "0"`},
		{"cpus-limited", v2, 0, map[string]string{"/cpu.max": "150000 100000"}, spec.Untold, "no limit was given"},
		{"cpus-limited", v2, 15e8, map[string]string{}, spec.Untold, "no cpu.max"},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			files := map[string]string{"/proc/self/cgroup": tt.cgroup}
			for name, text := range tt.files {
				files["/sys/fs/cgroup"+name] = text + "\n"
			}
			want(t, tree(t, files), spec.Check{Name: tt.kind, Limit: tt.limit}, tt.result, tt.detail)
		})
	}
}
