package main

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
)

var (
	gateNames      = netip.MustParseAddrPort("127.0.0.1:53")
	dockerResolver = netip.MustParseAddr("127.0.0.11")
)

const (
	typeA, typeAAAA, typeTXT, typeHTTPS, typeANY = 1, 28, 16, 65, 255
)

var dnsAttempts = []attempt{
	{"dns", "udp-public", "a public resolver answers, so any data can leave in names", func(ctx context.Context, c *cell) result {
		return udp(ctx, at(c.Resolver, 53), question(c.name(), typeA))
	}},
	{"dns", "tcp-public", "a public resolver takes names by TCP", func(ctx context.Context, c *cell) result {
		return tcp(ctx, at(c.Resolver, 53))
	}},
	{"dns", "tls-public", "a public resolver takes names by DNS over TLS", func(ctx context.Context, c *cell) result {
		return tcp(ctx, at(c.Resolver, 853))
	}},
	{"dns", "https-public", "a public resolver takes names by DNS over HTTPS", func(ctx context.Context, c *cell) result {
		return tcp(ctx, at(c.Resolver, 443))
	}},
	{"dns", "quic-public", "a public resolver takes names by DNS over QUIC", func(ctx context.Context, c *cell) result {
		return each([]uint16{853, 784, 443}, func(port uint16) result { return udp(ctx, at(c.Resolver, port), quicInitial) })
	}},
	{"dns", "udp-docker", "the engine's resolver forwards names for us", func(ctx context.Context, c *cell) result {
		return worst(udp(ctx, at(dockerResolver, 53), question(ownName(), typeA)), udp(ctx, at(dockerResolver, 53), question(c.name(), typeA)))
	}},
	{"dns", "tcp-docker", "the engine's resolver forwards names for us by TCP", func(ctx context.Context, _ *cell) result {
		return tcp(ctx, at(dockerResolver, 53))
	}},
	{"dns", "hidden-docker-ports", "the engine's resolver can be asked behind its own redirection", hiddenDockerPorts},
	{"dns", "gateway", "the host's resolver forwards names for us", func(ctx context.Context, c *cell) result {
		return worst(udp(ctx, at(c.Gateway, 53), question(c.name(), typeA)), tcp(ctx, at(c.Gateway, 53)))
	}},
	{"dns", "metadata", "a cloud's link-local resolver forwards names for us", func(ctx context.Context, c *cell) result {
		return worst(udp(ctx, at(c.Metadata, 53), question(c.name(), typeA)), tcp(ctx, at(c.Metadata, 53)))
	}},
	{"dns", "allowed-host", "an allowed host takes names from us", func(ctx context.Context, c *cell) result {
		return each(c.Allowed, func(a netip.AddrPort) result { return udp(ctx, at(a.Addr(), 53), question(c.name(), typeA)) })
	}},
	{"dns", "unlisted-name", "the gate resolves names that no policy lists", unlistedName},
	{"dns", "data-in-a-name", "the gate forwards data in long labels and odd types", dataInAName},
	{"dns", "libc", "ordinary programs resolve unlisted names", libcName},
	{"dns", "multicast-names", "neighbours answer multicast DNS, LLMNR or NetBIOS names", func(ctx context.Context, c *cell) result {
		return each([]netip.AddrPort{
			netip.MustParseAddrPort("224.0.0.251:5353"), netip.MustParseAddrPort("224.0.0.252:5355"), netip.MustParseAddrPort("255.255.255.255:137"),
		}, func(to netip.AddrPort) result { return udp(ctx, to, question("host.local", typeA)) })
	}},
}

// name is an unlisted name.
func (c *cell) name() string {
	if len(c.Names) > 0 {
		return c.Names[0]
	}
	return "unlisted.invalid"
}

func ownName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "localhost"
	}
	return name
}

// ourID begins every query of ours.
const ourID = "pr"

// question is a DNS query on the wire.
func question(name string, typ uint16) string {
	b := append([]byte(ourID), 1, 0, 0, 1, 0, 0, 0, 0, 0, 0) // recursion desired, one question
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		label = label[:min(len(label), 63)]
		b = append(append(b, byte(len(label))), label...)
	}
	b = append(b, 0)
	return string(append(binary.BigEndian.AppendUint16(b, typ), 0, 1))
}

// answered asks over UDP and says whether the reply has a record in it.
func answered(ctx context.Context, to netip.AddrPort, query string) result {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp", to.String())
	if err != nil {
		return held("%v", reason(err))
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(connectLimit))
	b := make([]byte, 1500)
	if _, err := conn.Write([]byte(query)); err != nil {
		return held("%v", reason(err))
	}
	n, err := conn.Read(b)
	if err != nil || n < 12 {
		return held("%v", reason(err))
	}
	if records := binary.BigEndian.Uint16(b[6:]); records > 0 {
		return out("%v answers with %d records", to, records)
	}
	return held("status %d, no record", b[3]&0xf)
}

func unlistedName(ctx context.Context, c *cell) result {
	return each(c.Names, func(name string) result {
		var all []result
		for _, typ := range []uint16{typeA, typeAAAA, typeTXT, typeHTTPS, typeANY} {
			all = append(all, answered(ctx, gateNames, question(name, typ)))
		}
		return worst(all...)
	})
}

func dataInAName(ctx context.Context, c *cell) result {
	data := strings.Repeat("deadbeef", 7)
	return each(c.Names, func(name string) result {
		return worst(answered(ctx, gateNames, question(data+"."+data+"."+name, typeTXT)), answered(ctx, gateNames, question(data+"."+name, 10)))
	})
}

func libcName(ctx context.Context, c *cell) result {
	return each(c.Names, func(name string) result {
		addrs, err := net.DefaultResolver.LookupHost(ctx, name)
		if err != nil {
			return held("%v", err)
		}
		return out("%s is %v", name, addrs)
	})
}

// hiddenDockerPorts asks every port that the engine's resolver really has: its
// port 53 is only a redirection.
func hiddenDockerPorts(ctx context.Context, c *cell) result {
	var ports []uint16
	for _, table := range []string{"tcp", "udp"} {
		for _, s := range inetTable(table) {
			if s.local.Addr() == dockerResolver {
				ports = append(ports, s.local.Port())
			}
		}
	}
	if len(ports) == 0 {
		return absent("no socket at %v", dockerResolver)
	}
	return each(ports, func(port uint16) result {
		return worst(tcp(ctx, at(dockerResolver, port)), udp(ctx, at(dockerResolver, port), question(ownName(), typeA)))
	})
}
