package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func accepted() Effective {
	return Effective{
		Version: EffectiveVersion, Digest: "sha256:00",
		Project: "/p", Profile: "shell", Name: "n", Mode: "run", Command: []string{"sh", "-l"},
		Mounts: []EffectiveMount{{"/p", false}, {"/ro", true}, {"/rw", false}},
		Egress: []EffectiveRule{
			{Domain: "a.test", Ports: []uint16{22, 443}, Liveness: true},
			{Domain: "any.test", AnyPort: true, Liveness: true},
			{Domain: "corp.test", Ports: []uint16{443}, Liveness: true, Private: prefixes("10.0.0.0/8", "192.168.1.0/24", "fd00::/8")},
			{Domain: "soft.test", Ports: []uint16{80, 443}, Soft: true},
		},
		Refresh:      "auto",
		HostServices: []EffectiveService{{"db", 5432}, {"llama", 8081}},
		EnvFile:      "/env", Base: "debian", Packages: []string{"git", "jq"},
		Run:    []string{"a", "b", "a", "c"},
		Memory: 8 << 30, NanoCPUs: 2_000_000_000, Pids: 2048,
		GitConfig: "ro", GitDir: "rw",
		Background: []string{"cron"}, PreLaunch: []string{"x", "y"}, ProfileReads: []string{"~/.r"},
	}.canonical()
}

// show is a change as -old +new, with a ! if it widens.
func (c Change) show() string {
	s := c.Key
	if c.Old != "" {
		s += " -" + c.Old
	}
	if c.New != "" {
		s += " +" + c.New
	}
	if c.Widens {
		s += " !"
	}
	return s
}

func showChanges(changes []Change) string {
	var lines []string
	for _, c := range changes {
		lines = append(lines, c.show())
	}
	return strings.Join(lines, "\n")
}

