package engine

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/system"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
)

var update = flag.Bool("update", false, "write the generated part of docs/install.md anew")

// sound is what an engine says with which nothing is wrong.
func sound() said {
	return said{api: "1.41", command: "/usr/bin/docker", kernel: "6.1.0-1", info: system.Info{
		OSType: "linux", OperatingSystem: "Debian GNU/Linux 12", KernelVersion: "6.1.0-1", DockerRootDir: "/var/lib/docker", Driver: "overlay2",
		PidsLimit: true, MemoryLimit: true, SecurityOptions: []string{"name=apparmor", "name=seccomp,profile=default", "name=cgroupns"},
	}}
}

// R098, R102, R104 and their neighbours: by the engine's own words exactly one
// condition fails.
func TestSaid(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*said)
		unmet  string
		result spec.Result
		hint   string
	}{
		{"sound", func(*said) {}, "", "", ""},
		{"newer", func(s *said) { s.api = "1.100" }, "", "", ""},
		{"older", func(s *said) { s.api = "1.40" }, "engine-version", spec.Failed, "apt-get install docker.io"},
		{"very old", func(s *said) { s.api = "1.9" }, "engine-version", spec.Failed, "apt-get install docker.io"},
		{"windows", func(s *said) { s.info.OSType = "windows" }, "linux-containers", spec.Failed, "docker context use default"},
		{"no system", func(s *said) { s.info.OSType = "" }, "linux-containers", spec.Failed, "docker context use default"},
		{"rootless", func(s *said) { s.info.SecurityOptions = append(s.info.SecurityOptions, "name=rootless") }, "engine-root", spec.Failed, "systemctl enable --now docker"},
		{"another's option", func(s *said) {
			s.info.SecurityOptions = append(s.info.SecurityOptions, "name=rootlesskit", "label=name=rootless")
		}, "", "", ""},
		{"userns", func(s *said) { s.info.SecurityOptions = append(s.info.SecurityOptions, "name=userns") }, "engine-users", spec.Failed, "daemon.json"},
		{"desktop", func(s *said) { s.info.OperatingSystem = "Docker Desktop" }, "engine-machine", spec.Failed, "apt-get install docker.io"},
		{"a virtual machine", func(s *said) { s.info.KernelVersion = "6.1.0-10" }, "engine-machine", spec.Failed, "apt-get install docker.io"},
		{"snap engine", func(s *said) { s.info.DockerRootDir = "/var/snap/docker/common/var-lib-docker" }, "engine-package", spec.Failed, "snap remove docker"},
		{"snap command", func(s *said) { s.command = "/snap/bin/docker" }, "engine-package", spec.Failed, "snap remove docker"},
		{"no snap", func(s *said) { s.info.DockerRootDir = "/srv/snap/docker" }, "", "", ""},
		{"no seccomp", func(s *said) { s.info.SecurityOptions = nil }, "seccomp", spec.Failed, "CONFIG_SECCOMP_FILTER"},
		{"no pids", func(s *said) { s.info.PidsLimit = false }, "process-limit", spec.Failed, "CONFIG_CGROUP_PIDS"},
		{"no memory", func(s *said) { s.info.MemoryLimit = false }, "memory-limit", spec.Note, "cgroup_enable=memory"},
		{"vfs", func(s *said) { s.info.Driver = "vfs" }, "storage-driver", spec.Note, "overlay2"},
	} {
		s := sound()
		tt.change(&s)
		for _, c := range saidConditions {
			f := c.by(s)
			switch {
			case c.Name != tt.unmet && f.Result != spec.OK:
				t.Errorf("%s: %s is %+v", tt.name, c.Name, f)
			case c.Name == tt.unmet && (f.Result != tt.result || f.Detail == "" || !strings.Contains(f.Hint, tt.hint)):
				t.Errorf("%s: %s is %+v, want %s with %q", tt.name, c.Name, f, tt.result, tt.hint)
			}
		}
	}
}

