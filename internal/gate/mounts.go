package gate

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/corral-sandbox/corral/internal/mountinfo"
	"github.com/corral-sandbox/corral/internal/printable"
)

// mountTable is this process's own account of what is mounted where. It is opened
// before anything is compared and stays open: what is mounted over /proc later does
// not answer in its place.
type mountTable struct {
	mu   sync.Mutex
	file *os.File
}

func openMounts() (*mountTable, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return &mountTable{file: f}, nil
}

func (t *mountTable) read() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := t.file.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	b, err := io.ReadAll(t.file)
	return string(b), err
}

// uncovered reads a mountinfo: of the mounts at one path the one that covers the
// others, since an engine that copies files puts what is mounted once more below it
// for a moment.
func uncovered(text string) ([]mountinfo.Mount, error) {
	all, err := mountinfo.Parse(text)
	if err != nil {
		return nil, err
	}
	target := map[int]string{}
	for _, m := range all {
		target[m.ID] = m.Target
	}
	covered := map[int]bool{}
	for _, m := range all {
		if target[m.Parent] == m.Target && m.Parent != m.ID {
			covered[m.Parent] = true
		}
	}
	return slices.DeleteFunc(all, func(m mountinfo.Mount) bool { return covered[m.ID] }), nil
}

// programDirs hold what a gate runs, which its image alone brings.
var programDirs = []string{"/usr", "/lib", "/lib64", "/opt/corral", "/etc/alternatives"}

// holdsPrograms reports whether what is mounted at a path takes the place of the
// image's programs, of one of them or of all.
func holdsPrograms(path string) bool {
	return path == "/opt" || slices.ContainsFunc(programDirs, func(dir string) bool { return mountinfo.Within(path, dir) })
}

// readMounts has everything that is mounted in this process's view.
func (m *made) readMounts(t *mountTable) error {
	text, err := t.read()
	if err != nil {
		return err
	}
	mounts, err := uncovered(text)
	if err != nil {
		return err
	}
	m.addMounts(mounts)
	return nil
}

// addMounts leaves out what changes by itself: where on the machine a file is from,
// which becomes another name when somebody replaces it there; what a file system is
// called after, which follows the machine's disks; and its own settings, by which
// nothing else is to be seen. The numbers tell one mount from another.
func (m *made) addMounts(mounts []mountinfo.Mount) {
	for _, p := range mounts {
		target := printable.Escape(p.Target)
		m.add("mount at "+target, fmt.Sprintf("%s %s, %s, number %d", p.FSType, p.Device, strings.Join(p.Options, ","), p.ID))
		if holdsPrograms(p.Target) {
			m.object("a mount at %s", target)
		}
	}
}
