package policy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
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
	{"~/.local/share/corral", around, "corral's own state and build directories"},

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

// id names a file whatever path leads to it.
type id struct{ dev, ino uint64 }

// wall is one row of guards on this machine.
type wall struct {
	path   string // of the table, ~ expanded
	real   string // symlinks resolved as far as it exists
	self   id     // zero if it does not exist
	chain  []id   // of everything on the way to it that exists
	reach  reach
	reason string
}

func (ps places) walls(env Env) (ws []wall) {
	add := func(path string, r reach, reason string) {
		path = filepath.Clean(path)
		at := ps.at(path)
		w := wall{path: path, real: at.real, chain: at.chain, reach: r, reason: reason}
		if at.exists {
			w.self = at.chain[0]
		}
		ws = append(ws, w)
	}
	xdg := []struct{ std, now string }{{"~/.config", env.ConfigHome}, {"~/.local/share", env.DataHome}}
	for _, g := range guards {
		rest, personal := strings.CutPrefix(g.path, "~")
		if !personal {
			add(g.path, g.reach, g.reason)
			continue
		}
		for _, home := range env.homes() {
			add(home+rest, g.reach, g.reason)
		}
		for _, x := range xdg {
			if rest, ok := strings.CutPrefix(g.path, x.std+"/"); ok && filepath.IsAbs(x.now) {
				add(x.now+"/"+rest, g.reach, g.reason)
			}
		}
		if rest != "" {
			add("/root"+rest, g.reach, g.reason)
		}
	}
	for _, dir := range env.Own {
		add(dir, around, "a directory of corral's own")
	}
	return ws
}

// place is where a path leads: symlinks resolved as far as it exists.
type place struct {
	real   string
	exists bool
	chain  []id // of it, if it exists, and of every directory above that does
}

// places remembers what was looked up.
type places map[string]place

// at is the place of a clean absolute path.
func (ps places) at(path string) place {
	if p, ok := ps[path]; ok {
		return p
	}
	p, up := place{real: path}, place{exists: true}
	if path != "/" {
		up = ps.at(filepath.Dir(path))
		p = place{real: filepath.Join(up.real, filepath.Base(path)), chain: up.chain}
	}
	if up.exists {
		switch fi, err := os.Lstat(p.real); {
		case err == nil && fi.Mode()&fs.ModeSymlink == 0:
			p.exists, p.chain = true, append([]id{idOf(fi)}, up.chain...)
		case err == nil:
			if target, err := filepath.EvalSymlinks(p.real); err == nil {
				p = ps.at(target)
			}
		}
	}
	ps[path] = p
	return p
}

func idOf(fi fs.FileInfo) id { return id{stat(fi).Dev, stat(fi).Ino} }

// within reports whether path is dir or lies below it.
func within(dir, path string) bool {
	return dir == "/" || path == dir || strings.HasPrefix(path, dir+"/")
}

// site is a path on its way to become a mount.
type site struct {
	spellings []string // absolute and clean: as written, and resolved
	self      id       // zero if it does not exist
	chain     []id
}

// verdict is the reason not to mount a site, empty if there is none. An exact
// one says what the site is, any other what it holds or where it lies.
func verdict(ws []wall, s site) (reason string, exact bool) {
	for _, w := range ws {
		if slices.Contains(s.spellings, w.path) || slices.Contains(s.spellings, w.real) || s.self != (id{}) && s.self == w.self {
			return w.reason, true
		}
	}
	for _, w := range ws {
		above := s.self != (id{}) && slices.Contains(w.chain, s.self)
		below := w.self != (id{}) && slices.Contains(s.chain, w.self)
		for _, p := range s.spellings {
			above = above || within(p, w.path) || within(p, w.real)
			below = below || within(w.path, p) || within(w.real, p)
		}
		switch {
		case above:
			return fmt.Sprintf("it holds %s (%s)", w.path, w.reason), false
		case below && w.reach == around:
			return fmt.Sprintf("it lies in %s (%s)", w.path, w.reason), false
		}
	}
	return "", false
}

// guard resolves the mounts of p and refuses those that no policy can ask for,
// the project directory in run mode among them. The error is not the
// person's.
func (d *decoder) guard(p *Policy, env Env) error {
	ps := places{}
	ws := ps.walls(env)
	points, err := mountPoints()
	if err != nil {
		return err
	}

	fi, err := os.Lstat(p.Dir)
	if err != nil {
		return fmt.Errorf("project directory: %w", err)
	}
	here := diag.Pos{File: d.file}
	project := Mount{Path: p.Dir, Given: p.Dir, Pos: here, Dev: idOf(fi).dev, Ino: idOf(fi).ino}
	judged := ws
	if p.Mode == Daemon { // it is not mounted: only how wide it is matters
		judged = slices.DeleteFunc(slices.Clone(ws), func(w wall) bool { return w.reach != whole })
	}
	const elsewhere = "put the policy into the directory of one project"
	switch reason, exact := verdict(judged, site{spellings: []string{p.Dir}, self: idOf(fi), chain: ps.at(p.Dir).chain}); {
	case !fi.IsDir():
		d.report(here, "", fmt.Sprintf("the project directory %s is %s", p.Dir, describeMode(fi.Mode())))
	case exact:
		d.report(here, elsewhere, fmt.Sprintf("the project directory is %s (%s)", reason, p.Dir))
	case reason != "":
		d.report(here, elsewhere, fmt.Sprintf("the project directory is %s: %s", p.Dir, reason))
	case p.Mode == Run:
		d.submounts(ws, points, p.Dir, p.Dir, here)
	}
	if p.Mode == Run {
		p.Project = project
	}

	for i := range p.Mounts {
		d.source(&p.Mounts[i], d.mountKeys[i], ps, ws, points, env.Home)
	}
	d.overlaps(p, project)
	return nil
}

