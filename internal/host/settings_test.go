package host

import (
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

func TestFromEnvironment(t *testing.T) {
	variables := []string{"CORRAL_SUBNET", "CORRAL_RESOLVERS", "CORRAL_PROBES", "CORRAL_CA_BUNDLE"}
	addr, addrs := netip.MustParseAddr, func(list ...string) (out []netip.Addr) {
		for _, a := range list {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	for _, c := range []struct {
		name, value string
		want        Settings
		err         string
	}{
		{"", "", Settings{}, ""},
		{"SUBNET", "10.0.0.1/16", Settings{Subnet: netip.MustParsePrefix("10.0.0.1/16")}, ""}, // how wide and where is not judged here
		{"SUBNET", "10.0.0.0", Settings{}, "is no network"},
		{"RESOLVERS", "10.0.0.1, 10.0.0.2", Settings{Resolvers: addrs("10.0.0.1", "10.0.0.2")}, ""},
		{"RESOLVERS", "127.0.0.53,127.255.255.255,::1", Settings{Resolvers: addrs("127.0.0.53", "127.255.255.255", "::1")}, ""},
		{"RESOLVERS", ", ,", Settings{}, ""},
		{"RESOLVERS", "10.0.0.1,x", Settings{}, `"x" is no address`},
		{"RESOLVERS", "10.0.0.1:53", Settings{}, "is no address"},
		{"RESOLVERS", "::2", Settings{}, "::2: gates ask name servers by IPv4"},
		{"RESOLVERS", "::1%lo", Settings{}, "gates ask name servers by IPv4"},
		{"RESOLVERS", "::ffff:127.0.0.1", Settings{}, "gates ask name servers by IPv4"},
		{"RESOLVERS", "0.0.0.0", Settings{}, "0.0.0.0 is not the address of one name server"},
		{"RESOLVERS", "224.0.0.251", Settings{}, "is not the address of one name server"},
		{"RESOLVERS", "255.255.255.255", Settings{}, "is not the address of one name server"},
		{"PROBES", "metadata=192.0.2.1 ipv6=2001:db8::2", Settings{Probes: spec.Probes{Metadata: addr("192.0.2.1"), IPv6: addr("2001:db8::2")}}, ""},
		{"PROBES", "unlisted=192.0.2.1,resolver=169.254.1.1", Settings{Probes: spec.Probes{Unlisted: addr("192.0.2.1"), Resolver: addr("169.254.1.1")}}, ""},
		{"PROBES", "unlited=192.0.2.1", Settings{}, `there is no probe "unlited" (there is: unlisted, resolver, metadata, ipv6)`},
		{"PROBES", "unlisted", Settings{}, "write each like"},
		{"PROBES", "unlisted=2001:db8::1", Settings{}, "unlisted: 2001:db8::1 is not an IPv4 address"},
		{"PROBES", "ipv6=192.0.2.1", Settings{}, "ipv6: 192.0.2.1 is not an IPv6 address"},
		{"PROBES", "ipv6=::ffff:192.0.2.1", Settings{}, "is not an IPv6 address"},
		{"PROBES", "ipv6=fe80::1%eth0", Settings{}, "is not an IPv6 address"},
		{"PROBES", "ipv6=::1", Settings{}, "not an address outside"},
		{"PROBES", "metadata=127.0.0.1", Settings{}, "not an address outside"},
		{"CA_BUNDLE", "/etc/ssl/a.pem", Settings{CABundle: "/etc/ssl/a.pem"}, ""},
		{"CA_BUNDLE", "~/a.pem", Settings{CABundle: "/home/u/a.pem"}, ""},
		{"CA_BUNDLE", "~other/a.pem", Settings{}, "is no absolute path"},
		{"CA_BUNDLE", "a.pem", Settings{}, "is no absolute path"},
		{"CA_BUNDLE", "/a\n.pem", Settings{}, "is no absolute path"},
	} {
		for _, v := range variables {
			t.Setenv(v, "")
		}
		if c.name != "" {
			t.Setenv("CORRAL_"+c.name, c.value)
		}
		got, err := FromEnvironment("/home/u")
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s=%s: %+v", c.name, c.value, got)
		}
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.HasPrefix(err.Error(), "CORRAL_"+c.name+": ") || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s=%s: %v, want %q", c.name, c.value, err, c.err)
		}
		for _, key := range got.Keys() {
			if Variable(key) != "CORRAL_"+c.name {
				t.Errorf("%s is said to come from %s, not from CORRAL_%s", key, Variable(key), c.name)
			}
		}
		if c.err == "" && (len(got.Keys()) > 0) != !reflect.DeepEqual(got, Settings{}) {
			t.Errorf("%s=%s: made are %v", c.name, c.value, got.Keys())
		}
	}
}

func TestCheckResolverOfNothing(t *testing.T) {
	if CheckResolver(netip.Addr{}) == nil || CheckProbe("unlisted", netip.Addr{}) == nil || CheckProbe("ipv6", netip.Addr{}) == nil {
		t.Error("no address is accepted")
	}
}

// Each setting stands for itself, each probe too.
func TestSettingsOr(t *testing.T) {
	high := Settings{
		Subnet: netip.MustParsePrefix("10.1.0.0/16"), Resolvers: []netip.Addr{netip.MustParseAddr("10.1.0.53")}, CABundle: "/high",
		Probes: spec.Probes{Unlisted: netip.MustParseAddr("10.1.0.1"), Resolver: netip.MustParseAddr("10.1.0.2"), Metadata: netip.MustParseAddr("10.1.0.3"), IPv6: netip.MustParseAddr("2001:db8::1")},
	}
	low := Settings{
		Subnet: netip.MustParsePrefix("10.2.0.0/16"), Resolvers: []netip.Addr{netip.MustParseAddr("10.2.0.53")}, CABundle: "/low",
		Probes: spec.Probes{Unlisted: netip.MustParseAddr("10.2.0.1"), Resolver: netip.MustParseAddr("10.2.0.2"), Metadata: netip.MustParseAddr("10.2.0.3"), IPv6: netip.MustParseAddr("2001:db8::2")},
	}
	if got := high.Or(low); !reflect.DeepEqual(got, high) {
		t.Errorf("%+v", got)
	}
	if got := (Settings{}).Or(low); !reflect.DeepEqual(got, low) {
		t.Errorf("%+v", got)
	}
	if got := low.Or(Settings{}); !reflect.DeepEqual(got, low) {
		t.Errorf("%+v", got)
	}
	if n := len(low.Keys()); n != 3+len(ProbeNames) {
		t.Errorf("%d keys", n)
	}
	got := (Settings{Probes: spec.Probes{Metadata: high.Probes.Metadata}}).Or(low)
	want := low
	want.Probes.Metadata = high.Probes.Metadata
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

func TestSettingsFile(t *testing.T) {
	for xdg, want := range map[string]string{"": "/home/u/.config/corral/config.yaml", "relative": "/home/u/.config/corral/config.yaml", "/c": "/c/corral/config.yaml"} {
		t.Setenv("XDG_CONFIG_HOME", xdg)
		if got := SettingsFile("/home/u"); got != want {
			t.Errorf("%q: %s", xdg, got)
		}
	}
}

// Nobody but root is called by sudo.
func TestCaller(t *testing.T) {
	self := uint32(os.Getuid())
	for sudo, caller := range map[string]uint32{"": 0, "x": 0, "-1": 0, "4294967296": 0, "12345": 12345} {
		t.Setenv("SUDO_UID", sudo)
		if self != 0 {
			caller = self
		}
		if got := Caller(); got != caller {
			t.Errorf("SUDO_UID=%q: %d", sudo, got)
		}
	}
}
