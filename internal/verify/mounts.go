package verify

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// mount is a line of /proc/self/mountinfo.
type mount struct {
	dev     string // major:minor
	root    string // what of the file system is mounted
	target  string
	options []string
	fstype  string
}

func (m mount) has(option string) bool { return slices.Contains(m.options, option) }

// below is the place at which m can be tried for a check about p: p itself, or
// the mount's own target if that is deeper.
func (m mount) below(p string) string {
	if within(m.target, p) {
		return m.target
	}
	return p
}

// within says whether p is dir or lies below it.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

func (e *env) mounts() ([]mount, error) {
	b, err := os.ReadFile(e.path("/proc/self/mountinfo"))
	if err != nil {
		return nil, err
	}
	return parseMounts(b)
}

// parseMounts reads a mountinfo (proc_pid_mountinfo(5)).
func parseMounts(b []byte) ([]mount, error) {
	var all []mount
	sc := bufio.NewScanner(bytes.NewReader(b))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		dash := slices.Index(f, "-")
		if dash < 6 || len(f) < dash+2 {
			return nil, fmt.Errorf("mountinfo: %q", sc.Text())
		}
		all = append(all, mount{
			dev:     f[2],
			root:    unescape(f[3]),
			target:  unescape(f[4]),
			options: strings.Split(f[5], ","),
			fstype:  f[dash+1],
		})
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("mountinfo: %w", err)
	}
	return all, nil
}

// unescape undoes the kernel's \ooo.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// holding are the mount that a path lies in, the one mounted last if several
// share its target, and every mount below it.
func holding(all []mount, p string) []mount {
	var held []mount
	over := -1
	for i, m := range all {
		if within(p, m.target) && (over < 0 || len(m.target) >= len(all[over].target)) {
			over = i
		}
		if m.target != p && within(m.target, p) {
			held = append(held, m)
		}
	}
	if over >= 0 {
		held = append([]mount{all[over]}, held...)
	}
	return held
}

// mountsOnlyDeclared: every mount is one of the engine's own or one of Mount;
// each of Mount is there, once, as read-only as declared, and is the very file
// that corral saw on the host, where it recorded that.
func mountsOnlyDeclared(_ context.Context, c spec.Check, e *env) finding {
	all, err := e.mounts()
	if err != nil {
		return untold("%v", err)
	}
	complaints := unaccounted(all, c.Mount)
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

// unaccounted compares what is mounted with what was declared.
func unaccounted(all []mount, declared []spec.Mount) []string {
	var complaints []string
	complain := func(format string, args ...any) {
		complaints = append(complaints, fmt.Sprintf(format, args...))
	}
	times := map[string]int{}
	procDev, sysctlsReadOnly := "", false
	for _, m := range all {
		times[m.target]++
		if m.target == "/proc" {
			procDev = m.dev
		}
	}
	for _, m := range all {
		sysctlsReadOnly = sysctlsReadOnly || m.target == "/proc/sys" && m.has("ro")
		if i := slices.IndexFunc(declared, func(d spec.Mount) bool { return path.Clean(d.Target) == m.target }); i >= 0 {
			if declared[i].ReadOnly && !m.has("ro") {
				complain("%s is writable", m.target)
			}
			continue
		}
		if !engines(m, procDev) {
			complain("%s is not declared (%s of %s)", m.target, m.root, m.fstype)
		}
	}
	for _, d := range declared {
		switch n := times[path.Clean(d.Target)]; {
		case n == 0:
			complain("%s is not mounted", d.Target)
		case n > 1:
			complain("%s is mounted over", d.Target)
		}
	}
	if !sysctlsReadOnly {
		complain("/proc/sys is not read-only")
	}
	return complaints
}

var (
	containerFile = regexp.MustCompile(`/containers/[0-9a-f]{64}/(resolv\.conf|hostname|hosts)$`)
	ptyNumber     = regexp.MustCompile(`^/[0-9]+$`)
)

// engines says whether a mount is one that the engine gives every container,
// in the form that shows nothing more than it should.
func engines(m mount, procDev string) bool {
	ro := m.has("ro")
	switch m.target {
	case "/":
		return true
	case "/proc":
		return m.fstype == "proc" && m.root == "/"
	case "/dev", "/dev/shm":
		return m.fstype == "tmpfs" && m.root == "/"
	case "/dev/pts":
		return m.fstype == "devpts" && m.root == "/"
	case "/dev/console":
		return m.fstype == "devpts" && ptyNumber.MatchString(m.root)
	case "/dev/mqueue":
		return m.fstype == "mqueue" && m.root == "/"
	case "/sys":
		return m.fstype == "sysfs" && m.root == "/" && ro
	case "/sys/fs/cgroup":
		return m.fstype == "tmpfs" && m.root == "/" || m.fstype == "cgroup2" && ro
	case "/etc/resolv.conf", "/etc/hostname", "/etc/hosts":
		found := containerFile.FindStringSubmatch(m.root)
		return found != nil && "/etc/"+found[1] == m.target
	case "/sbin/docker-init", "/usr/sbin/docker-init":
		name := path.Base(m.root)
		return ro && (name == "docker-init" || strings.HasPrefix(name, "tini"))
	}
	switch {
	case within(m.target, "/sys/fs/cgroup"):
		return m.fstype == "cgroup" && ro
	case within(m.target, "/proc"), within(m.target, "/sys"):
		// Covers: an empty read-only directory, the null device, or a part of
		// this very proc made read-only.
		return m.fstype == "tmpfs" && m.root == "/" && ro ||
			(m.fstype == "tmpfs" || m.fstype == "devtmpfs") && m.root == "/null" ||
			m.fstype == "proc" && m.dev == procDev && within(m.target, "/proc") && m.target == "/proc"+m.root && ro
	}
	return false
}
