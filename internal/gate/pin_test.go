package gate

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/spec"
)

func TestDecide(t *testing.T) {
	g := document
	g.Never = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	found := func(addrs ...string) resolution {
		r := resolution{ttl: time.Minute}
		for _, a := range addrs {
			r.addrs = append(r.addrs, addr(a))
		}
		return r
	}
	private := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.30.0.0/16")}
	var many []string
	for i := range 65 {
		many = append(many, netip.AddrFrom4([4]byte{44, 10, 1, byte(i)}).String())
	}
	for what, tt := range map[string]struct {
		r       resolution
		private []netip.Prefix
		want    []string
		err     string
	}{
		"one":                   {r: found("44.10.0.10"), want: []string{"44.10.0.10"}},
		"twice the same":        {r: found("44.10.0.10", "44.10.0.10"), want: []string{"44.10.0.10"}},
		"sorted":                {r: found("44.10.0.11", "44.10.0.10"), want: []string{"44.10.0.10", "44.10.0.11"}},
		"64":                    {r: found(many[:64]...), want: many[:64]},
		"65":                    {r: found(many...), err: "65 addresses"},
		"none":                  {r: found(), err: "0 addresses"},
		"not resolved":          {r: resolution{err: errors.New("no such name (NXDOMAIN)")}, err: "NXDOMAIN"},
		"private":               {r: found("10.38.0.27"), err: "10.38.0.27"},
		"private, granted":      {r: found("10.38.0.27"), private: private, want: []string{"10.38.0.27"}},
		"one bad spoils it":     {r: found("44.10.0.10", "10.38.0.27"), err: "10.38.0.27"},
		"never":                 {r: found("10.1.2.3"), private: private, err: "10.1.2.3"},
		"the gateway":           {r: found("172.30.0.1"), private: private, err: "172.30.0.1"},
		"the gate":              {r: found("172.30.0.9"), private: private, err: "172.30.0.9"},
		"metadata":              {r: found("169.254.169.254"), private: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, err: "169.254.169.254"},
		"another cloud's":       {r: found("168.63.129.16"), private: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, err: "168.63.129.16"},
		"IPv6":                  {r: found("2606:4700::1"), err: "2606:4700::1"},
		"IPv4 in IPv6":          {r: found("::ffff:127.0.0.1"), private: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, err: "127.0.0.1"},
		"unspecified":           {r: found("0.0.0.0"), private: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, err: "0.0.0.0"},
		"no address in a reply": {r: resolution{addrs: []netip.Addr{{}}}, err: "address"},
	} {
		for _, soft := range []bool{false, true} {
			g.Names = []spec.Name{{Domain: "a.test", Ports: []uint16{443, 443}, Private: tt.private, Soft: soft, Origin: "corral.yaml:7"}}
			got, err := decide(g, outcome{}, map[string]resolution{"a.test": tt.r}, noon)
			pins, unpinned := got.pins, got.unpinned
			switch {
			case tt.err == "":
				var got []string
				for _, a := range pins[0].Addrs {
					got = append(got, a.String())
				}
				if err != nil || !slices.Equal(got, tt.want) || !slices.Equal(pins[0].Ports, []uint16{443}) || pins[0].At != noon || pins[0].TTL != time.Minute {
					t.Errorf("%s: %+v, %v", what, pins, err)
				}
			case soft:
				if err != nil || len(pins) != 0 || len(unpinned) != 1 || !strings.Contains(unpinned[0].Reason, tt.err) {
					t.Errorf("%s, soft: %+v, %+v, %v", what, pins, unpinned, err)
				}
			default:
				if err == nil || !strings.HasPrefix(err.Error(), "a.test (corral.yaml:7): ") || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("%s: %v does not say %q", what, err, tt.err)
				}
			}
		}
	}
}

// All names that fail are told at once.
func TestDecideTellsAll(t *testing.T) {
	g := document
	g.Names = []spec.Name{{Domain: "a.test", Origin: "x:1"}, {Domain: "b.test", Origin: "x:2"}}
	_, err := decide(g, outcome{}, nil, noon)
	if err == nil || !strings.Contains(err.Error(), "a.test (x:1)") || !strings.Contains(err.Error(), "b.test (x:2)") {
		t.Error(err)
	}
}

func TestHostsText(t *testing.T) {
	own := map[netip.Addr]bool{addr("127.0.0.1"): true, addr("172.30.0.9"): true, addr("10.77.0.3"): true}
	old := "127.0.0.1\tlocalhost\n::1 localhost\n172.30.0.9\tbox # ours\n172.30.0.9 box more.evil.test\n10.9.8.7 left.evil.test\n10.9.8.6 box\nnonsense box\n10.77.0.3 box.own.test box\n1.2.3.4 xbox\n# box\n\n"
	pins := []spec.Pin{
		{Domain: "a.test", Addrs: []netip.Addr{addr("44.10.0.10"), addr("44.10.0.11")}, Ports: []uint16{443}},
		{Domain: "a.test", Addrs: []netip.Addr{addr("44.10.0.10"), addr("44.10.0.11")}, Ports: []uint16{22}},
		{Domain: "b.test", Addrs: []netip.Addr{addr("44.10.0.10")}},
	}
	want := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n172.30.0.9\tbox\n10.77.0.3\tbox.own.test\tbox\n" +
		"44.10.0.10\ta.test\n44.10.0.11\ta.test\n44.10.0.10\tb.test\n"
	got := hostsText(old, "box", own, pins)
	if got != want {
		t.Errorf("got:\n%s", got)
	}
	if again := hostsText(got, "box", own, pins); again != want {
		t.Errorf("again:\n%s", again)
	}
}