// R091: what only takes away has effect by itself, its neighbours do not.
func TestDiff(t *testing.T) {
	const (
		corp = "corp.test, ports: 443; private: may resolve to any host in "
		all  = corp + "10.0.0.0/8, 192.168.1.0/24, fd00::/8"
	)
	private := func(s ...string) func(*Effective) {
		return func(e *Effective) { e.Egress[2].Private = prefixes(s...) }
	}
	run := func(s ...string) func(*Effective) { return func(e *Effective) { e.Run = s } }
	for _, c := range []struct {
		name   string
		change func(e *Effective)
		want   string
	}{
		{"nothing", func(e *Effective) {}, ""},
		{"other bytes of the same meaning", func(e *Effective) { e.Digest = "sha256:11" }, ""},

		{"profile", func(e *Effective) { e.Profile = "hermes" }, "profile -shell +hermes !"},
		{"name", func(e *Effective) { e.Name = "m" }, "name -n +m !"},
		{"mode", func(e *Effective) { e.Mode = "daemon" }, "mode -run +daemon !"},
		{"another file", func(e *Effective) { e.File = "/q/corral.yaml" }, "policy +/q/corral.yaml !"},
		{"project", func(e *Effective) { e.Project = "/q" }, "project -/p +/q !"},
		{"command", func(e *Effective) { e.Command = []string{"sh"} }, "command -sh -l +sh !"},
		{"command, split elsewhere", func(e *Effective) { e.Command = []string{"sh -l"} }, `command -sh -l +"sh -l" !`},
		{"no command", func(e *Effective) { e.Command = nil }, "command -sh -l !"},

		{"rw removed", func(e *Effective) { e.Mounts = e.Mounts[:2] }, "mounts.rw -/rw"},
		{"ro removed", func(e *Effective) { e.Mounts = slices.Delete(e.Mounts, 1, 2) }, "mounts.ro -/ro"},
		{"rw to ro", func(e *Effective) { e.Mounts[2].ReadOnly = true }, "mounts.ro -rw /rw +ro /rw"},
		{"ro to rw", func(e *Effective) { e.Mounts[1].ReadOnly = false }, "mounts.rw -ro /ro +rw /ro !"},
		{"rw added", func(e *Effective) { e.Mounts = append(e.Mounts, EffectiveMount{"/z", false}) }, "mounts.rw +/z !"},
		{"ro added", func(e *Effective) { e.Mounts = append(e.Mounts, EffectiveMount{"/z", true}) }, "mounts.ro +/z !"},
		{"ro replaced by what it holds", func(e *Effective) { e.Mounts[1].Path = "/ro/sub" }, "mounts.ro -/ro\nmounts.ro +/ro/sub !"},
		{"ro replaced by what holds it", func(e *Effective) { e.Mounts[1].Path = "/" }, "mounts.ro +/ !\nmounts.ro -/ro !"},
		{"rw replaced by another that is ro", func(e *Effective) { e.Mounts[2] = EffectiveMount{"/rx", true} }, "mounts.rw -/rw\nmounts.ro +/rx !"},
		{"writable ones first", func(e *Effective) { e.Mounts = nil }, "mounts.rw -/p\nmounts.rw -/rw\nmounts.ro -/ro"},

		{"name removed", func(e *Effective) { e.Egress = e.Egress[1:] }, "egress.allow -a.test, ports: 22, 443"},
		{"name added", func(e *Effective) {
			e.Egress = append(e.Egress, EffectiveRule{Domain: "z.test", Ports: []uint16{443}, Liveness: true})
		}, "egress.allow +z.test, ports: 443 !"},
		{"name replaced by one below it", func(e *Effective) { e.Egress[0].Domain = "a.a.test" },
			"egress.allow +a.a.test, ports: 22, 443 !\negress.allow -a.test, ports: 22, 443"},
		{"profile's own removed", func(e *Effective) { e.Egress = e.Egress[:3] }, "egress.allow -soft.test, ports: 80, 443; soft: closed while it does not resolve"},
		{"a port less", func(e *Effective) { e.Egress[0].Ports = []uint16{443} }, "egress.allow -a.test, ports: 22, 443 +a.test, ports: 443"},
		{"a port more", func(e *Effective) { e.Egress[0].Ports = []uint16{22, 80, 443} }, "egress.allow -a.test, ports: 22, 443 +a.test, ports: 22, 80, 443 !"},
		{"a port less and another more", func(e *Effective) { e.Egress[0].Ports = []uint16{80} }, "egress.allow -a.test, ports: 22, 443 +a.test, ports: 80 !"},
		{"the port next to one", func(e *Effective) { e.Egress[0].Ports[1] = 444 }, "egress.allow -a.test, ports: 22, 443 +a.test, ports: 22, 444 !"},
		{"no port is not any", func(e *Effective) { e.Egress[0].Ports = nil }, "egress.allow -a.test, ports: 22, 443 +a.test, ports: none"},
		{"a list to any", func(e *Effective) { e.Egress[0].AnyPort = true }, "egress.allow -a.test, ports: 22, 443 +a.test, ports: any !"},
		{"any to a list", func(e *Effective) { e.Egress[1].AnyPort, e.Egress[1].Ports = false, []uint16{1} }, "egress.allow -any.test, ports: any +any.test, ports: 1"},
		{"any to none", func(e *Effective) { e.Egress[1].AnyPort = false }, "egress.allow -any.test, ports: any +any.test, ports: none"},
		{"fewer ports but it need not answer", func(e *Effective) { e.Egress[0].Ports, e.Egress[0].Liveness = []uint16{443}, false },
			"egress.allow -a.test, ports: 22, 443 +a.test, ports: 443; liveness: false !"},
		{"liveness off", func(e *Effective) { e.Egress[1].Liveness = false }, "egress.allow -any.test, ports: any +any.test, ports: any; liveness: false !"},
		{"soft to strict", func(e *Effective) { e.Egress[3].Soft, e.Egress[3].Liveness = false, true },
			"egress.allow -soft.test, ports: 80, 443; soft: closed while it does not resolve +soft.test, ports: 80, 443 !"},
		{"strict to soft, with fewer ports", func(e *Effective) {
			e.Egress[0] = EffectiveRule{Domain: "a.test", Ports: []uint16{443}, Soft: true}
		}, "egress.allow -a.test, ports: 22, 443 +a.test, ports: 443; soft: closed while it does not resolve !"},
		{"soft alone", func(e *Effective) { e.Egress[0].Soft = true }, "egress.allow -a.test, ports: 22, 443 +a.test, ports: 22, 443; soft, liveness: true !"},

		{"a prefix less", private("10.0.0.0/8", "fd00::/8"), "egress.allow -" + all + " +" + corp + "10.0.0.0/8, fd00::/8"},
		{"no prefix", private(), "egress.allow -" + all + " +corp.test, ports: 443"},
		{"a narrower prefix", private("10.255.0.0/16", "192.168.1.255/32", "fdff::/16"), "egress.allow -" + all + " +" + corp + "10.255.0.0/16, 192.168.1.255/32, fdff::/16"},
		{"two within one", private("10.1.0.0/16", "10.2.0.0/16"), "egress.allow -" + all + " +" + corp + "10.1.0.0/16, 10.2.0.0/16"},
		{"a wider prefix", private("10.0.0.0/8", "192.168.0.0/23", "fd00::/8"), "egress.allow -" + all + " +" + corp + "10.0.0.0/8, 192.168.0.0/23, fd00::/8 !"},
		{"the prefix next to one", private("192.168.2.0/24"), "egress.allow -" + all + " +" + corp + "192.168.2.0/24 !"},
		{"narrower and wider at once", private("10.1.0.0/16", "172.16.0.0/12"), "egress.allow -" + all + " +" + corp + "10.1.0.0/16, 172.16.0.0/12 !"},
		{"all of IPv4 is not in a prefix of IPv6", private("0.0.0.0/0"), "egress.allow -" + all + " +" + corp + "0.0.0.0/0 !"},
		{"all of IPv6 is not in a prefix of IPv4", private("::/0"), "egress.allow -" + all + " +" + corp + "::/0 !"},
		{"IPv4 in IPv6's clothes is another address", private("::ffff:10.1.0.0/112"), "egress.allow -" + all + " +" + corp + "::ffff:10.1.0.0/112 !"},
		{"no prefix at all is in none", func(e *Effective) { e.Egress[2].Private = []netip.Prefix{{}} }, "egress.allow -" + all + " +" + corp + "invalid Prefix !"},
		{"the first prefix", func(e *Effective) { e.Egress[0].Private = prefixes("10.0.0.0/32") },
			"egress.allow -a.test, ports: 22, 443 +a.test, ports: 22, 443; private: may resolve to any host in 10.0.0.0/32 !"},
		{"narrower ports and prefixes", func(e *Effective) {
			e.Egress[1] = EffectiveRule{Domain: "any.test", Ports: []uint16{443}, Liveness: true}
			e.Egress[2].Private = nil
		}, "egress.allow -any.test, ports: any +any.test, ports: 443\negress.allow -" + all + " +corp.test, ports: 443"},
		{"narrower ports, wider prefixes", func(e *Effective) {
			e.Egress[0].Ports, e.Egress[0].Private = []uint16{22}, prefixes("10.0.0.0/8")
		}, "egress.allow -a.test, ports: 22, 443 +a.test, ports: 22; private: may resolve to any host in 10.0.0.0/8 !"},
		{"wider ports, narrower prefixes", func(e *Effective) { e.Egress[2].AnyPort, e.Egress[2].Ports, e.Egress[2].Private = true, nil, nil },
			"egress.allow -" + all + " +corp.test, ports: any !"},

		{"refresh", func(e *Effective) { e.Refresh = "manual" }, "egress.refresh -auto +manual !"},

		{"service removed", func(e *Effective) { e.HostServices = e.HostServices[1:] }, "host_services -db: port 5432 of this machine's loopback, inside as corral-host:5432"},
		{"service added", func(e *Effective) { e.HostServices = append(e.HostServices, EffectiveService{"web", 9000}) }, "host_services +web: port 9000 of this machine's loopback, inside as corral-host:9000 !"},
		{"service renamed", func(e *Effective) { e.HostServices[0].Name = "pg" },
			"host_services -db: port 5432 of this machine's loopback, inside as corral-host:5432 +pg: port 5432 of this machine's loopback, inside as corral-host:5432 !"},
		{"service's port", func(e *Effective) { e.HostServices[1].Port = 8082 },
			"host_services -llama: port 8081 of this machine's loopback, inside as corral-host:8081\nhost_services +llama: port 8082 of this machine's loopback, inside as corral-host:8082 !"},

		{"secrets removed", func(e *Effective) { e.EnvFile = "" }, "secrets.env_file -/env"},
		{"other secrets", func(e *Effective) { e.EnvFile = "/env2" }, "secrets.env_file -/env +/env2 !"},

		{"base", func(e *Effective) { e.Base = "ubuntu" }, "image.base -debian +ubuntu !"},
		{"package removed", func(e *Effective) { e.Packages = e.Packages[1:] }, "image.packages -git !"},
		{"package added", func(e *Effective) { e.Packages = []string{"git", "jq", "zip"} }, "image.packages +zip !"},
		{"package of a version", func(e *Effective) { e.Packages = []string{"git=1", "jq"} }, "image.packages -git !\nimage.packages +git=1 !"},

		{"first step removed", run("b", "a", "c"), "image.run -a"},
		{"last step removed", run("a", "b", "a"), "image.run -c"},
		{"steps at both ends removed", run("b", "a"), "image.run -a\nimage.run -c"},
		{"steps in the middle removed", run("a", "c"), "image.run -b\nimage.run -a"},
		{"all steps removed", run(), "image.run -a\nimage.run -b\nimage.run -a\nimage.run -c"},
		{"steps swapped", run("b", "a", "a", "c"), "image.run -a\nimage.run -b\nimage.run +b !\nimage.run +a !"},
		{"steps removed and swapped", run("c", "a"), "image.run -a\nimage.run -b\nimage.run -a\nimage.run -c\nimage.run +c !\nimage.run +a !"},
		{"a step twice as often", run("a", "b", "a", "a", "c"), "image.run +a !"},
		{"a step as often as it was, elsewhere", run("a", "a", "b", "c"), "image.run -b\nimage.run -a\nimage.run +a !\nimage.run +b !"},
		{"step added", run("a", "b", "a", "c", "d"), "image.run +d !"},
		{"steps added around", run("0", "a", "b", "a", "c", "d"), "image.run +0 !\nimage.run +d !"},
		{"step changed", run("a", "b", "a", "c "), "image.run -c\nimage.run +c  !"},

		{"less memory", func(e *Effective) { e.Memory-- }, "resources.memory -8g +8589934591"},
		{"more memory", func(e *Effective) { e.Memory++ }, "resources.memory -8g +8589934593 !"},
		{"no bound of memory", func(e *Effective) { e.Memory = 0 }, "resources.memory -8g +no bound !"},
		{"no memory that can be told", func(e *Effective) { e.Memory = -1 }, "resources.memory -8g +-1 !"},
		{"fewer processors", func(e *Effective) { e.NanoCPUs-- }, "resources.cpus -2 +1.999999999"},
		{"more processors", func(e *Effective) { e.NanoCPUs++ }, "resources.cpus -2 +2.000000001 !"},
		{"no bound of processors", func(e *Effective) { e.NanoCPUs = 0 }, "resources.cpus -2 +no bound !"},
		{"fewer processes", func(e *Effective) { e.Pids-- }, "resources.pids -2048 +2047"},
		{"more processes", func(e *Effective) { e.Pids++ }, "resources.pids -2048 +2049 !"},
		{"no bound of processes", func(e *Effective) { e.Pids = 0 }, "resources.pids -2048 +no bound !"},

		{"git config", func(e *Effective) { e.GitConfig = "writable" }, "git.config -ro +writable !"},
		{"git dir", func(e *Effective) { e.GitDir = "ro" }, "git.dir -rw +ro !"},
		{"background", func(e *Effective) { e.Background = nil }, "background -cron !"},
		{"the profile reads more", func(e *Effective) { e.ProfileReads = []string{"~/.r", "~/.t"} }, "profile.reads +~/.t !"},
		{"the profile reads less", func(e *Effective) { e.ProfileReads = nil }, "profile.reads -~/.r"},
		{"the profile reads elsewhere", func(e *Effective) { e.ProfileReads = []string{"~/.s"} }, "profile.reads -~/.r\nprofile.reads +~/.s !"},
		{"the profile copies more", func(e *Effective) { e.ProfileCopies = []string{"~/.b"} }, "profile.copies +~/.b !"},
		{"hook removed", func(e *Effective) { e.PreLaunch = []string{"y"} }, "hooks.pre_launch -x"},
		{"hooks swapped", func(e *Effective) { e.PreLaunch = []string{"y", "x"} }, "hooks.pre_launch -x\nhooks.pre_launch -y\nhooks.pre_launch +y !\nhooks.pre_launch +x !"},
		{"hook added", func(e *Effective) { e.PreLaunch = []string{"x", "w", "y"} }, "hooks.pre_launch +w !"},

		{"in the schema's order", func(e *Effective) { *e = Effective{} }, ""},
	} {
		old, new := accepted(), accepted()
		c.change(&new)
		got := Diff(old, new)
		if c.name == "in the schema's order" {
			var keys []string
			for _, g := range got {
				keys = append(keys, g.Key)
			}
			want := "profile name mode project mounts.rw mounts.ro egress.allow egress.refresh host_services secrets.env_file " +
				"image.base image.packages image.run resources.memory resources.cpus resources.pids git.config git.dir background hooks.pre_launch profile.reads command"
			if s := strings.Join(slices.Compact(keys), " "); s != want {
				t.Errorf("%s\ngot  %s\nwant %s", c.name, s, want)
			}
			continue
		}
		if s := showChanges(got); s != c.want {
			t.Errorf("%s\n--- got\n%s\n--- want\n%s", c.name, s, c.want)
		}
		if got == nil || Widens(got) != strings.Contains(c.want, "!") {
			t.Errorf("%s: widens: %t, of %v", c.name, Widens(got), got)
		}
		if s := excess(old, new); s != "" && !Widens(got) {
			t.Errorf("%s: it grants more: %s", c.name, s)
		}
	}
}

