package spec

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParseProbes(t *testing.T) {
	other := DefaultProbes()
	other.Unlisted, other.IPv6 = netip.MustParseAddr("44.10.9.9"), netip.MustParseAddr("2001:db8:10::9")
	for s, want := range map[string]Probes{
		"":                                       DefaultProbes(),
		"unlisted=44.10.9.9,ipv6=2001:db8:10::9": other,
		" unlisted=44.10.9.9, ipv6=2001:db8:10::9,": other,
	} {
		if got, err := ParseProbes(s); err != nil || got != want {
			t.Errorf("%q: %+v, %v", s, got, err)
		}
	}
	for s, want := range map[string][]string{
		"unlisted":                          {`"unlisted": it takes one IPv4 address`},
		"unlisted=":                         {"IPv4"},
		"unlisted=::1,ipv6=1.2.3.4":         {"IPv4", "IPv6"},
		"unlisted=127.0.0.1":                {"not this one"},
		"unlisted=0.0.0.0":                  {"not this one"},
		"ipv6=fe80::1%eth0":                 {"IPv6"},
		"ipv6=::ffff:44.10.9.9":             {"IPv6"},
		"unlist=44.10.9.9":                  {"the probes are unlisted"},
		"unlisted=1.2.3.4,unlisted=1.2.3.5": {"twice"},
		"44.10.9.9":                         {"the probes are"},
	} {
		got, err := ParseProbes(s)
		if err == nil || got != (Probes{}) {
			t.Errorf("%q: %+v", s, got)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q: %v", s, err)
			}
		}
	}
}

func TestVerdictName(t *testing.T) {
	for _, p := range []Probe{
		{Proto: "tcp", Source: 61000, Addr: netip.MustParseAddr("44.10.9.9"), Port: 443},
		{Proto: "udp", Source: 61099, Addr: netip.MustParseAddr("127.0.0.11"), Port: 53},
		{Proto: "tcp", Source: 61001, Addr: netip.MustParseAddr("2001:db8::1"), Port: 65535},
	} {
		name := VerdictName(p)
		if got, ok := ParseVerdictName(name); !ok || got != p {
			t.Errorf("%s: %v, %v", name, got, ok)
		}
	}
	if name := VerdictName(Probe{Proto: "tcp", Source: 61000, Addr: netip.MustParseAddr("44.10.9.9"), Port: 443}); name != "tcp.61000.443.2c0a0909.verdict.corral." {
		t.Error(name)
	}
	for _, name := range []string{
		"", VerdictZone, "." + VerdictZone, "tcp.60999.443.2c0a0909." + VerdictZone, "tcp.61100.443.2c0a0909." + VerdictZone,
		"icmp.61000.443.2c0a0909." + VerdictZone, "tcp.61000.443.2c0a09." + VerdictZone, "tcp.61000.70000.2c0a0909." + VerdictZone,
		"tcp.61000.0443.2c0a0909." + VerdictZone, "x.tcp.61000.443.2c0a0909." + VerdictZone, "tcp.61000.443.2c0a0909.verdict.corral",
		"tcp.61000.443.2C0A0909." + VerdictZone, "tcp.61000.443.00000000000000000000ffff2c0a0909." + VerdictZone,
	} {
		if p, ok := ParseVerdictName(name); ok {
			t.Errorf("%q: %v", name, p)
		}
	}
}

func TestParseVerdict(t *testing.T) {
	p := Probe{Proto: "tcp", Source: 61000, Addr: netip.MustParseAddr("44.10.9.9"), Port: 443}
	for _, v := range []Verdict{
		{Seq: 7, Outcome: OutcomeRejected, Rule: "unlisted"},
		{Seq: 1 << 40, Outcome: OutcomeAccepted},
	} {
		v.Proto, v.Source, v.Addr, v.Port = p.Proto, p.Source, p.Addr, p.Port
		if got, err := ParseVerdict(p, v.Text()); err != nil || got != v {
			t.Errorf("%q: %+v, %v", v.Text(), got, err)
		}
	}
	for _, s := range []string{"", "7", "x rejected unlisted", "7 forgotten", "7 rejected unlisted more", "-1 rejected unlisted"} {
		if v, err := ParseVerdict(p, s); err == nil {
			t.Errorf("%q: %+v", s, v)
		}
	}
}

func FuzzParseVerdictName(f *testing.F) {
	f.Add("tcp.61000.443.2c0a0909.verdict.corral.")
	f.Fuzz(func(t *testing.T, name string) {
		if p, ok := ParseVerdictName(name); ok && (VerdictName(p) != name || p.Source < ProbePortFirst || p.Source > ProbePortLast) {
			t.Fatalf("%q: %+v", name, p)
		}
	})
}
