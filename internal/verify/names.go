package verify

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/corral-sandbox/corral/internal/spec"
)

// edeBlocked is the Extended DNS Error "Blocked" (RFC 8914).
const edeBlocked = 15

const (
	// answerLimit is how soon the gate must answer: it asks nobody.
	answerLimit = 2 * time.Second
	// askAgain is how often a question is put until then: of a gate that somebody
	// floods with lookups the kernel takes only some.
	askAgain = 50 * time.Millisecond
)

// answer is a DNS reply, as far as checks need it.
type answer struct {
	rcode dnsmessage.RCode
	addrs []netip.Addr
	texts []string
	ede   []uint16
}

// query packs a question for name with EDNS.
func query(id uint16, name string, typ dnsmessage.Type, class dnsmessage.Class) ([]byte, error) {
	n, err := dnsmessage.NewName(strings.TrimSuffix(name, ".") + ".")
	if err != nil {
		return nil, fmt.Errorf("name %q: %w", name, err)
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: n, Type: typ, Class: class}},
		Additionals: []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName("."), Type: dnsmessage.TypeOPT, Class: 1232},
			Body:   &dnsmessage.OPTResource{},
		}},
	}
	return m.Pack()
}

// parseAnswer reads a reply to the question with that id.
func parseAnswer(b []byte, id uint16) (answer, error) {
	var m dnsmessage.Message
	if err := m.Unpack(b); err != nil {
		return answer{}, fmt.Errorf("reply: %w", err)
	}
	if m.ID != id || !m.Response {
		return answer{}, errors.New("a reply to another question")
	}
	a := answer{rcode: m.RCode}
	for _, r := range m.Answers {
		switch body := r.Body.(type) {
		case *dnsmessage.AResource:
			a.addrs = append(a.addrs, netip.AddrFrom4(body.A))
		case *dnsmessage.TXTResource:
			a.texts = append(a.texts, strings.Join(body.TXT, ""))
		}
	}
	for _, r := range m.Additionals {
		opt, isOPT := r.Body.(*dnsmessage.OPTResource)
		if !isOPT {
			continue
		}
		for _, o := range opt.Options {
			if o.Code == 15 && len(o.Data) >= 2 { // the option itself has the number 15 too
				a.ede = append(a.ede, binary.BigEndian.Uint16(o.Data))
			}
		}
	}
	return a, nil
}

// insistent is a way to a names server by UDP on which the last question is put
// again until there is an answer.
type insistent struct {
	*net.UDPConn
	question []byte
	deadline time.Time
}

// insist is a dialer of the net package's resolver. Where that wants TCP it gets that.
func insist(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if udp, ok := conn.(*net.UDPConn); ok && err == nil {
		return &insistent{UDPConn: udp}, nil
	}
	return conn, err
}

func (c *insistent) SetDeadline(t time.Time) error {
	c.deadline = t
	return c.UDPConn.SetDeadline(t)
}

func (c *insistent) Write(b []byte) (int, error) {
	c.question = slices.Clone(b)
	return c.UDPConn.Write(b)
}

func (c *insistent) Read(b []byte) (int, error) {
	for {
		next := time.Now().Add(askAgain)
		last := !c.deadline.IsZero() && !next.Before(c.deadline)
		if last {
			next = c.deadline
		}
		if err := c.SetReadDeadline(next); err != nil {
			return 0, err
		}
		n, err := c.UDPConn.Read(b)
		if last || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if _, err := c.UDPConn.Write(c.question); err != nil {
			return 0, err
		}
	}
}

