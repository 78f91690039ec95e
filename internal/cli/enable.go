package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/command"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/state"
)

func (a *app) enable() *cobra.Command {
	var only bool
	c := &cobra.Command{
		Use:   "enable",
		Short: "Bring up this always-on sandbox at every boot, and keep it up",
		Long: `Writes a systemd unit of your own that runs corral up --watch for this policy
(mode: daemon), and starts it, now and whenever you log in; with lingering, which
is told if it is off, from boot on and without a login. The watch waits for the
engine and for names that come late. What it says is in the journal:

  journalctl --user --unit corral-SANDBOX.service

A policy that grants more than was accepted is not brought up by it: corral up by
hand asks, and corral enable again starts the unit. corral down ends the sandbox
until the next boot or login; corral disable removes the unit.`,
		Example: `  corral enable
  corral enable --print > corral.service   the unit alone; nothing is started`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if only {
				return a.printUnit()
			}
			return a.enableUnit(c.Context())
		},
	}
	c.Flags().BoolVar(&only, "print", false, "print the unit, and do nothing else")
	a.acceptFlag(c)
	return c
}

func (a *app) disable() *cobra.Command {
	return &cobra.Command{
		Use:   "disable",
		Short: "Bring up this sandbox at boot no more",
		Long: `Stops and removes the systemd unit that corral enable made for this policy, which
may be broken or gone by now. The sandbox stays as it is; corral down ends it.`,
		Example: `  corral disable
  corral disable --policy /srv/gone/corral.yaml`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.disableUnits(c.Context()) },
	}
}

// unitFor is the unit of a project. It goes by what corral goes by now.
func unitFor(p *project) (unit, error) {
	if err := stays(p); err != nil {
		return unit{}, err
	}
	program, err := os.Executable()
	if err != nil {
		return unit{}, fmt.Errorf("where corral itself is: %w", err)
	}
	u := unit{sandbox: p.id(), program: program, policy: p.policy.File, project: p.policy.Dir, environment: unitEnvironment(p.host.Homes)}
	return u, u.sayable()
}

