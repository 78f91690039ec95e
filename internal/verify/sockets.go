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
	"regexp"
	"slices"
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
	inode string
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
		if len(f) < 10 {
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
		all = append(all, inetSocket{local: local, state: uint8(state), uid: uint32(uid), inode: f[9]})
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

// unixLine is Num RefCount Protocol Flags Type St Inode, as the kernel lines them up,
// and the name of a socket that has one.
var unixLine = regexp.MustCompile(`^[0-9a-fA-F]+: [0-9A-F]{8} [0-9A-F]{8} ([0-9A-F]{8}) ([0-9A-F]{4}) [0-9A-F]{2} +([0-9]+)( .*)?$`)

// parseUnix reads /proc/net/unix. Unnamed sockets are left out: nobody can connect to
// them. A name may hold anything, and the kernel prints it as it is: what does not look
// like a line belongs to the name before it.
func parseUnix(b []byte) ([]unixSocket, error) {
	head, rest, _ := strings.Cut(string(b), "\n")
	if !strings.HasPrefix(head, "Num ") {
		return nil, fmt.Errorf("socket table: %q", head)
	}
	var all []unixSocket
	named := false // the socket of the line before
	for line := range strings.Lines(rest) {
		line = strings.TrimSuffix(line, "\n")
		f := unixLine.FindStringSubmatch(line)
		switch {
		case f == nil && named:
			all[len(all)-1].path += "\n" + line
			continue
		case f == nil:
			return nil, fmt.Errorf("socket table: %q", line)
		}
		if named = f[4] != ""; !named {
			continue
		}
		flags, err := strconv.ParseUint(f[1], 16, 32)
		if err != nil {
			return nil, fmt.Errorf("socket table: flags %q", f[1])
		}
		const acceptCon = 1 << 16 // __SO_ACCEPTCON
		// A datagram socket receives without listening.
		all = append(all, unixSocket{path: f[4][1:], inode: f[3], listening: flags&acceptCon != 0 || f[2] == "0002"})
	}
	return slices.DeleteFunc(all, func(s unixSocket) bool { return s.path == "" }), nil
}

func (e *env) unixSockets() ([]unixSocket, error) {
	b, err := os.ReadFile(e.path("/proc/net/unix"))
	if err != nil {
		return nil, err
	}
	return parseUnix(b)
}

// held are the inodes of the sockets that processes hold, and the processes of uid
// that let nobody look at what they hold.
func (e *env) held(all []process, uid uint32) (sockets map[string]bool, closed []process) {
	sockets = map[string]bool{}
	for _, p := range all {
		dir := e.path(p.dir() + "/fd")
		entries, err := os.ReadDir(dir)
		for _, entry := range entries {
			to, linkErr := os.Readlink(filepath.Join(dir, entry.Name()))
			if inode, found := strings.CutPrefix(to, "socket:["); found {
				sockets[strings.TrimSuffix(inode, "]")] = true
			}
			if errors.Is(linkErr, fs.ErrPermission) {
				err = linkErr
			}
		}
		if errors.Is(err, fs.ErrPermission) && p.uids[1] == uid && !p.ended {
			closed = append(closed, p)
		}
	}
	return sockets, closed
}
