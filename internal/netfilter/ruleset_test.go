package netfilter

import (
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func golden(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func parsed(t *testing.T, f Family, name string) Ruleset {
	t.Helper()
	r, err := Parse(f, golden(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The golden listings are what iptables 1.8.9 prints, which the tests on a real
// kernel hold them against.
func TestParseAndPrint(t *testing.T) {
	for f, name := range map[Family]string{IPv4: "ipv4.txt", IPv6: "ipv6.txt"} {
		r := parsed(t, f, name)
		if got := r.String(); got != golden(t, name) {
			t.Errorf("%s prints:\n%s", name, got)
		}
		for _, c := range r.Chains {
			for _, rule := range c.Rules {
				if rule.ID == "" || rule.Reason == "" {
					t.Errorf("%s: no ID or reason: %+v", name, rule)
				}
			}
		}
	}
	rules := parsed(t, IPv4, "ipv4.txt").Chains[4].Rules
	want := Rule{
		ID:     "worker",
		Match:  "-d 44.10.0.53/32 -p udp -m udp --dport 53 -m owner --uid-owner 64999",
		Target: "ACCEPT",
		Reason: `the gate's own "lookups", and a \ too`,
	}
	if !slices.Contains(rules, want) {
		t.Errorf("%+v\nis not among %+v", want, rules)
	}
}

func TestEncode(t *testing.T) {
	for f, name := range map[Family]string{IPv4: "ipv4", IPv6: "ipv6"} {
		if got, want := parsed(t, f, name+".txt").Encode(), golden(t, name+".restore"); got != want {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got, want)
		}
	}
	const closed = "*filter\n:INPUT DROP [0:0]\n:FORWARD DROP [0:0]\n:OUTPUT DROP [0:0]\n-F INPUT\n-F FORWARD\n-F OUTPUT\nCOMMIT\n"
	for _, r := range []Ruleset{{}, Closed(IPv4), {Chains: []Chain{{Name: "OUTPUT"}}}} {
		if got := r.Encode(); got != closed {
			t.Errorf("%+v:\n%s", r, got)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	good := Rule{ID: "id", Match: "-o lo", Target: "ACCEPT", Reason: "reason"}
	in := func(chain string, change func(*Rule)) Ruleset {
		r := good
		change(&r)
		return Ruleset{Family: IPv4, Chains: []Chain{{Name: chain, Rules: []Rule{r}}}}
	}
	comment := func(n int) Ruleset {
		return in("c", func(r *Rule) { r.Reason = strings.Repeat("x", n-len("id: ")) })
	}
	for what, r := range map[string]Ruleset{
		"no ID":              in("c", func(r *Rule) { r.ID = "" }),
		"no reason":          in("c", func(r *Rule) { r.Reason = "" }),
		"a blank in the ID":  in("c", func(r *Rule) { r.ID = "i d" }),
		"a colon in the ID":  in("c", func(r *Rule) { r.ID = "i:d" }),
		"a long comment":     comment(256),
		"a second line":      in("c", func(r *Rule) { r.Reason = "x\n-A OUTPUT -j ACCEPT" }),
		"an open quote":      in("c", func(r *Rule) { r.Target = `NFLOG --nflog-prefix "x` }),
		"no chain name":      in("", func(r *Rule) {}),
		"a long chain name":  in(strings.Repeat("c", 29), func(r *Rule) {}),
		"a blank in a chain": in("c c", func(r *Rule) {}),
		"a chain twice":      {Chains: []Chain{{Name: "c"}, {Name: "c"}}},
		"an open policy":     {Chains: []Chain{{Name: "OUTPUT", Policy: "ACCEPT"}}},
		"a policy of ours":   {Chains: []Chain{{Name: "c", Policy: "DROP"}}},
	} {
		if encodes(r) {
			t.Errorf("%s was encoded", what)
		}
	}
	if !encodes(comment(255)) {
		t.Error("a comment of 255 bytes was refused")
	}
}

func TestParseRefuses(t *testing.T) {
	const policies = "-P INPUT DROP\n-P FORWARD DROP\n-P OUTPUT DROP\n"
	for text, want := range map[string]string{
		"":                                       "no policy for chain INPUT",
		"-P INPUT DROP\n-P OUTPUT DROP\n":        "no policy for chain FORWARD",
		policies + "-P INPUT DROP\n":             "not understood",
		policies + "-N OUTPUT\n":                 "not understood",
		policies + "-A nowhere -j ACCEPT\n":      "not understood",
		policies + "-N\n":                        "not understood",
		policies + "nonsense\n":                  "not understood",
		policies + "-A OUTPUT -j\n":              "-j without a target",
		policies + "-A OUTPUT -m \"x\n":          "quote without an end",
		policies + "-A OUTPUT -c 1 x -j ACCEPT":  "invalid syntax",
		policies + "-A OUTPUT -c x 1 -j ACCEPT":  "invalid syntax",
		policies + "-A OUTPUT -c -1 1 -j ACCEPT": "invalid syntax",
	} {
		if r, err := Parse(IPv4, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v, want %q", text, r, err, want)
		}
	}
}

// Counters are told apart from the rule, and never make it another one.
func TestParseCounters(t *testing.T) {
	r, counters, err := parse(IPv6, `-P INPUT DROP -c 1 2
-P FORWARD DROP -c 0 0
-P OUTPUT DROP -c 3 4
-A OUTPUT -o lo -m comment --comment "lo: stays" -c 18446744073709551615 6 -j ACCEPT
-A OUTPUT -m comment --comment "-c 1 2: -j ACCEPT" -c 7 8 -j DROP
-A OUTPUT -p udp -m udp --sport 1 -c 9 10 -j DROP
`)
	if err != nil {
		t.Fatal(err)
	}
	want := []Counter{
		{Family: IPv6, Chain: "OUTPUT", ID: "lo", Packets: 1<<64 - 1, Bytes: 6},
		{Family: IPv6, Chain: "OUTPUT", Packets: 7, Bytes: 8},
		{Family: IPv6, Chain: "OUTPUT", Proto: "udp", Packets: 9, Bytes: 10},
	}
	if !reflect.DeepEqual(counters, want) {
		t.Errorf("%+v", counters)
	}
	rules := []Rule{{ID: "lo", Match: "-o lo", Target: "ACCEPT", Reason: "stays"}, {Target: "DROP", Reason: "-c 1 2: -j ACCEPT"}, {Match: "-p udp -m udp --sport 1", Target: "DROP"}}
	if got := r.Chains[2].Rules; !reflect.DeepEqual(got, rules) {
		t.Errorf("%+v", got)
	}
}

func TestDiff(t *testing.T) {
	want := func() Ruleset {
		return Ruleset{Family: IPv4, Chains: []Chain{
			{Name: "OUTPUT", Rules: []Rule{{ID: "out", Target: "ours", Reason: "all"}}},
			{Name: "ours", Rules: []Rule{
				{ID: "a", Match: "-o lo", Target: "ACCEPT", Reason: "r"},
				{ID: "b", Match: "-p tcp", Target: "ACCEPT", Reason: "r"},
				{ID: "n", Target: "NFLOG --nflog-prefix corral:x: --nflog-group 61", Reason: "r"},
			}},
		}}
	}
	for _, tt := range []struct {
		name   string
		change func(r *Ruleset)
		want   []string
	}{
		{"nothing", func(r *Ruleset) {}, nil},
		{"quoting", func(r *Ruleset) {
			r.Chains[3].Rules[2].Target = `NFLOG --nflog-prefix "corral:x:" --nflog-group 61`
		}, nil},
		{"family", func(r *Ruleset) { r.Family = IPv6 }, []string{"IPv4: compared with IPv6"}},
		{"policy", func(r *Ruleset) { r.Chains[0].Policy = "ACCEPT" }, []string{`IPv4: chain INPUT: policy "ACCEPT" instead of "DROP"`}},
		{"no built-in chain", func(r *Ruleset) { r.Chains = r.Chains[1:] }, []string{"IPv4: chain INPUT is missing"}},
		{"no chain", func(r *Ruleset) { r.Chains = r.Chains[:3] }, []string{"IPv4: chain ours is missing"}},
		{"a chain", func(r *Ruleset) { r.Chains = append(r.Chains, Chain{Name: "theirs"}) }, []string{"IPv4: chain theirs is not ours (0 rules)"}},
		{"a rule less", func(r *Ruleset) { r.Chains[3].Rules = r.Chains[3].Rules[1:] },
			[]string{`IPv4: chain ours: missing rule: -o lo -m comment --comment "a: r" -j ACCEPT`}},
		{"a rule more", func(r *Ruleset) { r.Chains[0].Rules = []Rule{{Target: "ACCEPT"}} },
			[]string{"IPv4: chain INPUT: foreign rule: -j ACCEPT"}},
		{"a rule twice", func(r *Ruleset) { r.Chains[2].Rules = slices.Repeat(r.Chains[2].Rules, 2) },
			[]string{`IPv4: chain OUTPUT: foreign rule: -m comment --comment "out: all" -j ours`}},
		{"a rule changed", func(r *Ruleset) { r.Chains[3].Rules[1].Match = "-p udp" }, []string{
			`IPv4: chain ours: missing rule: -p tcp -m comment --comment "b: r" -j ACCEPT`,
			`IPv4: chain ours: foreign rule: -p udp -m comment --comment "b: r" -j ACCEPT`}},
		{"a comment changed", func(r *Ruleset) { r.Chains[3].Rules[1].Reason = "s" }, []string{
			`IPv4: chain ours: missing rule: -p tcp -m comment --comment "b: r" -j ACCEPT`,
			`IPv4: chain ours: foreign rule: -p tcp -m comment --comment "b: s" -j ACCEPT`}},
		{"order", func(r *Ruleset) { rules := r.Chains[3].Rules; rules[0], rules[1] = rules[1], rules[0] }, []string{
			`IPv4: chain ours: order: rule 1 is: -p tcp -m comment --comment "b: r" -j ACCEPT; instead of: -o lo -m comment --comment "a: r" -j ACCEPT`}},
	} {
		got, err := Parse(IPv4, want().String())
		if err != nil {
			t.Fatal(err)
		}
		tt.change(&got)
		if d := Diff(want(), got); !reflect.DeepEqual(d, tt.want) {
			t.Errorf("%s:\n%s\nwant:\n%s", tt.name, strings.Join(d, "\n"), strings.Join(tt.want, "\n"))
		}
		same := Digest([]Ruleset{want()}, nil) == Digest([]Ruleset{got}, nil)
		// A missing built-in chain cannot be read; everything else shows in the digest.
		if tt.name != "no built-in chain" && same != (tt.want == nil) {
			t.Errorf("%s: same digest: %v", tt.name, same)
		}
	}
}

func TestDiffSets(t *testing.T) {
	e := func(s string) Entry {
		a := netip.MustParseAddrPort(s)
		return Entry{Addr: a.Addr(), Port: a.Port()}
	}
	want := []Set{
		{Name: "pins", Entries: []Entry{e("44.10.0.10:443"), e("44.10.0.9:22"), e("44.10.0.10:443")}},
		{Name: "any", AnyPort: true, Entries: []Entry{e("44.10.0.10:0")}},
	}
	for _, tt := range []struct {
		got  []Set
		want []string
	}{
		{[]Set{{Name: "any", AnyPort: true, Entries: want[1].Entries}, {Name: "pins", Entries: []Entry{e("44.10.0.9:22"), e("44.10.0.10:443")}}}, nil},
		{[]Set{{Name: "pins", AnyPort: true}, {Name: "x", Entries: want[0].Entries}}, []string{
			"set pins is of type hash:ip instead of hash:ip,port", "set any is missing", "set x is not ours (3 entries)"}},
		{[]Set{{Name: "pins", Entries: []Entry{e("44.10.0.9:443"), e("44.10.0.9:22")}}, {Name: "any", AnyPort: true}}, []string{
			"set pins: missing entry: 44.10.0.10:443", "set pins: foreign entry: 44.10.0.9:443", "set any: missing entry: 44.10.0.10"}},
	} {
		if d := DiffSets(want, tt.got); !reflect.DeepEqual(d, tt.want) {
			t.Errorf("%v:\n%s\nwant:\n%s", tt.got, strings.Join(d, "\n"), strings.Join(tt.want, "\n"))
		}
		if same := Digest(nil, want) == Digest(nil, tt.got); same != (tt.want == nil) {
			t.Errorf("%v: same digest: %v", tt.got, same)
		}
	}
}

// What a set cannot hold is refused before the kernel is asked.
func TestApplySetsRefuses(t *testing.T) {
	v4, v6 := netip.MustParseAddr("44.10.0.10"), netip.MustParseAddr("2001:db8::1")
	for _, s := range []Set{
		{},
		{Name: strings.Repeat("x", 28)},
		{Name: "pins", Entries: []Entry{{Addr: v4}}},
		{Name: "pins", Entries: []Entry{{Addr: v6, Port: 443}}},
		{Name: "pins", Entries: []Entry{{Port: 443}}},
		{Name: "pins", Entries: []Entry{{Addr: netip.AddrFrom16(v4.As16()), Port: 443}}},
		{Name: "any", AnyPort: true, Entries: []Entry{{Addr: v4, Port: 443}}},
	} {
		if err := new(Kernel).ApplySets(t.Context(), s); err == nil || !strings.Contains(err.Error(), "set") {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestDigestKnowsFamilies(t *testing.T) {
	v4, v6 := Closed(IPv4), Closed(IPv6)
	if Digest([]Ruleset{v4, v6}, nil) != Digest([]Ruleset{v6, v4}, nil) {
		t.Error("the order of families counts")
	}
	if Digest([]Ruleset{v4}, nil) == Digest([]Ruleset{v6}, nil) || Digest([]Ruleset{v4}, nil) == Digest([]Ruleset{v4, v6}, nil) {
		t.Error("families are not told apart")
	}
}

// A rule that may be encoded reads back as it was, whatever its texts hold.
func FuzzRule(f *testing.F) {
	f.Add("worker", "corral:seen:", `the gate's own "lookups", and a \ too`)
	f.Add("-c", "", "1 2 -j ACCEPT")
	f.Add("-j", "-m comment --comment", "-m comment --comment x: y")
	f.Fuzz(func(t *testing.T, id, prefix, reason string) {
		rule := Rule{ID: id, Match: "-o lo", Target: join([]string{"NFLOG", "--nflog-prefix", prefix}), Reason: reason}
		want := Ruleset{Family: IPv4, Chains: []Chain{{Name: "OUTPUT", Rules: []Rule{rule}}}}
		if !encodes(want) {
			return
		}
		got, err := Parse(IPv4, want.String())
		if err != nil {
			t.Fatalf("%v:\n%s", err, want)
		}
		if d := Diff(want, got); len(d) > 0 || got.Chains[2].Rules[0] != rule {
			t.Errorf("%+v reads back as %+v", rule, got.Chains[2].Rules[0])
		}
	})
}

func encodes(r Ruleset) (ok bool) {
	defer func() { ok = recover() == nil }()
	r.Encode()
	return
}
