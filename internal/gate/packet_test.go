package gate

import (
	"encoding/binary"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

func tcp(source, port uint16) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, source)
	binary.BigEndian.PutUint16(b[2:], port)
	return b
}

func ip4(proto byte, fragment uint16, options int, rest ...byte) []byte {
	b := make([]byte, 20+options)
	b[0], b[9] = 0x40|byte(len(b)/4), proto
	binary.BigEndian.PutUint16(b[6:], fragment)
	copy(b[16:], addr("44.10.9.9").AsSlice())
	return append(b, rest...)
}

func ip6(next byte, rest ...byte) []byte {
	b := make([]byte, 40)
	b[0], b[6] = 0x60, next
	copy(b[24:], addr("2001:db8::9").AsSlice())
	return append(b, rest...)
}

func record(prefix string, payload []byte) []byte {
	ae := netlink.NewAttributeEncoder()
	ae.String(nfulaPrefix, prefix)
	ae.Bytes(nfulaUID, []byte{0, 0, 3, 232})
	ae.Bytes(nfulaPayload, payload)
	b, err := ae.Encode()
	if err != nil {
		panic(err)
	}
	return append(make([]byte, 4), b...)
}

func TestParseRecord(t *testing.T) {
	extension := append([]byte{unix.IPPROTO_TCP, 0, 0, 0, 0, 0, 0, 0}, tcp(61000, 443)...)
	for what, tt := range map[string]struct {
		payload      []byte
		proto, addr  string
		source, port uint16
	}{
		"TCP":                   {ip4(6, 0, 0, tcp(61000, 443)...), "tcp", "44.10.9.9", 61000, 443},
		"options":               {ip4(6, 0, 8, tcp(61000, 443)...), "tcp", "44.10.9.9", 61000, 443},
		"UDP":                   {ip4(17, 0, 0, tcp(61000, 53)...), "udp", "44.10.9.9", 61000, 53},
		"first fragment":        {ip4(17, 0x2000, 0, tcp(61000, 53)...), "udp", "44.10.9.9", 61000, 53},
		"later fragment":        {ip4(17, 0x2001, 0, tcp(61000, 53)...), "udp", "44.10.9.9", 0, 0},
		"ICMP":                  {ip4(1, 0, 0, 8, 0, 0, 0), "icmp", "44.10.9.9", 0, 0},
		"SCTP":                  {ip4(132, 0, 0, tcp(1, 2)...), "ip-132", "44.10.9.9", 0, 0},
		"no ports":              {ip4(6, 0, 0, 1, 2), "tcp", "44.10.9.9", 0, 0},
		"IPv6":                  {ip6(6, tcp(61000, 443)...), "tcp", "2001:db8::9", 61000, 443},
		"IPv6 with extension":   {ip6(unix.IPPROTO_HOPOPTS, extension...), "tcp", "2001:db8::9", 61000, 443},
		"IPv6 cut in extension": {ip6(unix.IPPROTO_HOPOPTS, 6, 9, 0, 0, 0, 0, 0, 0), "tcp", "2001:db8::9", 0, 0},
		"ICMPv6":                {ip6(58, 128, 0), "icmp", "2001:db8::9", 0, 0},
	} {
		p, err := parseRecord(record("corral:probe:unlisted", tt.payload))
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if p.record != recordProbe || p.rule != ruleUnlisted || p.uid != 1000 || !p.hasUID {
			t.Errorf("%s: %+v", what, p)
		}
		if p.proto != tt.proto || p.addr != addr(tt.addr) || p.source != tt.source || p.port != tt.port {
			t.Errorf("%s: %+v", what, p)
		}
	}
	for what, b := range map[string][]byte{
		"nothing":         nil,
		"no packet":       record("corral:seen:", nil),
		"another prefix":  record("other:seen:x", ip4(6, 0, 0, tcp(1, 2)...)),
		"one word":        record("corral", ip4(6, 0, 0, tcp(1, 2)...)),
		"header cut off":  record("corral:seen:", ip4(6, 0, 0)[:19]),
		"version 5":       record("corral:seen:", []byte{0x50}),
		"IPv6 cut off":    record("corral:seen:", ip6(6)[:39]),
		"cut attributes":  record("corral:seen:", ip4(6, 0, 0))[:15],
		"header too long": record("corral:seen:", append([]byte{0x4f}, ip4(6, 0, 0)[1:]...)),
	} {
		if p, err := parseRecord(b); err == nil {
			t.Errorf("%s: %+v", what, p)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add(record("corral:seen:", ip4(6, 0, 8, tcp(61000, 443)...)))
	f.Add(record("corral:probe:ipv6", ip6(0, append([]byte{6, 0, 0, 0, 0, 0, 0, 0}, tcp(1, 2)...)...)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := parseRecord(b); err == nil && (!p.addr.IsValid() || p.proto == "") {
			t.Fatalf("%+v", p)
		}
	})
}

// Messages after one that makes no sense still count.
func TestTakeRecords(t *testing.T) {
	message := func(body []byte) []byte {
		b, err := netlink.Message{Header: netlink.Header{Length: uint32((unix.SizeofNlMsghdr + len(body) + 3) &^ 3)}, Data: append(body, make([]byte, (4-len(body)%4)%4)...)}.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	good := message(record("corral:seen:", ip4(6, 0, 0, tcp(61000, 443)...)))
	w := worker{audit: newAudit()}
	w.takeRecords(append(append(message([]byte{1, 2, 3, 4}), good...), good...))
	w.takeRecords(good[:20])
	w.takeRecords(nil)
	if v := w.audit.verdicts(0); len(v.Verdicts) != 2 {
		t.Errorf("%+v", v)
	}
}
