package gate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Attributes of an NFLOG message (linux/netfilter/nfnetlink_log.h).
const (
	nfulaMark    = 2
	nfulaPayload = 9
	nfulaPrefix  = 10
	nfulaUID     = 11
)

// packet is what an NFLOG record says: which rule saw which packet.
type packet struct {
	record string // one of the record words
	rule   string
	proto  string
	source uint16
	addr   netip.Addr
	port   uint16
	uid    uint32 // of the sending socket
	hasUID bool
	mark   uint32 // of the sending socket, which takes CAP_NET_ADMIN to set
}

var errNotOurs = errors.New("not one of our records")

// parseRecord reads the body of one NFLOG message.
func parseRecord(body []byte) (packet, error) {
	const nfgenmsg = 4
	if len(body) < nfgenmsg {
		return packet{}, errNotOurs
	}
	ad, err := netlink.NewAttributeDecoder(body[nfgenmsg:])
	if err != nil {
		return packet{}, err
	}
	ad.ByteOrder = binary.BigEndian
	var p packet
	var payload []byte
	var prefix string
	for ad.Next() {
		switch ad.Type() {
		case nfulaPayload:
			payload = ad.Bytes()
		case nfulaPrefix:
			prefix = ad.String()
		case nfulaMark:
			p.mark = ad.Uint32()
		case nfulaUID:
			p.uid, p.hasUID = ad.Uint32(), true
		}
	}
	if err := ad.Err(); err != nil {
		return packet{}, err
	}
	words := strings.Split(prefix, ":")
	if len(words) != 3 || words[0] != "corral" {
		return packet{}, errNotOurs
	}
	p.record, p.rule = words[1], words[2]
	return p, p.parse(payload)
}

// parse reads addresses and ports from the first bytes of an IP packet.
func (p *packet) parse(b []byte) error {
	if len(b) == 0 {
		return errors.New("a record without a packet")
	}
	var proto byte
	var rest []byte
	switch b[0] >> 4 {
	case 4:
		head := int(b[0]&0xf) * 4
		if head < 20 || len(b) < head {
			return errors.New("IPv4 header cut off")
		}
		p.addr = netip.AddrFrom4([4]byte(b[16:20]))
		proto = b[9]
		if binary.BigEndian.Uint16(b[6:8])&0x1fff == 0 { // only the first fragment has ports
			rest = b[head:]
		}
	case 6:
		if len(b) < 40 {
			return errors.New("IPv6 header cut off")
		}
		p.addr = netip.AddrFrom16([16]byte(b[24:40]))
		proto, rest = b[6], b[40:]
		for isExtension(proto) && len(rest) >= 8 {
			next, size := rest[0], 8+int(rest[1])*8
			if proto == unix.IPPROTO_FRAGMENT {
				size = 8
			}
			proto, rest = next, rest[min(size, len(rest)):]
		}
	default:
		return fmt.Errorf("IP version %d", b[0]>>4)
	}
	switch proto {
	case unix.IPPROTO_TCP:
		p.proto = "tcp"
	case unix.IPPROTO_UDP:
		p.proto = "udp"
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		p.proto = "icmp"
		return nil
	default:
		p.proto = fmt.Sprintf("ip-%d", proto)
		return nil
	}
	if len(rest) >= 4 {
		p.source, p.port = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
	}
	return nil
}

func isExtension(proto byte) bool {
	switch proto {
	case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_FRAGMENT, unix.IPPROTO_DSTOPTS:
		return true
	}
	return false
}