// A limit where there was none is a smaller one.
func TestFirstLimits(t *testing.T) {
	old, new := accepted(), accepted()
	old.Memory, old.NanoCPUs, old.Pids = 0, 0, 0
	want := "resources.memory -no bound +8g\nresources.cpus -no bound +2\nresources.pids -no bound +2048"
	if got := showChanges(Diff(old, new)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A read-only mount on a writable one narrows that, so its removal does not.
func TestMountOnAMount(t *testing.T) {
	old := Effective{Mounts: []EffectiveMount{{"/a", false}, {"/a/b", true}, {"/ab", true}}}
	for _, c := range []struct {
		left []EffectiveMount
		want string
	}{
		{[]EffectiveMount{{"/a", false}, {"/ab", true}}, "mounts.ro -/a/b !"},
		{[]EffectiveMount{{"/a", false}, {"/a/b", true}}, "mounts.ro -/ab"},
		{[]EffectiveMount{{"/a/b", true}, {"/ab", true}}, "mounts.rw -/a"},
		{[]EffectiveMount{{"/ab", true}}, "mounts.rw -/a\nmounts.ro -/a/b"},
	} {
		if got := showChanges(Diff(old, Effective{Mounts: c.left})); got != c.want {
			t.Errorf("%v: got\n%s\nwant\n%s", c.left, got, c.want)
		}
	}
}

// Lists that no policy can have: what is there twice, or out of order, is
// never taken for what it is not.
func TestDiffOfOddLists(t *testing.T) {
	m := func(s ...string) (e Effective) {
		for _, p := range s {
			path, readOnly := strings.CutPrefix(p, "ro:")
			e.Mounts = append(e.Mounts, EffectiveMount{path, readOnly})
		}
		return e
	}
	for _, c := range []struct {
		old, new Effective
		widens   bool
	}{
		{m("/a"), m("/a", "/a"), true},
		{m("/a", "/a"), m("/a"), false},
		{m("ro:/a"), m("/a", "ro:/a"), true},
		{m("/a", "ro:/a"), m("ro:/a"), false},
		{m("/b", "/a"), m("/a", "/b"), true},
	} {
		got := Diff(c.old, c.new)
		if len(got) == 0 || Widens(got) != c.widens {
			t.Errorf("%v to %v: %v", c.old.Mounts, c.new.Mounts, got)
		}
	}
}

// Whatever there is in an Effective is compared, what is added to it later
// included: every single value is changed once.
func TestEveryFieldIsCompared(t *testing.T) {
	seen := 0
	var leaves func(path string, v reflect.Value, do func(path string, change func()))
	leaves = func(path string, v reflect.Value, do func(path string, change func())) {
		if p, ok := v.Interface().(netip.Prefix); ok {
			do(path, func() { v.Set(reflect.ValueOf(netip.PrefixFrom(p.Addr(), p.Bits()-1))) })
			return
		}
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				leaves(path+"."+v.Type().Field(i).Name, v.Field(i), do)
			}
		case reflect.Slice:
			for i := range v.Len() {
				leaves(fmt.Sprintf("%s[%d]", path, i), v.Index(i), do)
			}
			if v.Len() > 0 {
				do(path+"[:]", func() { v.SetLen(v.Len() - 1) })
			}
		case reflect.String:
			do(path, func() { v.SetString(v.String() + "x") })
		case reflect.Bool:
			do(path, func() { v.SetBool(!v.Bool()) })
		case reflect.Int, reflect.Int64:
			do(path, func() { v.SetInt(v.Int() + 1) })
		case reflect.Uint16:
			do(path, func() { v.SetUint(v.Uint() + 1) })
		default:
			t.Fatalf("%s is a %s", path, v.Kind())
		}
	}
	before := accepted()
	for n, more := 0, true; more; n++ { // the nth value of a fresh copy
		after, i := accepted(), 0
		more = false
		leaves("", reflect.ValueOf(&after).Elem(), func(path string, change func()) {
			if i++; i != n+1 {
				return
			}
			more = true
			seen++
			change()
			told := path == ".Version" || path == ".Digest"
			if got := Diff(before, after); (len(got) == 0) != told {
				t.Errorf("%s: %v", path, got)
			}
			if back := Diff(after, before); (len(back) == 0) != told {
				t.Errorf("%s, back: %v", path, back)
			}
		})
	}
	if seen < 60 {
		t.Errorf("%d values: the search is broken", seen)
	}
}

