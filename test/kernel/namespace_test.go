// Package kernel holds the tests that need a real kernel: fresh network
// namespaces, real rules, real packets to a neighbour across a veth. Nothing
// they send can leave those namespaces, and nothing stays behind.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/command"
	"github.com/corral-sandbox/corral/internal/netfilter"
	"github.com/corral-sandbox/corral/internal/testenv"
)

// Addresses of the two ends of the veth, and the ports of the neighbour.
const (
	insideV4, neighbourV4 = "192.0.2.1", "192.0.2.9"
	insideV6, neighbourV6 = "2001:db8:10::1", "2001:db8:10::9"
	port, otherPort       = 443, 8443
)

// patience is how long a packet may take to be let through; blink is how long a
// dropped one is waited for, on a path that has just been seen to work.
const (
	patience = 5 * time.Second
	blink    = 300 * time.Millisecond
)

// childEnv makes the test binary dial an address, or open the kernel's rules,
// instead of running tests: the way to act as another user.
const childEnv = "CORRAL_KERNEL_TEST_CHILD"

func TestMain(m *testing.M) {
	var err error
	switch what := os.Getenv(childEnv); what {
	case "":
		os.Exit(m.Run())
	case "open":
		var k *netfilter.Kernel
		if k, err = netfilter.Open(context.Background()); err == nil {
			fmt.Println("IPv6:", k.HasIPv6())
		}
	case "ways":
		tryWays()
	default:
		err = dial("tcp", what)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// namespace is a network namespace without a name; it goes with its handle.
type namespace struct{ netns.NsHandle }

func newNamespace(t *testing.T) namespace {
	t.Helper()
	testenv.Require(t, "netns")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home := must(netns.Get())
	defer home.Close()
	n := namespace{must(netns.New())}
	if err := netns.Set(home); err != nil {
		panic(err) // the thread is in the wrong place
	}
	t.Cleanup(func() { n.Close() })
	n.do(func() { check(t, netlink.LinkSetUp(must(netlink.LinkByName("lo")))) })
	return n
}

// do runs f in the namespace. Sockets and programs that f opens itself belong
// there; goroutines that it starts do not.
func (n namespace) do(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home := must(netns.Get())
	defer home.Close()
	if err := netns.Set(n.NsHandle); err != nil {
		panic(err)
	}
	defer func() {
		if err := netns.Set(home); err != nil {
			panic(err)
		}
	}()
	f()
}

// newPair is a namespace to fence and its neighbour, which listens on TCP port
// and otherPort of all its addresses, as the first does on port.
func newPair(t *testing.T) (inside, neighbour namespace) {
	t.Helper()
	inside, neighbour = newNamespace(t), newNamespace(t)
	inside.do(func() {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "veth0"
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "veth0", PeerNamespace: netlink.NsFd(neighbour.NsHandle)}
		check(t, netlink.LinkAdd(veth))
	})
	for _, end := range []struct {
		n     namespace
		addrs []string
		ports []int
	}{
		{inside, []string{insideV4 + "/24", insideV6 + "/64"}, []int{port}},
		{neighbour, []string{neighbourV4 + "/24", neighbourV6 + "/64"}, []int{port, otherPort}},
	} {
		end.n.do(func() {
			link := must(netlink.LinkByName("veth0"))
			for _, a := range end.addrs {
				addr := must(netlink.ParseAddr(a))
				addr.Flags = unix.IFA_F_NODAD
				check(t, netlink.AddrAdd(link, addr))
			}
			check(t, netlink.LinkSetUp(link))
			for _, p := range end.ports {
				listen(t, fmt.Sprintf(":%d", p))
			}
		})
	}
	return inside, neighbour
}

// listen accepts and says one line, until the test ends.
func listen(t *testing.T, addr string) {
	t.Helper()
	l := must(net.Listen("tcp", addr))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(c, "hello")
			c.Close()
		}
	}()
}

// dial connects and waits for the first byte.
func dial(network, addr string) error { return dialFor(patience, network, addr) }

func dialFor(limit time.Duration, network, addr string) error {
	c, err := net.DialTimeout(network, addr, limit)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(limit))
	_, err = c.Read(make([]byte, 1))
	return err
}

