package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

func (d *decoder) envFile(n *yaml.Node, path string) EnvFile {
	s, ok := d.path(n, path)
	if !ok {
		return EnvFile{}
	}
	return EnvFile{Path: s, Given: s, Pos: d.pos(n)}
}

// secrets resolves the env file of p and refuses one that somebody else can
// have written or that the sandbox would get to see. It opens nothing. The error
// is not the person's.
func (d *decoder) secrets(p *Policy, ps *places, ws walls, env Env) error {
	const key = "secrets.env_file"
	f := &p.EnvFile
	refuse := func(hint, format string, args ...any) {
		d.report(f.Pos, hint, key+": "+fmt.Sprintf(format, args...))
	}
	written := expand(f.Given, env.Home)
	clean, at := filepath.Clean(written), ps.written(written)
	switch {
	case errors.Is(at.err, fs.ErrNotExist):
		refuse(makeFirst, "%s does not exist", clean)
		return nil
	case at.err != nil:
		refuse("", "%s: %s", clean, plainly(at.err))
		return nil
	case !at.info.Mode().IsRegular():
		refuse("name a regular file of lines like KEY=value", "%s is %s", clean, describeMode(at.info.Mode()))
		return nil
	}
	f.Path = at.real

	owners, err := env.owners(p.Dir)
	if err != nil {
		return err
	}
	file, dir := stat(at.info), stat(ps.at(filepath.Dir(at.real)).info)
	if err := trusted(at.real, "secrets are the user's own: chown it, or copy it", file, dir, owners); err != nil {
		refuse(hintOf(err), "%s: %v", clean, err)
	}
	if file.Nlink > 1 { // the other name may be in a mount
		refuse("copy it, and name the copy", "%s has %d names (hard links), one of which a sandbox may see", clean, file.Nlink)
	}

	way := append(ps.aliases(at.real), trail(written)...)
	if ours, _ := ws.only(func(w wall) bool { return w.reason == ownState || w.reason == ownOther }).
		verdict(site{spellings: way, self: at.self, chain: at.chain()}); ours != "" {
		refuse("keep it elsewhere", "%s: %s", clean, ours)
	}
	if seen := p.shows(way, ps); seen != "" {
		refuse(fmt.Sprintf("keep it outside, like ~/.config/corral/%s.env", p.Name), "%s %s", clean, seen)
	}
	return nil
}

// shows says how a sandbox would get to see one of these paths, which lead to a
// file; it is empty if it would not.
func (p *Policy) shows(way []string, ps *places) string {
	on := map[id]bool{} // what the names on the way are in, and the file itself
	for _, step := range way {
		for _, s := range []string{step, filepath.Dir(step)} { // of a link, its target and its own place
			for _, c := range ps.at(s).chain() {
				on[c] = true
			}
		}
	}
	visible := func(m Mount) bool {
		return m.Path != "" && (on[id{m.Dev, m.Ino}] ||
			slices.ContainsFunc(way, func(step string) bool { return within(m.Path, step) }) ||
			slices.ContainsFunc(m.Submounts, func(point string) bool {
				at := ps.at(point)
				return at.err == nil && on[at.self]
			}))
	}
	switch {
	case on[id{p.Self.Dev, p.Self.Ino}]:
		return "is the policy itself, which a sandbox sees"
	case visible(p.Project):
		return "lies in the project directory, which is mounted by itself in run mode"
	}
	for _, m := range p.Mounts {
		if visible(m) {
			return fmt.Sprintf("lies in %s, mounted at %s", m.Given, m.Pos)
		}
	}
	return ""
}

// maxLinks is how many symlinks Linux follows in one path.
const maxLinks = 40

// trail is the way that an absolute path leads to an existing file: each
// symlink met, at its real place, and last the file's own real path. Who can
// replace one of the links decides which file is meant.
func trail(path string) (way []string) {
	at, rest := "/", strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		step := filepath.Join(at, name)
		target, err := os.Readlink(step)
		if err != nil || links == maxLinks { // no link, as like as not
			at = step
			continue
		}
		links++
		way = append(way, step)
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return append(way, at)
}
