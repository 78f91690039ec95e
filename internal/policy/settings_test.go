package policy

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/host"
)

const everySetting = `# of this machine
subnet: 10.200.0.0/16
resolvers: [10.0.0.53, 127.0.0.53, "::1"]
ca_bundle: ~/company.pem
detach_keys: ctrl-]
probes:
  unlisted: 192.0.2.1
  resolver: 192.0.2.2
  metadata: 169.254.169.254
  ipv6: 2001:db8::2
`

func TestParseSettings(t *testing.T) {
	for _, c := range []struct{ name, src, want, places string }{
		{"every key", everySetting,
			"10.200.0.0/16 [10.0.0.53 127.0.0.53 ::1] {192.0.2.1 192.0.2.2 169.254.169.254 2001:db8::2} /home/u/company.pem ctrl-]",
			"ca_bundle=4:1 detach_keys=5:1 probes=6:1 probes.ipv6=10:3 probes.metadata=9:3 probes.resolver=8:3 probes.unlisted=7:3 resolvers=3:1 subnet=2:1"},
		{"one key", "ca_bundle: /a b.pem\n", "invalid Prefix [] {invalid IP invalid IP invalid IP invalid IP} /a b.pem ", "ca_bundle=1:1"},
		{"one probe", "probes: {ipv6: 2001:db8::1}\n", "invalid Prefix [] {invalid IP invalid IP invalid IP 2001:db8::1}  ", "probes=1:1 probes.ipv6=1:10"},
		{"nothing", "", "invalid Prefix [] {invalid IP invalid IP invalid IP invalid IP}  ", ""},
		{"comments only", "\ufeff# subnet: 10.0.0.0/16\r\n\r\n\t # x", "invalid Prefix [] {invalid IP invalid IP invalid IP invalid IP}  ", ""},
		{"an empty mapping", "{}\n", "invalid Prefix [] {invalid IP invalid IP invalid IP invalid IP}  ", ""},
	} {
		s, at, err := ParseSettings("config.yaml", []byte(c.src), "/home/u")
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := fmt.Sprintf("%v %v %v %s %s", s.Subnet, s.Resolvers, s.Probes, s.CABundle, s.DetachKeys); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, got, c.want)
		}
		var places []string
		for _, k := range []string{"ca_bundle", "detach_keys", "probes", "probes.ipv6", "probes.metadata", "probes.resolver", "probes.unlisted", "resolvers", "subnet"} {
			if p, ok := at[k]; ok {
				places = append(places, fmt.Sprintf("%s=%d:%d", k, p.Line, p.Col))
			}
		}
		if got := strings.Join(places, " "); got != c.places || len(at) != len(places) {
			t.Errorf("%s: places %s, want %s", c.name, got, c.places)
		}
	}
}

