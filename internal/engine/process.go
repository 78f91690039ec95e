package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/mountinfo"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

// process is the first process of a container as the kernel of this machine
// shows it. Whatever else runs in the container descends from it, and has no
// right that it lacks.
type process struct {
	uids, gids [4]uint32 // real, effective, saved, file system
	groups     []uint32
	caps       map[string]uint64 // its five sets, by their names in its status
	noNewPrivs bool
	filtered   bool // by a system call filter
	// netns is its network namespace, 0 if that may not be looked at.
	netns uint64
	// mounts are what is mounted in its view, nil if they may not be looked at.
	mounts []mountinfo.Mount
	// root is its root directory, -1 if that may not be looked at.
	root int
}

// errElsewhere is a process of another kernel, or one that may not be looked at:
// it says nothing.
var errElsewhere = errors.New("the container's first process is not to be seen on this machine")

// look is the first process of a container whose pid the engine says, below proc.
// Only one whose control group names the container is.
func look(proc string, pid int, id string) (*process, error) {
	if pid <= 0 || len(id) < digestLength {
		return nil, errElsewhere
	}
	dir, err := os.OpenRoot(path.Join(proc, strconv.Itoa(pid))) // it stays this process's, whoever has the pid next
	if err != nil {
		return nil, errElsewhere
	}
	defer dir.Close()
	groups, err := dir.ReadFile("cgroup")
	if err != nil || !strings.Contains(string(groups), id) {
		return nil, errElsewhere
	}
	status, err := dir.ReadFile("status")
	if err != nil {
		return nil, fmt.Errorf("the container's first process: %w", err)
	}
	p, err := parseStatus(string(status))
	if err != nil {
		return nil, fmt.Errorf("the container's first process: %w", err)
	}
	if link, err := dir.Readlink("ns/net"); err == nil {
		inode, _ := strings.CutPrefix(link, "net:[")
		p.netns, _ = strconv.ParseUint(strings.TrimSuffix(inode, "]"), 10, 64)
	}
	if b, err := dir.ReadFile("mountinfo"); err == nil {
		if p.mounts, err = mountinfo.Parse(string(b)); err != nil {
			return nil, fmt.Errorf("the container's first process: %w", err)
		}
	}
	p.root, err = unix.Open(path.Join(proc, strconv.Itoa(pid), "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		p.root = -1
	}
	// The pid was that process's throughout, or the directory is not its own.
	if again, err := dir.ReadFile("cgroup"); err != nil || !strings.Contains(string(again), id) {
		p.close()
		return nil, fmt.Errorf("the container's first process has ended")
	}
	return p, nil
}

func (p *process) close() {
	if p != nil && p.root >= 0 {
		unix.Close(p.root)
		p.root = -1
	}
}

// capabilitySets are the five as a status calls them.
var capabilitySets = []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}

// parseStatus reads a proc_pid_status(5). Each line that is needed must be there.
func parseStatus(text string) (*process, error) {
	lines := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, is := strings.Cut(line, ":"); is {
			if _, twice := lines[name]; twice {
				return nil, fmt.Errorf("its status has two lines %s", name)
			}
			lines[name] = strings.TrimSpace(value)
		}
	}
	p := &process{root: -1, caps: map[string]uint64{}}
	numbers := func(name string) ([]uint32, error) {
		text, there := lines[name]
		if !there {
			return nil, fmt.Errorf("its status has no line %s", name)
		}
		var all []uint32
		for _, f := range strings.Fields(text) {
			n, err := strconv.ParseUint(f, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("its status says %s %q", name, text)
			}
			all = append(all, uint32(n))
		}
		return all, nil
	}
	for name, ids := range map[string]*[4]uint32{"Uid": &p.uids, "Gid": &p.gids} {
		all, err := numbers(name)
		if err != nil {
			return nil, err
		}
		if len(all) != len(ids) {
			return nil, fmt.Errorf("its status says %s %q", name, lines[name])
		}
		*ids = [4]uint32(all)
	}
	var err error
	if p.groups, err = numbers("Groups"); err != nil {
		return nil, err
	}
	for _, name := range capabilitySets {
		set, err := strconv.ParseUint(lines[name], 16, 64)
		if err != nil {
			return nil, fmt.Errorf("its status says %s %q", name, lines[name])
		}
		p.caps[name] = set
	}
	for _, name := range []string{"NoNewPrivs", "Seccomp"} {
		if _, err := numbers(name); err != nil {
			return nil, err
		}
	}
	const filter = "2" // SECCOMP_MODE_FILTER
	p.noNewPrivs, p.filtered = lines["NoNewPrivs"] == "1", lines["Seccomp"] == filter
	return p, nil
}

