package spec

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestRelayRoundTrip(t *testing.T) {
	for _, sources := range [][]netip.Addr{
		nil,
		{},
		{netip.MustParseAddr("172.30.0.2")},
		{netip.MustParseAddr("172.30.0.3"), netip.MustParseAddr("126.255.255.255"), netip.MustParseAddr("128.0.0.0")},
	} {
		got, err := ParseRelay(bytes.NewReader(Encode(Relay{Version: Version, Sources: sources})))
		if err != nil || !slices.Equal(got.Sources, sources) {
			t.Errorf("%v became %v, %v", sources, got.Sources, err)
		}
	}
}

func TestRelayRefusals(t *testing.T) {
	for name, in := range map[string]string{
		"empty":             ``,
		"null":              `null`,
		"no version":        `{"sources":[]}`,
		"version":           `{"version":2,"sources":[]}`,
		"unknown field":     `{"version":1,"sources":[],"ports":[1]}`,
		"two documents":     `{"version":1,"sources":[]}{"version":1,"sources":[]}`,
		"cut short":         `{"version":1,"sources":["172.30.0.2"`,
		"no list":           `{"version":1,"sources":"172.30.0.2"}`,
		"no address":        `{"version":1,"sources":[""]}`,
		"prefix":            `{"version":1,"sources":["172.30.0.0/24"]}`,
		"port":              `{"version":1,"sources":["172.30.0.2:80"]}`,
		"loopback":          `{"version":1,"sources":["127.0.0.1"]}`,
		"end of loopback":   `{"version":1,"sources":["127.255.255.255"]}`,
		"unspecified":       `{"version":1,"sources":["0.0.0.0"]}`,
		"multicast":         `{"version":1,"sources":["224.0.0.1"]}`,
		"broadcast":         `{"version":1,"sources":["255.255.255.255"]}`,
		"IPv6":              `{"version":1,"sources":["2001:db8::2"]}`,
		"IPv4 in IPv6":      `{"version":1,"sources":["::ffff:172.30.0.2"]}`,
		"twice":             `{"version":1,"sources":["172.30.0.2","172.30.0.3","172.30.0.2"]}`,
		"the second is bad": `{"version":1,"sources":["172.30.0.2","::1"]}`,
	} {
		if got, err := ParseRelay(strings.NewReader(in)); err == nil || len(got.Sources) > 0 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func FuzzParseRelay(f *testing.F) {
	f.Add(Encode(Relay{Version: Version, Sources: []netip.Addr{netip.MustParseAddr("172.30.0.2")}}))
	f.Add([]byte(`{"version":1,"sources":["::ffff:172.30.0.2","127.0.0.1"]}`))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ParseRelay(bytes.NewReader(b))
		if err != nil {
			return
		}
		for i, a := range d.Sources {
			if !a.Is4() || a.IsLoopback() || a.IsUnspecified() || slices.Contains(d.Sources[:i], a) {
				t.Errorf("accepted %v", d.Sources)
			}
		}
		if _, err := ParseRelay(bytes.NewReader(Encode(d))); err != nil {
			t.Errorf("accepted once only: %v", err)
		}
	})
}
