package netfilter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// Flow is one TCP connection over IPv4 as the kernel tracks it. Source began it.
type Flow struct {
	Source netip.AddrPort
	// Destination is where its packets go, whatever nat made of what the program
	// asked for.
	Destination netip.AddrPort
	Proto       string // "tcp"
	State       string // as in `conntrack -L`; empty if the kernel gives none that is known

	dialled netip.AddrPort // Destination before nat
}

// Live is false once both ends have said, or one has insisted, that it is over.
func (f Flow) Live() bool { return f.State != "TIME_WAIT" && f.State != "CLOSE" }

// Established is a live one whose both ends have agreed to it.
func (f Flow) Established() bool {
	switch f.State {
	case "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK":
		return true
	}
	return false
}

func (f Flow) String() string { return fmt.Sprintf("%s %s → %s", f.Proto, f.Source, f.Destination) }

// Words of the connection tracking protocol (linux/netfilter/nfnetlink_conntrack.h).
const (
	ctGet           = 1
	ctDelete        = 2
	ctaTupleOrig    = 1
	ctaTupleReply   = 2
	ctaProtoInfo    = 4
	ctaTupleIP      = 1
	ctaTupleProto   = 2
	ctaIPv4Src      = 1
	ctaIPv4Dst      = 2
	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3
	ctaInfoTCP      = 1
	ctaTCPState     = 1
)

var tcpStates = [...]string{1: "SYN_SENT", 2: "SYN_RECV", 3: "ESTABLISHED", 4: "FIN_WAIT", 5: "CLOSE_WAIT", 6: "LAST_ACK", 7: "TIME_WAIT", 8: "CLOSE", 9: "SYN_SENT2"}

// flowTries is how often a listing is begun anew that the kernel calls incomplete.
const flowTries = 3

// Flows are the connections with other machines, in any state, that a look wants; nil
// wants all. Each listing has a look of its own, from begin, since the kernel may call
// one incomplete when half of it has been seen. Those of the namespace's programs among
// themselves are left out: anybody can make as many as he likes.
func (k *Kernel) Flows(ctx context.Context, begin func() func(Flow) bool) ([]Flow, error) {
	return flowsOf(ctx, begin, listFlows)
}

func flowsOf(ctx context.Context, begin func() func(Flow) bool, list func(func(Flow) bool) ([]Flow, error)) ([]Flow, error) {
	var err error
	for range flowTries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var which func(Flow) bool
		if begin != nil {
			which = begin()
		}
		var flows []Flow
		if flows, err = list(which); err == nil {
			return flows, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return nil, fmt.Errorf("list connections: %w", err)
}

func listFlows(which func(Flow) bool) ([]Flow, error) {
	var flows []Flow
	var failed error
	err := ctRequest(ctGet, unix.NLM_F_DUMP).ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
		f, ok, err := parseFlow(msg)
		if err != nil {
			failed = err
			return false
		}
		if ok && (which == nil || which(f)) {
			flows = append(flows, f)
		}
		return true
	})
	return flows, errors.Join(err, failed)
}

func ctRequest(command, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|command, flags)
	r.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	return r
}

var errCutOff = errors.New("a message that is cut off")

// parseFlow reads one entry of a listing. It is none of ours if it is not TCP over
// IPv4, or stays inside.
func parseFlow(msg []byte) (f Flow, ok bool, err error) {
	if len(msg) < nl.SizeofNfgenmsg {
		return Flow{}, false, errCutOff
	}
	if msg[0] != unix.AF_INET {
		return Flow{}, false, nil
	}
	var orig, reply tuple
	err = eachAttribute(msg[nl.SizeofNfgenmsg:], func(kind int, data []byte) error {
		switch kind {
		case ctaTupleOrig:
			return orig.decode(data)
		case ctaTupleReply:
			return reply.decode(data)
		case ctaProtoInfo:
			return eachAttribute(data, func(kind int, data []byte) error {
				if kind != ctaInfoTCP {
					return nil
				}
				return eachAttribute(data, func(kind int, data []byte) error {
					if kind == ctaTCPState && len(data) == 1 && int(data[0]) < len(tcpStates) {
						f.State = tcpStates[data[0]]
					}
					return nil
				})
			})
		}
		return nil
	})
	if err != nil {
		return Flow{}, false, err
	}
	if orig.proto != unix.IPPROTO_TCP || !orig.src.IsValid() || !orig.dst.IsValid() || !reply.src.IsValid() {
		return Flow{}, false, nil
	}
	f.Proto = "tcp"
	f.Source = netip.AddrPortFrom(orig.src, orig.srcPort)
	f.dialled = netip.AddrPortFrom(orig.dst, orig.dstPort)
	f.Destination = netip.AddrPortFrom(reply.src, reply.srcPort)
	inside := f.Destination.Addr().IsLoopback() || f.Destination.Addr() == orig.src
	return f, !inside, nil
}

