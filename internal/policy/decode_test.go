package policy

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/diag"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s (-update to accept)\n--- got\n%s--- want\n%s", file, got, want)
	}
}

func TestParse(t *testing.T) {
	for _, dir := range []string{"ok", "err"} {
		files, err := filepath.Glob("testdata/" + dir + "/*.yaml")
		if err != nil || len(files) == 0 {
			t.Fatal("no cases: ", err)
		}
		for _, file := range files {
			t.Run(dir+"/"+strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
				src, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				p, err := Parse(FileName, src)
				if dir == "ok" && err != nil {
					t.Fatal(err)
				}
				var got string
				switch {
				case dir == "ok":
					got = string(encode(p))
				case err == nil:
					t.Fatal("accepted")
				default:
					for _, d := range err.(diag.List) {
						if d.Line == 0 || d.Col == 0 {
							t.Errorf("no place: %s", d.Message)
						}
					}
					got = err.Error() + "\n"
				}
				golden(t, strings.TrimSuffix(file, ".yaml")+".golden", got)
			})
		}
	}
}

// encode writes what Parse reads, every string in quotes.
func encode(p *Policy) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "profile: %q\nmode: %q\n", p.Profile, p.Mode.String())
	if p.Name != "" {
		fmt.Fprintf(&b, "name: %q\n", p.Name)
	}
	b.WriteString("mounts:\n")
	for i, kind := range []string{"rw", "ro"} {
		fmt.Fprintf(&b, "  %s: [", kind)
		for _, m := range p.Mounts {
			if m.ReadOnly == (i == 1) {
				fmt.Fprintf(&b, "%s, ", quote(m.Given))
			}
		}
		b.WriteString("]\n")
	}
	fmt.Fprintf(&b, "egress:\n  defaults: %t\n  refresh: %q\n  allow:\n    [\n", p.Egress.Defaults, p.Egress.Refresh)
	for _, r := range p.Egress.Allow {
		fmt.Fprintf(&b, "    {domain: %s, liveness: %t, ports: ", r.Domain, r.Liveness)
		if r.AnyPort {
			b.WriteString("any")
		} else {
			b.WriteString(strings.ReplaceAll(fmt.Sprint(r.Ports), " ", ", "))
		}
		if len(r.Private) > 0 {
			b.WriteString(", private: [")
			for _, x := range r.Private {
				fmt.Fprintf(&b, "%q, ", x)
			}
			b.WriteString("]")
		}
		b.WriteString("},\n")
	}
	b.WriteString("    ]\n")
	if len(p.HostServices) > 0 {
		b.WriteString("host_services:\n")
		for _, s := range p.HostServices {
			fmt.Fprintf(&b, "  - {name: %q, port: %d}\n", s.Name, s.Port)
		}
	}
	if p.EnvFile.Given != "" {
		fmt.Fprintf(&b, "secrets: {env_file: %s}\n", quote(p.EnvFile.Given))
	}
	if p.Image.Base != DefaultBase || p.Image.Packages != nil || p.Image.Run != nil {
		fmt.Fprintf(&b, "image:\n  base: %q\n  packages: %s\n  run: %s\n", p.Image.Base, quotes(p.Image.Packages), quotes(p.Image.Run))
	}
	if r := p.Resources; r != (Resources{Pids: DefaultPids}) {
		b.WriteString("resources:\n")
		if r.Memory > 0 {
			fmt.Fprintf(&b, "  memory: %dk\n", r.Memory/1024)
		}
		if r.NanoCPUs > 0 {
			fmt.Fprintf(&b, "  cpus: %d.%09d\n", r.NanoCPUs/1e9, r.NanoCPUs%1e9)
		}
		fmt.Fprintf(&b, "  pids: %d\n", r.Pids)
	}
	if p.Git != (Git{}) {
		config, dir := "ro", "rw"
		if p.Git.ConfigWritable {
			config = "writable"
		}
		if p.Git.DirReadOnly {
			dir = "ro"
		}
		fmt.Fprintf(&b, "git: {config: %s, dir: %s}\n", config, dir)
	}
	if len(p.Background) > 0 {
		fmt.Fprintf(&b, "background: [%s]\n", strings.Join(p.Background, ", "))
	}
	if len(p.PreLaunch) > 0 {
		fmt.Fprintf(&b, "hooks: {pre_launch: %s}\n", quotes(p.PreLaunch))
	}
	if len(p.Command) > 0 {
		b.WriteString("profile_options:\n  shell:\n    command: [")
		for _, a := range p.Command {
			fmt.Fprintf(&b, "%s, ", quote(a))
		}
		b.WriteString("]\n")
	}
	if h := p.Hermes; h != nil {
		b.WriteString("profile_options:\n  hermes:\n")
		if m := h.Model; m != (Model{}) {
			fmt.Fprintf(&b, "    model: {base_url: %s, name: %s, context_length: %d}\n", quote(m.BaseURL), quote(m.Name), m.Context)
		}
		fmt.Fprintf(&b, "    researcher: %t\n    fetch: %t\n    approvals: %q\n    approvals_deny: %s\n", h.Researcher, h.Fetch, h.Approvals, quotes(h.Deny))
		if h.Search != "" {
			fmt.Fprintf(&b, "    search_image: %s\n", quote(h.Search))
		}
	}
	return b.Bytes()
}