func TestChangesAreJSON(t *testing.T) {
	for want, changes := range map[string][]Change{
		`[]`: Diff(Effective{}, Effective{}),
		`[{"key":"name","old":"","new":"a","widens":true}]`: Diff(Effective{}, Effective{Name: "a"}),
	} {
		if b, err := json.Marshal(changes); err != nil || string(b) != want {
			t.Errorf("%s, %v, want %s", b, err, want)
		}
	}
}

// excess is something that b grants and a did not, told by enumeration of what
// can be asked of a sandbox.
func excess(a, b Effective) string {
	// What a path is to the agent is what the mount nearest to it says.
	right := func(e Effective, path string) int {
		best, r := -1, 0
		for _, m := range e.Mounts {
			if path != m.Path && !strings.HasPrefix(path, strings.TrimSuffix(m.Path, "/")+"/") {
				continue
			}
			n := 2
			if m.ReadOnly {
				n = 1
			}
			if len(m.Path) > best || len(m.Path) == best && n > r {
				best, r = len(m.Path), n
			}
		}
		return r
	}
	for _, m := range slices.Concat(a.Mounts, b.Mounts) {
		if right(b, m.Path) > right(a, m.Path) {
			return "mount " + m.Path
		}
	}

	spelled := map[netip.Prefix]string{}
	bits := func(p netip.Prefix) string {
		if spelled[p] == "" {
			for _, octet := range p.Addr().AsSlice() {
				spelled[p] += fmt.Sprintf("%08b", octet)
			}
		}
		return spelled[p]
	}
	reaches := func(e Effective, domain, address string, port int) bool {
		for _, r := range e.Egress {
			if r.Domain != domain {
				continue
			}
			open := r.AnyPort
			for _, p := range r.Ports {
				open = open || int(p) == port
			}
			inside := address == "public"
			for _, p := range r.Private {
				net := bits(p)
				inside = inside || p.IsValid() && len(net) == len(address) && net[:p.Bits()] == address[:p.Bits()]
			}
			if open && inside {
				return true
			}
		}
		return false
	}
	addresses := []string{"public"}
	ports := []int{1, 65535}
	for _, r := range slices.Concat(a.Egress, b.Egress) {
		for _, p := range r.Private {
			if p.IsValid() { // the first address and the last
				net, n := bits(p), p.Bits()
				addresses = append(addresses, net[:n]+strings.Repeat("0", len(net)-n), net[:n]+strings.Repeat("1", len(net)-n))
			}
		}
		for _, p := range r.Ports {
			ports = append(ports, int(p), int(p)+1)
		}
	}
	type manner struct {
		domain         string
		liveness, soft bool
	}
	manners := map[manner]bool{}
	for _, r := range a.Egress {
		manners[manner{r.Domain, r.Liveness, r.Soft}] = true
	}
	for _, r := range b.Egress {
		if !manners[manner{r.Domain, r.Liveness, r.Soft}] {
			return "another manner of " + r.Domain
		}
		for _, address := range addresses {
			for _, port := range ports {
				if reaches(b, r.Domain, address, port) && !reaches(a, r.Domain, address, port) {
					return fmt.Sprintf("%s at %s, port %d", r.Domain, address, port)
				}
			}
		}
	}

	for _, l := range [][2][]string{{a.ProfileReads, b.ProfileReads}, {a.ProfileCopies, b.ProfileCopies}} {
		for _, s := range l[1] {
			if !slices.Contains(l[0], s) {
				return "the profile takes " + s
			}
		}
	}
	for _, s := range b.HostServices {
		if !slices.Contains(a.HostServices, s) {
			return fmt.Sprintf("host service %v", s)
		}
	}
	for _, l := range [][2]int64{{a.Memory, b.Memory}, {a.NanoCPUs, b.NanoCPUs}, {a.Pids, b.Pids}} {
		for i := range l {
			if l[i] <= 0 {
				l[i] = 1<<63 - 1
			}
		}
		if l[1] > l[0] {
			return fmt.Sprintf("a limit of %d", l[1])
		}
	}
	if b.EnvFile != "" && b.EnvFile != a.EnvFile {
		return "secrets"
	}
	for _, l := range [][2][]string{{a.Run, b.Run}, {a.PreLaunch, b.PreLaunch}} {
		i := 0
		for _, s := range l[1] {
			for i < len(l[0]) && l[0][i] != s {
				i++
			}
			if i == len(l[0]) {
				return "command " + s
			}
			i++
		}
	}
	fixed := func(e Effective) string {
		return fmt.Sprintf("%q", []any{e.Project, e.Profile, e.Name, e.Mode, e.Command, e.Refresh, e.Base, e.Packages, e.GitConfig, e.GitDir, e.Background})
	}
	if fixed(a) != fixed(b) {
		return "what is never narrower"
	}
	return ""
}

