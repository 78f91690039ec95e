package policy

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/corral-sandbox/corral/internal/diag"
)

// Row is one line of an effective policy.
type Row struct {
	Key    string `json:"key"`    // of the schema, like mounts.rw; project and command besides
	Value  string `json:"value"`  // one line, but for commands of several; not escaped
	Origin string `json:"origin"` // corral.yaml:12, profile shell, or default
}

// Rows are the whole effective policy for people: one row an entry, in the
// schema's order, each with what it is trusted with where that does not go
// without saying. A grant that could have been made and was not has a row too.
func (p *Policy) Rows(d Defaults) []Row {
	t := table{policy: p}
	t.key("profile", p.Profile)
	t.key("name", p.Name)
	t.key("mode", p.Mode.String())
	t.add("project", oneLine(p.Dir), "default")

	run := p.Mode == Run && p.Project.Path != ""
	if run {
		t.add("mounts.rw", oneLine(p.Project.Path)+" (the project directory)"+p.Project.holds(), "default")
	}
	for _, readOnly := range []bool{false, true} {
		key := "mounts.rw"
		if readOnly {
			key = "mounts.ro"
		}
		for _, m := range p.Mounts {
			if m.ReadOnly == readOnly {
				t.add(key, resolved(m.Path, m.Given)+m.holds(), origin(m.Pos))
			}
		}
	}
	if !run && len(p.Mounts) == 0 {
		t.key("mounts", "nothing")
	}

	rules := p.Rules(d)
	for _, r := range rules {
		t.add("egress.allow", r.effective().text(), origin(r.Pos))
	}
	if len(rules) == 0 {
		t.key("egress.allow", "nothing")
	}
	t.key("egress.defaults", strconv.FormatBool(p.Egress.Defaults))
	t.key("egress.refresh", p.Egress.Refresh)

	for _, s := range p.HostServices {
		t.add("host_services", EffectiveService{s.Name, s.Port}.text(), origin(s.Pos))
	}
	if len(p.HostServices) == 0 {
		t.key("host_services", "none")
	}
	if p.EnvFile.Path == "" {
		t.key("secrets.env_file", "none")
	} else {
		t.add("secrets.env_file", resolved(p.EnvFile.Path, p.EnvFile.Given)+", as environment variables that the agent can read", origin(p.EnvFile.Pos))
	}

	t.key("image.base", p.Image.Base)
	t.lines("image.packages", p.Image.Packages)
	t.lines("image.run", p.Image.Run)
	t.key("resources.memory", cmp.Or(bytesText(p.Resources.Memory), unbound))
	t.key("resources.cpus", cmp.Or(cpusText(p.Resources.NanoCPUs), unbound))
	t.key("resources.pids", cmp.Or(pidsText(p.Resources.Pids), unbound))

	config := "ro: shielded, with the hooks, at the top of each writable mount; not deeper down"
	switch {
	case p.Git.ConfigWritable && p.Git.DirReadOnly:
		config = "writable, to no effect: .git is read-only as a whole"
	case p.Git.ConfigWritable:
		config = "writable: the agent decides what git runs on this machine"
	}
	t.key("git.config", config)
	dir := "rw: the agent can commit; what cannot be shielded is watched"
	if p.Git.DirReadOnly {
		dir = "ro: the agent cannot commit"
	}
	t.key("git.dir", dir)

	for _, b := range p.Background {
		t.key("background", b)
	}
	t.hermes(p.Hermes)
	t.lines("hooks.pre_launch", p.PreLaunch)
	from := "profile " + d.Profile
	for _, l := range d.Reads {
		t.add("profile.reads", oneLine(l.text())+", if it is there: the agent can read all that is in it, keys included", from)
	}
	for _, l := range d.Copies {
		t.add("profile.copies", oneLine(l.text())+", if it is there, once, into the sandbox's own state: the agent can read it", from)
	}
	for _, path := range d.State {
		t.add("profile.state", path+", kept between runs; not this machine's own", from)
	}
	switch {
	case len(p.Command) > 0:
		t.add("command", commandText(p.Command), t.origin("profile_options.shell.command"))
	case len(d.Command) > 0:
		t.add("command", commandText(d.Command), "profile "+d.Profile)
	default:
		t.add("command", "none", "default")
	}
	return t.rows
}

type table struct {
	policy *Policy
	rows   []Row
}

func (t *table) add(key, value, origin string) { t.rows = append(t.rows, Row{key, value, origin}) }

// key adds a value that stands under its own key, or is the default.
func (t *table) key(key, value string) { t.add(key, value, t.origin(key)) }

func (t *table) lines(key string, lines []Line) {
	for _, l := range lines {
		t.add(key, strings.TrimSuffix(l.Text, "\n"), origin(l.Pos))
	}
	if len(lines) == 0 {
		t.key(key, "none")
	}
}

func (t *table) origin(key string) string { return origin(t.policy.Origins[key]) }

func origin(at diag.Pos) string {
	switch {
	case at.File == "":
		return "default"
	case at.Line == 0: // of the profile's own
		return at.File
	}
	return fmt.Sprintf("%s:%d", filepath.Base(at.File), at.Line)
}

// resolved is a path with the way that was written, if that is another.
func resolved(path, given string) string {
	if given == "" || given == path {
		return oneLine(path)
	}
	return fmt.Sprintf("%s (via %s)", oneLine(path), oneLine(given))
}

// holds names what comes along with a mount.
func (m Mount) holds() string {
	if len(m.Submounts) == 0 {
		return ""
	}
	return oneLine(", with what is mounted in it: " + strings.Join(m.Submounts, ", "))
}

func (t *table) hermes(h *Hermes) {
	if h == nil {
		return
	}
	const options = "profile_options.hermes."
	t.key(options+"model.base_url", oneLine(h.Model.BaseURL))
	t.key(options+"model.name", oneLine(h.Model.Name))
	t.key(options+"model.context_length", strconv.Itoa(h.Model.Context))
	researcher, fetch := "false", "false"
	if h.Researcher {
		researcher = "true: another Hermes, of no rights here, that searches the web; what is asked of it leaves this machine"
	}
	if h.Fetch {
		fetch = "true: it may read any public page; the addresses of pages leave this machine"
	}
	t.key(options+"researcher", researcher)
	t.key(options+"fetch", fetch)
	if h.Researcher {
		t.key(options+"search_image", cmp.Or(h.Search, "built here"))
	}
	approvals := h.Approvals + ": of commands, asked of whoever sits at it"
	switch h.Approvals {
	case ApprovalsSmart:
		approvals = h.Approvals + ": of commands, by the model where it takes them for harmless"
	case ApprovalsOff:
		approvals = h.Approvals + ": every command runs unasked, but for those of approvals_deny"
	}
	t.key(options+"approvals", approvals)
	t.lines(options+"approvals_deny", h.Deny)
}