// quotes are the texts of lines as a list.
func quotes(lines []Line) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(quote(l.Text) + ", ")
	}
	return "[" + b.String() + "]"
}

// quote is s in YAML's double quotes.
func quote(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r < ' ' || r == '"' || r == '\\' || r > '~' {
			fmt.Fprintf(&b, `\U%08X`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return `"` + b.String() + `"`
}

// settled is p without what depends on how it was written.
func settled(p *Policy) *Policy {
	c := *p
	c.Digest, c.Origins = "", nil
	c.EnvFile.Pos = diag.Pos{}
	c.Image.Packages, c.Image.Run, c.PreLaunch = bareLines(p.Image.Packages), bareLines(p.Image.Run), bareLines(p.PreLaunch)
	c.HostServices = nil
	for _, s := range p.HostServices {
		s.Pos = diag.Pos{}
		c.HostServices = append(c.HostServices, s)
	}
	c.Mounts, c.Egress.Allow = nil, nil
	for _, readOnly := range []bool{false, true} {
		for _, m := range p.Mounts {
			if m.ReadOnly == readOnly {
				m.Pos = diag.Pos{}
				c.Mounts = append(c.Mounts, m)
			}
		}
	}
	for _, r := range p.Egress.Allow {
		r.Pos, r.Given = diag.Pos{}, ""
		c.Egress.Allow = append(c.Egress.Allow, r)
	}
	if p.Hermes != nil {
		h := *p.Hermes
		h.Pos, h.Deny = diag.Pos{}, bareLines(h.Deny)
		c.Hermes = &h
	}
	return &c
}

// bareLines are lines without their places.
func bareLines(lines []Line) (bare []Line) {
	for _, l := range lines {
		bare = append(bare, Line{Text: l.Text})
	}
	return bare
}

func FuzzDecode(f *testing.F) {
	files, err := filepath.Glob("testdata/*/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(src)
	}
	for _, section := range []string{
		"host_services: [{name: a, port: 1}, {port: 2, name: b}]", "secrets: {env_file: /a}", "image: {base: a/b:c@sha256:d, packages: [aa, bb=1], run: [a]}",
		"resources: {memory: 1.5g, cpus: .5, pids: 1e3}", "resources: {memory: 16m, cpus: 1.000000001, pids: 16}", "git: {config: ro, dir: ro}",
		"profile_options: {hermes: {model: {base_url: 'https://a.example:8443/v1', name: m, context_length: 64000}, approvals: smart}}", "profile_options: {hermes: {}}",
		"background: [cron]", "hooks: {pre_launch: [\"\\0\", |\n a\n]}", "image: {run: [>-\n a\n\n b\n]}", "resources: {cpus: 1_0.0, memory: 0b1}",
	} {
		f.Add([]byte("profile: hermes\n" + section + "\n"))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		p, err := Parse(FileName, src)
		if err != nil {
			var l diag.List
			if !errors.As(err, &l) || len(l) == 0 {
				t.Fatalf("%T: %v", err, err)
			}
			l.Print(io.Discard)
			if strings.ContainsAny(err.Error(), "\x00\x1b\r\u202e\u2028\u0085") {
				t.Fatalf("%q", err.Error())
			}
			return
		}
		again, err := Parse(FileName, encode(p))
		if err != nil {
			t.Fatalf("%s\ndoes not parse again: %v", encode(p), err)
		}
		if want, got := settled(p), settled(again); !reflect.DeepEqual(want, got) {
			t.Fatalf("%s\nparses again as\n%s", encode(want), encode(got))
		}
	})
}

// Zero values deny: what was not decoded grants nothing.
func TestZeroPolicy(t *testing.T) {
	var p Policy
	if p.Mode == Run || p.Mode == Daemon || p.Mode.String() != "invalid" {
		t.Errorf("mode %v", p.Mode)
	}
	if p.Git.ConfigWritable || p.EnvFile != (EnvFile{}) {
		t.Errorf("git %+v, env file %+v", p.Git, p.EnvFile)
	}
	if p.Egress.Defaults || len(p.Egress.Allow) > 0 {
		t.Errorf("egress %+v", p.Egress)
	}
}

func TestParseLimits(t *testing.T) {
	sized := func(n int) []byte {
		head := "profile: shell\n#"
		return []byte(head + strings.Repeat("x", n-len(head)))
	}
	if _, err := Parse(FileName, sized(maxBytes)); err != nil {
		t.Error(err)
	}
	if _, err := Parse(FileName, sized(maxBytes+1)); err == nil {
		t.Error("too large, accepted")
	}
	list := func(n int) []byte {
		var b bytes.Buffer
		b.WriteString("profile: shell\negress:\n  allow:\n")
		for i := range n {
			fmt.Fprintf(&b, "  - h%d.example\n", i)
		}
		return b.Bytes()
	}
	if _, err := Parse(FileName, list(maxEntries)); err != nil {
		t.Error(err)
	}
	if _, err := Parse(FileName, list(maxEntries+1)); err == nil {
		t.Error("too many entries, accepted")
	}
	// A file full of mistakes on one line costs no more than its size.
	var many bytes.Buffer
	many.WriteString("{")
	for i := range 20_000 {
		fmt.Fprintf(&many, "k%d: 1,", i)
	}
	many.WriteString("}")
	_, err := Parse(FileName, many.Bytes())
	if err == nil || len(err.Error()) > 100_000 {
		t.Errorf("%d bytes of complaint", len(fmt.Sprint(err)))
	}
}

func TestDigestIsOfTheVeryBytes(t *testing.T) {
	a, err := Parse(FileName, []byte("profile: shell\n"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Parse(FileName, []byte("profile: shell\n\n"))
	if err != nil {
		t.Fatal(err)
	}
	if a.Digest == b.Digest || !strings.HasPrefix(a.Digest, "sha256:") || len(a.Digest) != 7+64 {
		t.Errorf("%s, %s", a.Digest, b.Digest)
	}
}

func TestValuesAreExact(t *testing.T) {
	for _, c := range []struct {
		src  string
		want Resources
	}{
		{"memory: 16m", Resources{Memory: 16 << 20, Pids: DefaultPids}},
		{"memory: 16384k", Resources{Memory: 16 << 20, Pids: DefaultPids}},
		{"memory: 1536m", Resources{Memory: 1536 << 20, Pids: DefaultPids}},
		{"memory: 8g", Resources{Memory: 8 << 30, Pids: DefaultPids}},
		{"memory: 1024t", Resources{Memory: 1 << 50, Pids: DefaultPids}},
		{"cpus: 0.01", Resources{NanoCPUs: 10_000_000, Pids: DefaultPids}},
		{"cpus: 0.07", Resources{NanoCPUs: 70_000_000, Pids: DefaultPids}}, // 0.07*1e9 is not whole in floating point
		{"cpus: 0.29", Resources{NanoCPUs: 290_000_000, Pids: DefaultPids}},
		{"cpus: 4.35", Resources{NanoCPUs: 4_350_000_000, Pids: DefaultPids}},
		{"cpus: 1023.999999999", Resources{NanoCPUs: 1_023_999_999_999, Pids: DefaultPids}},
		{"cpus: 1024", Resources{NanoCPUs: 1_024_000_000_000, Pids: DefaultPids}},
		{"pids: 16", Resources{Pids: 16}},
		{"pids: 4194304", Resources{Pids: 4194304}},
		{"", Resources{Pids: DefaultPids}},
	} {
		p, err := Parse(FileName, []byte("profile: shell\nresources: {"+c.src+"}\n"))
		if err != nil {
			t.Error(err)
		} else if p.Resources != c.want {
			t.Errorf("%s: %+v", c.src, p.Resources)
		}
	}
}

func TestOrigins(t *testing.T) {
	src := `profile: hermes
name: a
egress:
  refresh: manual
  defaults: false
  allow: [{domain: a.example, ports: any}]
secrets: {env_file: /x}
image: {base: debian, run: []}
resources: {memory: 1g,
  cpus: 1}
git: {config: writable}
background: [cron]
`
	p, err := Parse(FileName, []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for path, at := range p.Origins {
		got[path] = at.String()
	}
	want := map[string]string{
		"profile": "corral.yaml:1:1", "name": "corral.yaml:2:1",
		"egress": "corral.yaml:3:1", "egress.refresh": "corral.yaml:4:3", "egress.defaults": "corral.yaml:5:3", "egress.allow": "corral.yaml:6:3",
		"secrets": "corral.yaml:7:1", "secrets.env_file": "corral.yaml:7:11",
		"image": "corral.yaml:8:1", "image.base": "corral.yaml:8:9", "image.run": "corral.yaml:8:23",
		"resources": "corral.yaml:9:1", "resources.memory": "corral.yaml:9:13", "resources.cpus": "corral.yaml:10:3",
		"git": "corral.yaml:11:1", "git.config": "corral.yaml:11:7", "background": "corral.yaml:12:1",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	whole, err := os.ReadFile("testdata/ok/whole.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if p, err = Parse(FileName, whole); err != nil {
		t.Fatal(err)
	}
	if _, ok := p.Origins["profile_options.shell.command"]; !ok {
		t.Errorf("%v", p.Origins)
	}
	if p, err = Parse(FileName, []byte("profile: shell\n")); err != nil || len(p.Origins) != 1 {
		t.Errorf("%v, %v", p.Origins, err)
	}
}