// Whatever an engine that says nothing lacks is not taken for there.
func TestSaidNothing(t *testing.T) {
	for _, c := range saidConditions {
		if f := c.by(said{}); c.Name == "linux-containers" || c.Name == "seccomp" || c.Name == "process-limit" {
			if f.Result != spec.Failed {
				t.Errorf("%s is %+v", c.Name, f)
			}
		}
	}
}

func TestConditionsInOrder(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Conditions {
		if seen[c.Name] || c.Proves == "" || (c.by == nil) == (c.look == nil) {
			t.Errorf("%s: %+v", c.Name, c)
		}
		for _, earlier := range c.After {
			if !seen[earlier] {
				t.Errorf("%s comes after %s, which is looked at later or never", c.Name, earlier)
			}
		}
		if c.by != nil && !slices.Contains(c.After, "engine-answers") {
			t.Errorf("%s goes by what the engine says, and does not wait for it", c.Name)
		}
		seen[c.Name] = true
	}
}

// What does not hold makes skips of what stands on it, and keeps everything
// from being made.
func TestJudgeSkips(t *testing.T) {
	looked := false
	look := func(context.Context, *survey) Finding { looked = true; return holds("") }
	for _, tt := range []struct {
		name  string
		c     Condition
		unmet map[string]bool
		make  bool
		want  string
	}{
		{"all holds", Condition{look: look, After: []string{"kernel"}, makes: true}, nil, true, ""},
		{"what it stands on", Condition{look: look, After: []string{"docker-command", "kernel"}}, map[string]bool{"kernel": true}, false, "not looked at, since kernel does not hold"},
		{"something else", Condition{look: look, After: []string{"docker-command"}, makes: true}, map[string]bool{"kernel": true}, false, ""},
		{"something else, but it would make", Condition{look: look, makes: true}, map[string]bool{"resolvers": true}, true, "not made, since resolvers does not hold"},
	} {
		looked = false
		f := (&survey{Machine: Machine{Make: tt.make}}).judge(t.Context(), tt.c, tt.unmet)
		if looked != (tt.want == "") || f.Detail != tt.want || !looked && f.Result != spec.Skip {
			t.Errorf("%s: looked %v: %+v", tt.name, looked, f)
		}
	}
}

// R038, R040: what a kernel lacks is named with the modules that have it.
func TestJudgeKernel(t *testing.T) {
	all := func(change ...spec.Event) []spec.Event {
		var out []spec.Event
		for _, f := range spec.TrialFeatures {
			out = append(out, spec.Event{Version: spec.Version, Check: f.Name, Result: spec.OK})
		}
		out[0].Detail = "nf_tables"
		for _, c := range change {
			for i := range out {
				if out[i].Check == c.Check {
					out[i] = c
				}
			}
		}
		return out
	}
	lacks := func(name, why string) spec.Event {
		return spec.Event{Version: spec.Version, Check: name, Result: spec.Failed, Detail: why}
	}
	for _, tt := range []struct {
		name   string
		events []spec.Event
		result spec.Result
		detail []string
		hint   string
	}{
		{"all there", all(), spec.OK, []string{"rules by nf_tables"}, ""},
		{"no sets", all(lacks("set-hash-ip", "invalid argument"), lacks("set-match", "none"), lacks("rules", "none")), spec.Failed,
			[]string{"set-hash-ip, set-match", "ip_set, ip_set_hash_ip, xt_set", "invalid argument", "nf_tables"}, "sudo modprobe -a ip_set ip_set_hash_ip xt_set; "},
		{"each module once", all(lacks("set-hash-ip", "x"), lacks("set-hash-ip-port", "y")), spec.Failed, nil, "sudo modprobe -a ip_set ip_set_hash_ip ip_set_hash_ipport; "},
		{"owner", all(lacks("owner-match", "x")), spec.Failed, []string{"lacks owner-match"}, "needs CONFIG_NETFILTER_XT_MATCH_OWNER"},
		{"conntrack", all(lacks("conntrack-match", "x")), spec.Failed, nil, "sudo modprobe -a nf_conntrack xt_conntrack; "},
		{"nflog", all(lacks("nflog-target", "x"), lacks("nflog-socket", "y")), spec.Failed, nil, "sudo modprobe -a xt_NFLOG nft_log nfnetlink_log; "},
		{"only the whole", all(lacks("rules", "chain OUTPUT: order")), spec.Failed, []string{"do not hold", "chain OUTPUT: order"}, "distribution"},
		{"no backend", []spec.Event{lacks("backend", "iptables --wait -S: no\niptables-legacy: neither")}, spec.Failed,
			[]string{"neither nf_tables nor legacy", "no; iptables-legacy: neither"}, "sudo modprobe -a nf_tables nft_compat; or for legacy: sudo modprobe -a ip_tables"},
		{"no ip6tables", []spec.Event{lacks("backend", "cannot close IPv6: ip6tables --wait -S: no")}, spec.Failed, []string{"cannot close IPv6: ip6tables"}, "ipv6.disable=1"},
		{"cut off", all()[:7], spec.Failed, []string{"said nothing"}, "sudo modprobe -a xt_owner"},
		{"nothing", nil, spec.Failed, []string{"backend"}, "sudo modprobe -a"},
		{"twice", append(all(), all()[6]), spec.Failed, []string{"twice"}, "sudo modprobe -a xt_set"},
		{"unknown", append(all(), lacks("other", "x")), spec.Failed, []string{"nobody asked"}, ""},
		{"a skip is no proof", all(spec.Event{Version: spec.Version, Check: "rules", Result: spec.Skip}), spec.Failed, []string{"not planned"}, ""},
	} {
		f := judgeKernel(tt.events)
		if f.Result != tt.result || !strings.Contains(f.Hint, tt.hint) {
			t.Errorf("%s: %+v", tt.name, f)
		}
		for _, d := range tt.detail {
			if !strings.Contains(f.Detail, d) {
				t.Errorf("%s: %q does not say %q", tt.name, f.Detail, d)
			}
		}
	}
}

