package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/corral-sandbox/corral/internal/diag"
)

// reach is how far around its path a row of the table forbids a mount.
type reach int

const (
	whole  reach = iota + 1 // the path and what holds it; below it is free
	around                  // the path, what holds it and what it holds
)

// What even a file that no sandbox gets to see may not lie in: corral makes and
// removes what is there.
const (
	ownState = "corral's own state and build directories"
	ownOther = "a directory of corral's own"
)

// guards is what no sandbox gets to see or to cover. A path that starts with ~
// is meant for the user's home and for root's, one below ~/.config or
// ~/.local/share also for the XDG directories in force. The first row that
// meets a mount names the reason.
var guards = []struct {
	path   string
	reach  reach
	reason string
}{
	{"/", whole, "the whole file system"},
	{"~", whole, "your home directory"},
	{"/root", whole, "root's home directory"},

	{"~/.config/corral", around, "corral's own settings"},
	{"~/.local/share/corral", around, ownState},

	// The same paths inside: what is mounted there would cover corral's own.
	{"/etc/corral", around, "the place of corral's own files in a sandbox"},
	{"/opt/corral", around, "the place of corral's own programs in a sandbox"},
	{"/usr/local/bin/corral-verify", around, "the place of corral's own program in a sandbox"},
	{"/etc/hosts", around, "a file that corral writes in a sandbox"},
	{"/etc/hostname", around, "a file that corral writes in a sandbox"},
	{"/etc/resolv.conf", around, "a file that corral writes in a sandbox"},
	{"/home/agent", whole, "the place of the agent's home in a sandbox"},
	{"/tmp", whole, "the place of a sandbox's own temporary files"},
	{"/proc", around, "the kernel's processes and settings"},

	{"/etc", around, "the system's configuration"},
	{"/usr", around, "the system's programs"},
	{"/bin", around, "the system's programs"},
	{"/sbin", around, "the system's programs"},
	{"/lib", around, "the system's libraries"},
	{"/lib32", around, "the system's libraries"},
	{"/lib64", around, "the system's libraries"},
	{"/libx32", around, "the system's libraries"},
	{"/boot", around, "the system's kernel and boot loader"},
	{"/dev", around, "the machine's devices"},
	{"/sys", around, "the kernel's view of the machine"},
	{"/run", around, "sockets of the system's services, the engine's among them"},
	{"/var/run", around, "sockets of the system's services, the engine's among them"},
	{"/var/lib/docker", around, "the engine's own data"},
	{"/var/lib/containerd", around, "the engine's own data"},
	{"~/.local/share/docker", around, "the engine's own data"},
	{"/var/spool/cron", around, "what the host runs by the clock"},

	{"~/.ssh", around, "SSH keys"},
	{"~/.gnupg", around, "GnuPG keys"},
	{"~/.pki", around, "certificates and their keys"},
	{"~/.putty", around, "SSH keys"},
	{"~/.step", around, "certificates and their keys"},
	{"~/.config/age", around, "age keys"},
	{"~/.config/sops", around, "age keys"},
	{"~/.password-store", around, "passwords"},
	{"~/.config/op", around, "1Password's sessions"},
	{"~/.config/1Password", around, "1Password's vaults"},
	{"~/.config/Bitwarden", around, "Bitwarden's vault"},
	{"~/.config/Bitwarden CLI", around, "Bitwarden's vault"},
	{"~/.config/keepassxc", around, "KeePassXC's settings"},
	{"~/.local/share/keyrings", around, "the desktop's keyring"},
	{"~/.local/share/kwalletd", around, "the desktop's keyring"},
	{"~/.gnome2/keyrings", around, "the desktop's keyring"},
	{"~/.Xauthority", around, "the key of your display"},
	{"~/.ICEauthority", around, "the key of your session"},

	{"~/.aws", around, "AWS credentials"},
	{"~/.azure", around, "Azure credentials"},
	{"~/.config/gcloud", around, "Google Cloud credentials"},
	{"~/.boto", around, "Google Cloud credentials"},
	{"~/.oci", around, "Oracle Cloud credentials"},
	{"~/.config/doctl", around, "DigitalOcean credentials"},
	{"~/.config/hcloud", around, "Hetzner Cloud credentials"},
	{"~/.config/scw", around, "Scaleway credentials"},
	{"~/.fly", around, "Fly.io credentials"},
	{"~/.config/netlify", around, "Netlify credentials"},
	{"~/.local/share/com.vercel.cli", around, "Vercel credentials"},
	{"~/.config/.wrangler", around, "Cloudflare credentials"},
	{"~/.config/stripe", around, "Stripe credentials"},
	{"~/.databrickscfg", around, "Databricks credentials"},
	{"~/.snowflake", around, "Snowflake credentials"},
	{"~/.kaggle", around, "Kaggle credentials"},
	{"~/.s3cfg", around, "S3 credentials"},
	{"~/.config/rclone", around, "cloud storage credentials"},
	{"~/.kube", around, "cluster credentials"},
	{"~/.talos", around, "cluster credentials"},
	{"~/.docker", around, "registry credentials"},
	{"~/.config/containers", around, "registry credentials"},
	{"~/.config/helm", around, "registry credentials"},
	{"~/.terraform.d", around, "Terraform credentials"},
	{"~/.terraformrc", around, "Terraform credentials"},
	{"~/.pulumi", around, "Pulumi credentials"},
	{"~/.vault-token", around, "a Vault token"},

	{"~/.netrc", around, "passwords of servers"},
	{"~/.authinfo", around, "passwords of servers"},
	{"~/.authinfo.gpg", around, "passwords of servers"},
	{"~/.smbcredentials", around, "passwords of servers"},
	{"~/.pgpass", around, "database passwords"},
	{"~/.my.cnf", around, "database passwords"},
	{"~/.mylogin.cnf", around, "database passwords"},
	{"~/.subversion", around, "Subversion's passwords"},
	{"~/.git-credentials", around, "git's passwords"},
	{"~/.config/git/credentials", around, "git's passwords"},
	{"~/.config/gh", around, "GitHub credentials"},
	{"~/.config/hub", around, "GitHub credentials"},
	{"~/.config/github-copilot", around, "GitHub credentials"},
	{"~/.config/glab-cli", around, "GitLab credentials"},
	{"~/.npmrc", around, "a package registry's token"},
	{"~/.yarnrc.yml", around, "a package registry's token"},
	{"~/.pypirc", around, "a package registry's token"},
	{"~/.config/pip", around, "a package registry's password"},
	{"~/.cargo/credentials", around, "a package registry's token"},
	{"~/.cargo/credentials.toml", around, "a package registry's token"},
	{"~/.gem/credentials", around, "a package registry's token"},
	{"~/.m2/settings.xml", around, "a package registry's password"},
	{"~/.gradle/gradle.properties", around, "a package registry's password"},
	{"~/.composer/auth.json", around, "a package registry's token"},
	{"~/.cache/huggingface/token", around, "a Hugging Face token"},

	{"~/.claude", around, "Claude Code's credentials and history"},
	{"~/.claude.json", around, "Claude Code's credentials and history"},
	{"~/.local/share/opencode", around, "OpenCode's credentials and history"},
	{"~/.codex", around, "Codex's credentials and history"},
	{"~/.gemini", around, "Gemini's credentials and history"},
	{"~/.hermes", around, "Hermes' credentials and memory"},
	{"~/.config/goose", around, "Goose's credentials"},
	{"~/.config/Code", around, "the editor's credentials"},
	{"~/.config/Cursor", around, "the editor's credentials"},

	{"~/.mozilla", around, "browser profiles"},
	{"~/.config/google-chrome", around, "browser profiles"},
	{"~/.config/chromium", around, "browser profiles"},
	{"~/.config/BraveSoftware", around, "browser profiles"},
	{"~/.config/microsoft-edge", around, "browser profiles"},
	{"~/.config/vivaldi", around, "browser profiles"},
	{"~/.config/opera", around, "browser profiles"},
	{"~/.librewolf", around, "browser profiles"},
	{"~/.var/app", around, "data of Flatpak programs, browsers among them"},
	{"~/snap", around, "data of Snap programs, browsers among them"},
	{"~/.thunderbird", around, "mail and its passwords"},
	{"~/.local/share/evolution", around, "mail"},
	{"~/.config/evolution", around, "mail accounts"},
	{"~/.msmtprc", around, "mail passwords"},
	{"~/.mbsyncrc", around, "mail passwords"},
	{"~/.fetchmailrc", around, "mail passwords"},
	{"~/.config/Signal", around, "private messages"},
	{"~/.config/Slack", around, "private messages"},
	{"~/.config/discord", around, "private messages"},
	{"~/.local/share/TelegramDesktop", around, "private messages"},
	{"~/.bitcoin", around, "a wallet"},
	{"~/.ethereum", around, "a wallet"},
	{"~/.electrum", around, "a wallet"},
	{"~/.vnc", around, "remote desktop passwords"},
	{"~/.local/share/remmina", around, "remote desktop passwords"},

	{"~/.bash_history", around, "shell history"},
	{"~/.zsh_history", around, "shell history"},
	{"~/.zhistory", around, "shell history"},
	{"~/.histfile", around, "shell history"},
	{"~/.zsh_sessions", around, "shell history"},
	{"~/.local/share/fish", around, "shell history"},
	{"~/.python_history", around, "history of an interpreter"},
	{"~/.node_repl_history", around, "history of an interpreter"},
	{"~/.psql_history", around, "history of a database client"},
	{"~/.mysql_history", around, "history of a database client"},
	{"~/.sqlite_history", around, "history of a database client"},
	{"~/.rediscli_history", around, "history of a database client"},
	{"~/.lesshst", around, "history of a pager"},
}