// tuple is one direction of a connection.
type tuple struct {
	src, dst         netip.Addr
	proto            uint8
	srcPort, dstPort uint16
}

func (t *tuple) decode(data []byte) error {
	return eachAttribute(data, func(kind int, data []byte) error {
		switch kind {
		case ctaTupleIP:
			return eachAttribute(data, func(kind int, data []byte) error {
				switch {
				case len(data) != net4:
				case kind == ctaIPv4Src:
					t.src = netip.AddrFrom4([net4]byte(data))
				case kind == ctaIPv4Dst:
					t.dst = netip.AddrFrom4([net4]byte(data))
				}
				return nil
			})
		case ctaTupleProto:
			return eachAttribute(data, func(kind int, data []byte) error {
				switch {
				case kind == ctaProtoNum && len(data) == 1:
					t.proto = data[0]
				case kind == ctaProtoSrcPort && len(data) == 2:
					t.srcPort = binary.BigEndian.Uint16(data)
				case kind == ctaProtoDstPort && len(data) == 2:
					t.dstPort = binary.BigEndian.Uint16(data)
				}
				return nil
			})
		}
		return nil
	})
}

const net4 = 4 // bytes of an IPv4 address

// eachAttribute calls do with each attribute of a netlink message. There can be very
// many messages, so nothing is allocated for one.
func eachAttribute(b []byte, do func(kind int, data []byte) error) error {
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		kind := int(binary.NativeEndian.Uint16(b[2:])) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		if size < unix.SizeofNlAttr || size > len(b) {
			return errCutOff
		}
		if err := do(kind, b[unix.SizeofNlAttr:size]); err != nil {
			return err
		}
		b = b[min(len(b), (size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
	}
	return nil
}

// endShown is how many connections that could not be ended are worth naming.
const endShown = 5

// End ends connections that began in this namespace, whoever's they are: the
// socket is destroyed, which resets both ends, then the kernel forgets the
// connection, so that what still comes of it is judged as new. It returns how many
// live ones are over; one that was gone already is. Where TryDestroy has failed, being
// forgotten is their end: nothing passes any more, which they learn when they send.
func (k *Kernel) End(ctx context.Context, flows ...Flow) (int, error) {
	ended, failed := 0, 0
	var failures []error
	for _, f := range flows {
		err := ctx.Err()
		if err == nil && f.Live() && !k.spares { // the port of another may be somebody else's by now
			err = destroySocket(f)
		}
		if ctx.Err() == nil {
			err = errors.Join(err, forget(f))
		}
		switch {
		case err == nil && f.Live():
			ended++
		case err != nil:
			if failed++; failed <= endShown {
				failures = append(failures, fmt.Errorf("%s: %w", f, err))
			}
		}
	}
	if failed > endShown {
		failures = append(failures, fmt.Errorf("and %d more", failed-endShown))
	}
	return ended, errors.Join(failures...)
}

// Sizes of linux/inet_diag.h.
const (
	diagRequestSize = 56
	diagIDAt        = 8 // in a request
	diagIDSize      = 48
	diagAnswerIDAt  = 4
	diagCookieAt    = 40 // in an ID
)

// destroySocket ends the socket of a connection, if there is one.
func destroySocket(f Flow) error {
	id, err := findSocket(f.Source, f.dialled)
	if err == nil {
		err = destroyFound(id)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// findSocket is what the kernel calls the socket from one end to the other:
// unix.ENOENT if there is none. It has to be asked before that very one is destroyed:
// on its own a request takes a listener on the same port for an answer.
func findSocket(from, to netip.AddrPort) (id []byte, err error) {
	id = make([]byte, diagIDSize)
	binary.BigEndian.PutUint16(id[0:], from.Port())
	binary.BigEndian.PutUint16(id[2:], to.Port())
	copy(id[4:], from.Addr().AsSlice())
	copy(id[20:], to.Addr().AsSlice())
	for i := diagCookieAt; i < diagIDSize; i++ {
		id[i] = 0xff // whichever it is
	}
	got, err := diagRequest(nl.SOCK_DIAG_BY_FAMILY, 0, id).Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
	if err != nil {
		return nil, fmt.Errorf("find its socket: %w", err)
	}
	if len(got) != 1 || len(got[0]) < diagAnswerIDAt+diagIDSize {
		return nil, fmt.Errorf("find its socket: %d answers", len(got))
	}
	found := got[0][diagAnswerIDAt : diagAnswerIDAt+diagIDSize]
	if binary.BigEndian.Uint16(found[2:]) != to.Port() {
		return nil, fmt.Errorf("somebody listens where it was: %w", unix.ENOENT)
	}
	copy(id[diagCookieAt:], found[diagCookieAt:]) // not its addresses: an IPv6 socket writes them otherwise
	return id, nil
}

func destroyFound(id []byte) error {
	if _, err := diagRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK, id).Execute(unix.NETLINK_INET_DIAG, 0); err != nil {
		return fmt.Errorf("destroy its socket: %w", err)
	}
	return nil
}

// TryDestroy has the kernel destroy a socket that is made for it, and says why it does
// not. From then on End does without.
func (k *Kernel) TryDestroy(ctx context.Context) error {
	err := tryDestroy(ctx)
	if k.spares = err != nil; err != nil {
		return fmt.Errorf("%s: %w", spec.TrialDestroy, err)
	}
	return nil
}

// tryDestroy destroys a listener, which needs no packet to pass.
func tryDestroy(ctx context.Context) error {
	var c net.ListenConfig
	c.SetMultipathTCP(false) // the kernel destroys no listener of that kind
	l, err := c.Listen(ctx, "tcp4", ":0")
	if err != nil {
		return err
	}
	defer l.Close()
	nobody := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	at := netip.AddrPortFrom(nobody.Addr(), l.Addr().(*net.TCPAddr).AddrPort().Port())
	id, err := findSocket(at, nobody)
	if err != nil {
		return err
	}
	if err := destroyFound(id); err != nil {
		return err
	}
	if _, err := findSocket(at, nobody); !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("a socket that was destroyed is there still (%v)", err)
	}
	return nil
}

// tryFlows lists what there is and wants none of it.
func (k *Kernel) tryFlows(ctx context.Context) error {
	_, err := k.Flows(ctx, func() func(Flow) bool { return func(Flow) bool { return false } })
	return err
}

func diagRequest(command, flags int, id []byte) *nl.NetlinkRequest {
	b := make([]byte, diagRequestSize)
	b[0], b[1] = unix.AF_INET, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], ^uint32(0)) // in any state
	copy(b[diagIDAt:], id)
	r := nl.NewNetlinkRequest(command, flags)
	r.AddRawData(b)
	return r
}

// forget deletes the kernel's entry.
func forget(f Flow) error {
	port := func(attr int, p uint16) *nl.RtAttr { return nl.NewRtAttr(attr, nl.BEUint16Attr(p)) }
	t := nl.NewRtAttr(unix.NLA_F_NESTED|ctaTupleOrig, nil)
	ip := t.AddRtAttr(unix.NLA_F_NESTED|ctaTupleIP, nil)
	ip.AddRtAttr(ctaIPv4Src, f.Source.Addr().AsSlice())
	ip.AddRtAttr(ctaIPv4Dst, f.dialled.Addr().AsSlice())
	proto := t.AddRtAttr(unix.NLA_F_NESTED|ctaTupleProto, nil)
	proto.AddRtAttr(ctaProtoNum, []byte{unix.IPPROTO_TCP})
	proto.AddChild(port(ctaProtoSrcPort, f.Source.Port()))
	proto.AddChild(port(ctaProtoDstPort, f.dialled.Port()))
	r := ctRequest(ctDelete, unix.NLM_F_ACK)
	r.AddData(t)
	if _, err := r.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("forget it: %w", err)
	}
	return nil
}
