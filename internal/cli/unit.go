package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
)

// unit is a systemd user unit that keeps a sandbox up.
type unit struct {
	sandbox         string
	program         string // corral itself
	policy, project string
	environment     []string // NAME=VALUE
}

const (
	// unitMark is the first line of a unit that is corral's to replace and to remove.
	unitMark = "# Made by corral enable, removed by corral disable. What is changed here is lost with the next corral enable."

	unitPrefix, unitSuffix = "corral-", ".service"
	// wants is where systemd keeps the links to what it starts with a session.
	wantsDir = "default.target.wants"

	// tryAgain is how long after a failed start the next one comes, mostTries how many
	// there are within triesWithin. A watch waits by itself for what comes late, so
	// that these are for what does not come.
	tryAgain    = time.Minute
	mostTries   = 10
	triesWithin = time.Hour
	// stopMargin is what a watch may take to end beyond what it allows itself.
	stopMargin = 30 * time.Second
)

func unitName(sandbox string) string { return unitPrefix + sandbox + unitSuffix }

// text is the unit's file. There is no order after what the system brings up: a
// user's units know nothing of it.
func (u unit) text() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("%s", unitMark)
	line("[Unit]")
	line("Description=corral: %s, always on", u.sandbox)
	line("# The watch itself waits for the engine and for names, however long. What else")
	line("# fails at the start is tried again for a while, and then left as failed.")
	line("StartLimitIntervalSec=%d", int(triesWithin.Seconds()))
	line("StartLimitBurst=%d", mostTries)
	line("")
	line("[Service]")
	line("Type=exec")
	for _, v := range u.environment {
		line("Environment=%s", unitQuote(v, false))
	}
	line("ExecStart=%s up --watch --policy %s --project %s", unitQuote(u.program, false), unitQuote(u.policy, true), unitQuote(u.project, true))
	line("Restart=on-failure")
	line("RestartSec=%d", int(tryAgain.Seconds()))
	line("# A policy that is invalid, or grants more than was accepted: that takes a person.")
	line("RestartPreventExitStatus=%d", exit.Invalid)
	line("# A stop while it comes up for the first time.")
	line("SuccessExitStatus=%d", exit.Interrupted)
	line("# A stop asks the watch alone, which brings what it began to its end. The sandbox")
	line("# stays up.")
	line("KillMode=mixed")
	line("TimeoutStopSec=%d", int((healGrace + farewell + stopMargin).Seconds()))
	line("")
	line("[Install]")
	line("WantedBy=default.target")
	return b.String()
}

// unitQuote is one word of a unit's line. A dollar is one of systemd's variables in
// the arguments of a command, and itself in its name and elsewhere.
func unitQuote(s string, argument bool) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '%', r == '$' && argument:
			b.WriteRune(r)
			b.WriteRune(r)
		case unicode.IsControl(r) || r == '\u2028' || r == '\u2029':
			for _, c := range []byte(string(r)) {
				fmt.Fprintf(&b, `\x%02x`, c)
			}
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// unitDir is where a person's own units are.
func unitDir() (string, error) {
	config := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(config) {
		home := os.Getenv("HOME")
		if !filepath.IsAbs(home) {
			return "", errors.New("neither XDG_CONFIG_HOME nor HOME is set")
		}
		config = filepath.Join(home, ".config")
	}
	return filepath.Join(config, "systemd", "user"), nil
}

// readUnit is a unit's file as it is, empty if there is none. ours says that corral
// enable wrote it; nothing else is replaced or removed.
func readUnit(path string) (text string, ours bool, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", false, nil
	case errors.Is(err, syscall.ELOOP): // a link, as to /dev/null by systemctl mask
		return "a link", false, nil
	case err != nil:
		return "", false, err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return "no file", false, err
	}
	const most = 1 << 20
	b, err := io.ReadAll(bufio.NewReader(io.LimitReader(f, most)))
	return string(b), strings.HasPrefix(string(b), unitMark+"\n"), err
}

// enabledUnit is a unit of corral's.
type enabledUnit struct {
	sandbox string
	path    string
	starts  bool // systemd starts it with a session
}

func (u enabledUnit) name() string { return filepath.Base(u.path) }

// ownUnits are those that corral enable has written here and that fit.
func ownUnits(fits func(sandbox string) bool) ([]enabledUnit, error) {
	dir, err := unitDir()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []enabledUnit
	for _, e := range entries {
		id, named := strings.CutPrefix(e.Name(), unitPrefix)
		id, whole := strings.CutSuffix(id, unitSuffix)
		if !named || !whole || !fits(id) {
			continue
		}
		u := enabledUnit{sandbox: id, path: filepath.Join(dir, e.Name())}
		_, ours, unread := readUnit(u.path)
		if err = errors.Join(err, unread); !ours {
			continue
		}
		_, missing := os.Lstat(filepath.Join(dir, wantsDir, e.Name()))
		u.starts = missing == nil
		out = append(out, u)
	}
	return out, err
}

// unitsOf are the units of a policy file's sandbox, under whatever name.
func unitsOf(file string) ([]enabledUnit, error) {
	return ownUnits(func(id string) bool { return plan.Of(id, file) })
}

// unitReport is what status says of a unit.
type unitReport struct {
	Name    string `json:"name"`
	Enabled bool   `json:"enabled"`         // it starts with a session
	State   string `json:"state,omitempty"` // active, failed and so on, if systemd says
}

// unitOf is the unit of a policy file's sandbox, nil if there is none or that cannot
// be told.
func unitOf(ctx context.Context, file string) *unitReport {
	units, err := unitsOf(file)
	if err != nil || len(units) == 0 {
		return nil
	}
	u := units[len(units)-1]
	return &unitReport{Name: u.name(), Enabled: u.starts, State: unitState(ctx, u.name())}
}

func (r unitReport) words() string {
	is := "not enabled any more"
	if r.Enabled {
		is = "enabled"
	}
	if r.State != "" {
		is += ", and " + r.State
	}
	if r.Enabled && (r.State == "failed" || r.State == "inactive") {
		is += fmt.Sprintf(": corral enable starts it, journalctl --user --unit %s says what it said", r.Name)
	}
	return r.Name + ": " + is
}

// sayable refuses what a unit cannot hold.
func (u unit) sayable() error {
	for _, s := range slices.Concat([]string{u.program, u.policy, u.project}, u.environment) {
		if !utf8.ValidString(s) {
			return exit.Invalidf("units of systemd are UTF-8 only", "%q is not UTF-8", s)
		}
	}
	if strings.ContainsAny(u.program, `"'\`) || strings.ContainsFunc(u.program, unicode.IsControl) {
		return exit.Invalidf("install it elsewhere", "systemd starts no program whose path has a quote or a backslash, and corral is at %s", u.program)
	}
	return nil
}
