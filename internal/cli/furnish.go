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
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/profile"
	"github.com/corral-sandbox/corral/internal/state"
)

// mainService is whose state the profile's is.
const mainService = "main"

// wants is what the profile asks for of the person's, with where it leads to
// now: that is what is accepted, and what a start goes by.
type wants struct {
	reads  []policy.Mount // of profile.Mounts; those that are not there have no inode
	copies []string       // of profile.Seed, resolved
}

// look finds out where what the profile asks for leads to. Nothing is opened.
func (p *project) look() error {
	for _, m := range p.profile.Mounts {
		dir, err := policy.Resolve(p.at(m.Path), p.profile.Name, p.env)
		if err != nil {
			return err
		}
		for _, w := range p.writable() {
			if dir.Ino == 0 { // there is none
				break
			}
			meets, err := policy.Meets(dir, w)
			if err != nil {
				return err
			}
			if meets {
				return exit.Invalidf("let it lie elsewhere: the agent must not write what your own "+p.profile.Name+" obeys",
					"profile %s: %s is %s, which meets %s, where the agent may write", p.profile.Name, m.Path, printable.Escape(dir.Path), printable.Escape(w.Path))
			}
		}
		p.wants.reads = append(p.wants.reads, dir)
	}
	for _, s := range p.profile.Seed {
		real := policy.Real(p.at(s))
		for _, w := range p.writable() {
			if real == w.Path || strings.HasPrefix(real, w.Path+"/") {
				return exit.Invalidf("let it lie elsewhere: your own "+p.profile.Name+" goes by it",
					"profile %s: %s is %s, where the agent may write", p.profile.Name, s, printable.Escape(real))
			}
		}
		p.wants.copies = append(p.wants.copies, real)
	}
	return nil
}

// defaults are what the profile adds to the policy, as a person accepts it.
func (p *project) defaults() policy.Defaults {
	d := plan.Defaults(p.profile)
	for i, m := range p.profile.Mounts {
		d.Reads = append(d.Reads, policy.Lent{Path: m.Path, Real: p.wants.reads[i].Path})
	}
	for i, s := range p.profile.Seed {
		d.Copies = append(d.Copies, policy.Lent{Path: s, Real: p.wants.copies[i]})
	}
	return d
}

// furnish brings what the profile asks for of the person's and of corral's own:
// directories of theirs to read, and a state that outlives the run.
func (a *app) furnish(p *project) error {
	var out []plan.Mount
	for i, m := range p.profile.Mounts {
		dir := p.wants.reads[i]
		if dir.Ino == 0 {
			continue // there is none
		}
		if err := a.lend(p, m, dir); err != nil {
			return err
		}
		out = append(out, lent(m, dir))
	}
	kept, err := a.keep(p)
	if err != nil {
		return err
	}
	shades, err := a.shade(p)
	p.host.Furniture = slices.Concat(out, kept, shades)
	return err
}

// furnished is what furnish would bring of what is there already.
func (p *project) furnished() error {
	for i, m := range p.profile.Mounts {
		if dir := p.wants.reads[i]; dir.Ino != 0 {
			p.host.Furniture = append(p.host.Furniture, lent(m, dir))
		}
	}
	dir, err := p.stateDir()
	if err != nil {
		return err
	}
	for _, s := range p.profile.State {
		p.host.Furniture = append(p.host.Furniture, plan.Mount{Path: filepath.Join(dir, relative(s)), Inside: inside(s)})
	}
	shades, err := p.shades()
	for _, s := range plan.Shadows(p.policy) {
		p.host.Furniture = append(p.host.Furniture, plan.Mount{Path: filepath.Join(shades, s.Name), Inside: s.Inside(), ReadOnly: true})
	}
	return err
}

// shadows are those of the profile, as what is kept on this machine.
func (p *project) shadows() []state.Shadow {
	var out []state.Shadow
	for _, s := range plan.Shadows(p.policy) {
		out = append(out, state.Shadow{Name: s.Name, Dir: s.Dir, Content: s.Content})
	}
	return out
}

// shades is where they are.
func (p *project) shades() (string, error) {
	home, err := state.Home()
	if err == nil {
		err = state.Check(home, filepath.Join(p.id(), "shadows"))
	}
	return state.Shades(home, p.id(), p.shadows()), err
}

// shade makes the shadows of the profile, and room for them in the state.
func (a *app) shade(p *project) ([]plan.Mount, error) {
	shadows := plan.Shadows(p.policy)
	if len(shadows) == 0 {
		return nil, nil
	}
	dir, err := p.stateDir()
	if err != nil {
		return nil, err
	}
	for i, s := range shadows {
		kept := filepath.Join(dir, relative(s.State))
		aside, err := state.Shadeable(kept, p.shadows()[i:i+1], p.host.UID, p.host.GID)
		for _, name := range aside {
			fmt.Fprintf(a.err, "corral: warning: in %s the agent left something else than a plain %s, from where it could redirect itself: it is %s now\n", printable.Escape(kept), s.Name, name)
		}
		if err != nil {
			return nil, fmt.Errorf("state of the sandbox: %s: %w", s.Name, err)
		}
	}
	shades, err := p.shades()
	if err != nil {
		return nil, err
	}
	if err := state.Shade(shades, p.shadows()); err != nil {
		return nil, exit.Failedf("remove it while the sandbox is down: it is made anew", "what lies over the sandbox's state: %w", err)
	}
	var out []plan.Mount
	for _, s := range shadows {
		m := plan.Mount{Path: filepath.Join(shades, s.Name), Inside: s.Inside(), ReadOnly: true}
		fi, err := os.Lstat(m.Path)
		if err != nil {
			return nil, err
		}
		m.Dev, m.Ino = inode(fi)
		out = append(out, m)
	}
	return out, nil
}