// as runs what the child can do as another user, in the namespace.
func (n namespace) as(uid uint32, what string) error {
	var out []byte
	var err error
	n.do(func() {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), childEnv+"="+what)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err = cmd.CombinedOutput()
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func (n namespace) reaches(t *testing.T, host string, port int) {
	t.Helper()
	n.do(func() {
		if err := dial("tcp", net.JoinHostPort(host, fmt.Sprint(port))); err != nil {
			t.Errorf("does not reach %s: %v", host, err)
		}
	})
}

func (n namespace) dropped(t *testing.T, host string, port int) {
	t.Helper()
	n.do(func() {
		err := dialFor(blink, "tcp", net.JoinHostPort(host, fmt.Sprint(port)))
		if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
			t.Errorf("%s: %v, want silence", host, err)
		}
	})
}

func (n namespace) refused(t *testing.T, host string, port int) {
	t.Helper()
	n.do(func() {
		if err := dial("tcp", net.JoinHostPort(host, fmt.Sprint(port))); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: %v, want a reset", host, err)
		}
	})
}

// run runs a program in the namespace and returns what it prints.
func (n namespace) run(t *testing.T, line string) string {
	t.Helper()
	return n.feed(t, "", line)
}

func (n namespace) feed(t *testing.T, stdin, line string) (out string) {
	t.Helper()
	n.do(func() {
		b, err := command.Run(t.Context(), strings.NewReader(stdin), strings.Fields(line)...)
		check(t, err)
		out = string(b)
	})
	return out
}

// tamper runs a program whose arguments may hold blanks, written as NUL.
func (n namespace) tamper(t *testing.T, line string) {
	t.Helper()
	args := strings.Fields(line)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "\x00", " ")
	}
	n.do(func() {
		_, err := command.Run(t.Context(), nil, args...)
		check(t, err)
	})
}

func (n namespace) open(t *testing.T) *netfilter.Kernel {
	t.Helper()
	var k *netfilter.Kernel
	n.do(func() {
		var err error
		k, err = netfilter.Open(t.Context())
		check(t, err)
	})
	return k
}

func (n namespace) apply(t *testing.T, k *netfilter.Kernel, rs ...netfilter.Ruleset) {
	t.Helper()
	n.do(func() { check(t, k.Apply(t.Context(), rs...)) })
}

func (n namespace) applySets(t *testing.T, k *netfilter.Kernel, sets ...netfilter.Set) {
	t.Helper()
	n.do(func() { check(t, k.ApplySets(t.Context(), sets...)) })
}

func (n namespace) read(t *testing.T, k *netfilter.Kernel, f netfilter.Family) netfilter.Ruleset {
	t.Helper()
	var r netfilter.Ruleset
	n.do(func() {
		var err error
		r, err = k.Read(t.Context(), f)
		check(t, err)
	})
	return r
}

func (n namespace) rewriting(t *testing.T, k *netfilter.Kernel) (text string) {
	t.Helper()
	n.do(func() {
		var err error
		text, err = k.Rewriting(t.Context())
		check(t, err)
	})
	return text
}

func (n namespace) readSets(t *testing.T, k *netfilter.Kernel, names ...string) []netfilter.Set {
	t.Helper()
	var sets []netfilter.Set
	n.do(func() {
		var err error
		sets, err = k.ReadSets(t.Context(), names...)
		check(t, err)
	})
	return sets
}

// programs is a directory with nothing but the named iptables programs, each a
// link to the target given for it.
func programs(t *testing.T, links map[string]string) string {
	t.Helper()
	testenv.Require(t, "netns") // brings them
	dir := t.TempDir()
	for name, target := range links {
		check(t, os.Symlink(must(exec.LookPath(target)), filepath.Join(dir, name)))
	}
	return dir
}

// backends runs a test with the programs of each backend as the only ones there
// are.
func backends(t *testing.T, test func(t *testing.T)) {
	for _, backend := range []string{"nf_tables", "legacy"} {
		t.Run(backend, func(t *testing.T) {
			only(t, backend)
			test(t)
		})
	}
}

var suffixes = map[string]string{"nf_tables": "-nft", "legacy": "-legacy"}

func only(t *testing.T, backend string) {
	t.Helper()
	links := map[string]string{}
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-restore", "-save"} {
			links[name+verb] = name + suffixes[backend] + verb
		}
	}
	t.Setenv("PATH", programs(t, links))
	if version := string(must(command.Run(t.Context(), nil, "iptables", "--version"))); !strings.Contains(version, "("+backend+")") {
		t.Fatalf("iptables is %s", version)
	}
}

func entry(addr string, port uint16) netfilter.Entry {
	return netfilter.Entry{Addr: netip.MustParseAddr(addr), Port: port}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must is for what cannot fail on a machine that has namespaces.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
