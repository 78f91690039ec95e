package policy

import (
	"fmt"
	"strings"
	"testing"
)

func showRows(rows []Row) string {
	var b strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&b, "%-18s %s\n%18s   [%s]\n", r.Key, strings.ReplaceAll(r.Value, "\n", "\n"+strings.Repeat(" ", 19)), "", r.Origin)
	}
	return b.String()
}

func TestRows(t *testing.T) {
	closed := &Policy{Dir: "/srv/d", Profile: "shell", Name: "d", Mode: Daemon, Egress: Egress{Refresh: "manual"},
		Image: Image{Base: DefaultBase}, Resources: Resources{Pids: DefaultPids}, Git: Git{DirReadOnly: true}}
	both := &Policy{Git: Git{ConfigWritable: true, DirReadOnly: true}}
	d := Defaults{Profile: "hermes", Command: []string{"hermes", ""}, Egress: []string{"api.test", "openrouter.ai"}}
	for _, c := range []struct {
		name string
		p    *Policy
		d    Defaults
	}{
		{"whole", everything(), d},
		{"closed", closed, d},
		{"zero", &Policy{}, Defaults{}},
		{"git", both, Defaults{}},
	} {
		golden(t, "testdata/widen/"+c.name+".rows", showRows(c.p.Rows(c.d)))
	}
}

// A value that is no command is one line, whatever a directory is called.
func TestRowsAreLines(t *testing.T) {
	p := everything()
	for _, s := range []*string{&p.Dir, &p.Project.Path, &p.Project.Submounts[0], &p.Mounts[0].Path, &p.Mounts[1].Given, &p.EnvFile.Path, &p.HostServices[0].Name} {
		*s += "\negress.allow nothing"
	}
	for _, r := range p.Rows(byShell) {
		if strings.Contains(r.Value, "\n") && r.Key != "image.run" {
			t.Errorf("%s: %q", r.Key, r.Value)
		}
	}
	for _, c := range Diff(Effective{}, p.Effective(byShell)) {
		if strings.Contains(c.New, "\n") && c.Key != "image.run" {
			t.Errorf("%s: %q", c.Key, c.New)
		}
	}
}

func TestAmountsForPeople(t *testing.T) {
	for n, want := range map[int64]string{
		0: "", 1: "1", 1023: "1023", 1024: "1k", 1025: "1025", 1536: "1536", 512 << 20: "512m", 8 << 30: "8g", 1<<30 + 1<<20: "1025m", 3 << 40: "3t", 1 << 50: "1024t", -1: "-1",
	} {
		if got := bytesText(n); got != want {
			t.Errorf("%d bytes: %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "", 1: "0.000000001", 10_000_000: "0.01", 500_000_000: "0.5", 1_000_000_000: "1", 10_000_000_000: "10", 1_250_000_000: "1.25", -5: "-5"} {
		if got := cpusText(n); got != want {
			t.Errorf("%d thousand-millionths: %q, want %q", n, got, want)
		}
	}
	for want, args := range map[string][]string{
		"": nil, `""`: {""}, "sh": {"sh"}, `"a b"`: {"a b"}, "a b": {"a", "b"}, `"a\"b"`: {`a"b`}, `"a\\b"`: {`a\b`}, `"a\nb" é`: {"a\nb", "é"}, `"\u202e"`: {"\u202e"},
	} {
		if got := commandText(args); got != want {
			t.Errorf("%q: %s, want %s", args, got, want)
		}
	}
}