// ask puts a question to the gate.
func (e *env) ask(ctx context.Context, name string, typ dnsmessage.Type, class dnsmessage.Class) (answer, error) {
	var id [2]byte
	_, _ = rand.Read(id[:])
	n := binary.BigEndian.Uint16(id[:])
	q, err := query(n, name, typ, class)
	if err != nil {
		return answer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	conn, err := insist(ctx, "udp", e.dns.String())
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if _, err := conn.Write(q); err != nil {
		return answer{}, err
	}
	b := make([]byte, 4096)
	size, err := conn.Read(b)
	if err != nil {
		return answer{}, err
	}
	return parseAnswer(b[:size], n)
}

// sameNetNSAsGate: this is the network namespace that Gate names, by its inode,
// and that run of the gate answers in it; no process here is in another, as far as
// it can be looked at.
func sameNetNSAsGate(ctx context.Context, c spec.Check, e *env) finding {
	if c.Gate == nil || c.Gate.NetNS == 0 || c.Gate.Instance == "" {
		return untold("the plan names no gate")
	}
	link, err := os.Readlink(e.path("/proc/self/ns/net"))
	if err != nil {
		return untold("%v", err)
	}
	if want := fmt.Sprintf("net:[%d]", c.Gate.NetNS); link != want {
		return failed("this is %s, the gate's is %s (the gate was restarted or replaced)", link, want)
	}
	a, err := e.ask(ctx, spec.InstanceName, dnsmessage.TypeTXT, dnsmessage.ClassCHAOS)
	if err != nil {
		return untold("the gate does not answer: %v", cause(err))
	}
	if len(a.texts) != 1 || a.texts[0] != c.Gate.Instance {
		return failed("another run of the gate answers here (it was restarted)")
	}
	return e.everyProcess(ctx, func(p process) string {
		// One that is not this user's, or lets nobody look, the other checks judge.
		if its, err := os.Readlink(e.path(p.dir() + "/ns/net")); err == nil && its != link {
			return "is in another network namespace: " + its
		}
		return ""
	})
}

// dnsClosed: nobody is asked for names. The engine's resolver, on every port
// it has, refuses even the container's own name; so do the gateway (Addr),
// Probes.Resolver and Probes.Metadata; resolv.conf names the gate only.
func dnsClosed(ctx context.Context, c spec.Check, e *env) finding {
	if c.Probes == nil || !c.Addr.IsValid() {
		return untold("no probes or gateway")
	}
	b, err := os.ReadFile(e.path("/etc/resolv.conf"))
	if err != nil {
		return untold("%v", err)
	}
	if servers := nameservers(b); !slices.Equal(servers, []string{e.dns.Addr().String()}) {
		return failed("resolv.conf names %s", list(servers))
	}
	own, err := os.Hostname()
	if err != nil {
		return untold("%v", err)
	}
	q, err := query(1, own, dnsmessage.TypeA, dnsmessage.ClassINET)
	if err != nil {
		return untold("%v", err)
	}
	all := targets(tcpAndUDP, []netip.Addr{dockerResolver, c.Addr, c.Probes.Resolver, c.Probes.Metadata}, 53)
	for _, proto := range tcpAndUDP {
		sockets, err := e.inetSockets(proto)
		if err != nil {
			return untold("%v", err)
		}
		for _, s := range sockets {
			if s.local.Addr() == dockerResolver && s.local.Port() != 53 && (s.state == tcpListen || s.state == udpUnbound) {
				all = append(all, targets(tcpAndUDP, []netip.Addr{dockerResolver}, s.local.Port())...)
			}
		}
	}
	return e.closed(ctx, unique(all), q)
}

func unique(all []target) []target {
	var once []target
	for _, t := range all {
		if !slices.Contains(once, t) {
			once = append(once, t)
		}
	}
	return once
}

// nameservers lists those of a resolv.conf.
func nameservers(b []byte) []string {
	var servers []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "nameserver" {
			servers = append(servers, f[1])
		}
	}
	return servers
}

