package netfilter

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Entry is one IPv4 destination. Port is a TCP port, or 0 in a set for any port.
type Entry struct {
	Addr netip.Addr
	Port uint16
}

func (e Entry) String() string {
	if e.Port == 0 {
		return e.Addr.String()
	}
	return netip.AddrPortFrom(e.Addr, e.Port).String()
}

// Set is a named set of destinations. Its type cannot change once it exists:
// with AnyPort it holds addresses (hash:ip, matched by dst), without it pairs of
// address and TCP port (hash:ip,port, matched by dst,dst).
type Set struct {
	Name    string
	AnyPort bool
	Entries []Entry
}

// maxSetName leaves room for the suffix of the set that is filled and swapped in.
const (
	newSuffix  = "-new"
	maxSetName = 31 - len(newSuffix)
)

// defaultMaxElements is the kernel's own default.
const defaultMaxElements = 65536

// setRevision is of both types one that every kernel has. Later ones have more
// options, none of which is used here.
const setRevision = 1

// Attributes of a set's header that the netlink package has no names for, or old ones
// (linux/netfilter/ipset/ip_set.h).
const (
	setBitmask    = 12
	setInitVal    = 17
	setBucketSize = 21
)

// The kernel's words for the two types.
const (
	ofAddresses = "hash:ip"
	ofPairs     = "hash:ip,port"
)

func (s Set) kind() string {
	if s.AnyPort {
		return ofAddresses
	}
	return ofPairs
}

// sorted has each entry once.
func (s Set) sorted() []Entry {
	entries := slices.SortedFunc(slices.Values(s.Entries), func(a, b Entry) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port))
	})
	return slices.Compact(entries)
}

// String is the set with its entries sorted, one a line.
func (s Set) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", s.Name, s.kind())
	for _, e := range s.sorted() {
		fmt.Fprintf(&b, "\n%s", e)
	}
	return b.String()
}

func (s Set) check() error {
	if s.Name == "" || len(s.Name) > maxSetName {
		return fmt.Errorf("set name %q: 1 to %d bytes", s.Name, maxSetName)
	}
	for _, e := range s.Entries {
		if !e.Addr.Is4() || (e.Port == 0) != s.AnyPort {
			return fmt.Errorf("set %s (%s) cannot hold %s", s.Name, s.kind(), e)
		}
	}
	return nil
}

// ApplySets makes each set hold exactly its entries. A set that rules already
// refer to goes from its old to its new content in one step. A failure leaves
// the sets not yet reached as they were.
func (k *Kernel) ApplySets(ctx context.Context, sets ...Set) error {
	for _, s := range sets {
		if err := s.check(); err != nil {
			return err
		}
	}
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer h.Close()
	for _, s := range sets {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.apply(ctx, h); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
	}
	return nil
}

func (s Set) apply(ctx context.Context, h *netlink.Handle) error {
	entries := s.sorted()
	options := netlink.IpsetCreateOptions{
		Revision:    setRevision,
		Family:      unix.AF_INET,
		MaxElements: uint32(max(defaultMaxElements, len(entries))),
	}
	// One that is there may differ in size; if it differs in type, swap refuses.
	if err := create(h, s.Name, s.kind(), options); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	next := s.Name + newSuffix
	if err := destroy(ctx, h, next); err != nil {
		return err
	}
	if err := create(h, next, s.kind(), options); err != nil {
		return err
	}
	for batch := range slices.Chunk(entries, addBatch) {
		if err := add(next, batch); err != nil {
			return fmt.Errorf("add %d entries from %s: %w", len(batch), batch[0], err)
		}
	}
	if err := unread(ctx, func() error { return h.IpsetSwap(next, s.Name) }); err != nil {
		return fmt.Errorf("swap: %w", err)
	}
	return destroy(ctx, h, next)
}

// The kernel neither swaps nor destroys a set while somebody lists it, which takes as
// long as whoever lists it likes.
const (
	unreadAgain = 5 * time.Millisecond
	unreadLimit = 2 * time.Second
)