func lent(m profile.Mount, dir policy.Mount) plan.Mount {
	return plan.Mount{Path: dir.Path, Inside: inside(m.Path), ReadOnly: true, Dev: dir.Dev, Ino: dir.Ino, Submounts: dir.Submounts}
}

// lend makes what the harness needs in a directory of the person's, and warns
// of what the agent will be able to read there.
func (a *app) lend(p *project, m profile.Mount, dir policy.Mount) error {
	for name, content := range m.Ensure {
		made, err := ensure(dir, name, content, p.host.UID, p.host.GID)
		if err != nil {
			return exit.Failedf(fmt.Sprintf("%s needs it, and cannot make it inside", p.profile.Name),
				"%s is missing in %s and cannot be made: %w", name, printable.Escape(dir.Path), err)
		}
		if made {
			fmt.Fprintf(a.err, "corral: made %s, as %s does\n", printable.Escape(filepath.Join(m.Path, name)), p.profile.Name)
		}
	}
	for _, file := range keysIn(dir.Path) {
		fmt.Fprintf(a.err, "corral: warning: %s seems to hold a key, and the agent can read it: better give it by secrets.env_file, and write {env:NAME} there\n", printable.Escape(file))
	}
	return nil
}

// ensure makes a file in a directory that was judged, if there is nothing of
// that name.
func ensure(in policy.Mount, name, content string, uid, gid uint32) (made bool, err error) {
	dir, err := os.OpenRoot(in.Path)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	if fi, err := dir.Stat("."); err != nil {
		return false, err
	} else if dev, ino := inode(fi); dev != in.Dev || ino != in.Ino {
		return false, errors.New("the directory was replaced meanwhile")
	}
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		_, err = os.Stat(filepath.Join(in.Path, name)) // a link that leads nowhere is of no use
		return false, err
	}
	if err != nil {
		return false, err
	}
	_, err = f.WriteString(content)
	if os.Geteuid() == 0 {
		err = errors.Join(err, f.Chown(int(uid), int(gid)))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return false, errors.Join(err, dir.Remove(name))
	}
	return true, nil
}

func inode(fi fs.FileInfo) (dev, ino uint64) {
	st := fi.Sys().(*syscall.Stat_t)
	return st.Dev, st.Ino
}

func (p *project) stateDir() (string, error) {
	home, err := state.Home()
	if err == nil {
		err = state.Check(home, filepath.Join(p.id(), "state"))
	}
	return state.Dir(home, p.id(), mainService), err
}

// keep is the state of the sandbox. A new one begins with what the profile
// copies of the person's.
func (a *app) keep(p *project) ([]plan.Mount, error) {
	if len(p.profile.State) == 0 {
		return nil, nil
	}
	dir, err := p.stateDir()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, s := range p.profile.State {
		dirs = append(dirs, relative(s))
	}
	files := map[string][]byte{}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		if files, err = p.seeds(); err != nil {
			return nil, err
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
		fi, err := os.Lstat(path)
		if err != nil {
			return nil, err
		}
		m := plan.Mount{Path: path, Inside: inside(s)}
		m.Dev, m.Ino = inode(fi)
		out = append(out, m)
	}
	return out, nil
}

// maxSeed bounds a file that is copied: keys are short.
const maxSeed = 1 << 20

// seeds are the files that a new state begins with, as far as they are there,
// by their names from it.
func (p *project) seeds() (map[string][]byte, error) {
	files := map[string][]byte{}
	for i, s := range p.profile.Seed {
		b, err := host.ReadResolved(p.wants.copies[i], p.host.UID, maxSeed)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, exit.Failedf("correct it, or move it away", "%s cannot be copied into the sandbox's state: %w", s, err)
		}
		files[relative(s)] = b
	}
	return files, nil
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
// key. It is a warning, not a wall: what cannot be read is passed over.
func keysIn(dir string) []string {
	var out []string
	seen := 0
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if seen++; seen > mostScanned {
			return fs.SkipAll
		}
		if d.IsDir() {
			if name := d.Name(); path != dir && (name == "node_modules" || name == ".git" || filepath.Dir(path) != dir) {
				return fs.SkipDir
			}
			return nil
		}
		if b := scanned(path); keyForms.Match(bytes.ToValidUTF8(b, nil)) {
			out = append(out, path)
		}
		return nil
	})
	return out
}

// scanned is the beginning of a regular file; nothing of anything else.
func scanned(path string) []byte {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil
	}
	b, _ := io.ReadAll(io.LimitReader(f, maxScanned))
	return b
}
