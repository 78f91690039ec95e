package mountinfo

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/corral-sandbox/corral/internal/spec"
)

// Complaint is a mount that is not as it was planned.
type Complaint struct {
	Target string
	Words  string // with the target as their subject
}

func (c Complaint) String() string { return c.Target + " " + c.Words }

// Undeclared are the mounts that are neither declared nor the engine's own, those on
// another mount, and the declared ones that are missing or writable; the kernel's
// settings must be covered read-only as well.
func Undeclared(all []Mount, declared []spec.Mount) []Complaint {
	var complaints []Complaint
	complain := func(target, format string, args ...any) {
		complaints = append(complaints, Complaint{target, fmt.Sprintf(format, args...)})
	}
	own := Engines(all)
	times := map[string]int{}
	for _, m := range all {
		times[m.Target]++
		if !own(m) && !slices.ContainsFunc(declared, func(d spec.Mount) bool { return path.Clean(d.Target) == m.Target }) {
			complain(m.Target, "is not declared (%s of %s)", m.Root, m.FSType)
		}
		if times[m.Target] == 2 && !mayRepeat(m.Target) {
			complain(m.Target, "is mounted over")
		}
	}
	for _, d := range declared {
		switch m, there := At(all, path.Clean(d.Target)); {
		case !there:
			complain(path.Clean(d.Target), "is not mounted")
		case d.ReadOnly && !m.Has("ro"):
			complain(m.Target, "is writable")
		}
	}
	if m, _ := At(all, "/proc/sys"); !m.Has("ro") {
		complain("/proc/sys", "is not read-only")
	}
	return complaints
}

// mayRepeat says whether one mount on another of the same place shows no more than
// the first did: what covers parts of the kernel's own, and the terminal.
func mayRepeat(target string) bool {
	return target == "/dev/console" || target != "/proc" && Within(target, "/proc") || target != "/sys" && Within(target, "/sys")
}

var (
	containerFile = regexp.MustCompile(`/containers/[0-9a-f]{64}/(resolv\.conf|hostname|hosts)$`)
	ptyNumber     = regexp.MustCompile(`^/[0-9]+$`)
)

// Engines says of one of the mounts whether an engine makes it in every container, in
// the form that shows no more than it should.
func Engines(all []Mount) func(Mount) bool {
	proc, _ := At(all, "/proc")
	return func(m Mount) bool { return engines(m, proc.Device) }
}

func engines(m Mount, proc string) bool {
	whole, ro := m.Root == "/", m.Has("ro")
	switch m.Target {
	case "/":
		return true
	case "/proc":
		return m.FSType == "proc" && whole
	case "/dev", "/dev/shm":
		return m.FSType == "tmpfs" && whole
	case "/dev/pts":
		return m.FSType == "devpts" && whole
	case "/dev/console":
		return m.FSType == "devpts" && ptyNumber.MatchString(m.Root)
	case "/dev/mqueue":
		return m.FSType == "mqueue" && whole
	case "/sys":
		return m.FSType == "sysfs" && whole && ro
	case "/sys/fs/cgroup":
		return m.FSType == "tmpfs" && whole || m.FSType == "cgroup2" && ro
	case "/etc/resolv.conf", "/etc/hostname", "/etc/hosts":
		found := containerFile.FindStringSubmatch(m.Root)
		return found != nil && "/etc/"+found[1] == m.Target
	case "/sbin/docker-init", "/usr/sbin/docker-init", "/run/docker-init":
		name := path.Base(m.Root)
		return ro && (name == "docker-init" || strings.HasPrefix(name, "tini"))
	}
	switch {
	case Within(m.Target, "/sys/fs/cgroup"):
		return m.FSType == "cgroup" && ro
	case Within(m.Target, "/proc"), Within(m.Target, "/sys"):
		// What covers a part: an empty directory, the null device, or the very same
		// made read-only.
		return m.FSType == "tmpfs" && whole && ro ||
			(m.FSType == "tmpfs" || m.FSType == "devtmpfs") && m.Root == "/null" ||
			m.FSType == "proc" && m.Device == proc && m.Target == "/proc"+m.Root && ro
	}
	return false
}
