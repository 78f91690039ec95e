package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// gitShielded: each of Mount is a mount of its own, so that no directory on the
// way to what git executes can be put aside for another, and what is read-only
// among them cannot be written. Renaming is tried: the kernel refuses it for a
// mount point.
func gitShielded(_ context.Context, c spec.Check, e *env) finding {
	if len(c.Mount) == 0 {
		return untold("no shields were given")
	}
	all, err := e.mounts()
	if err != nil {
		return untold("%v", err)
	}
	var complaints, unknown []string
	for _, s := range c.Mount {
		target := path.Clean(s.Target)
		i := len(all) - 1 // of several on each other the last is the one in force
		for i >= 0 && all[i].Target != target {
			i--
		}
		if i < 0 {
			complaints = append(complaints, target+" is not shielded")
			continue
		}
		switch held, err := renamable(e.path(target)); {
		case err == nil:
		case held:
			unknown = append(unknown, fmt.Sprintf("%s: %v", target, err))
		default:
			complaints = append(complaints, fmt.Sprintf("%s: %v", target, err))
		}
		if !s.ReadOnly {
			continue
		}
		if !all[i].Has("ro") {
			complaints = append(complaints, target+" is mounted writable")
		}
		switch err := writable(e.path(target)); {
		case err == nil:
			complaints = append(complaints, target+" can be written")
		case !errors.Is(err, unix.EROFS) && !refused(err):
			unknown = append(unknown, fmt.Sprintf("%s: %v", target, err))
		}
	}
	switch {
	case len(complaints) > 0:
		return failed("%s", list(complaints))
	case len(unknown) > 0:
		return untold("%s", list(unknown))
	}
	return ok()
}

// probeSuffix makes the name that renamable tries.
const probeSuffix = ".corral-probe"

// renamable is nil if the kernel refuses to rename p as it refuses for mount points,
// or anything in a directory that is mounted read-only or that is somebody else's and
// not to be written. One that it renamed is put back. held says that it was not
// renamed, for a reason that proves nothing.
func renamable(p string) (held bool, err error) {
	to := p + probeSuffix
	err = unix.Renameat2(unix.AT_FDCWD, p, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if err == nil {
		return false, errors.Join(errors.New("can be renamed"), unix.Rename(to, p))
	}
	var parent unix.Statfs_t
	var owner unix.Stat_t
	dir := path.Dir(p)
	switch {
	case errors.Is(err, unix.EBUSY):
		return false, nil
	case errors.Is(err, unix.EROFS) && unix.Statfs(dir, &parent) == nil && parent.Flags&unix.ST_RDONLY != 0:
		return false, nil
	case refused(err) && unix.Stat(dir, &owner) == nil && int(owner.Uid) != os.Geteuid() && access(dir, unix.W_OK) != nil:
		return false, nil
	}
	return true, fmt.Errorf("cannot tell whether it can be renamed: %w", err)
}
