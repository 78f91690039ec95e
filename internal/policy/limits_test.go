package policy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/diag"
)

// slow is more of a processor's time than reading any policy of the greatest size
// takes, and far less than what an algorithm that grows with the square takes.
const slow = 10 * time.Second

// worked is the processor's time that something takes by itself, however busy the
// machine is with others.
func worked(t *testing.T, do func()) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	spent := func() time.Duration {
		var use unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &use); err != nil {
			t.Fatal(err)
		}
		return time.Duration(use.Utime.Nano() + use.Stime.Nano())
	}
	before := spent()
	do()
	return spent() - before
}

// A policy made to be costly ends in a complaint that says why, soon, and no
// longer than a person reads.
func TestCostlyPolicies(t *testing.T) {
	const head = "profile: shell\n"
	fill := func(prefix, unit, suffix string) []byte {
		n := (maxBytes - len(prefix) - len(suffix)) / len(unit)
		return []byte(prefix + strings.Repeat(unit, n) + suffix)
	}
	numbered := func(prefix, format, suffix string, n int) []byte {
		var b bytes.Buffer
		b.WriteString(prefix)
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		b.WriteString(suffix)
		return b.Bytes()
	}
	var bomb strings.Builder
	bomb.WriteString(head + "a: &a [x,x,x,x,x,x,x,x,x]\n")
	for c := 'b'; c <= 'i'; c++ {
		fmt.Fprintf(&bomb, "%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	for _, c := range []struct {
		name string
		src  []byte
		want string // somewhere in the complaint
	}{
		{"aliases of aliases", []byte(bomb.String()), "anchor &a: a policy has no anchors"},
		{"an alias in itself", []byte(head + "a: &a [*a]\n"), "alias *a: a policy has no aliases"},
		{"one byte too many", append(fill(head+"#", "x", ""), 'x'), "the file has 1048577 bytes, a policy has at most 1048576"},
		{"brackets", fill("", "[", ""), "nested too deep: a policy has at most 16 levels"},
		{"braces", fill("", "{", ""), "nested too deep"},
		{"dashes", fill("", "- ", ""), "nested too deep"},
		{"question marks", fill("", "? ", ""), "nested too deep"},
		{"one list", fill("[", "a,", "]"), "the policy must be a mapping, this is a list"},
		{"one list of names", fill(head+"egress: {allow: [", "a.b,", "]}"), "1000 mistakes: what follows them was not read"},
		{"one list of ports", numbered(head+"egress: {allow: [{domain: a.b, ports: [", "%d,", "]}]}", 100_000), "has 100000 entries, at most 5000 are read"},
		{"one list of mounts", numbered(head+"mounts: {ro: [", "/srv/%d,", "]}", 1001), "mounts.ro has 1001 entries, at most 1000 are read"},
		{"one list of prefixes", numbered(head+"egress: {allow: [{domain: a.b, private: [", "fd00:%x::/32,", "]}]}", 257), "private has 257 entries, at most 256 are read"},
		{"one list of packages", numbered(head+"image: {packages: [", "p%d,", "]}", 5001), "image.packages has 5001 entries, at most 5000 are read"},
		{"one list of steps", numbered(head+"image: {run: [", "p%d,", "]}", 5001), "image.run has 5001 entries, at most 5000 are read"},
		{"one list of host services", numbered(head+"host_services: [", "{name: s%[1]d, port: 1%[1]d},", "]", 5001), "host_services has 5001 entries, at most 5000 are read"},
		{"keys", numbered(head, "%d: 1\n", "", 100_000), "the policy has 100001 keys, at most 64 are read"},
		{"keys below", numbered(head+"egress:\n", " %d: 1\n", "", 100_000), "egress has 100000 keys, at most 64 are read"},
		{"keys of an entry", numbered(head+"egress: {allow: [{", "k%d: 1,", "}]}", 100_000), "egress.allow[0] has 100000 keys, at most 64 are read"},
		{"the same key", fill(head, "a: 1\n", ""), "at most 64 are read"},
		{"empty entries", fill(head+"egress: {allow: [", "{},", "]}"), "1000 mistakes: what follows them was not read"},
		{"unknown keys in entries", fill(head+"egress: {allow: [", "{domian: a.b},", "]}"), "1000 mistakes: what follows them was not read"},
		{"tags", fill(head+"a: [", "!x y,", "]"), "1000 mistakes: what follows them was not read"},
		{"anchors", numbered(head+"a: [", "&a%d x,", "]", 90_000), "1000 mistakes: what follows them was not read"},
		{"one scalar", fill("", "x", ""), "the policy must be a mapping, this is a string"},
		{"one number", fill("", "1", ""), "the policy must be a mapping"},
		{"one name", fill("profile: ", "x", ""), "profile has 1048567 bytes, at most 4096 are read"},
		{"one quoted name", fill("profile: \"", "x", "\""), "profile has 1048565 bytes, at most 4096 are read"},
		{"one number as a name", fill("profile: ", "7", ""), "profile has 1048567 bytes, at most 4096 are read"},
		{"one key", fill("profile: shell\n? ", "x", "\n: 1\n"), `unknown key "xxx`},
		{"one anchor", fill("profile: &", "x", " shell\n"), "a policy has no anchors"},
		{"one tag", fill("profile: !", "x", " shell\n"), "a policy has no tags"},
		{"one path", fill(head+"mounts: {ro: [/", "x", "]}\n"), "mounts.ro[0] has 1048544 bytes, at most 4096 are read"},
		{"one domain", fill(head+"egress: {allow: [", "x", "]}\n"), "egress.allow[0] has"},
		{"one number as a domain", fill(head+"egress: {allow: [", "7", "]}\n"), "egress.allow[0] has"},
		{"one port", fill(head+"egress: {allow: [{domain: a.b, ports: [", "7", "]}]}\n"), "is not a port: they go from 1 to 65535"},
		{"one size", fill(head+"resources: {memory: ", "7", "}\n"), "resources.memory has"},
		{"one count", fill(head+"resources: {cpus: ", "7", "}\n"), "is more than any machine has"},
		{"one step", fill(head+"image: {run: [", "x", "]}\n"), "image.run[0] has"},
		{"one argument", fill(head+"profile_options: {shell: {command: [", "x", "]}}\n"), "profile_options.shell.command[0] has"},
		{"a command as a string", fill(head+"profile_options: {shell: {command: ", "x ", "}}\n"), "must be a list, this is a string"},
		{"blank lines", fill("", "\n", ""), "the policy is empty"},
		{"comments", fill("", "#\n", ""), "the policy is empty"},
		{"documents", fill(head, "---\n", ""), "a second document"},
		{"tabs", fill(head+"a:\n", "\t", "x"), "YAML knows spaces only"},
		{"wide characters", fill(head, "\u5b57", ": 1"), "unknown key"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var err error
			var text string
			took := worked(t, func() {
				if _, err = Parse(FileName, c.src); err != nil {
					text = err.Error()
				}
			})
			if err == nil {
				t.Fatal("accepted")
			}
			if took > slow {
				t.Errorf("took %v", took)
			}
			if !strings.Contains(text, c.want) {
				t.Errorf("%.1000s\nwithout %q", text, c.want)
			}
			if len(text) > 100_000 {
				t.Errorf("%d bytes of complaint", len(text))
			}
			for _, d := range err.(diag.List) {
				if len(d.Message) > 10*maxShown || len(d.Hint) > maxHint {
					t.Errorf("%d bytes of message, %d of hint", len(d.Message), len(d.Hint))
				}
			}
			if testing.Verbose() {
				t.Logf("%v, %d mistakes, %d bytes", took, len(err.(diag.List)), len(text))
			}
		})
	}
}

