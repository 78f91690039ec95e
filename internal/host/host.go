// Package host reads the facts of this machine that a plan needs: who runs
// corral, which addresses and mounts the machine has, where its name servers
// and our own guest binaries are. It changes nothing.
package host

import (
	"bufio"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/corral-sandbox/corral/internal/spec"
)

// Person is whose agent it is: what it writes belongs to them.
type Person struct {
	UID, GID uint32
	// Homes are the directories that are their home: by the machine's own
	// records, and by HOME, which may say otherwise.
	Homes []string
}

// reserved are the uids and gids that no agent has: root's, those whose
// traffic a gate trusts, and the one that means none.
func reserved(id uint32) bool {
	return id == 0 || id == spec.CarrierUID || id == spec.WorkerUID || id == math.MaxUint32
}

// Who says whose agent will run in project: the caller; under root SUDO_UID,
// else the owner of the project directory.
func Who(project string) (Person, error) {
	p := Person{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	if p.UID == 0 {
		uid, errU := strconv.ParseUint(os.Getenv("SUDO_UID"), 10, 32)
		gid, errG := strconv.ParseUint(os.Getenv("SUDO_GID"), 10, 32)
		if errU == nil && errG == nil {
			p.UID, p.GID = uint32(uid), uint32(gid)
		} else {
			fi, err := os.Stat(project)
			if err != nil {
				return Person{}, err
			}
			st := fi.Sys().(*syscall.Stat_t)
			p.UID, p.GID = st.Uid, st.Gid
		}
	}
	if reserved(p.UID) {
		return Person{}, fmt.Errorf("the agent would run as uid %d, which it never may", p.UID)
	}
	if reserved(p.GID) {
		return Person{}, fmt.Errorf("the agent would run with gid %d, which it never may", p.GID)
	}
	p.Homes = Homes(p.UID)
	return p, nil
}

// Homes are the directories that are or may be the home of uid, never none.
func Homes(uid uint32) []string {
	var out []string
	if u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10)); err == nil && filepath.IsAbs(u.HomeDir) {
		out = append(out, filepath.Clean(u.HomeDir))
	}
	if h := filepath.Clean(os.Getenv("HOME")); filepath.IsAbs(h) && !slices.Contains(out, h) {
		out = append(out, h)
	}
	if out == nil { // somebody whom the machine knows by number only
		out = []string{"/nonexistent"}
	}
	return out
}

// Addresses returns every address of this machine's interfaces as host
// prefixes, loopback left out.
func Addresses() ([]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Prefix
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			return nil, fmt.Errorf("interface address %q: %w", a, err)
		}
		if addr := p.Addr().Unmap().WithZone(""); !addr.IsLoopback() {
			out = append(out, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	return out, nil
}

// HasIPv6 reports whether the kernel runs IPv6 at all.
func HasIPv6() bool {
	_, err := os.Stat("/proc/net/if_inet6")
	return err == nil
}

// Resolvers returns the name servers of this machine: those of /etc/resolv.conf
// that a gate can ask itself, else those of systemd-resolved's own list behind
// its stub, else those of /etc/resolv.conf on loopback, which a relay must ask.
// There may be none.
func Resolvers() []netip.Addr { return resolversAt("/") }

func resolversAt(root string) []netip.Addr {
	listed := nameservers(filepath.Join(root, "etc/resolv.conf"))
	behind := nameservers(filepath.Join(root, "run/systemd/resolve/resolv.conf"))
	for _, c := range []struct {
		servers []netip.Addr
		fit     func(netip.Addr) bool
	}{{listed, direct}, {behind, direct}, {listed, relayed}} {
		var out []netip.Addr
		for _, a := range c.servers {
			if c.fit(a) && !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
		if out != nil {
			return out
		}
	}
	return nil
}

// nameservers are the addresses that a resolv.conf lists, none if there is no
// such file.
func nameservers(file string) []netip.Addr {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	var out []netip.Addr
	for s := bufio.NewScanner(f); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil {
			out = append(out, a)
		}
	}
	return out
}