// systemPath is where the programs of every system are.
var systemPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// unitEnvironment is what of the environment says where things are, and where the
// docker command is. The rest of PATH is left out: an agent may write there.
func unitEnvironment(homes []string) []string {
	path := slices.Clone(systemPath)
	if docker, err := exec.LookPath("docker"); err == nil && filepath.IsAbs(docker) && !slices.Contains(path, filepath.Dir(docker)) {
		path = append(path, filepath.Dir(docker))
	}
	env := []string{"PATH=" + strings.Join(path, ":")}
	if home := os.Getenv("HOME"); home != "" && filepath.Clean(home) != homes[0] {
		env = append(env, "HOME="+home)
	}
	names := []string{"XDG_CONFIG_HOME", "XDG_DATA_HOME", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG"}
	for _, key := range []string{"subnet", "resolvers", "ca_bundle", "probes"} {
		names = append(names, host.Variable(key))
	}
	for _, name := range names {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

func (a *app) printUnit() error {
	p, err := a.load()
	if err != nil {
		return err
	}
	u, err := unitFor(p)
	if err == nil {
		_, err = fmt.Fprint(a.out, u.text())
	}
	return err
}

func (a *app) enableUnit(ctx context.Context) error {
	if err := notForAnother(); err != nil {
		return err
	}
	p, err := a.load()
	if err != nil {
		return err
	}
	u, err := unitFor(p)
	if err != nil {
		return err
	}
	if err := userManager(ctx); err != nil {
		return err
	}
	dir, err := unitDir()
	if err != nil {
		return err
	}
	name := unitName(u.sandbox)
	path := filepath.Join(dir, name)
	was, ours, err := readUnit(path)
	if err != nil {
		return err
	}
	if was != "" && !ours {
		return exit.Failedf("look at it, and move it away", "%s is not of corral's making: it stays as it is", path)
	}
	if err := a.agreed(ctx, p); err != nil {
		return err
	}
	if err := unwritten(u, path); err != nil {
		return err
	}
	if err := a.dropUnits(ctx, p.policy.File, name, "the policy has another name now"); err != nil {
		return err
	}
	text := u.text()
	if was != text {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := state.Replace(path, []byte(text)); err != nil {
			return fmt.Errorf("the unit cannot be written: %w", err)
		}
	}
	err = startUnit(ctx, name, was != "" && was != text)
	if err != nil && was == "" { // nothing stays of what did not come to be
		return errors.Join(err, removeUnit(context.WithoutCancel(ctx), path))
	}
	if err != nil {
		return err
	}
	why := lingers(ctx)
	when := "boot"
	if why != "" {
		when = "login"
	}
	a.sayf("%s is enabled: it brings up %s now, and at every %s", name, u.sandbox, when)
	a.sayf("what it says: journalctl --user --unit %s; how it is: corral status", name)
	if why != "" {
		a.sayf("warning: %s: without it nothing begins before you log in, and the watch ends when you log out: loginctl enable-linger %s", why, loginName())
	}
	return nil
}

// notForAnother refuses sudo: root's systemd is another one.
func notForAnother() error {
	if os.Getuid() == 0 && os.Getenv("SUDO_UID") != "" {
		return exit.Invalidf("say it without sudo", "the unit belongs to the person whose project it is")
	}
	return nil
}

// unwritten refuses what an agent may write and systemd would run as the person: a
// file, or a link to it.
func unwritten(u unit, path string) error {
	run := []string{u.program, path}
	if docker, err := exec.LookPath("docker"); err == nil {
		run = append(run, docker)
	}
	for _, file := range run {
		for _, at := range append(policy.Links(file), policy.Real(file)) {
			agents, err := writers(at, "")
			if err != nil {
				return fmt.Errorf("cannot tell whether an agent may write %s: %w", at, err)
			}
			if len(agents) > 0 {
				return exit.Invalidf("keep it outside of every mount that is writable", "%s would run at every login, and the agent of %s may write it", at, strings.Join(agents, " and "))
			}
		}
	}
	return nil
}

// dropUnits removes the units of a policy file, under whatever name, but for the one
// to keep, and says why.
func (a *app) dropUnits(ctx context.Context, file, keep, why string) error {
	units, err := unitsOf(file)
	if err != nil {
		return err
	}
	for _, u := range units {
		if u.name() == keep {
			continue
		}
		if err := removeUnit(ctx, u.path); err != nil {
			return err
		}
		a.sayf("%s is removed: %s", u.name(), why)
	}
	return nil
}

func (a *app) disableUnits(ctx context.Context) error {
	if err := notForAnother(); err != nil {
		return err
	}
	file, units, err := a.unitsHere()
	if err != nil {
		return err
	}
	if len(units) == 0 {
		a.sayf("%s is not enabled", file)
		return nil
	}
	for _, u := range units {
		if err := removeUnit(ctx, u.path); err != nil {
			return err
		}
		a.sayf("%s is removed; %s stays as it is: corral down ends it", u.name(), u.sandbox)
	}
	return nil
}

// unitsHere are the units of the policy that governs here, or of one nearer that is
// gone since. No policy is read.
func (a *app) unitsHere() (file string, units []enabledUnit, err error) {
	if a.policy != "" {
		file, err := location(a.policy)
		if errors.Is(err, fs.ErrNotExist) { // the directory is gone too
			file, err = filepath.Abs(a.policy)
		}
		if err == nil {
			units, err = unitsOf(file)
		}
		return file, units, err
	}
	if err := isThere(a.project); err != nil {
		return "", nil, err
	}
	quiet := *a
	quiet.quiet = true
	file, _, findErr := quiet.find()
	start := a.project
	if start == "" {
		start = "."
	}
	dir, err := filepath.Abs(start)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	for err == nil {
		nearer := filepath.Join(dir, policy.FileName)
		if units, err = unitsOf(nearer); err != nil || len(units) > 0 || nearer == file {
			return nearer, units, err
		}
		if dir == "/" {
			break
		}
		dir = filepath.Dir(dir)
	}
	return file, nil, errors.Join(err, findErr)
}

const (
	// answerWithin bounds a look by the way, managerWithin what has to be done, and
	// stopWithin the end of a watch.
	answerWithin  = 3 * time.Second
	managerWithin = 20 * time.Second
	stopWithin    = healGrace + farewell + 2*stopMargin
)

// systemctl asks the person's own systemd.
func systemctl(ctx context.Context, within time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("no answer within %v", within))
	defer cancel()
	out, err := command.Run(ctx, nil, append([]string{"systemctl", "--user"}, args...)...)
	return strings.TrimSpace(string(out)), err
}

// userManager is nil if there is a systemd that runs units of the person's own.
func userManager(ctx context.Context) error {
	const hint = "log in as yourself, by ssh or at the machine and not by su or sudo (Debian: libpam-systemd and dbus-user-session); where there is no systemd, have what starts things there run corral up --watch: corral enable --print shows how"
	if _, err := exec.LookPath("systemctl"); err != nil {
		return exit.Failedf(hint, "there is no systemd on this machine: no systemctl command")
	}
	if runtime := fmt.Sprintf("/run/user/%d", os.Getuid()); os.Getenv("XDG_RUNTIME_DIR") == "" { // as after su
		if _, err := os.Stat(runtime + "/systemd"); err == nil {
			os.Setenv("XDG_RUNTIME_DIR", runtime)
		}
	}
	if _, err := systemctl(ctx, managerWithin, "show-environment"); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return exit.Failedf(hint, "no systemd answers that runs units of yours: %w", err)
	}
	return nil
}

// startUnit has systemd start a unit, now and with every session. One that runs by
// another text begins anew.
func startUnit(ctx context.Context, name string, changed bool) error {
	if _, err := systemctl(ctx, managerWithin, "daemon-reload"); err != nil {
		return err
	}
	_, _ = systemctl(ctx, managerWithin, "reset-failed", name) // it may have failed too often to start, or never
	if _, err := systemctl(ctx, managerWithin, "enable", name); err != nil {
		return err
	}
	if !changed && unitState(ctx, name) == "active" {
		return nil
	}
	// A start of one that is to be tried again would wait for that.
	_, err := systemctl(ctx, stopWithin, "restart", name)
	return err
}

// removeUnit ends a unit and takes it away, also where systemd cannot be told: then
// there is nothing left to start at the next login.
func removeUnit(ctx context.Context, path string) error {
	name := filepath.Base(path)
	told := userManager(ctx)
	if told == nil {
		_, told = systemctl(ctx, stopWithin, "disable", "--now", name)
	}
	for _, file := range []string{filepath.Join(filepath.Dir(path), wantsDir, name), path} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(err, told)
		}
	}
	if told == nil {
		_, told = systemctl(ctx, managerWithin, "daemon-reload")
		_, _ = systemctl(ctx, managerWithin, "reset-failed", name)
	}
	if told != nil {
		return exit.Failedf("systemctl --user stop "+name+", where you are logged in, ends what runs of it", "%s is removed, but could not be stopped: %w", name, told)
	}
	return nil
}

