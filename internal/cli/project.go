package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/profile"
	"github.com/corral-sandbox/corral/internal/secret"
	"github.com/corral-sandbox/corral/internal/state"
	"github.com/corral-sandbox/corral/internal/wayback"
)

// project is a policy with what of the machine its plan needs.
type project struct {
	policy  *policy.Policy
	profile *profile.Profile
	host    plan.Host
	network plan.Network
	env     policy.Env
	set     host.Settings
	wants   wants

	shields  []wayback.Bind // of host.Shields all that is known
	accepted bool           // a person said yes to all that it grants
	wanted   bool           // it is on record that it is to be up
	secrets  []secret.Var   // of the env_file
}

// errNotAccepted is a mistake of ours: what it guards is asked for first.
var errNotAccepted = errors.New("the policy was not accepted")

// passed are the variables of the person's that the agent gets too.
var passed = []string{"TERM", "COLORTERM", "LANG", "TZ"}

// load finds and reads the policy and the facts of this machine.
func (a *app) load() (*project, error) {
	file, dir, err := a.find()
	if err != nil {
		return nil, err
	}
	a.located(dir)
	person, err := who(dir)
	if err != nil {
		return nil, err
	}
	env := policy.Env{
		Home:       person.Homes[0],
		Homes:      person.Homes[1:],
		UID:        int(person.UID),
		Project:    dir,
		ConfigHome: os.Getenv("XDG_CONFIG_HOME"),
		DataHome:   os.Getenv("XDG_DATA_HOME"),
		Profiles:   profile.Names(),
	}
	if home, err := state.Home(); err == nil {
		env.Own = state.Linked(home)
	}
	pol, err := policy.Load(file, env)
	if err != nil {
		return nil, err
	}
	prof, err := profile.Load(pol.Profile)
	if err != nil {
		return nil, exit.Invalidf("", "%w", err)
	}
	set, network, err := settings()
	if err != nil {
		return nil, err
	}
	p := &project{policy: pol, profile: prof, network: network, env: env, set: set, host: plan.Host{
		UID:         person.UID,
		GID:         person.GID,
		Homes:       person.Homes,
		CPUs:        runtime.NumCPU(),
		Resolvers:   set.Resolvers,
		Probes:      set.Probes,
		Subnet:      set.Subnet,
		Environment: map[string]string{},
	}}
	for _, name := range passed {
		if v := os.Getenv(name); v != "" {
			p.host.Environment[name] = v
		}
	}
	return p, p.look()
}

// who is whose agent runs in a project directory.
func who(dir string) (host.Person, error) {
	person, err := host.Who(dir)
	if err != nil {
		return host.Person{}, exit.Invalidf("run corral as the person whose project it is, or give the project directory to them (chown)", "%w", err)
	}
	return person, nil
}

// find returns the policy file and the project directory.
func (a *app) find() (file, dir string, err error) {
	start, err := os.Getwd()
	if err != nil {
		return "", "", err
	}
	if err := isThere(a.project); err != nil {
		return "", "", err
	}
	wd := start
	file = a.policy
	if file != "" {
		if file, err = location(file); err != nil {
			return "", "", exit.Invalidf("", "%w", err)
		}
	} else {
		if a.project != "" {
			wd = a.project
		}
		file, err = policy.Find(wd, host.Homes(uint32(os.Getuid()))...)
		if err != nil {
			return "", "", err
		}
		wd = filepath.Dir(file)
	}
	dir = wd
	if a.project != "" {
		dir = a.project
	}
	dir, err = filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return "", "", exit.Invalidf("--project names the directory that the agent works in", "project directory: %w", err)
	}
	if !utf8.ValidString(dir) || !utf8.ValidString(file) {
		return "", "", exit.Invalidf("the engine takes UTF-8 only: rename it", "the path %q is not UTF-8", dir)
	}
	if strings.ContainsFunc(dir+file, unicode.IsControl) {
		return "", "", exit.Invalidf("no file that lists paths could name it: rename it", "the path %q holds a control character", dir)
	}
	return file, dir, nil
}

// located says which project it is about, unless that is where one stands: somebody in a
// subdirectory may not know how much they are about to hand over, or to end.
func (a *app) located(dir string) {
	start, err := os.Getwd()
	if err == nil {
		start, err = filepath.EvalSymlinks(start)
	}
	if !a.quiet && (a.policy != "" || err != nil || start != dir) {
		fmt.Fprintf(a.err, "corral: project directory %s\n", printable.Escape(dir))
	}
}

