package verify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/mountinfo"
	"github.com/corral-sandbox/corral/internal/spec"
)

// below is the place at which m can be tried for a check about p: p itself, or
// the mount's own target if that is deeper.
func below(m mountinfo.Mount, p string) string {
	if mountinfo.Within(m.Target, p) {
		return m.Target
	}
	return p
}

func (e *env) mounts() ([]mountinfo.Mount, error) {
	b, err := os.ReadFile(e.path("/proc/self/mountinfo"))
	if err != nil {
		return nil, err
	}
	return mountinfo.Parse(string(b))
}

// holding are the mount that a path lies in, the one mounted last if several
// share its target, and every mount below it.
func holding(all []mountinfo.Mount, p string) []mountinfo.Mount {
	var held []mountinfo.Mount
	over := -1
	for i, m := range all {
		if mountinfo.Within(p, m.Target) && (over < 0 || len(m.Target) >= len(all[over].Target)) {
			over = i
		}
		if m.Target != p && mountinfo.Within(m.Target, p) {
			held = append(held, m)
		}
	}
	if over >= 0 {
		held = append([]mountinfo.Mount{all[over]}, held...)
	}
	return held
}

// mountsOnlyDeclared: every mount is one of the engine's own or one of Mount; what
// the engine covers of /proc and /sys, and this kernel has, is covered;
// each of Mount is there, once, as read-only as declared, and is the very file
// that corral saw on the host, where it recorded that.
func mountsOnlyDeclared(_ context.Context, c spec.Check, e *env) finding {
	all, err := e.mounts()
	if err != nil {
		return untold("%v", err)
	}
	var complaints []string
	for _, complaint := range mountinfo.Undeclared(all, c.Mount) {
		complaints = append(complaints, complaint.String())
	}
	bare, err := e.uncovered(all)
	if err != nil {
		return untold("%v", err)
	}
	complaints = append(complaints, bare...)
	for _, d := range c.Mount {
		if d.Dev == 0 && d.Ino == 0 {
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(e.path(d.Target), &st); err != nil {
			return untold("%s: %v", d.Target, err)
		}
		if st.Dev != d.Dev || st.Ino != d.Ino {
			complaints = append(complaints, fmt.Sprintf("%s is not what it was on the host (replaced there)", d.Target))
		}
	}
	if len(complaints) > 0 {
		return failed("%s", list(complaints))
	}
	return ok()
}

// masked are what every engine covers with nothing, frozen what it makes read-only:
// the kernel's own memory, keys and settings.
var (
	masked = []string{"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
		"/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/firmware"}
	frozen = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// uncovered are those of masked and frozen that are there and lie bare.
func (e *env) uncovered(all []mountinfo.Mount) (complaints []string, err error) {
	for i, p := range slices.Concat(masked, frozen) {
		if _, err := os.Lstat(e.path(p)); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		over, there := mountinfo.At(all, p)
		switch {
		case !there:
			complaints = append(complaints, p+" is not covered")
		case i < len(masked) && over.FSType == "proc", i >= len(masked) && !over.Has("ro"):
			complaints = append(complaints, p+" is not covered as the engine does")
		}
	}
	return complaints, nil
}