func TestLookResolvers(t *testing.T) {
	a := netip.MustParseAddr
	for _, tt := range []struct {
		list   []netip.Addr
		result spec.Result
		said   string
	}{
		{nil, spec.Failed, "no name server"},
		{[]netip.Addr{a("127.0.0.53")}, spec.Note, "relay"},
		{[]netip.Addr{a("::1"), a("127.0.0.1")}, spec.Note, "relay"},
		{[]netip.Addr{a("127.0.0.53"), a("192.0.2.53")}, spec.OK, ""},
	} {
		f := lookResolvers(t.Context(), &survey{Machine: Machine{Settings: host.Settings{Resolvers: tt.list}}})
		if f.Result != tt.result || !strings.Contains(f.Detail, tt.said) || f.Result != spec.OK && !strings.Contains(f.Hint, "CORRAL_RESOLVERS") {
			t.Errorf("%v: %+v", tt.list, f)
		}
	}
}

// R104: only what is here and not there means another machine's files.
func TestUnseen(t *testing.T) {
	here := t.TempDir()
	said := func(path string) error {
		return fmt.Errorf("service main: %w", errors.New(`invalid mount config for type "bind": bind source path does not exist: `+path))
	}
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{said(here), true},
		{said(filepath.Join(here, "nothing")), false},
		{errors.New("something else " + here), false},
		{nil, false},
	} {
		got := unseen(tt.err)
		var unusable *NotUsable
		if errors.As(got, &unusable) != tt.want || !tt.want && got != tt.err {
			t.Errorf("%v: %v", tt.err, got)
		}
		if tt.want && (!strings.Contains(unusable.Reason, "does not see this machine's files: "+here) || !strings.Contains(unusable.Hint, "docker context use default")) {
			t.Errorf("%+v", unusable)
		}
	}
}