// guard resolves the mounts of p and refuses those that no policy can ask for,
// the project directory in run mode among them. The error is not the
// person's.
func (d *decoder) guard(p *Policy, env Env) error {
	table, err := mountTableOf()
	if err != nil {
		return err
	}
	ps := newPlaces(table)
	ws := ps.walls(env)

	fi, err := os.Lstat(p.Dir)
	if err != nil {
		return fmt.Errorf("project directory: %w", err)
	}
	here := diag.Pos{File: d.file}
	project := Mount{Path: p.Dir, Given: p.Dir, Pos: here, Dev: idOf(fi).dev, Ino: idOf(fi).ino}
	judged := ws
	if p.Mode == Daemon { // it is not mounted: only how wide it is matters
		judged = ws.only(func(w wall) bool { return w.reach == whole })
	}
	const elsewhere = "put the policy into the directory of one project"
	spellings := append([]string{p.Dir}, ps.aliases(p.Dir)...)
	switch reason, exact := judged.verdict(site{spellings: spellings, self: idOf(fi), chain: ps.at(p.Dir).chain()}); {
	case !fi.IsDir():
		d.report(here, "", fmt.Sprintf("the project directory %s is %s", p.Dir, describeMode(fi.Mode())))
	case exact:
		d.report(here, elsewhere, fmt.Sprintf("the project directory is %s (%s)", reason, p.Dir))
	case reason != "":
		d.report(here, elsewhere, fmt.Sprintf("the project directory is %s: %s", p.Dir, reason))
	case p.Mode == Run:
		project.Submounts = d.submounts(ws, ps, p.Dir, p.Dir, here)
	}
	if p.Mode == Run {
		p.Project = project
	}

	for i := range p.Mounts {
		d.source(&p.Mounts[i], d.mountKeys[i], ps, ws, env.Home)
	}
	d.overlaps(p, project, ps)
	if p.EnvFile != (EnvFile{}) {
		return d.secrets(p, ps, ws, env)
	}
	return nil
}

