package verify

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// pidsLimited: the control group that this process is in can have at most
// Limit processes, or has a limit at all if the check names none.
func pidsLimited(_ context.Context, c spec.Check, e *env) finding {
	text, from := e.cgroup("pids", "pids.max", "pids.max")
	return within64(c, text, from)
}

// crowded says, after a colon, that there may be no process or thread more here;
// empty if there may, or nobody knows.
func (e *env) crowded() string {
	most, _ := e.cgroup("pids", "pids.max", "pids.max")
	now, _ := e.cgroup("pids", "pids.current", "pids.current")
	n, err1 := strconv.ParseInt(now, 10, 64)
	m, err2 := strconv.ParseInt(most, 10, 64)
	if err1 != nil || err2 != nil || n < m {
		return ""
	}
	return fmt.Sprintf(": %s, %d", spec.Crowded, m)
}

// resources are the limits of this process itself: its own user may lower them, and
// what then fails says nothing about the fence.
type resources map[int]unix.Rlimit

// limited are the kinds that what a check does may run into.
var limited = map[int]string{unix.RLIMIT_NOFILE: "open files", unix.RLIMIT_NPROC: "processes", unix.RLIMIT_AS: "memory", unix.RLIMIT_DATA: "memory",
	unix.RLIMIT_STACK: "stack", unix.RLIMIT_FSIZE: "file sizes", unix.RLIMIT_CPU: "processor time", unix.RLIMIT_MEMLOCK: "locked memory"}

func ownResources() (resources, error) {
	r := resources{}
	for kind := range limited {
		var l unix.Rlimit
		if err := unix.Getrlimit(kind, &l); err != nil {
			return nil, err
		}
		r[kind] = l
	}
	return r, nil
}

// lowered says which of the limits is lower than it was, empty for none. Nobody
// without rights raises one again that was lowered altogether.
func (r resources) lowered() string {
	now, err := ownResources()
	if err != nil {
		return err.Error()
	}
	for kind, was := range r {
		if l := now[kind]; l.Max < was.Max || l.Cur < was.Cur {
			return fmt.Sprintf("this checker's limit of %s was lowered to %d meanwhile, which a process of its own user did", limited[kind], min(l.Cur, l.Max))
		}
	}
	return ""
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
		return failed("%.4g processors, more than %.4g", float64(q)/float64(p), float64(c.Limit)/second)
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
