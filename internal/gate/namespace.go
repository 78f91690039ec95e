package gate

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/corral-sandbox/corral/internal/spec"
)

// socketTables are those of /proc/net with sockets that anybody here can send to,
// and the state in which those wait for whoever comes.
var socketTables = map[string]uint64{
	"tcp": tcpListen, "tcp6": tcpListen,
	"udp": udpUnbound, "udp6": udpUnbound, "udplite": udpUnbound, "udplite6": udpUnbound,
}

const (
	tcpListen  = 0x0a
	udpUnbound = 0x07 // not connected
)

// namespace looks at the network namespace that this process is in, by the /proc
// below root.
func namespace(root string) (*spec.Namespace, error) {
	n := &spec.Namespace{IPv6: []string{}, Addresses: []string{}, Listeners: []spec.Listener{}}
	read := func(name string) (string, error) {
		b, err := os.ReadFile(filepath.Join(root, name))
		return string(b), err
	}
	addresses, err := read("proc/net/if_inet6")
	without := errors.Is(err, fs.ErrNotExist) // a kernel without IPv6
	if err != nil && !without {
		return nil, err
	}
	if n.Addresses, err = ipv6Addresses(addresses); err != nil {
		return nil, err
	}
	interfaces, err := os.ReadDir(filepath.Join(root, "proc/sys/net/ipv6/conf"))
	if err != nil && !(without && errors.Is(err, fs.ErrNotExist)) {
		return nil, err
	}
	if len(interfaces) == 0 && !without {
		return nil, errors.New("IPv6 is there and its settings are not")
	}
	for _, i := range interfaces {
		off, err := read(filepath.Join("proc/sys/net/ipv6/conf", i.Name(), "disable_ipv6"))
		if err != nil {
			return nil, err
		}
		if i.Name() != "lo" && strings.TrimSpace(off) != "1" { // an engine may turn it on there
			n.IPv6 = append(n.IPv6, i.Name())
		}
	}
	for _, table := range slices.Sorted(maps.Keys(socketTables)) {
		text, err := read("proc/net/" + table)
		if errors.Is(err, fs.ErrNotExist) { // a kernel without the protocol
			continue
		}
		if err != nil {
			return nil, err
		}
		found, err := listeners(table, text)
		if err != nil {
			return nil, err
		}
		n.Listeners = append(n.Listeners, found...)
	}
	return n, nil
}

// ipv6Addresses reads an if_inet6 and leaves ::1 out.
func ipv6Addresses(text string) ([]string, error) {
	all := []string{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		wrong := fmt.Errorf("/proc/net/if_inet6: %q", strings.TrimSpace(line))
		if len(f) != 6 {
			return nil, wrong
		}
		b, err := hex.DecodeString(f[0])
		if err != nil || len(b) != 16 {
			return nil, wrong
		}
		if a := netip.AddrFrom16([16]byte(b)); a != netip.IPv6Loopback() {
			all = append(all, fmt.Sprintf("%v on %s", a, f[5]))
		}
	}
	return all, nil
}

// listeners reads one of the tables of sockets: those that wait for whoever comes,
// of root's and of the gate's own users'.
func listeners(table, text string) ([]spec.Listener, error) {
	var all []spec.Listener
	first := true
	for line := range strings.Lines(text) {
		if first { // the heading
			first = false
			continue
		}
		f := strings.Fields(line)
		wrong := fmt.Errorf("/proc/net/%s: %q", table, strings.TrimSpace(line))
		if len(f) < 8 {
			return nil, wrong
		}
		state, err1 := strconv.ParseUint(f[3], 16, 8)
		uid, err2 := strconv.ParseUint(f[7], 10, 32)
		at, err3 := socketAddress(f[1])
		if errors.Join(err1, err2, err3) != nil {
			return nil, wrong
		}
		if l := (spec.Listener{Proto: table, Addr: at, UID: uint32(uid)}); state == socketTables[table] && slices.Contains([]uint32{0, spec.WorkerUID, spec.CarrierUID}, l.UID) {
			all = append(all, l)
		}
	}
	return all, nil
}

// socketAddress reads ADDRESS:PORT as the kernel prints it: the address in words of
// 32 bits in the machine's byte order, the port as a number.
func socketAddress(text string) (netip.AddrPort, error) {
	address, port, _ := strings.Cut(text, ":")
	words, err := hex.DecodeString(address)
	n, notPort := strconv.ParseUint(port, 16, 16)
	if err != nil || notPort != nil || len(words) != 4 && len(words) != 16 {
		return netip.AddrPort{}, fmt.Errorf("address %q", text)
	}
	for i := 0; i < len(words); i += 4 {
		binary.NativeEndian.PutUint32(words[i:], binary.BigEndian.Uint32(words[i:]))
	}
	a, _ := netip.AddrFromSlice(words)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), nil
}