// draw makes choices from the fuzzer's bytes, the first once they are used up.
type draw struct{ src []byte }

func (d *draw) n(most int) int {
	if len(d.src) == 0 {
		return 0
	}
	b := d.src[0]
	d.src = d.src[1:]
	return int(b) % most
}

func (d *draw) word(words ...string) string { return words[d.n(len(words))] }

func (d *draw) words(words ...string) (s []string) {
	for range d.n(5) {
		s = append(s, d.word(words...))
	}
	return s
}

func (d *draw) mount() EffectiveMount {
	return EffectiveMount{d.word("/a", "/a/b", "/a/b/c", "/ab", "/"), d.n(2) == 0}
}

func (d *draw) rule() EffectiveRule {
	r := EffectiveRule{Domain: d.word("a.test", "b.test", "b.a.test")}
	for range d.n(4) {
		r.Ports = append(r.Ports, []uint16{22, 80, 443, 65535}[d.n(4)])
	}
	for range d.n(4) {
		r.Private = append(r.Private, append(prefixes("10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "11.0.0.0/8", "0.0.0.0/0", "::/0", "fd00::/8", "fd01::/16",
			"::ffff:10.0.0.0/104"), netip.Prefix{})[d.n(10)])
	}
	flags := d.n(8)
	r.AnyPort, r.Liveness, r.Soft = flags&1 != 0, flags&2 != 0, flags&4 != 0
	return r
}