// source resolves one mount and judges it. A refused mount is left without a
// path.
func (d *decoder) source(m *Mount, key string, ps *places, ws walls, home string) {
	refuse := func(hint, format string, args ...any) {
		m.Path = ""
		d.report(m.Pos, hint, fmt.Sprintf(format, args...))
	}
	written := expand(m.Given, home)
	clean, at := filepath.Clean(written), ps.written(written)
	real, err := at.real, at.err
	s := site{spellings: []string{clean, real}}
	if err == nil {
		s.self, s.chain = at.self, at.chain()
		s.spellings = append(s.spellings, ps.aliases(real)...)
	}

	via := clean
	if err == nil && real != clean {
		via = "via symlink " + m.Given
	}
	reason, exact := ws.verdict(s)
	switch {
	case exact:
		refuse("", "refusing to mount %s (%s)", reason, via)
	case reason != "" && via != clean:
		refuse("", "refusing to mount %s (%s): %s", real, via, reason)
	case reason != "":
		refuse("", "refusing to mount %s: %s", clean, reason)
	case errors.Is(err, fs.ErrNotExist):
		refuse(makeFirst, "%s: %s does not exist", key, clean)
	case err != nil:
		refuse("", "%s: %s: %s", key, clean, plainly(err))
	case !at.info.IsDir() && !at.info.Mode().IsRegular():
		refuse("mount a directory or a regular file", "%s: %s is %s", key, clean, describeMode(at.info.Mode()))
	case at.info.Mode().IsRegular() && stat(at.info).Nlink > 1: // another may be in a guarded place
		refuse("copy it, and mount the copy; or mount its directory", "%s: %s has %d names (hard links), and not all of them can be judged", key, clean, stat(at.info).Nlink)
	default:
		m.Path, m.Dev, m.Ino = real, s.self.dev, s.self.ino
		m.Submounts = d.submounts(ws, ps, real, m.Given, m.Pos)
	}
}

