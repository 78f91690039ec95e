package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/testenv"
)

// hostilePaths are names of directories that mean something to systemd, to a shell
// or to whoever reads line by line.
var hostilePaths = []string{
	"plain", "two words", " blank at both ends ", "%h %% %n", "$HOME ${HOME} $$", `"quoted" 'single'`, `back\slash \n \x41 \\`,
	"Zürich 東京 \U0001F600", "; && | > <", "#no comment", "~", "-x @y +z !w :v", "tab\u00a0blank", "=a[b]", `ends with \`,
}

// systemd takes the unit for every path, and makes of it what it was made of.
func TestUnit(t *testing.T) {
	testenv.Require(t, "systemd")
	for _, name := range hostilePaths {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		u := unit{sandbox: "a-12345678", program: "/bin/true", policy: filepath.Join(dir, "corral.yaml"), project: dir,
			environment: []string{"PATH=/usr/bin:/bin", "XDG_DATA_HOME=" + dir, "DOCKER_HOST=unix://" + dir + "/docker.sock"}}
		if !strings.ContainsAny(name, `"'\`) {
			u.program = filepath.Join(dir, "corral")
			if err := os.Symlink("/bin/true", u.program); err != nil {
				t.Fatal(err)
			}
		}
		if err := u.sayable(); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		dump := verified(t, u)
		line := regexp.MustCompile(`(?m)^\s*Command Line: (.*)$`).FindStringSubmatch(dump)
		if line == nil {
			t.Fatalf("%q: no command in %s", name, dump)
		}
		got := words(t, line[1])
		for i := 1; i < len(got); i++ { // what systemd does when it starts it
			got[i] = strings.ReplaceAll(got[i], "$$", "$")
		}
		if want := []string{u.program, "up", "--watch", "--policy", u.policy, "--project", u.project}; !slices.Equal(got, want) {
			t.Errorf("%q: systemd reads %q, not %q", name, got, want)
		}
		for _, v := range u.environment {
			if !regexp.MustCompile(`(?m)^\s*Environment: ` + regexp.QuoteMeta(v) + `$`).MatchString(dump) {
				t.Errorf("%q: systemd does not read %s", name, v)
			}
		}
		for _, want := range []string{"Restart: on-failure", "KillMode: mixed"} {
			if !strings.Contains(dump, want) {
				t.Errorf("%q: no %s", name, want)
			}
		}
	}
}

// verified is how systemd reads a unit that it finds no fault with.
func verified(t *testing.T, u unit) string {
	t.Helper()
	root := t.TempDir()
	file := filepath.Join(root, unitName(u.sandbox))
	if err := os.WriteFile(file, []byte(u.text()), 0o644); err != nil {
		t.Fatal(err)
	}
	verify := func(more ...string) string {
		c := exec.Command("systemd-analyze", "--user", "verify", "--man=no", file)
		c.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + root, "XDG_RUNTIME_DIR=" + root, "LC_ALL=C"}, more...)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s\n%s", err, out, u.text())
		}
		return string(out)
	}
	if said := verify(); said != "" {
		t.Errorf("systemd-analyze verify: %s\n%s", said, u.text())
	}
	return verify("SYSTEMD_LOG_LEVEL=debug", "SYSTEMD_LOG_TARGET=console")
}

// words are those of a line that is quoted for a shell.
func words(t *testing.T, line string) []string {
	t.Helper()
	out, err := exec.Command("bash", "-c", `eval "set -- $1"; printf '%s\0' "$@"`, "bash", line).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(bytes.TrimSuffix(out, []byte{0})), "\x00")
}