// The neighbours of the limits are read.
func TestLimitsAreReached(t *testing.T) {
	const head = "profile: shell\n"
	list := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format+", ", i)
		}
		return "[" + b.String() + "]"
	}
	for _, src := range []string{
		head + "mounts: {ro: " + list(maxMounts, "/srv/%d") + "}",
		head + "egress: {allow: " + list(maxEntries, "h%d.example") + "}",
		head + "egress: {allow: [{domain: a.example, private: " + list(maxPrefixes, "fd%02x::/16") + "}]}",
		head + "mounts: {ro: [/" + strings.Repeat("x", maxPath-1) + "]}",
		head + "image: {run: [" + strings.Repeat("x", maxCommand) + "]}",
		head + "profile_options: {shell: {command: [" + strings.Repeat("x", maxCommand) + "]}}",
	} {
		if _, err := Parse(FileName, []byte(src)); err != nil {
			t.Errorf("%.80s: %v", src, err)
		}
	}
	for n, full := range map[int]bool{maxKeys: false, maxKeys + 1: true} {
		_, err := Parse(FileName, []byte(head+"egress: {"+strings.Trim(list(n, "k%d: 1"), "[]")+"}"))
		if err == nil || strings.Contains(err.Error(), "at most 64 are read") != full {
			t.Errorf("%d keys: %v", n, err)
		}
	}
	for n, full := range map[int]bool{maxMistakes - 1: false, maxMistakes: true} {
		_, err := Parse(FileName, []byte(head+"egress: {allow: "+list(n, "x%d")+"}"))
		if err == nil || strings.Contains(err.Error(), "mistakes: what follows") != full {
			t.Errorf("%d mistakes: %v", n, err)
		}
	}
	for _, src := range []string{
		head + "mounts: {ro: [/" + strings.Repeat("x", maxPath) + "]}",
		head + "image: {run: [" + strings.Repeat("x", maxCommand+1) + "]}",
		head + "hooks: {pre_launch: [" + strings.Repeat("x", maxCommand+1) + "]}",
		head + "profile_options: {shell: {command: [" + strings.Repeat("x", maxCommand+1) + "]}}",
	} {
		if _, err := Parse(FileName, []byte(src)); err == nil {
			t.Errorf("%.80s: accepted", src)
		}
	}
}

