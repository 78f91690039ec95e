package verify

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Socket states of /proc/net/{tcp,udp} that wait for whoever comes.
const (
	tcpListen  = 0x0a
	udpUnbound = 0x07 // not connected
)

// inetSocket is a line of /proc/net/tcp, udp and their like.
type inetSocket struct {
	local netip.AddrPort
	state uint8
	uid   uint32
}

// parseInet reads /proc/net/tcp, tcp6, udp, udp6, udplite or udplite6.
func parseInet(b []byte) ([]inetSocket, error) {
	var all []inetSocket
	sc := bufio.NewScanner(bytes.NewReader(b))
	for first := true; sc.Scan(); first = false {
		if first {
			continue
		}
		f := strings.Fields(sc.Text())
		if len(f) < 8 {
			return nil, fmt.Errorf("socket table: %q", sc.Text())
		}
		local, err := parseHexAddr(f[1])
		if err != nil {
			return nil, err
		}
		state, err := strconv.ParseUint(f[3], 16, 8)
		if err != nil {
			return nil, fmt.Errorf("socket table: state %q", f[3])
		}
		uid, err := strconv.ParseUint(f[7], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("socket table: uid %q", f[7])
		}
		all = append(all, inetSocket{local: local, state: uint8(state), uid: uint32(uid)})
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("socket table: %w", err)
	}
	return all, nil
}

// parseHexAddr reads ADDR:PORT as the kernel prints it: the address in 32-bit
// words of the machine's byte order, the port as a number.
func parseHexAddr(s string) (netip.AddrPort, error) {
	addr, port, _ := strings.Cut(s, ":")
	words, err := hex.DecodeString(addr)
	n, perr := strconv.ParseUint(port, 16, 16)
	if err != nil || perr != nil || len(words) != 4 && len(words) != 16 {
		return netip.AddrPort{}, fmt.Errorf("socket table: address %q", s)
	}
	for i := 0; i < len(words); i += 4 {
		binary.NativeEndian.PutUint32(words[i:], binary.BigEndian.Uint32(words[i:]))
	}
	a, _ := netip.AddrFromSlice(words)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), nil
}

// inetSockets reads one table of this network namespace. A protocol that the
// kernel does not have has no sockets.
func (e *env) inetSockets(table string) ([]inetSocket, error) {
	b, err := os.ReadFile(e.path("/proc/net/" + table))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseInet(b)
}

// unixSocket is a named line of /proc/net/unix.
type unixSocket struct {
	path      string // an abstract one begins with @
	listening bool
	inode     string
}

// parseUnix reads /proc/net/unix. Unnamed sockets are left out: nobody can
// connect to them.
func parseUnix(b []byte) ([]unixSocket, error) {
	var all []unixSocket
	sc := bufio.NewScanner(bytes.NewReader(b))
	for first := true; sc.Scan(); first = false {
		// Num RefCount Protocol Flags Type St Inode Path; a path may hold spaces.
		f := strings.Fields(sc.Text())
		if first || len(f) < 7 {
			continue
		}
		flags, err := strconv.ParseUint(f[3], 16, 32)
		if err != nil {
			return nil, fmt.Errorf("socket table: flags %q", f[3])
		}
		_, name, found := strings.Cut(sc.Text(), " "+f[6]+" ")
		if !found || name == "" {
			continue
		}
		const acceptCon = 1 << 16 // __SO_ACCEPTCON
		// A datagram socket receives without listening.
		all = append(all, unixSocket{path: name, inode: f[6], listening: flags&acceptCon != 0 || f[4] == "0002"})
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("socket table: %w", err)
	}
	return all, nil
}

func (e *env) unixSockets() ([]unixSocket, error) {
	b, err := os.ReadFile(e.path("/proc/net/unix"))
	if err != nil {
		return nil, err
	}
	return parseUnix(b)
}

// ownSockets are the inodes of the sockets that visible processes of this user
// hold.
func (e *env) ownSockets() map[string]bool {
	own := map[string]bool{}
	links, _ := filepath.Glob(e.path("/proc/[0-9]*/fd/*"))
	for _, link := range links {
		to, err := os.Readlink(link)
		if err != nil {
			continue
		}
		if inode, found := strings.CutPrefix(to, "socket:["); found {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return own
}