// undeclared are the mounts of the process that are neither declared nor the
// engine's own, and the declared ones that are not what was seen on the host.
func (p *process) undeclared(declared []spec.Mount) []difference {
	var all []difference
	add := func(target, words string) { all = append(all, difference{"mountinfo", target, "it " + words}) }
	for _, c := range mountinfo.Undeclared(p.mounts, declared) {
		add(c.Target, printable.Escape(c.Words))
	}
	for _, d := range declared {
		target := path.Clean(d.Target)
		if _, there := mountinfo.At(p.mounts, target); !there {
			continue
		}
		if d.Dev == 0 && d.Ino == 0 {
			continue // nobody recorded what it was
		}
		switch st, err := p.stat(target); {
		case errors.Is(err, fs.ErrPermission): // this person may not look
		case err != nil:
			add(target, "cannot be looked at: "+printable.Escape(err.Error()))
		case st.Dev != d.Dev || st.Ino != d.Ino:
			add(target, "is not what it was on the host (replaced there)")
		}
	}
	return all
}

// strayed are mounts of the process that are not of the volume that the engine says is
// there. Where its directory is on the disk only a link may say, so only its own end of
// the way there must be alike; who may look at the directory compares that.
func (p *process) strayed(said []container.MountPoint) []difference {
	var all []difference
	for _, v := range said {
		if v.Type != mount.TypeVolume {
			continue
		}
		target, end := path.Clean(v.Destination), "/"+path.Join(path.Base(path.Dir(v.Source)), volumeData)
		add := func(words string) { all = append(all, difference{"mountinfo", target, words}) }
		if v.Driver != "local" || path.Base(v.Source) != volumeData {
			add("the engine does not say where it keeps the volume " + printable.Escape(v.Name))
			continue
		}
		for _, m := range p.mounts {
			if m.Target == target && !strings.HasSuffix(m.Root, end) {
				add("it is not of the volume " + printable.Escape(v.Name))
			}
		}
		var there unix.Stat_t
		if unix.Stat(v.Source, &there) != nil {
			continue // this person may not look, or the engine's files are elsewhere
		}
		switch st, err := p.stat(target); {
		case errors.Is(err, fs.ErrPermission):
		case err != nil:
			add(printable.Escape(err.Error()))
		case st.Dev != there.Dev || st.Ino != there.Ino:
			add("it is not the directory of the volume " + printable.Escape(v.Name))
		}
	}
	return all
}

// volumeData is where the engine's own driver keeps what is in a volume, below its name.
const volumeData = "_data"

// ownership is whose what lies at a path in the container is, and whether others than
// its owner may write it: its group, or anybody.
type ownership struct {
	uid, gid uint32
	shared   bool
}

// owns looks at a path as the container sees it. No link leads out of it.
func (p *process) owns(name string) (ownership, error) {
	st, err := p.stat(name)
	if err != nil {
		return ownership{}, err
	}
	return ownership{st.Uid, st.Gid, st.Mode&0o022 != 0}, nil
}

// stat is what lies at a path as the container sees it. No link leads out of it. It is
// fs.ErrPermission if this person may not look.
func (p *process) stat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if p == nil || p.root < 0 {
		return st, fs.ErrPermission
	}
	fd, err := unix.Openat2(p.root, strings.TrimLeft(name, "/"), &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return st, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &st); err != nil {
		return st, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	return st, nil
}
