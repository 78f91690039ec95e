package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/profile"
	"github.com/corral-sandbox/corral/internal/state"
)

// mainService is whose state the profile's is.
const mainService = "main"

// furnish brings what the profile asks for of the person's and of corral's own:
// directories of theirs to read, and a state that outlives the run. It warns
// of keys among what can be read if warn says so.
func (a *app) furnish(p *project, warn bool) error {
	var reads, kept []plan.Mount
	for _, m := range p.profile.Mounts {
		bound, err := a.lend(p, m, warn)
		if err != nil {
			return err
		}
		if bound.Path != "" {
			reads = append(reads, bound)
		}
	}
	if len(p.profile.State) > 0 {
		var err error
		if kept, err = a.keep(p); err != nil {
			return err
		}
	}
	p.host.Furniture = slices.Concat(reads, kept)
	return nil
}

// lend is a directory of the person's that the agent reads.
func (a *app) lend(p *project, m profile.Mount, warn bool) (plan.Mount, error) {
	dir, err := policy.Resolve(p.at(m.Path), p.profile.Name, p.env)
	if err != nil || dir.Path == "" {
		return plan.Mount{}, err
	}
	for name, content := range m.Ensure {
		made, err := ensure(filepath.Join(dir.Path, name), content, p.host.UID, p.host.GID)
		if err != nil {
			return plan.Mount{}, exit.Failedf(fmt.Sprintf("%s needs it, and cannot make it inside", p.profile.Name), "%s is missing in %s and cannot be made: %w", name, dir.Path, err)
		}
		if made {
			fmt.Fprintf(a.err, "corral: made %s, as %s does\n", printable.Escape(filepath.Join(m.Path, name)), p.profile.Name)
		}
	}
	var found []string
	if warn {
		found = keysIn(dir.Path)
	}
	for _, file := range found {
		fmt.Fprintf(a.err, "corral: warning: %s seems to hold a key, and the agent can read it: better give it by secrets.env_file, and write {env:NAME} there\n", printable.Escape(file))
	}
	return plan.Mount{Path: dir.Path, Inside: inside(m.Path), ReadOnly: true, Dev: dir.Dev, Ino: dir.Ino, Submounts: dir.Submounts}, nil
}

// ensure makes a file of the person's if there is nothing of that name.
func ensure(path, content string, uid, gid uint32) (made bool, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, err = f.WriteString(content)
	if os.Geteuid() == 0 {
		err = errors.Join(err, f.Chown(int(uid), int(gid)))
	}
	return true, errors.Join(err, f.Close())
}

// keep is the state of the sandbox. A new one begins with what the profile
// copies of the person's.
func (a *app) keep(p *project) ([]plan.Mount, error) {
	home, err := state.Home()
	if err != nil {
		return nil, err
	}
	dir := state.Dir(home, p.id(), mainService)
	var dirs []string
	for _, s := range p.profile.State {
		dirs = append(dirs, relative(s))
	}
	files := map[string][]byte{}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		for _, s := range p.profile.Seed {
			b, err := seed(p.at(s), p.host.UID)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, exit.Failedf("correct it, or move it away", "%s cannot be copied into the sandbox's state: %w", s, err)
			}
			files[relative(s)] = b
		}
	}
	fresh, err := state.Furnish(dir, dirs, files, p.host.UID, p.host.GID)
	if err != nil {
		return nil, fmt.Errorf("state of the sandbox: %w", err)
	}
	for _, s := range p.profile.Seed {
		if _, copied := files[relative(s)]; copied && fresh {
			fmt.Fprintf(a.err, "corral: copied %s into the sandbox's own state, this once: the agent can read it\n", s)
		}
	}
	var out []plan.Mount
	for i, s := range p.profile.State {
		path := filepath.Join(dir, dirs[i])
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return nil, &fs.PathError{Op: "lstat", Path: path, Err: err}
		}
		out = append(out, plan.Mount{Path: path, Inside: inside(s), Dev: st.Dev, Ino: st.Ino})
	}
	return out, nil
}

// maxSeed bounds a file that is copied: keys are short.
const maxSeed = 1 << 20

// seed reads a file of the person's own that nobody else can write.
func seed(path string, uid uint32) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, errors.New("it is no regular file")
	case st.Uid != uid && st.Uid != 0:
		return nil, fmt.Errorf("it belongs to user %d", st.Uid)
	case st.Size > maxSeed:
		return nil, fmt.Errorf("it has more than %d bytes", maxSeed)
	}
	return io.ReadAll(io.LimitReader(f, maxSeed))
}

// at is a path of the person's home, as ~/…, on this machine; the directories
// that XDG names may be elsewhere.
func (p *project) at(path string) string {
	for prefix, dir := range map[string]string{"~/.config/": p.env.ConfigHome, "~/.local/share/": p.env.DataHome} {
		if rest, ok := strings.CutPrefix(path, prefix); ok && filepath.IsAbs(dir) {
			return filepath.Join(dir, rest)
		}
	}
	return filepath.Join(p.env.Home, relative(path))
}

// inside is a path of a home, as ~/…, in the agent's.
func inside(path string) string { return filepath.Join(plan.Home, relative(path)) }

func relative(path string) string { return strings.TrimPrefix(path, "~/") }

// keyForms are what a key in a configuration looks like. References to the
// environment or to a file are none.
var keyForms = regexp.MustCompile(`(?i)"[a-z_-]*(api_?key|token|secret|password)"\s*:\s*"[^"{}\s]{8,}"|\bsk-[A-Za-z0-9_-]{16,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bBearer [A-Za-z0-9._~+/-]{16,}`)

const (
	// What a search for keys looks at: configurations are few and short.
	mostScanned = 200
	maxScanned  = 1 << 20
)

// keysIn are the files right in a directory, and one below, that seem to hold a
// key.
func keysIn(dir string) []string {
	var out []string
	seen := 0
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // it is a warning, not a wall
		}
		if d.IsDir() {
			if name := d.Name(); path != dir && (name == "node_modules" || name == ".git" || filepath.Dir(path) != dir) {
				return fs.SkipDir
			}
			return nil
		}
		if seen++; seen > mostScanned {
			return fs.SkipAll
		}
		if fi, err := d.Info(); err != nil || !fi.Mode().IsRegular() || fi.Size() > maxScanned {
			return nil
		}
		if b, err := os.ReadFile(path); err == nil && keyForms.Match(bytes.ToValidUTF8(b, nil)) {
			out = append(out, path)
		}
		return nil
	})
	return out
}
