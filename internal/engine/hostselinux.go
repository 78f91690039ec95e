package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/state"
)

// root is where this machine's /sys is.
const root = "/"

// Types of SELinux that a container may read, and of them those that it may
// write.
var (
	writableTypes = []string{"container_file_t", "svirt_sandbox_file_t"}
	readableTypes = append([]string{"container_ro_file_t", "container_share_t"}, writableTypes...)
)

// enforcing reports whether SELinux keeps anything from anybody on the machine
// whose /sys is below root.
func enforcing(root string) bool {
	b, err := os.ReadFile(filepath.Join(root, "sys/fs/selinux/enforce"))
	return err == nil && strings.TrimSpace(string(b)) == "1"
}

// readable refuses a service with mounts that SELinux would keep from it.
func (e *Engine) readable(s plan.Service) error {
	if !e.selinux || !enforcing(root) {
		return nil
	}
	return labelled(s.Mounts, host.Homes(s.UID))
}

// labelled refuses mounts that SELinux would keep from a container of an engine
// that labels them. It is no wall but a word in time: a label that cannot be
// read is left to the kernel. homes are those of the person.
func labelled(mounts []plan.Mount, homes []string) error {
	for _, m := range mounts {
		kind, level, known := label(m.Path)
		if !known {
			continue
		}
		allowed := writableTypes
		if m.ReadOnly {
			allowed = readableTypes
		}
		switch {
		case !slices.Contains(allowed, kind):
			return &Unmountable{Reason: fmt.Sprintf("SELinux denies %s (%s)", m.Path, kind), Hint: relabel(m.Path, homes)}
		case strings.Contains(level, ":"): // categories: another container's own
			return &Unmountable{Reason: fmt.Sprintf("SELinux denies %s (%s of another container, %s)", m.Path, kind, level),
				Hint: fmt.Sprintf("chcon -R -l s0 %s", quote(m.Path))}
		}
	}
	return nil
}

// relabel is how a mount becomes readable. A home directory is never relabelled:
// logins and much else would fail. What corral keeps itself is relabelled as a
// whole, since what it makes there later takes the type of where it is made.
func relabel(path string, homes []string) string {
	if kept, err := state.Home(); err == nil && (path == kept || strings.HasPrefix(path, kept+"/")) {
		path = kept
	}
	for _, h := range homes {
		if path == h || strings.HasPrefix(h, strings.TrimSuffix(path, "/")+"/") {
			return "mount a directory below it that can be given to containers: relabelling a home directory breaks logins"
		}
	}
	return fmt.Sprintf("chcon -R -t %s %s", writableTypes[0], quote(path))
}

// label is the type and the level of a file's label.
func label(path string) (kind, level string, known bool) {
	b := make([]byte, 4096) // far above the longest label
	n, err := unix.Lgetxattr(path, "security.selinux", b)
	if err != nil {
		return "", "", false
	}
	// user:role:type:level, and the level may hold colons.
	fields := strings.SplitN(strings.TrimRight(string(b[:n]), "\x00"), ":", 4)
	if len(fields) < 3 {
		return "", "", false
	}
	if len(fields) == 4 {
		level = fields[3]
	}
	return fields[2], level, true
}

// quote makes one word of a path for a shell.
func quote(path string) string {
	if !strings.ContainsFunc(path, func(r rune) bool {
		return !strings.ContainsRune("/._-+", r) && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
