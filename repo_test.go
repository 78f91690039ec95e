package corral_test

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// tracked lists the files of the repository.
func tracked(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	names := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	return slices.DeleteFunc(names, func(name string) bool {
		info, err := os.Lstat(name)
		return err != nil || !info.Mode().IsRegular() // deleted but not yet committed, or a link
	})
}

func TestRepositoryIsComplete(t *testing.T) {
	for _, name := range []string{"README.md", "HACKING.md", "SECURITY.md", "CHANGELOG.md", "LICENSE", "Makefile", ".ci/run"} {
		if info, err := os.Stat(name); err != nil || info.Size() == 0 {
			t.Errorf("%s: missing or empty (%v)", name, err)
		}
	}
}

// host matches a host name written here in pieces, so that this file does not
// match itself.
func host(labels ...string) string {
	return `(^|[^\w.-])` + strings.Join(labels, `\.`) + `([^\w.-]|$)`
}

// unwelcome are words that no file of the repository has.
var unwelcome = []struct {
	what  string
	word  *regexp.Regexp
	files *regexp.Regexp
}{
	{"a registry's host: packages go by name, through the machine's own clients", regexp.MustCompile(strings.Join([]string{
		host("registry", "npmjs", "org"), host("pypi", "org"), host("files", "pythonhosted", "org"),
		host("proxy", "golang", "org"), host("sum", "golang", "org"), host("crates", "io"), host("index", "crates", "io"), host("static", "crates", "io"),
		host(`(registry-1|index|auth)`, "docker", "io"), host("ghcr", "io"), host("quay", "io"), host(`([a-z]+\.)?gcr`, "io"),
		host(`(deb|security|snapshot)`, "debian", "org"), host(`([a-z]+\.)?(archive|security)`, "ubuntu", "com"), host(`repo1?`, "maven", "org"),
	}, "|")), nil},
	{"a path of one machine", regexp.MustCompile(`(^|[^\w./~-])/(wor` + `k|far` + `m)/|/ro` + `ot/go\b`), nil},
	{"an unfinished mark", regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`), nil},
	{"a skip: testenv.Require is the place", regexp.MustCompile(`\b(t|tb|b|f)\.Ski` + `p(f|Now)?\(`), regexp.MustCompile(`\.go$`)},
	{"a sleep: wait for the event", regexp.MustCompile(`\btime\.Sle` + `ep\(`), regexp.MustCompile(`_test\.go$|^test/.*\.go$`)},
	{"a conflict mark", regexp.MustCompile(`^(<{7}|>{7}) `), nil},
}

func TestUnwelcomeWords(t *testing.T) {
	for _, name := range tracked(t) {
		if name == "go.sum" || strings.HasPrefix(name, "internal/testenv/") {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if bytes.IndexByte(b, 0) >= 0 {
			continue
		}
		for i, line := range strings.Split(string(b), "\n") {
			for _, u := range unwelcome {
				if (u.files == nil || u.files.MatchString(name)) && u.word.MatchString(line) {
					t.Errorf("%s:%d: %s: %s", name, i+1, u.what, strings.TrimSpace(line))
				}
			}
		}
	}
}

// TestUnwelcomeWordsAreFound tries each word once.
func TestUnwelcomeWordsAreFound(t *testing.T) {
	for i, line := range []string{
		"curl https://pyp" + "i.org/simple",
		"see /wor" + "k/main",
		"// TO" + "DO: later",
		"t.Ski" + "p()",
		"time.Sle" + "ep(1)",
		"<<<<<<" + "< HEAD",
	} {
		if !unwelcome[i].word.MatchString(line) {
			t.Errorf("%q is not found", line)
		}
	}
	for _, line := range []string{"apt-get install docker.io", "~/framework/main.go", "network/", "golang.org/x/sys", "api.example.org"} {
		for _, u := range unwelcome {
			if u.word.MatchString(line) {
				t.Errorf("%q counts as %s", line, u.what)
			}
		}
	}
}

func TestShellScriptsParse(t *testing.T) {
	shebang := regexp.MustCompile(`^#! ?(/usr/bin/env |/usr/bin/|/bin/)(sh|bash|dash)\b`)
	seen := 0
	for _, name := range tracked(t) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
			continue
		}
		m := shebang.FindSubmatch(b)
		if m == nil {
			if strings.HasSuffix(name, ".sh") {
				t.Errorf("%s: a shell script without a first line that says so", name)
			}
			continue
		}
		seen++
		if out, err := exec.Command(string(m[2]), "-n", name).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		if info, err := os.Stat(name); err != nil || info.Mode()&0o100 == 0 {
			t.Errorf("%s: not executable (%v)", name, err)
		}
	}
	if seen == 0 {
		t.Error("no shell script found: the search is broken")
	}
}