const makeFirst = "corral creates nothing on the host: make it first, or correct the path"

// Resolve judges what a profile asks for of the person's, an absolute path, as
// if the policy listed it read-only. If nothing is there the mount has no inode,
// and the path that it would have.
func Resolve(path, profile string, env Env) (Mount, error) {
	table, err := mountTableOf()
	if err != nil {
		return Mount{}, err
	}
	from := diag.Pos{File: "profile " + profile}
	m := Mount{Given: path, ReadOnly: true, Pos: from}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		m.Path = Real(path)
		return m, nil
	}
	d, ps := newDecoder(from.File, nil), newPlaces(table)
	d.source(&m, "mounts", ps, ps.walls(env), env.Home)
	return m, d.errs.Err()
}

// Meets reports whether one of two mounts is, holds or lies in the other,
// whatever paths and binds lead to them. What cannot be found is an error.
func Meets(a, b Mount) (bool, error) {
	table, err := mountTableOf()
	if err != nil {
		return false, err
	}
	ps := newPlaces(table)
	in := func(inner, outer Mount) (bool, error) {
		for _, path := range append([]string{inner.Path}, inner.Submounts...) {
			chain := ps.at(path).chain()
			if path == inner.Path && !slices.Contains(chain, id{inner.Dev, inner.Ino}) {
				return false, fmt.Errorf("%s cannot be found any more", path)
			}
			for _, other := range ps.aliases(path) {
				chain = append(chain, ps.at(other).chain()...)
			}
			if slices.Contains(chain, id{outer.Dev, outer.Ino}) {
				return true, nil
			}
		}
		return false, nil
	}
	within, err := in(a, b)
	if within || err != nil {
		return within, err
	}
	return in(b, a)
}

// Links are the places of all symbolic links by which an absolute path leads to
// where it does: who can write there decides where that is.
func Links(path string) []string {
	const most = 40 // as many as the kernel follows
	var out []string
	parts := func(p string) []string { return strings.FieldsFunc(p, func(r rune) bool { return r == '/' }) }
	done, rest := "/", parts(path)
	for len(rest) > 0 && len(out) < most {
		at := filepath.Join(done, rest[0])
		rest = rest[1:]
		target, err := os.Readlink(at)
		if err != nil {
			done = at
			continue
		}
		out = append(out, at)
		if filepath.IsAbs(target) {
			done = "/"
		}
		rest = append(parts(target), rest...)
	}
	return out
}