// isThere refuses a --project that is no directory, if there is one.
func isThere(project string) error {
	if project == "" {
		return nil
	}
	const hint = "--project names the directory that the agent works in"
	switch fi, err := os.Stat(project); {
	case errors.Is(err, fs.ErrNotExist):
		return exit.Invalidf(hint, "project directory: there is no %s", project)
	case err != nil:
		return exit.Invalidf(hint, "project directory: %w", err)
	case !fi.IsDir():
		return exit.Invalidf(hint, "project directory: %s is no directory", project)
	}
	return nil
}

// governed is the policy file of what is up here: the one that find finds, or
// one nearer that a sandbox was made from and that is gone since. It says in which
// directory, unless a policy is named: then what is up of it may be of any.
func (a *app) governed(ctx context.Context, e *engine.Engine) (file string, err error) {
	found, dir, err := a.find()
	if a.policy != "" {
		return found, err
	}
	if file, err = a.nearest(ctx, e, found, err); file != found {
		dir = filepath.Dir(file)
	}
	if err == nil {
		a.located(dir)
	}
	return file, err
}

// nearest is governed where no policy is named; file and err are what find says.
func (a *app) nearest(ctx context.Context, e *engine.Engine, file string, err error) (string, error) {
	members, listErr := e.Members(ctx, "")
	dir, pathErr := filepath.Abs(cmp.Or(a.project, "."))
	if pathErr == nil {
		dir, pathErr = filepath.EvalSymlinks(dir)
	}
	if err := errors.Join(listErr, pathErr); err != nil {
		return "", err
	}
	for {
		nearer := filepath.Join(dir, policy.FileName)
		if nearer == file || dir == "/" {
			return file, err
		}
		if slices.ContainsFunc(members, func(m engine.Member) bool { return m.Policy == nearer }) {
			return nearer, nil
		}
		dir = filepath.Dir(dir)
	}
}

// location is the path of a file that may not be there, with the links on the
// way to it resolved: what a sandbox remembers its policy by.
func location(file string) (string, error) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if errors.Is(err, fs.ErrNotExist) { // it has moved, and what is up of it can be ended still
		return abs, nil
	}
	return filepath.Join(dir, filepath.Base(abs)), err
}

// id names the project's sandbox.
func (p *project) id() string { return plan.ID(p.policy.Name, p.policy.File) }

// draft plans the sandbox beside those of its gates that are up, with args in place of
// the profile's command if there are any.
func (p *project) draft(ctx context.Context, e *engine.Engine, up plan.Addresses, args []string) engine.Draft {
	return func(free plan.Addresses) (*plan.Plan, error) {
		h := p.host
		own, err := host.Addresses()
		if err != nil {
			return nil, fmt.Errorf("this machine's addresses: %w", err)
		}
		networks, err := e.Subnets(ctx)
		if err != nil {
			return nil, err
		}
		h.Never = append(append(own, networks...), p.host.Subnet)
		return plan.Build(p.policy, p.profile, h, up.With(free), args)
	}
}

// trusted are the certificates of this machine's CA bundle, in PEM each. Who can
// write it decides whom sandboxes trust, so no agent may.
func trusted(set host.Settings) ([][]byte, error) {
	if set.CABundle == "" {
		return nil, nil
	}
	// Neither the file nor a link to it: what is judged is what is read.
	real := policy.Real(set.CABundle)
	home, err := state.Home()
	if err != nil {
		return nil, err
	}
	for _, path := range append(policy.Links(set.CABundle), real) {
		if strings.HasPrefix(path, policy.Real(home)+"/") {
			return nil, exit.Invalidf("keep it elsewhere", "CA bundle %s lies in what corral keeps, where agents have their state", printable.Escape(set.CABundle))
		}
		agents, err := writers(path, "")
		if len(agents) > 0 {
			return nil, exit.Invalidf("keep it outside of every project", "CA bundle %s: the agent of %s may write it", printable.Escape(set.CABundle), strings.Join(agents, " and "))
		}
		if err != nil {
			return nil, fmt.Errorf("cannot tell whether an agent may write the CA bundle: %w", err)
		}
	}
	bundle, err := host.CABundle(real, host.Caller())
	if err != nil {
		return nil, err
	}
	return bundle.Each(), nil
}