func TestParseSettingsRefuses(t *testing.T) {
	servers := func(n int) string {
		var b strings.Builder
		b.WriteString("resolvers:\n")
		for i := range n {
			fmt.Fprintf(&b, "  - 10.0.0.%d\n", i)
		}
		return b.String()
	}
	if _, _, err := ParseSettings("config.yaml", []byte(servers(maxResolvers)), ""); err != nil {
		t.Error(err)
	}
	for _, c := range []struct{ name, src, want string }{
		{"every mistake at once", "subnett: 10.0.0.0/16\nresolvers: [x, ::2]\nca_bundle: a.pem\nprobes: {unlisted: ::1, other: 1}\n",
			`1:1 unknown key "subnett" | did you mean "subnet"?
2:13 resolvers[0]: "x" is not an address | write the address alone, like 192.0.2.53: name servers are asked on port 53
2:16 resolvers[1]: ::2: gates ask name servers by IPv4; of IPv6 there is ::1 only, which a relay asks
3:12 ca_bundle: "a.pem" is a relative path | start it with / or ~/
4:20 probes.unlisted: ::1 is not an IPv4 address
4:25 unknown key "other" in probes | there is unlisted, resolver, metadata, ipv6`},
		{"keys that everybody types", "detach_keys: q\n", `1:14 detach_keys: "q": write the keys like ctrl-p,ctrl-q or ctrl-]: the first with ctrl-, commas between | ctrl-p,ctrl-q are the usual ones`},
		{"no keys", "detach_keys: ctrl-1\n", `1:14 detach_keys: "ctrl-1": write the keys like ctrl-p,ctrl-q or ctrl-]: the first with ctrl-, commas between | ctrl-p,ctrl-q are the usual ones`},
		{"a key of a policy", "profile: shell\n", `1:1 unknown key "profile" | there is subnet, resolvers, ca_bundle, probes, detach_keys`},
		{"twice", "subnet: 10.0.0.0/16\nsubnet: 10.1.0.0/16\n", `2:1 duplicate key "subnet": it is first in line 1 | keep one of the two`},
		{"no value", "subnet:\n", "1:8 subnet has no value: it must be a string | give it one or remove it"},
		{"no network", "subnet: 10.0.0.0\n", `1:9 subnet: "10.0.0.0" is not a network | write it like 172.30.0.0/16`},
		{"within a network", "subnet: 10.0.0.1/16\n", "1:9 subnet: 10.0.0.1/16 is not in canonical form | write 10.0.0.0/16"},
		{"one name server", "resolvers: 10.0.0.1\n", "1:12 resolvers must be a list, this is a string | write [10.0.0.1]"},
		{"no name server", "resolvers: []\n", "1:12 resolvers is empty | name one, or remove the key: then it is this machine's own"},
		{"a name server twice", "resolvers: [10.0.0.1, 10.0.0.1]\n", "1:23 resolvers[1]: 10.0.0.1 is listed already | keep one of the two"},
		{"a name server with a port", "resolvers: ['10.0.0.1:53']\n", `1:13 resolvers[0]: "10.0.0.1:53" is not an address | write the address alone, like 192.0.2.53: name servers are asked on port 53`},
		{"no address", "resolvers: [0.0.0.0]\n", "1:13 resolvers[0]: 0.0.0.0 is not the address of one name server"},
		{"too many name servers", servers(maxResolvers + 1), "18:5 resolvers has 17 entries, at most 16 are read"},
		{"home alone", "ca_bundle: ~\n", "1:12 ca_bundle: bare ~ is null to YAML, not a path | did you mean ~/ or a path?"},
		{"somebody's home", "ca_bundle: ~root/a\n", `1:12 ca_bundle: "~root/a": only ~/ is expanded, for your own home | write the path out`},
		{"a variable", "ca_bundle: $HOME/a\n", `1:12 ca_bundle: "$HOME/a": variables are not expanded in settings | write ~/ for your home, or the path out`},
		{"a probe of the other family", "probes: {ipv6: 192.0.2.1}\n", "1:16 probes.ipv6: 192.0.2.1 is not an IPv6 address"},
		{"probes in a list", "probes: [192.0.2.1]\n", "1:9 probes must be a mapping, this is a list"},
		{"a list", "- a\n", "1:1 the file must be a mapping, this is a list"},
		{"an anchor", "subnet: &a 10.0.0.0/16\n", "1:9 anchor &a: settings have no anchors | write the value out"},
		{"two documents", "subnet: 10.0.0.0/16\n---\n{}\n", "2:1 a second document: settings are one"},
		{"a control character", "subnet: \x1b\n", "1:9 character U+001B does not belong in settings"},
		{"a control character in a comment", "# \x1b\n", "1:3 character U+001B does not belong in settings"},
		{"what is quoted stays", "\"a policy has\": 1\n", `1:1 unknown key "a policy has" | there is subnet, resolvers, ca_bundle, probes, detach_keys`},
		{"not YAML", "subnet: [\n", ""},
		{"too large", "#" + strings.Repeat("x", maxBytes), "0:0 the file has 1048577 bytes, settings have at most 1048576"},
	} {
		s, at, err := ParseSettings("config.yaml", []byte(c.src), "/home/u")
		var l diag.List
		if !errors.As(err, &l) || !reflect.DeepEqual(s, host.Settings{}) || at != nil {
			t.Errorf("%s: %+v, %v", c.name, s, err)
			continue
		}
		var lines []string
		for _, m := range l {
			line := fmt.Sprintf("%d:%d %s", m.Line, m.Col, m.Message)
			if m.Hint != "" {
				line += " | " + m.Hint
			}
			lines = append(lines, line)
			if m.Kind != "settings error" || m.File != "config.yaml" {
				t.Errorf("%s: %s in %s", c.name, m.Kind, m.File)
			}
		}
		if got := strings.Join(lines, "\n"); c.want != "" && got != c.want {
			t.Errorf("%s\n--- got\n%s\n--- want\n%s", c.name, got, c.want)
		}
	}
}