func (d *draw) service() EffectiveService {
	return EffectiveService{d.word("x", "y"), uint16(80 + d.n(3))}
}

func (d *draw) limit() int64 { return int64(d.n(4) << 10) }

// change draws one field of e anew, or an entry of a list.
func (d *draw) change(e *Effective) {
	switch d.n(29) {
	case 0:
		e.Mounts = entry(d, e.Mounts, d.mount)
	case 1:
		e.Egress = entry(d, e.Egress, d.rule)
	case 2:
		e.HostServices = entry(d, e.HostServices, d.service)
	case 3:
		e.Run = entry(d, e.Run, func() string { return d.word("a", "b", "") })
	case 4:
		e.PreLaunch = entry(d, e.PreLaunch, func() string { return d.word("a", "b") })
	case 5:
		e.Memory = d.limit()
	case 6:
		e.NanoCPUs = d.limit()
	case 7:
		e.Pids = d.limit()
	case 8:
		e.EnvFile = d.word("", "/e", "/f")
	case 9:
		e.Project = d.word("/a", "/b")
	case 10:
		e.Profile = d.word("shell", "hermes")
	case 11:
		e.Name = d.word("a", "b")
	case 12:
		e.Mode = d.word("run", "daemon")
	case 13:
		e.Command = d.words("sh", "", "a b")
	case 14:
		e.Refresh = d.word("auto", "manual")
	case 15:
		e.Base = d.word("debian", "ubuntu")
	case 16:
		e.Packages = entry(d, e.Packages, func() string { return d.word("git", "jq") })
	case 17:
		e.GitConfig = d.word("ro", "writable")
	case 18:
		e.GitDir = d.word("rw", "ro")
	case 19:
		e.Background = entry(d, e.Background, func() string { return d.word("cron", "x") })
	case 20:
		e.Digest = d.word("sha256:00", "sha256:11")
	case 21:
		if len(e.Mounts) > 0 {
			m := &e.Mounts[d.n(len(e.Mounts))]
			m.ReadOnly = !m.ReadOnly
		}
	case 22:
		e.ProfileReads = entry(d, e.ProfileReads, func() string { return d.word("~/a", "~/b") })
	case 23:
		e.ProfileCopies = entry(d, e.ProfileCopies, func() string { return d.word("~/a", "~/b") })
	default:
		if len(e.Egress) > 0 {
			d.part(&e.Egress[d.n(len(e.Egress))])
		}
	}
}