// What a unit cannot say is refused before anything is written.
func TestUnitUnsayable(t *testing.T) {
	for _, c := range []struct {
		u    unit
		want bool
	}{
		{unit{program: "/a b%/corral", policy: `/a"b'\`, project: "/ü"}, true},
		{unit{program: `/a"b/corral`}, false},
		{unit{program: `/a'b/corral`}, false},
		{unit{program: `/a\b/corral`}, false},
		{unit{program: "/a\nb/corral"}, false},
		{unit{program: "/corral", policy: "/\xff"}, false},
		{unit{program: "/corral", environment: []string{"X=\xff"}}, false},
		{unit{program: "/corral", environment: []string{"X=a\nExecStart=/bin/sh"}}, true}, // escaped
	} {
		if err := c.u.sayable(); (err == nil) != c.want || err != nil && !invalid(err) {
			t.Errorf("%+v: %v", c.u, err)
		}
		if text := c.u.text(); strings.Count(text, "\nExecStart=") != 1 {
			t.Errorf("two commands: %s", text)
		}
	}
}

// A stop leaves a watch the time that it allows itself, and what takes a person ends
// the unit for good.
func TestUnitLimits(t *testing.T) {
	text := unit{sandbox: "a-1"}.text()
	number := func(key string) int {
		m := regexp.MustCompile(`(?m)^` + key + `=(\d+)$`).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("no %s in %s", key, text)
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if got, most := number("TimeoutStopSec"), int((healGrace + farewell).Seconds()); got <= most {
		t.Errorf("a stop waits %d s, and a watch may take %d", got, most)
	}
	if number("SuccessExitStatus") != exit.Interrupted {
		t.Error("a stop while it comes up would leave it failed")
	}
	if number("RestartPreventExitStatus") != exit.Invalid {
		t.Error("what is invalid is tried again")
	}
	if number("StartLimitBurst")*number("RestartSec") > number("StartLimitIntervalSec") {
		t.Error("it never ends as failed")
	}
	for _, order := range []string{"After=", "Before=", "Wants=", "Requires=", "BindsTo=", "network-online", "docker.service"} {
		if strings.Contains(text, order) {
			t.Errorf("a user unit knows nothing of %s", order)
		}
	}
}

// The unit finds what corral finds now, and no program where an agent may write one.
func TestUnitEnvironment(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "docker"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"XDG_CONFIG_HOME", "XDG_DATA_HOME", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CORRAL_SUBNET", "CORRAL_RESOLVERS", "CORRAL_CA_BUNDLE", "CORRAL_PROBES"} {
		t.Setenv(name, "")
	}
	t.Setenv("PATH", "/project/node_modules/.bin:relative:"+dir+":/usr/bin")
	t.Setenv("HOME", "/home/dev/")
	t.Setenv("DOCKER_HOST", "unix:///x.sock")
	t.Setenv("CORRAL_RESOLVERS", "10.0.0.53")
	t.Setenv("ANTHROPIC_API_KEY", "secret")
	want := []string{"PATH=" + strings.Join(systemPath, ":") + ":" + dir, "DOCKER_HOST=unix:///x.sock", "CORRAL_RESOLVERS=10.0.0.53"}
	if got := unitEnvironment([]string{"/home/dev"}); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := unitEnvironment([]string{"/home/other"}); !slices.Contains(got, "HOME=/home/dev/") {
		t.Errorf("another home: %q", got)
	}
}

// A down takes back what systemd has begun, and says what comes back and what it
// cannot tell; a status says how the unit is.
func TestUnitOfWhatIsTakenDown(t *testing.T) {
	root := t.TempDir()
	asked := filepath.Join(root, "asked")
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(root, "config"))
	t.Setenv("XDG_RUNTIME_DIR", root)
	t.Setenv("PATH", root+":"+os.Getenv("PATH"))
	systemctl := func(script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, "systemctl"), []byte("#!/bin/sh\necho \"$*\" >> "+asked+"\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const file = "/srv/p/corral.yaml"
	id := plan.ID("p", file)
	name := unitName(id)
	dir := filepath.Join(root, "config", "systemd", "user")
	if err := os.MkdirAll(filepath.Join(dir, wantsDir), 0o755); err != nil {
		t.Fatal(err)
	}
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	down := func() string {
		t.Helper()
		if err := os.RemoveAll(asked); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		(&app{err: &said}).stopUnits(t.Context(), file)
		return said.String()
	}
	systemctl("exit 0\n")
	if said := down(); said != "" || unitOf(t.Context(), file) != nil {
		t.Errorf("not enabled: %s", said)
	}
	put(name, "[Service]\n"+unitMark+"\n")                           // not corral's
	put(unitName(plan.ID("p", "/srv/q/corral.yaml")), unitMark+"\n") // another policy's
	if said := down(); said != "" || unitOf(t.Context(), file) != nil {
		t.Errorf("another's: %s", said)
	}
	if _, err := os.Stat(asked); err == nil {
		t.Error("systemd was asked about nothing")
	}
	put(name, unitMark+"\n")
	if said := down(); said != "" {
		t.Errorf("not linked: %s", said)
	}
	put(filepath.Join(wantsDir, name), "")
	if said := down(); said != "corral: "+name+" brings it up again at the next boot or login; corral disable ends that\n" {
		t.Errorf("enabled: %s", said)
	}
	if b, _ := os.ReadFile(asked); !strings.HasSuffix(string(b), "--user stop --no-block "+name+"\n") {
		t.Errorf("asked %s", b)
	}
	systemctl("echo failed; exit 3\n")
	if said := down(); !strings.Contains(said, "could not be stopped, and may bring it up again") {
		t.Errorf("systemd refuses: %s", said)
	}
	for script, want := range map[string]string{
		"echo active\n": name + ": enabled, and active",
		"[ $2 = show-environment ] && exit 0; echo failed; exit 3\n":     name + ": enabled, and failed: corral enable starts it, journalctl --user --unit " + name + " says what it said",
		"[ $2 = show-environment ] && exit 0; echo activating; exit 3\n": name + ": enabled, and activating",
		"exit 1\n": name + ": enabled",
	} {
		systemctl(script)
		if got := unitOf(t.Context(), file).words(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
