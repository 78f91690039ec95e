package verify

import (
	"context"
	"os"
	"strconv"
	"strings"

	"github.com/corral-sandbox/corral/internal/spec"
)

// pidsLimited: the control group that this process is in can have at most
// Limit processes, or has a limit at all if the check names none.
func pidsLimited(_ context.Context, c spec.Check, e *env) finding {
	text, from := e.cgroup("pids", "pids.max", "pids.max")
	return within64(c, text, from)
}

// memoryLimited: it can use at most Limit bytes.
func memoryLimited(_ context.Context, c spec.Check, e *env) finding {
	text, from := e.cgroup("memory", "memory.limit_in_bytes", "memory.max")
	return within64(c, text, from)
}

// cpusLimited: it gets at most Limit thousand-millionths of a processor.
func cpusLimited(_ context.Context, c spec.Check, e *env) finding {
	text, from := e.cgroup("cpu", "cpu.cfs_quota_us", "cpu.max")
	quota, period, one := strings.Cut(text, " ") // cpu.max holds both
	if !one && text != "" {
		period, _ = e.cgroup("cpu", "cpu.cfs_period_us", "")
	}
	if quota == "-1" || quota == "max" {
		return failed("no limit")
	}
	q, err1 := strconv.ParseInt(quota, 10, 64)
	p, err2 := strconv.ParseInt(period, 10, 64)
	const second = 1e9
	switch {
	case text == "":
		return untold("no %s is visible here", from)
	case err1 != nil || err2 != nil || q <= 0 || p <= 0 || q > 1e12:
		return untold("%s says %q of %q", from, quota, period)
	case c.Limit <= 0:
		return untold("no limit was given to compare with")
	case q*second/p > c.Limit:
		return failed("%d of %d µs, more than %d thousand-millionths", q, p, c.Limit)
	}
	return ok()
}

// within64 compares what a control file says with the check's limit.
func within64(c spec.Check, text, from string) finding {
	if text == "max" {
		return failed("no limit")
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case text == "":
		return untold("no %s is visible here", from)
	case err != nil || n <= 0:
		return untold("%s says %q", from, text)
	case c.Limit > 0 && n > c.Limit:
		return failed("the limit is %d, more than %d", n, c.Limit)
	}
	return ok()
}

// cgroup reads a control file of this process's group, by its name in version 1
// of a controller or in version 2. Inside, the container's own group is mounted
// in place of the whole tree, except where the engine shares the host's view.
// If there is none, from is the name that was looked for.
func (e *env) cgroup(controller, v1, v2 string) (text, from string) {
	b, err := os.ReadFile(e.path("/proc/self/cgroup"))
	if err != nil {
		return "", v2
	}
	var files []string
	if p, found := cgroupPath(b, controller); found {
		dir := "/sys/fs/cgroup/" + controller
		files = append(files, dir+p+"/"+v1, dir+"/"+v1)
	}
	if p, found := cgroupPath(b, ""); found && v2 != "" {
		files = append(files, "/sys/fs/cgroup"+p+"/"+v2, "/sys/fs/cgroup/"+v2)
	}
	for _, f := range files {
		if b, err := os.ReadFile(e.path(f)); err == nil {
			return strings.TrimSpace(string(b)), f
		}
	}
	return "", v2
}
