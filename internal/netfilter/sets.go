package netfilter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
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

func (s Set) kind() string {
	if s.AnyPort {
		return "hash:ip"
	}
	return "hash:ip,port"
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
		if err := s.apply(h); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
	}
	return nil
}

func (s Set) apply(h *netlink.Handle) error {
	entries := s.sorted()
	options := netlink.IpsetCreateOptions{
		Family:      unix.AF_INET,
		MaxElements: uint32(max(defaultMaxElements, len(entries))),
	}
	// One that is there may differ in size; if it differs in type, swap refuses.
	if err := create(h, s.Name, s.kind(), options); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	next := s.Name + newSuffix
	if err := destroy(h, next); err != nil {
		return err
	}
	if err := create(h, next, s.kind(), options); err != nil {
		return err
	}
	for _, e := range entries {
		entry := netlink.IPSetEntry{IP: e.Addr.AsSlice(), Replace: true}
		if !s.AnyPort {
			proto := uint8(unix.IPPROTO_TCP)
			entry.Port, entry.Protocol = &e.Port, &proto
		}
		if err := h.IpsetAdd(next, &entry); err != nil {
			return fmt.Errorf("add %s: %w", e, err)
		}
	}
	if err := h.IpsetSwap(next, s.Name); err != nil {
		return fmt.Errorf("swap: %w", err)
	}
	return destroy(h, next)
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
	return destroy(h, name)
}

func destroy(h *netlink.Handle, name string) error {
	if err := h.IpsetDestroy(name); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("destroy %s: %w", name, err)
	}
	return nil
}

// ReadSets reads sets back, entries sorted. A set that is missing, or that
// holds what ApplySets never writes, is an error.
func (k *Kernel) ReadSets(ctx context.Context, names ...string) ([]Set, error) {
	var sets []Set
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		list, err := netlink.IpsetList(name)
		if err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
		s := Set{Name: name, AnyPort: list.TypeName == "hash:ip"}
		if list.TypeName != s.kind() || list.Family != unix.AF_INET {
			return nil, fmt.Errorf("set %s: type %s, family %d", name, list.TypeName, list.Family)
		}
		for _, got := range list.Entries {
			addr, ok := netip.AddrFromSlice(got.IP)
			e := Entry{Addr: addr}
			if got.Port != nil {
				e.Port = *got.Port
			}
			if !ok || !s.AnyPort && (got.Protocol == nil || *got.Protocol != unix.IPPROTO_TCP) {
				return nil, fmt.Errorf("set %s: foreign entry %s: not TCP over IPv4", name, e)
			}
			s.Entries = append(s.Entries, e)
		}
		s.Entries = s.sorted()
		sets = append(sets, s)
	}
	return sets, nil
}