// large writes a policy of so many domains and mounts below dir, with a project
// of its own, and returns its path and the environment to load it in.
func large(t testing.TB, domains, mounts int) (file string, env Env) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("profile: shell\negress:\n  allow:\n")
	for i := range domains {
		switch i % 3 {
		case 0:
			fmt.Fprintf(&b, "    - host-%d.service.example\n", i)
		case 1:
			fmt.Fprintf(&b, "    - {domain: host-%d.service.example, ports: [22, 443]}\n", i)
		default:
			fmt.Fprintf(&b, "    - domain: host-%d.service.example\n      liveness: false\n", i)
		}
	}
	b.WriteString("mounts:\n  ro:\n")
	for i := range mounts {
		dir := fmt.Sprintf("%s/home/u/data/%d/%d", root, i%17, i)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "    - %s\n", dir)
	}
	project := root + "/home/u/Projects/p"
	if err := os.MkdirAll(project, 0o755); err != nil {
		t.Fatal(err)
	}
	file = project + "/" + FileName
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return file, Env{Home: root + "/home/u", UID: os.Getuid(), Profiles: []string{"shell"}}
}

// What the benchmark measures is what it says.
func TestLoadLarge(t *testing.T) {
	file, env := large(t, 3000, 300)
	p, err := Load(file, env)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Egress.Allow) != 3000 || len(p.Mounts) != 300 {
		t.Errorf("%d names, %d mounts", len(p.Egress.Allow), len(p.Mounts))
	}
}

// Paths as long as they can be, and many, cost no more than they are long.
func TestLoadLongPaths(t *testing.T) {
	file, env := large(t, 0, 0)
	link := filepath.Dir(file) + "/link"
	if err := os.Symlink("/srv", link); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("profile: shell\nmounts:\n  ro:\n")
	n := 0
	for ; b.Len() < maxBytes-maxPath-20; n++ {
		path := fmt.Sprintf("%s/none-%d", link, n)
		fmt.Fprintf(&b, "    - %s%s\n", path, strings.Repeat("/a", (maxPath-len(path))/2))
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	var err error
	took := worked(t, func() { _, err = Load(file, env) })
	var l diag.List
	if !errors.As(err, &l) || len(l) != n {
		t.Fatalf("%d mounts: %.1000v", n, err)
	}
	if took > slow {
		t.Errorf("took %v", took)
	}
	t.Logf("%d paths in %v", n, took)
}

func BenchmarkLoad(b *testing.B) {
	file, env := large(b, 3000, 300)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Load(file, env); err != nil {
			b.Fatal(err)
		}
	}
}