// part draws one part of r anew.
func (d *draw) part(r *EffectiveRule) {
	switch other := d.rule(); d.n(6) {
	case 0:
		r.Ports = other.Ports
	case 1:
		r.Private = other.Private
	case 2:
		r.AnyPort = !r.AnyPort
	case 3:
		r.Liveness = !r.Liveness
	case 4:
		r.Soft = !r.Soft
	case 5:
		if len(r.Private) > 0 {
			p := &r.Private[d.n(len(r.Private))]
			if near, err := p.Addr().Prefix(p.Bits() + 1 - d.n(3)); err == nil {
				*p = near
			}
		}
	}
}

// entry adds, removes or replaces one entry.
func entry[T any](d *draw, list []T, value func() T) []T {
	i := d.n(len(list) + 1)
	switch {
	case i == len(list):
		return append(list, value())
	case d.n(2) == 0:
		return slices.Delete(list, i, i+1)
	}
	list[i] = value()
	return list
}

func FuzzWiden(f *testing.F) {
	random := rand.NewChaCha8([32]byte{1})
	for range 2000 {
		src := make([]byte, 250)
		_, _ = random.Read(src) // it never fails
		f.Add(src)
	}
	f.Add(accepted().Encode())
	f.Fuzz(func(t *testing.T, src []byte) {
		if e, err := DecodeEffective(src); err == nil {
			if again, err := DecodeEffective(e.Encode()); err != nil || !reflect.DeepEqual(e, again) {
				t.Fatalf("%v\n%+v\n%+v", err, e, again)
			}
		}
		d := &draw{src}
		a := Effective{Version: EffectiveVersion}
		for range d.n(32) {
			d.change(&a)
		}
		a = a.canonical()
		b := a.canonical()
		for range d.n(4) {
			d.change(&b)
		}
		b = b.canonical()

		for _, e := range []Effective{a, b} {
			if got, err := DecodeEffective(e.Encode()); err != nil || !reflect.DeepEqual(got, e) {
				t.Fatalf("%v\n%s\ndecodes as %+v", err, e.Encode(), got)
			}
			if d := Diff(e, e); len(d) != 0 {
				t.Fatalf("%s\ndiffers from itself: %v", e.Encode(), d)
			}
		}
		changes := Diff(a, b)
		alike := b
		alike.Digest = a.Digest
		if equal := bytes.Equal(a.Encode(), alike.Encode()); equal != (len(changes) == 0) {
			t.Fatalf("%s\n%s\nequal: %t, changes %v", a.Encode(), b.Encode(), equal, changes)
		}
		if more := excess(a, b); more != "" && !Widens(changes) {
			t.Fatalf("%s\n%s\nthe second grants %s, changes %v", a.Encode(), b.Encode(), more, changes)
		}
	})
}