// R101: what SELinux keeps from containers is named before a start, and no
// home directory is ever to be relabelled.
func TestLabelled(t *testing.T) {
	testenv.Require(t, "netns") // root: labels are not for others to write
	home := t.TempDir()
	project := filepath.Join(home, "a project")
	if err := os.Mkdir(project, 0o755); err != nil {
		t.Fatal(err)
	}
	set := func(path, label string) {
		t.Helper()
		if err := unix.Lsetxattr(path, "security.selinux", []byte(label), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		path, label string
		ro          bool
		want, hint  string
	}{
		{project, "unconfined_u:object_r:user_home_t:s0\x00", false, "(user_home_t)", "chcon -R -t container_file_t '" + project + "'"},
		{project, "system_u:object_r:container_file_t:s0", false, "", ""},
		{project, "system_u:object_r:container_file_t", false, "", ""},
		{project, "system_u:object_r:svirt_sandbox_file_t:s0", false, "", ""},
		{project, "system_u:object_r:container_file_t:s0:c12,c345", false, "of another container", "chcon -R -l s0"},
		{project, "system_u:object_r:container_ro_file_t:s0", false, "(container_ro_file_t)", "chcon"},
		{project, "system_u:object_r:container_ro_file_t:s0", true, "", ""},
		{project, "system_u:object_r:container_file_t_not:s0", true, "(container_file_t_not)", "chcon"},
		{project, "nonsense", false, "", ""},
		{home, "unconfined_u:object_r:user_home_dir_t:s0", false, "(user_home_dir_t)", "breaks logins"},
		{filepath.Dir(home), "unconfined_u:object_r:home_root_t:s0", false, "(home_root_t)", "breaks logins"},
	} {
		set(tt.path, tt.label)
		err := labelled([]plan.Mount{{Path: t.TempDir()}, {Path: tt.path, ReadOnly: tt.ro}}, []string{home})
		var refused *Unmountable
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%q: %v", tt.label, err)
		case tt.want == "":
		case !errors.As(err, &refused) || !strings.Contains(refused.Reason, "SELinux denies "+tt.path) || !strings.Contains(refused.Reason, tt.want) || !strings.Contains(refused.Hint, tt.hint):
			t.Errorf("%q: %+v", tt.label, err)
		case strings.Contains(tt.hint, "logins") && strings.Contains(refused.Hint, "chcon"):
			t.Errorf("%s is to be relabelled: %s", tt.path, refused.Hint)
		}
	}
}

// Without the engine's labels, or without SELinux, no label means anything.
func TestReadableWithoutSELinux(t *testing.T) {
	s := plan.Service{Mounts: []plan.Mount{{Path: t.TempDir()}}}
	for _, e := range []*Engine{{}, {selinux: true}} {
		if err := e.readable(s); err != nil {
			t.Errorf("%+v: %v", e, err)
		}
	}
}

func TestEnforcing(t *testing.T) {
	root := t.TempDir()
	if enforcing(root) {
		t.Error("enforcing without SELinux")
	}
	dir := filepath.Join(root, "sys/fs/selinux")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{"1": true, "1\n": true, "0": false, "": false, "10": false} {
		if err := os.WriteFile(filepath.Join(dir, "enforce"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if enforcing(root) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{"/a/b_c-1.2": "/a/b_c-1.2", "/a b": "'/a b'", "/it's": `'/it'\''s'`, "/$x": "'/$x'", "/é": "'/é'"} {
		if got := quote(in); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}

// docs/install.md lists every condition.
func TestDocumentedConditions(t *testing.T) {
	words := map[Unmet]string{Refused: "every command refuses", Ends: "`corral install` ends", Mentions: "a warning"}
	var b strings.Builder
	b.WriteString("\n| condition | holds if | otherwise |\n|---|---|---|\n")
	for _, c := range Conditions {
		if words[c.Unmet] == "" {
			t.Errorf("%s: %q", c.Name, c.Unmet)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.Name, strings.ReplaceAll(c.Proves, "|", `\|`), words[c.Unmet])
	}
	b.WriteString("\n")
	const file, begin, end = "../../docs/install.md", "<!-- generated: conditions -->\n", "<!-- end -->"
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(old), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no place for the conditions", file)
	}
	now := before + begin + b.String() + end + after
	switch {
	case now == string(old):
	case !*update:
		t.Errorf("%s is not what it is made from (run with -update to accept)", file)
	default:
		if err := os.WriteFile(file, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