// unread does what a listing of a set forbids, once there is none.
func unread(ctx context.Context, do func() error) error {
	limit := time.After(unreadLimit)
	for {
		err := do()
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, ctx.Err())
		case <-limit:
			return fmt.Errorf("%w: another program has been listing the set for %v", err, unreadLimit)
		case <-time.After(unreadAgain):
		}
	}
}

// addBatch is how many entries go into one message: their list has a length of 16
// bits, and each of them takes 32 bytes of it.
const addBatch = 1024

// add adds entries in one message, until one of them fails. Those that are there
// already are left alone.
func add(name string, entries []Entry) error {
	list := nl.NewRtAttr(unix.NLA_F_NESTED|nl.IPSET_ATTR_ADT, nil)
	for _, e := range entries {
		data := list.AddRtAttr(unix.NLA_F_NESTED|nl.IPSET_ATTR_DATA, nil)
		data.AddRtAttr(unix.NLA_F_NESTED|nl.IPSET_ATTR_IP, nil).
			AddRtAttr(unix.NLA_F_NET_BYTEORDER|nl.IPSET_ATTR_IPADDR_IPV4, e.Addr.AsSlice())
		if e.Port != 0 {
			data.AddRtAttr(nl.IPSET_ATTR_PROTO, []byte{unix.IPPROTO_TCP})
			data.AddRtAttr(unix.NLA_F_NET_BYTEORDER|nl.IPSET_ATTR_PORT, nl.BEUint16Attr(e.Port))
		}
	}
	r := setRequest(nl.IPSET_CMD_ADD, name)
	r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_LINENO, nl.Uint32Attr(0))) // a list must have one
	r.AddData(list)
	_, err := r.Execute(unix.NETLINK_NETFILTER, 0)
	return setError(err)
}

func setRequest(command int, name string) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_IPSET<<8|command, nl.GetIpsetFlags(command))
	r.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, []byte{nl.IPSET_PROTOCOL}))
	r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated(name)))
	return r
}

// setError has the words for numbers that only sets have.
func setError(err error) error {
	if errno := unix.Errno(0); errors.As(err, &errno) && errno >= nl.IPSET_ERR_PRIVATE {
		return nl.IPSetError(errno)
	}
	return err
}

func create(h *netlink.Handle, name, kind string, options netlink.IpsetCreateOptions) error {
	if err := h.IpsetCreate(name, kind, options); err != nil {
		return fmt.Errorf("create %s (%s): %w", name, kind, err)
	}
	return nil
}

func (k *Kernel) removeSet(name string) error {
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer h.Close()
	return destroy(context.Background(), h, name)
}

func destroy(ctx context.Context, h *netlink.Handle, name string) error {
	if err := unread(ctx, func() error { return h.IpsetDestroy(name) }); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("destroy %s: %w", name, err)
	}
	return nil
}

// ReadSets reads sets back, entries sorted. A set that is missing, or that
// holds what ApplySets never writes, or has an option that ApplySets never gives
// (with a netmask or a bitmask it matches more addresses than it lists), is an error.
func (k *Kernel) ReadSets(ctx context.Context, names ...string) ([]Set, error) {
	var sets []Set
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s, err := readSet(name)
		if err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
		sets = append(sets, s)
	}
	return sets, nil
}

func readSet(name string) (Set, error) {
	var l listing
	var failed error
	err := setRequest(nl.IPSET_CMD_LIST, name).ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
		failed = l.decode(msg)
		return failed == nil
	})
	if err := errors.Join(setError(err), failed); err != nil {
		return Set{}, err
	}
	if err := l.strange(); err != nil {
		return Set{}, err
	}
	s := Set{Name: name, AnyPort: l.kind == ofAddresses, Entries: l.entries}
	s.Entries = s.sorted()
	return s, nil
}

