package policy

import (
	"bytes"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/diag"
)

func prefixes(s ...string) (out []netip.Prefix) {
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func written(n int) diag.Pos { return diag.Pos{File: "/home/u/p/corral.yaml", Line: n, Col: 3} }

var byShell = Defaults{Profile: "shell", Command: []string{"sh"}}

// everything says something under every key.
func everything() *Policy {
	return &Policy{
		File:    "/home/u/p/corral.yaml",
		Dir:     "/home/u/p",
		Project: Mount{Path: "/home/u/p", Given: "/home/u/p", Pos: diag.Pos{File: "corral.yaml"}, Submounts: []string{"/home/u/p/a", "/home/u/p/b"}},
		Profile: "hermes",
		Name:    "myproject",
		Mode:    Run,
		Mounts: []Mount{
			{Path: "/mnt/notes", Given: "~/notes", ReadOnly: true, Pos: written(6)},
			{Path: "/srv/z", Given: "/srv/z", Pos: written(8)},
			{Path: "/srv/a\nmounts.ro", Given: "/srv/link", Pos: written(9)},
		},
		Egress: Egress{
			Allow: []Rule{
				{Domain: "openrouter.ai", Given: "OpenRouter.ai", Ports: []uint16{80, 443}, Liveness: true, Pos: written(12)},
				{Domain: "xn--bcher-kva.example", Given: "bücher.example", AnyPort: true, Liveness: true, Pos: written(13)},
				{Domain: "git.corp.example", Given: "git.corp.example", Ports: []uint16{22}, Private: prefixes("10.38.0.0/16", "10.1.0.0/16"), Pos: written(14)},
			},
			Defaults: true,
			Refresh:  "auto",
		},
		HostServices: []HostService{{"llama", 8081, written(20)}, {"db", 5432, written(21)}},
		EnvFile:      EnvFile{Path: "/home/u/.config/corral/x.env", Given: "~/.config/corral/x.env", Pos: written(23)},
		Image: Image{
			Base:     DefaultBase,
			Packages: []Line{{"ripgrep", written(26)}, {"git=1:2.39", written(27)}},
			Run:      []Line{{"set -e\ncurl a.test | sh\n", written(28)}, {"true", written(31)}},
		},
		Resources:  Resources{Memory: 8 << 30, NanoCPUs: 1_500_000_000, Pids: DefaultPids},
		Git:        Git{ConfigWritable: true},
		Background: []string{"cron"},
		PreLaunch:  []Line{{"restic backup", written(40)}},
		Command:    []string{"sh", "-c", "echo \"a b\"\nid"},
		Hermes: &Hermes{
			Model:      Model{BaseURL: "http://corral-host:8081/v1", Host: "corral-host", Port: 8081, Name: "qwen", Context: 65536},
			Researcher: true, Fetch: true, Search: "searxng/searxng:1", Approvals: ApprovalsSmart,
			Deny: []Line{{"*rm -rf /*", written(48)}, {"*curl*", written(49)}},
		},
		Digest: "sha256:00",
		Origins: map[string]diag.Pos{
			"profile": written(1), "resources.memory": written(34), "git.config": written(36), "background": written(38), "profile_options.shell.command": written(42),
		},
	}
}

func TestRules(t *testing.T) {
	d := Defaults{Profile: "opencode", Egress: []string{"openrouter.ai", "b.test", "b.test", "a.test"}}
	show := func(p *Policy) string {
		var b strings.Builder
		for _, r := range p.Rules(d) {
			fmt.Fprintf(&b, "%s %d %t %t %s\n", r.Domain, r.Ports, r.Soft, r.Liveness, r.Pos)
		}
		return b.String()
	}
	p := everything()
	p.Egress.Allow = p.Egress.Allow[:1]
	own := "openrouter.ai [80 443] false true /home/u/p/corral.yaml:12:3\n"
	want := own + "b.test [80 443] true false profile opencode\na.test [80 443] true false profile opencode\n"
	if got := show(p); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	p.Egress.Defaults = false
	if got := show(p); got != own {
		t.Errorf("defaults: false gives\n%s", got)
	}
	if got := show(&Policy{}); got != "" { // R118
		t.Errorf("the zero policy opens\n%s", got)
	}
}

func TestAllows(t *testing.T) {
	rules := []Rule{
		{Domain: "a.test", Ports: []uint16{443}, Pos: written(1)},
		{Domain: "a.test", Ports: []uint16{22, 443}, Pos: written(2)},
		{Domain: "any.test", AnyPort: true, Pos: written(3)},
		{Domain: "none.test", Pos: written(4)},
	}
	for _, c := range []struct {
		name Domain
		port uint16
		line int // 0: denied
	}{
		{"a.test", 443, 1}, {"a.test", 22, 2}, {"a.test", 442, 0}, {"a.test", 0, 0},
		{"any.test", 1, 3}, {"any.test", 65535, 3}, {"any.test", 0, 0},
		{"none.test", 443, 0}, {"b.a.test", 443, 0}, {"test", 443, 0}, {"a.test.", 443, 0}, {"A.test", 443, 0}, {"", 443, 0},
	} {
		r, ok := Allows(rules, c.name, c.port)
		if ok != (c.line != 0) || r.Pos.Line != c.line {
			t.Errorf("%s:%d: %t, by line %d", c.name, c.port, ok, r.Pos.Line)
		}
	}
}

func TestEffective(t *testing.T) {
	p := everything()
	d := Defaults{Profile: "hermes", Command: []string{"hermes"}, Egress: []string{"api.test", "openrouter.ai"}}
	golden(t, "testdata/widen/effective.json", string(p.Effective(d).Encode()))

	p.Command = nil
	if got := p.Effective(d).Command; !reflect.DeepEqual(got, d.Command) {
		t.Errorf("without a command of its own: %q", got)
	}
	p.Mode = Daemon
	for _, m := range p.Effective(d).Mounts {
		if m.Path == p.Dir {
			t.Error("the project is mounted in daemon mode")
		}
	}
}

// What is written in another order, or elsewhere, is the same policy.
func TestEffectiveIsOfTheMeaning(t *testing.T) {
	p, q := everything(), everything()
	for _, reverse := range []func(){
		func() { q.Mounts[0], q.Mounts[2] = q.Mounts[2], q.Mounts[0] },
		func() { q.Egress.Allow[0], q.Egress.Allow[2] = q.Egress.Allow[2], q.Egress.Allow[0] },
		func() { r := &q.Egress.Allow[0]; r.Private[0], r.Private[1] = r.Private[1], r.Private[0] },
		func() { q.HostServices[0], q.HostServices[1] = q.HostServices[1], q.HostServices[0] },
		func() { q.Image.Packages[0], q.Image.Packages[1] = q.Image.Packages[1], q.Image.Packages[0] },
		func() { q.Egress.Allow[1].Given, q.Mounts[0].Given, q.Mounts[0].Pos = "x", "x", written(99) },
		func() { q.Digest = "" },
	} {
		reverse()
		if d := Diff(p.Effective(byShell), q.Effective(byShell)); len(d) != 0 {
			t.Errorf("%+v", d)
		}
	}
	q.Image.Run[0], q.Image.Run[1] = q.Image.Run[1], q.Image.Run[0]
	if !Widens(Diff(p.Effective(byShell), q.Effective(byShell))) {
		t.Error("build steps in another order are the same")
	}
}

func TestEffectiveSharesNothing(t *testing.T) {
	p := everything()
	e := p.Effective(byShell)
	want := e.Encode()
	p.Egress.Allow[0].Ports[0] = 1
	p.Egress.Allow[2].Private[0] = netip.Prefix{}
	p.Command[0], p.Background[0] = "x", "x"
	if !bytes.Equal(e.Encode(), want) {
		t.Error("the value changed with the policy")
	}
}

func TestDecodeEffective(t *testing.T) {
	for _, p := range []*Policy{everything(), {}} {
		e := p.Effective(byShell)
		if bytes.Contains(e.Encode(), []byte("null")) {
			t.Errorf("a list is null in %s", e.Encode())
		}
		for _, b := range [][]byte{e.Encode(), append([]byte(" \n"), e.Encode()...)} {
			got, err := DecodeEffective(b)
			if err != nil || !reflect.DeepEqual(got, e) {
				t.Errorf("%+v, %v\nwant %+v", got, err, e)
			}
		}
	}
	record := string(everything().Effective(byShell).Encode())
	for _, c := range []struct{ name, old, new, err string }{
		{"nothing", record, "", "unexpected end of JSON input"},
		{"null", record, "null", "the record has version 0, this corral reads version 3"},
		{"a list", record, "[]", "json: cannot unmarshal array into Go value of type struct { Version int }"},
		{"trailing data", record, record + "{}", "invalid character '{' after top-level value"},
		{"an older version", `"version": 3`, `"version": 0`, "the record has version 0, this corral reads version 3"},
		{"a later version", `"version": 3`, `"version": 4`, "the record has version 4, this corral reads version 3"},
		{"an unknown field", `"version": 3`, `"version": 3, "new": 1`, `json: unknown field "new"`},
		{"a wrong type", `"read_only": true`, `"read_only": 1`, "json: cannot unmarshal number into Go struct field EffectiveMount.mounts.read_only of type bool"},
		{"a port that is none", `5432`, `65536`, "json: cannot unmarshal number 65536 into Go struct field EffectiveService.host_services.port of type uint16"},
		{"a missing limit", "  \"memory\": 8589934592,\n", "", "the record is not as corral writes it"},
		{"a field twice", `"memory": 8589934592`, `"memory": 8589934592, "memory": 0`, "the record is not as corral writes it"},
		{"a field in capitals", `"memory"`, `"MEMORY"`, "the record is not as corral writes it"},
		{"a list that is null", "\"background\": [\n    \"cron\"\n  ]", `"background": null`, "the record is not as corral writes it"},
		{"another order", `"port": 5432`, `"port": 9000`, "the record is not as corral writes it"},
		{"ports beside any", "\"ports\": [],\n      \"any_port\": true", "\"ports\": [1],\n      \"any_port\": true", "the record is not as corral writes it"},
		{"not UTF-8", "myproject", "my\xff", "the record is not as corral writes it"},
	} {
		b := strings.Replace(record, c.old, c.new, 1)
		if b == record {
			t.Fatalf("%s: nothing was replaced", c.name)
		}
		e, err := DecodeEffective([]byte(b))
		if fmt.Sprint(err) != c.err {
			t.Errorf("%s: %v, want %s", c.name, err, c.err)
		}
		if !reflect.DeepEqual(e, Effective{}) {
			t.Errorf("%s: an error and a value", c.name)
		}
	}
}

// BenchmarkEffective does what a start of a large policy does.
func BenchmarkEffective(b *testing.B) {
	p := everything()
	p.Egress.Allow, p.Mounts = nil, nil
	for i := range 3000 {
		p.Egress.Allow = append(p.Egress.Allow, Rule{Domain: Domain(fmt.Sprintf("h%d.example.test", i*7919%3000)), Ports: []uint16{80, 443}, Liveness: true, Pos: written(i)})
	}
	for i := range 300 {
		p.Mounts = append(p.Mounts, Mount{Path: fmt.Sprintf("/srv/shared/dir%d", i*97%300), ReadOnly: i%2 == 0, Pos: written(i)})
	}
	before := p.Effective(byShell)
	before.Egress, before.Mounts = before.Egress[1:], before.Mounts[1:]
	for b.Loop() {
		after := p.Effective(byShell)
		if len(p.Rows(byShell)) < 3300 || len(Diff(before, after)) != 2 {
			b.Fatal("not the whole policy")
		}
	}
}
