package policy

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/spelling"
)

// Find is the real path of the policy that governs dir: the corral.yaml in it
// or in the nearest directory above. It looks no higher than home and does
// not leave dir's file system. That the file is fit to be read is for Load to
// say.
func Find(dir string, homes ...string) (string, error) {
	dir, err := realPath(dir)
	if err != nil {
		return "", err
	}
	start := dir
	top, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	isHome := func(fi fs.FileInfo) bool {
		return slices.ContainsFunc(homes, func(home string) bool {
			h, err := os.Stat(home)
			return err == nil && os.SameFile(fi, h) // one that is not there is not met on the way
		})
	}
	for at := top; ; {
		file := filepath.Join(dir, FileName)
		if _, err := os.Lstat(file); err == nil {
			return file, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		above, err := os.Stat(filepath.Dir(dir))
		if err != nil {
			return "", err
		}
		if dir == "/" || isHome(at) || device(above) != device(top) {
			hint := "write one with corral init --profile shell, or name one elsewhere with --policy FILE"
			if other := filepath.Join(start, "corral.yml"); exists(other) {
				hint = fmt.Sprintf("it is named %s: rename %s", FileName, other)
			}
			return "", exit.Invalidf(hint,
				"there is no %s in %s or above it, up to %s", FileName, start, dir)
		}
		dir, at = filepath.Dir(dir), above
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func realPath(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

func stat(fi fs.FileInfo) *syscall.Stat_t { return fi.Sys().(*syscall.Stat_t) }

func device(fi fs.FileInfo) uint64 { return stat(fi).Dev }

// Load reads the policy at path once, decodes it, and guards its project
// directory and mounts. Every mistake of the person is in one diag.List.
func Load(path string, env Env) (*Policy, error) {
	for _, dir := range slices.Concat(env.Own, env.homes()) {
		if !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("%q is not the absolute path of a directory to guard", dir)
		}
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	shown := shorten(abs)
	src, self, err := read(abs, env)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, exit.Invalidf("--policy names the file; corral init writes one", "there is no policy file %s", shown)
	}
	if err != nil {
		return nil, diag.List{{Pos: diag.Pos{File: shown}, Kind: kind, Message: plainly(err), Hint: hintOf(err)}}
	}

	d := newDecoder(shown, src)
	p := d.policy(src)
	p.File, p.Dir, p.Self = self.Path, filepath.Dir(self.Path), self
	if env.Project != "" {
		if p.Dir, err = realPath(env.Project); err != nil {
			return nil, fmt.Errorf("project directory: %w", err)
		}
	}
	if p.Name == "" {
		p.Name = validName(filepath.Base(p.Dir))
	}
	if p.Profile != "" && profileName.MatchString(p.Profile) && !slices.Contains(env.Profiles, p.Profile) {
		hint := "there is " + strings.Join(env.Profiles, ", ")
		if s := spelling.Nearest(p.Profile, env.Profiles); s != "" {
			hint = fmt.Sprintf("did you mean %q?", s)
		}
		d.errorf(d.profileNode, hint, "there is no profile %q", p.Profile)
	}
	d.together(p)
	if err := d.guard(p, env); err != nil {
		return nil, err
	}
	if err := d.errs.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

// homes are all directories that are or may be the user's home.
func (e Env) homes() []string { return append([]string{e.Home}, e.Homes...) }

// shorten is path relative to the working directory if it lies below it.
func shorten(path string) string {
	if wd, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(wd, path); err == nil && filepath.IsLocal(rel) && rel != "." {
			return rel
		}
	}
	return path
}

// plainly is err without the path that the place already shows.
func plainly(err error) string {
	var pe *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such file"
	case errors.As(err, &pe):
		return pe.Err.Error()
	}
	return strings.TrimPrefix(err.Error(), "EvalSymlinks: ")
}

func hintOf(err error) string {
	if e, ok := errors.AsType[*exit.Error](err); ok {
		return e.Hint
	}
	return ""
}

// read returns the bytes of a policy and its real path, if nobody but the user
// can have written it: a regular file of theirs in a directory of theirs,
// neither writable by others. Under root, root's own count as well.
func read(path string, env Env) (src []byte, self Mount, err error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return nil, Mount{}, err
	}
	in, err := os.Open(dir)
	if err != nil {
		return nil, Mount{}, err
	}
	defer in.Close()
	dirInfo, err := in.Stat()
	if err != nil {
		return nil, Mount{}, err
	}
	file := filepath.Join(dir, filepath.Base(path))
	// No FIFO is waited for, no link followed, and what is judged is what is read.
	fd, err := unix.Openat(int(in.Fd()), filepath.Base(path), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if fi, e := os.Lstat(file); e == nil && !fi.Mode().IsRegular() {
			return nil, Mount{}, fmt.Errorf("%s, not a regular file", describeMode(fi.Mode()))
		}
		return nil, Mount{}, err
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, Mount{}, err
	}

	owners, err := env.owners(dir)
	if err != nil {
		return nil, Mount{}, err
	}
	if !fi.Mode().IsRegular() {
		return nil, Mount{}, fmt.Errorf("%s, not a regular file", describeMode(fi.Mode()))
	}
	if err := trusted(file, "a policy is the user's own: read it, then copy it", stat(fi), stat(dirInfo), owners); err != nil {
		return nil, Mount{}, err
	}
	if n := stat(fi).Nlink; n > 1 {
		return nil, Mount{}, exit.Invalidf("remove the others", "the file has %d names (hard links): an agent could write it by another one", n)
	}
	// One byte more than is accepted, so that too much is seen as such.
	src, err = io.ReadAll(io.LimitReader(f, maxBytes+1))
	return src, Mount{Path: file, Given: path, ReadOnly: true, Dev: stat(fi).Dev, Ino: stat(fi).Ino}, err
}

// owners are who may have written what corral reads, the user first. Under root,
// root's own count as well, and if the user is root, those of whom the project
// directory is.
func (e Env) owners(dir string) ([]uint32, error) {
	owners := []uint32{uint32(e.UID)}
	if os.Geteuid() == 0 {
		owners = append(owners, 0)
	}
	if e.UID == 0 {
		project, err := os.Stat(cmp.Or(e.Project, dir))
		if err != nil {
			return nil, err
		}
		owners = append(owners, stat(project).Uid)
	}
	return owners, nil
}

// trusted says why somebody else than the owners, the first of whom is the
// user, may have written the file or put it into its directory; foreign is what
// to do about a file of somebody else's.
func trusted(path, foreign string, file, dir *syscall.Stat_t, owners []uint32) error {
	in := filepath.Dir(path)
	switch {
	case !slices.Contains(owners, file.Uid):
		return exit.Invalidf(foreign, "the file belongs to uid %d, not to uid %d", file.Uid, owners[0])
	case writable(file):
		return exit.Invalidf(fmt.Sprintf("chmod go-w %q", path), "the file is writable by others (mode %04o)", file.Mode&0o777)
	case dir.Uid != 0 && !slices.Contains(owners, dir.Uid):
		return exit.Invalidf(foreign, "its directory %s belongs to uid %d, not to uid %d", in, dir.Uid, owners[0])
	case writable(dir):
		return exit.Invalidf(fmt.Sprintf("chmod go-w %q", in), "its directory %s is writable by others (mode %04o)", in, dir.Mode&0o777)
	}
	return nil
}

// writable reports whether somebody else than the owner can write. A group of
// the owner's own number is theirs alone, as distributions make them.
func writable(st *syscall.Stat_t) bool {
	return st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && st.Gid != st.Uid
}

func describeMode(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "a special file"
}
