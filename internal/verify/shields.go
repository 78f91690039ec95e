package verify

import (
	"context"
	"errors"
	"fmt"
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
		for i >= 0 && all[i].target != target {
			i--
		}
		if i < 0 {
			complaints = append(complaints, target+" is not shielded")
			continue
		}
		if err := renamable(e.path(target)); err != nil {
			complaints = append(complaints, fmt.Sprintf("%s: %v", target, err))
		}
		if !s.ReadOnly {
			continue
		}
		if !all[i].has("ro") {
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

// renamable is nil if the kernel refuses to rename p as it refuses for mount
// points. One that it renamed is put back.
func renamable(p string) error {
	to := p + probeSuffix
	switch err := unix.Renameat2(unix.AT_FDCWD, p, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE); {
	case err == nil:
		return errors.Join(errors.New("can be renamed"), unix.Rename(to, p))
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EROFS), errors.Is(err, unix.EXDEV):
		return nil
	default:
		return fmt.Errorf("cannot tell whether it can be renamed: %w", err)
	}
}