// unitState is how systemd says that a unit is: active, failed and so on; empty if
// that cannot be told.
func unitState(ctx context.Context, name string) string {
	if userManager(ctx) != nil {
		return ""
	}
	out, _ := systemctl(ctx, answerWithin, "is-active", name) // it ends with an error unless it is active
	return out
}

// stopUnits keeps the units of a policy file from bringing up what is taken down: one
// that has failed may be waiting for its next try. It says what comes back later.
func (a *app) stopUnits(ctx context.Context, file string) {
	units, err := unitsOf(file)
	if err != nil {
		a.sayf("whether systemd brings it up again cannot be told: %v", err)
	}
	for _, u := range units {
		err := userManager(ctx)
		if err == nil {
			_, err = systemctl(ctx, managerWithin, "stop", "--no-block", u.name())
		}
		switch {
		case err != nil:
			a.sayf("%s could not be stopped, and may bring it up again: %v", u.name(), err)
		case u.starts:
			a.sayf("%s brings it up again at the next boot or login; corral disable ends that", u.name())
		}
	}
}

// lingers is empty if systemd starts the person's units at boot, without a login,
// else why not.
func lingers(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, managerWithin)
	defer cancel()
	out, err := command.Run(ctx, nil, "loginctl", "show-user", loginName(), "--property=Linger", "--value")
	switch said := strings.TrimSpace(string(out)); {
	case err != nil:
		return fmt.Sprintf("whether you linger cannot be told (%v)", err)
	case said == "yes":
		return ""
	case said == "no":
		return "lingering is off"
	default:
		return fmt.Sprintf("whether you linger cannot be told (loginctl said %q)", said)
	}
}

// loginName is what loginctl calls who runs corral: the name, or the number of somebody
// whom the machine's own files do not list.
func loginName() string {
	uid := strconv.Itoa(os.Getuid())
	if u, err := user.LookupId(uid); err == nil && u.Username != "" {
		return u.Username
	}
	return uid
}