// namesOnlyPinned: each of Names resolves, to the same addresses from
// /etc/hosts and from the gate, and that of the host to Addr only; any other
// name does not exist, says the gate with the error that means blocked, and the
// ordinary way agrees, at once.
func namesOnlyPinned(ctx context.Context, c spec.Check, e *env) finding {
	b, err := os.ReadFile(e.path("/etc/hosts"))
	if err != nil {
		return untold("%v", err)
	}
	hosts := parseHosts(b)
	for _, name := range c.Names {
		if name == spec.HostName && !c.Addr.IsValid() {
			return untold("the plan does not say which address %s has", name)
		}
		a, err := e.ask(ctx, name, dnsmessage.TypeA, dnsmessage.ClassINET)
		if err != nil {
			return untold("%s: the gate does not answer: %v", name, cause(err))
		}
		if a.rcode != dnsmessage.RCodeSuccess || len(a.addrs) == 0 {
			return failed("%s: the gate says %v", name, a.rcode)
		}
		if !sameAddrs(a.addrs, hosts[name]) {
			return failed("%s is %v in /etc/hosts and %v from the gate", name, hosts[name], a.addrs)
		}
		if name == spec.HostName && !sameAddrs(a.addrs, []netip.Addr{c.Addr.Unmap()}) {
			return failed("%s is %v, not the gateway's address %v", name, a.addrs, c.Addr)
		}
	}
	if c.Kind() == "names-only-pinned" && !e.handover && !e.aside { // there the names are not known
		f := e.lasting(ctx, func() (map[string]finding, error) {
			b, err := os.ReadFile(e.path("/etc/hosts"))
			if err != nil {
				return nil, err
			}
			line, err := surplus(b, c.Names)
			if line == "" || err != nil {
				return nil, err
			}
			return map[string]finding{line: failed("/etc/hosts has a line of nobody's: %s", line)}, nil
		})
		if f.result != spec.OK {
			return f
		}
	}
	// A name nobody can have listed: fresh letters in a domain that is reserved.
	stranger := strings.ToLower(rand.Text()) + "." + spec.ProbeDomain
	a, err := e.ask(ctx, stranger, dnsmessage.TypeA, dnsmessage.ClassINET)
	if err != nil {
		return untold("the gate does not answer: %v", cause(err))
	}
	if a.rcode != dnsmessage.RCodeNameError || len(a.addrs) > 0 {
		return failed("an unlisted name: the gate says %v %v", a.rcode, a.addrs)
	}
	if !slices.Contains(a.ede, edeBlocked) {
		return failed("an unlisted name: the gate does not say that it is blocked")
	}
	start := time.Now()
	addrs, err := e.resolver.LookupNetIP(ctx, "ip4", stranger)
	var dnsErr *net.DNSError
	switch {
	case err == nil:
		return failed("an unlisted name resolves to %v", addrs)
	case !errors.As(err, &dnsErr) || !dnsErr.IsNotFound:
		return untold("an unlisted name: %v", err)
	case time.Since(start) > answerLimit:
		return failed("an unlisted name is refused only after %v", time.Since(start).Round(time.Millisecond))
	}
	return ok()
}

// surplus is the first line of a hosts file that is neither loopback's, nor the
// container's own, nor about one of names; empty if there is none.
func surplus(b []byte, names []string) (string, error) {
	hostname, err := os.Hostname()
	if err != nil {
		return "", err
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		entry, _, _ := strings.Cut(line, "#")
		f := strings.Fields(entry)
		if len(f) == 0 {
			continue
		}
		a, err := netip.ParseAddr(f[0])
		ours := err == nil && slices.ContainsFunc(own, func(o net.Addr) bool {
			p, err := netip.ParsePrefix(o.String())
			return err == nil && p.Addr().Unmap() == a.Unmap()
		})
		for _, name := range f[1:] {
			switch {
			case err == nil && a.IsLoopback() && slices.Contains([]string{"localhost", "ip6-localhost", "ip6-loopback"}, name):
			case ours && (name == hostname || strings.HasPrefix(name, hostname+".")):
			case err == nil && slices.Contains(names, strings.ToLower(name)):
			default:
				return strings.Join(f, " "), nil
			}
		}
	}
	return "", nil
}

// parseHosts reads the IPv4 lines of a hosts file.
func parseHosts(b []byte) map[string][]netip.Addr {
	hosts := map[string][]netip.Addr{}
	for line := range strings.Lines(string(b)) {
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		a, err := netip.ParseAddr(f[0])
		if err != nil || !a.Is4() {
			continue
		}
		for _, name := range f[1:] {
			hosts[strings.ToLower(name)] = append(hosts[strings.ToLower(name)], a)
		}
	}
	return hosts
}

// sameAddrs compares without order and repetition.
func sameAddrs(a, b []netip.Addr) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.SortFunc(a, netip.Addr.Compare)
	slices.SortFunc(b, netip.Addr.Compare)
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}