func TestLoadSettings(t *testing.T) {
	const file = "~/.config/corral/config.yaml"
	m := newMachine(t)
	load := func() (host.Settings, error) {
		s, at, err := LoadSettings(m.path(file), m.env.Home, uint32(m.env.UID))
		if err == nil && at == nil {
			t.Error("no places")
		}
		return s, err
	}
	if s, err := load(); err != nil || !reflect.DeepEqual(s, host.Settings{}) { // not even its directory
		t.Fatalf("%+v, %v", s, err)
	}
	m.dir("~/.config/corral")
	if s, err := load(); err != nil || !reflect.DeepEqual(s, host.Settings{}) {
		t.Fatalf("%+v, %v", s, err)
	}
	m.file(file, everySetting)
	s, err := load()
	if err != nil || s.CABundle != m.path("~/company.pem") || len(s.Keys()) != 8 {
		t.Fatalf("%+v, %v", s, err)
	}
}

func TestLoadSettingsRefusesTheFile(t *testing.T) {
	for _, c := range []struct {
		name, want string
		prepare    func(m machine, dir, file string)
	}{
		{"a directory", "a directory, not a regular file", func(m machine, dir, file string) { m.must(os.Remove(file)); m.must(os.Mkdir(file, 0o755)) }},
		{"a link", "a symbolic link, not a regular file", func(m machine, dir, file string) {
			m.must(os.Rename(file, dir+"/x"))
			m.must(os.Symlink("x", file))
		}},
		{"a dangling link", "a symbolic link, not a regular file", func(m machine, dir, file string) {
			m.must(os.Remove(file))
			m.must(os.Symlink("nothing", file))
		}},
		{"its directory leads nowhere", "its directory is a symbolic link to nothing", func(m machine, dir, file string) {
			m.must(os.RemoveAll(dir))
			m.must(os.Symlink("nothing", dir))
		}},
		{"its directory is a file", "not a directory", func(m machine, dir, file string) {
			m.must(os.RemoveAll(dir))
			m.must(os.WriteFile(dir, nil, 0o644))
		}},
		{"a FIFO that nobody writes", "a FIFO, not a regular file", func(m machine, dir, file string) { m.must(os.Remove(file)); m.must(syscall.Mkfifo(file, 0o600)) }},
		{"a second name", "the file has 2 names (hard links): an agent could write it by another one", func(m machine, dir, file string) { m.must(os.Link(file, dir+"/x")) }},
		{"writable by all", "the file is writable by others (mode 0646)", func(m machine, dir, file string) { m.must(os.Chmod(file, 0o646)) }},
		{"directory writable by all", "its directory @/home/u/.config/corral is writable by others (mode 0757)", func(m machine, dir, file string) { m.must(os.Chmod(dir, 0o757)) }},
		{"too large", "the file has 1048577 bytes, settings have at most 1048576", func(m machine, dir, file string) { m.must(os.Truncate(file, maxBytes+1)) }},
		{"readable by all is fine", "", func(m machine, dir, file string) { m.must(os.Chmod(file, 0o644)) }},
		{"readable by nobody else is fine", "", func(m machine, dir, file string) { m.must(os.Chmod(file, 0o600)); m.must(os.Chmod(dir, 0o700)) }},
		{"the directory by a link is fine", "", func(m machine, dir, file string) {
			m.must(os.Rename(dir, dir+"2"))
			m.must(os.Symlink("corral2", dir))
		}},
	} {
		m := newMachine(t)
		m.file("~/.config/corral/config.yaml", "subnet: 10.0.0.0/16\n")
		dir := m.path("~/.config/corral")
		c.prepare(m, dir, dir+"/config.yaml")
		_, _, err := LoadSettings(dir+"/config.yaml", m.env.Home, uint32(m.env.UID))
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		var l diag.List
		if !errors.As(err, &l) || len(l) != 1 {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := strings.ReplaceAll(l[0].Message, m.root, "@"); got != c.want || l[0].File != dir+"/config.yaml" || l[0].Kind != settingsKind {
			t.Errorf("%s: %s\ngot  %s\nwant %s", c.name, l[0].File, got, c.want)
		}
	}
}

// Somebody else's settings are nobody's, but root may make them for all.
func TestLoadSettingsOwner(t *testing.T) {
	m := newMachine(t)
	m.file("~/.config/corral/config.yaml", "subnet: 10.0.0.0/16\n")
	_, _, err := LoadSettings(m.path("~/.config/corral/config.yaml"), m.env.Home, uint32(os.Getuid())+1)
	if os.Getuid() == 0 && err != nil || os.Getuid() != 0 && err == nil {
		t.Error(err)
	}
	if os.Getuid() == 0 {
		m.must(os.Chown(m.path("~/.config/corral/config.yaml"), 12345, 12345))
		for uid, want := range map[uint32]bool{12345: true, 12346: false, 0: false} {
			if _, _, err := LoadSettings(m.path("~/.config/corral/config.yaml"), m.env.Home, uid); (err == nil) != want {
				t.Errorf("uid 12345's file, read for %d: %v", uid, err)
			}
		}
	}
}

func FuzzParseSettings(f *testing.F) {
	for _, s := range []string{everySetting, "", "#", "{}", "resolvers: [x, ::2, 10.0.0.1:53]", "probes: {ipv6: [], unlisted: ~}", "ca_bundle: \"~/\\0\"", "detach_keys: a\nsubnet: fd00::/16"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		s, _, err := ParseSettings("config.yaml", src, "/home/u")
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
		if s.CABundle != "" && !filepath.IsAbs(s.CABundle) {
			t.Fatalf("ca_bundle %q", s.CABundle)
		}
		again, _, err := ParseSettings("config.yaml", encodeSettings(s), "/elsewhere")
		if err != nil || !reflect.DeepEqual(s, again) {
			t.Fatalf("%s\nparses again as %+v: %v", encodeSettings(s), again, err)
		}
	})
}

// encodeSettings writes what ParseSettings reads.
func encodeSettings(s host.Settings) []byte {
	var b strings.Builder
	b.WriteString("{")
	if s.Subnet.IsValid() {
		fmt.Fprintf(&b, "subnet: %q, ", s.Subnet)
	}
	if s.Resolvers != nil {
		b.WriteString("resolvers: [")
		for _, r := range s.Resolvers {
			fmt.Fprintf(&b, "%q, ", r)
		}
		b.WriteString("], ")
	}
	if s.CABundle != "" {
		fmt.Fprintf(&b, "ca_bundle: %s, ", quote(s.CABundle))
	}
	if s.DetachKeys != "" {
		fmt.Fprintf(&b, "detach_keys: %s, ", quote(s.DetachKeys))
	}
	b.WriteString("probes: {")
	for _, name := range host.ProbeNames {
		if a := s.Probe(name); a.IsValid() {
			fmt.Fprintf(&b, "%s: %q, ", name, *a)
		}
	}
	b.WriteString("}}\n")
	return []byte(b.String())
}