// source resolves one mount and judges it. A refused mount is left without a
// path.
func (d *decoder) source(m *Mount, key string, ps places, ws []wall, points []string, home string) {
	refuse := func(hint, format string, args ...any) {
		m.Path = ""
		d.report(m.Pos, hint, fmt.Sprintf(format, args...))
	}
	// Not cleaned: a .. after a symlink is the kernel's to resolve.
	written := m.Given
	if rest, ok := strings.CutPrefix(written, "~"); ok {
		written = home + rest
	}
	clean := filepath.Clean(written)
	s := site{spellings: []string{clean}}
	real, err := filepath.EvalSymlinks(written)
	var fi fs.FileInfo
	if err == nil {
		fi, err = os.Lstat(real)
	}
	if err == nil {
		s.spellings = append(s.spellings, real)
		s.self, s.chain = idOf(fi), ps.at(real).chain
	} else {
		s.spellings = append(s.spellings, ps.at(clean).real)
	}

	via := clean
	if err == nil && real != clean {
		via = "via symlink " + m.Given
	}
	reason, exact := verdict(ws, s)
	switch {
	case exact:
		refuse("", "refusing to mount %s (%s)", reason, via)
	case reason != "" && via != clean:
		refuse("", "refusing to mount %s (%s): %s", real, via, reason)
	case reason != "":
		refuse("", "refusing to mount %s: %s", clean, reason)
	case errors.Is(err, fs.ErrNotExist):
		refuse("corral creates nothing on the host: make it first, or correct the path", "%s: %s does not exist", key, clean)
	case err != nil:
		refuse("", "%s: %s: %s", key, clean, plainly(err))
	case !fi.IsDir() && !fi.Mode().IsRegular():
		refuse("mount a directory or a regular file", "%s: %s is %s", key, clean, describeMode(fi.Mode()))
	default:
		m.Path, m.Dev, m.Ino = real, s.self.dev, s.self.ino
		d.submounts(ws, points, real, m.Given, m.Pos)
	}
}

// submounts judges what is mounted below path, since it comes along.
func (d *decoder) submounts(ws []wall, points []string, path, given string, at diag.Pos) {
	for _, point := range points {
		if point == path || !within(path, point) {
			continue
		}
		fi, err := os.Lstat(point)
		if err != nil {
			d.report(at, "", fmt.Sprintf("refusing to mount %s: %s is mounted in it and cannot be examined: %s", given, point, plainly(err)))
			continue
		}
		// Only what it is counts here: where it lies was judged with path.
		if reason, _ := verdict(ws, site{self: idOf(fi), chain: []id{idOf(fi)}}); reason != "" {
			d.report(at, "", fmt.Sprintf("refusing to mount %s: %s is mounted in it: %s", given, point, reason))
		}
	}
}

// mountPoints are the mount points that this thread sees.
func mountPoints() ([]string, error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMounts(f)
}

// parseMounts reads the fifth field of each line, see proc_pid_mountinfo(5).
func parseMounts(r io.Reader) (points []string, err error) {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			return nil, fmt.Errorf("mountinfo: line %q", lines.Text())
		}
		points = append(points, unescape.Replace(fields[4]))
	}
	return points, lines.Err()
}

// overlaps refuses a mount that is, holds or lies in another, or the project
// directory where that is a mount by itself. Of two, the later in the policy
// is named.
func (d *decoder) overlaps(p *Policy, project Mount) {
	for i, m := range p.Mounts {
		if m.Path == "" {
			continue
		}
		if p.Mode == Run {
			switch {
			case same(m, project):
				d.report(m.Pos, "remove it", "the project directory is mounted by itself in run mode, read and write")
			case within(project.Path, m.Path):
				d.report(m.Pos, "", fmt.Sprintf("%s lies in the project directory, which is mounted by itself in run mode", m.Given))
			case within(m.Path, project.Path):
				d.report(m.Pos, "", fmt.Sprintf("%s holds the project directory, which is mounted by itself in run mode", m.Given))
			}
		}
		for _, o := range p.Mounts[:i] {
			switch {
			case o.Path == "":
			case same(m, o):
				d.report(m.Pos, "keep one of the two", fmt.Sprintf("%s is listed already, at %s", m.Given, o.Pos))
			case within(o.Path, m.Path):
				d.report(m.Pos, "mounts may not overlap", fmt.Sprintf("%s lies in %s, listed at %s", m.Given, o.Given, o.Pos))
			case within(m.Path, o.Path):
				d.report(m.Pos, "mounts may not overlap", fmt.Sprintf("%s holds %s, listed at %s", m.Given, o.Given, o.Pos))
			}
		}
	}
}

func same(a, b Mount) bool {
	return a.Path == b.Path || id{a.Dev, a.Ino} == id{b.Dev, b.Ino}
}