// Real is an absolute path with its symbolic links resolved, as far as it
// exists.
func Real(path string) string { return newPlaces(mountTable{}).at(filepath.Clean(path)).real }

// expand writes out the home that a path starts with.
func expand(path, home string) string {
	if rest, ok := strings.CutPrefix(path, "~"); ok {
		return home + rest
	}
	return path
}

// submounts are the mount points below path, each judged, since it comes along.
func (d *decoder) submounts(ws walls, ps *places, path, given string, at diag.Pos) []string {
	points := ps.table.below(path)
	for _, point := range points {
		fi, err := os.Lstat(point)
		if err != nil {
			d.report(at, "", fmt.Sprintf("refusing to mount %s: %s is mounted in it and cannot be examined: %s", given, point, plainly(err)))
			continue
		}
		// Only what it is counts here: where it lies was judged with path.
		if reason, _ := ws.verdict(site{self: idOf(fi), chain: []id{idOf(fi)}}); reason != "" {
			d.report(at, "", fmt.Sprintf("refusing to mount %s: %s is mounted in it: %s", given, point, reason))
		}
	}
	return points
}

// overlaps refuses a mount that is, holds or lies in another, or the project
// directory where that is a mount by itself. Of two, the later in the policy
// is named, with the first that it meets.
func (d *decoder) overlaps(p *Policy, project Mount, ps *places) {
	// Of the mounts so far, the first that has a path or an identity, and the
	// first that has a path in it.
	at, of, in := map[string]int{}, map[id]int{}, map[string]int{}
	for i, m := range p.Mounts {
		if m.Path == "" {
			continue
		}
		spellings := append([]string{m.Path}, ps.aliases(m.Path)...)
		if p.Mode == Run {
			switch {
			case same(m, project):
				d.report(m.Pos, "remove it", "the project directory is mounted by itself in run mode, read and write")
			case slices.ContainsFunc(spellings, func(s string) bool { return within(project.Path, s) }):
				d.report(m.Pos, "", fmt.Sprintf("%s lies in the project directory, which is mounted by itself in run mode", m.Given))
			case slices.ContainsFunc(spellings, func(s string) bool { return within(s, project.Path) }):
				d.report(m.Pos, "", fmt.Sprintf("%s holds the project directory, which is mounted by itself in run mode", m.Given))
			}
		}
		self := id{m.Dev, m.Ino}
		hit, relation := i, ""
		meet := func(other int, met bool, how string) {
			if met && other < hit {
				hit, relation = other, how
			}
		}
		other, met := of[self]
		meet(other, met, "is")
		for _, s := range spellings {
			for dir := range upward(s) {
				other, met = at[dir]
				meet(other, met, "lies in")
			}
			other, met = in[s]
			meet(other, met, "holds")
		}
		switch relation {
		case "":
		case "is":
			d.report(m.Pos, "keep one of the two", fmt.Sprintf("%s is listed already, at %s", m.Given, p.Mounts[hit].Pos))
		default:
			d.report(m.Pos, "mounts may not overlap", fmt.Sprintf("%s %s %s, listed at %s", m.Given, relation, p.Mounts[hit].Given, p.Mounts[hit].Pos))
		}

		note(of, self, i)
		for _, s := range spellings {
			note(at, s, i)
			for dir := range upward(s) {
				note(in, dir, i)
			}
		}
	}
}

// note keeps the first row of a key.
func note[K comparable](m map[K]int, key K, row int) {
	if _, ok := m[key]; !ok {
		m[key] = row
	}
}

func same(a, b Mount) bool {
	return a.Path == b.Path || id{a.Dev, a.Ino} == id{b.Dev, b.Ino}
}