// listing is a set as the kernel lists it, in one message or more. The first has
// type, family, revision and options, before any entry.
type listing struct {
	kind     string
	family   uint8
	revision uint8
	headed   bool // its options were there, and none that is not of ours
	entries  []Entry
}

func (l *listing) ours() bool {
	return l.family == unix.AF_INET && (l.kind == ofAddresses || l.kind == ofPairs)
}

// strange is nil for a set as ApplySets makes them.
func (l *listing) strange() error {
	switch {
	case !l.ours():
		return fmt.Errorf("type %s, family %d", l.kind, l.family)
	case l.revision != setRevision:
		return fmt.Errorf("made by somebody else: revision %d of its type instead of %d", l.revision, setRevision)
	case !l.headed:
		return errors.New("the kernel tells none of its options")
	}
	return nil
}

func (l *listing) decode(msg []byte) error {
	if len(msg) < nl.SizeofNfgenmsg {
		return errCutOff
	}
	return eachAttribute(msg[nl.SizeofNfgenmsg:], func(kind int, data []byte) error {
		switch {
		case kind == nl.IPSET_ATTR_TYPENAME:
			l.kind = unix.ByteSliceToString(data)
		case kind == nl.IPSET_ATTR_FAMILY && len(data) == 1:
			l.family = data[0]
		case kind == nl.IPSET_ATTR_REVISION && len(data) == 1:
			l.revision = data[0]
		case kind == nl.IPSET_ATTR_DATA && l.ours():
			l.headed = true
			return eachAttribute(data, option)
		case kind == nl.IPSET_ATTR_ADT && l.ours():
			return eachAttribute(data, l.entry)
		}
		return nil
	})
}

// foreignOptions have names that say more than a number does.
var foreignOptions = map[int]string{
	nl.IPSET_ATTR_TIMEOUT:    "timeout",
	nl.IPSET_ATTR_CADT_FLAGS: "flags",
	nl.IPSET_ATTR_MARKMASK:   "markmask",
	setBitmask:               "bitmask",
	nl.IPSET_ATTR_NETMASK:    "netmask",
	nl.IPSET_ATTR_SIZE:       "size",
}

// option is nil for what a kernel says of a set without options: sizes and counts,
// that decide nothing about what it matches.
func option(kind int, data []byte) error {
	switch kind {
	case nl.IPSET_ATTR_HASHSIZE, nl.IPSET_ATTR_MAXELEM, nl.IPSET_ATTR_ELEMENTS, nl.IPSET_ATTR_REFERENCES, nl.IPSET_ATTR_MEMSIZE, setInitVal, setBucketSize:
		return nil
	}
	return fmt.Errorf("foreign option %s (%x): its entries may not be what it matches", cmp.Or(foreignOptions[kind], fmt.Sprintf("number %d", kind)), data)
}

// entry takes one entry of the kinds that ApplySets writes, and refuses any other.
func (l *listing) entry(_ int, data []byte) error {
	var e Entry
	var proto uint8
	more := false
	err := eachAttribute(data, func(kind int, data []byte) error {
		switch {
		case kind == nl.IPSET_ATTR_IP:
			return eachAttribute(data, func(kind int, data []byte) error {
				if kind == nl.IPSET_ATTR_IPADDR_IPV4 && len(data) == net4 {
					e.Addr = netip.AddrFrom4([net4]byte(data))
				}
				return nil
			})
		case kind == nl.IPSET_ATTR_PORT && len(data) == 2:
			e.Port = binary.BigEndian.Uint16(data)
		case kind == nl.IPSET_ATTR_PROTO && len(data) == 1:
			proto = data[0]
		default:
			more = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	whole := e.Port != 0 && proto == unix.IPPROTO_TCP
	if l.kind == ofAddresses {
		whole = e.Port == 0 && proto == 0
	}
	if !whole || more || !e.Addr.IsValid() {
		return fmt.Errorf("foreign entry %s: not TCP over IPv4", e)
	}
	l.entries = append(l.entries, e)
	return nil
}
