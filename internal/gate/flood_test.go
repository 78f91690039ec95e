package gate_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// floodMost is what a gate's processes may have resident together whatever its
// service does.
const floodMost = 30 << 10 // KiB

// floodEach is how many destinations and how many names a flood tries.
const floodEach = 100_000

// worker is the process without rights: beside it the gate has those that read
// the kernel's rules, for moments.
func (s *gateProc) worker() int {
	s.t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.pid))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range files {
		b, _ := os.ReadFile(f) // a thread may end
		for _, pid := range strings.Fields(string(b)) {
			status, _ := os.ReadFile("/proc/" + pid + "/status")
			if n, err := strconv.Atoi(pid); err == nil && strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t", spec.WorkerUID)) {
				return n
			}
		}
	}
	s.t.Fatal("the gate has no worker")
	return 0
}

// memory is what the processes of a gate have resident together, in KiB: now, or
// at most since peaks were last reset. Peaks of two processes need not have been
// at the same time, so their sum is an upper bound.
func (s *gateProc) memory(field string) (sum int) {
	s.t.Helper()
	for _, pid := range []int{s.pid, s.worker()} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			s.t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), field+":")
		n, err := strconv.Atoi(strings.Fields(rest)[0])
		if err != nil {
			s.t.Fatal(err)
		}
		sum += n
	}
	return sum
}

func (s *gateProc) resetPeaks() {
	s.t.Helper()
	for _, pid := range []int{s.pid, s.worker()} {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
			s.t.Fatal(err)
		}
	}
}

// A service that tries 100,000 destinations and as many names, each as long as
// names get, makes its gate neither fat nor chatty nor deaf: probes beside it
// have their verdicts, what is allowed works, and the account can be read.
func TestFloodIsBounded(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	s := p.start(document(allowed("api.allowed.test"))).ready()
	worker := s.worker()
	idle := s.memory("VmRSS")
	s.resetPeaks()
	began, printed := time.Now(), len(s.output())
	stop := p.background("storm", fmt.Sprint(floodEach))

	const probes = 50
	mark := s.verdicts(0).Mark
	p.probe(probes)
	proven := map[uint16]bool{}
	for _, v := range s.verdicts(mark).Verdicts {
		if v.Outcome == spec.OutcomeRejected && v.Rule == "unlisted" && v.Proto == "tcp" && v.Addr == netip.MustParseAddr(canaryAddr) {
			proven[v.Source] = true
		}
	}
	if len(proven) != probes {
		t.Errorf("%d of %d probes proven", len(proven), probes)
	}
	var slowest time.Duration
	for range 10 {
		at := time.Now()
		p.must(p.gate, func() error {
			c, err := net.DialTimeout("tcp4", originAddr+":443", time.Second)
			if err == nil {
				c.Close()
			}
			return err
		})
		slowest = max(slowest, time.Since(at))
	}
	for range 3 {
		s.status()
	}
	said := stop()
	took := time.Since(began)
	during := s.memory("VmHWM")
	var st spec.GateStatus
	for range 5 {
		st = s.status()
	}
	peak, after := s.memory("VmHWM"), s.memory("VmRSS")
	lines := s.output()[printed:]
	size := len(strings.Join(lines, "\n"))
	t.Logf("%s in %v; resident KiB: idle %d, at most %d, %d with reading the account, %d afterwards; an allowed connection took at most %v; %d lines, %d bytes; denied %d and %d more, names %d and %d more",
		said, took.Round(time.Millisecond), idle, during, peak, after, slowest.Round(time.Microsecond), len(lines), size, len(st.Denied), st.DeniedMore, len(st.RefusedNames), st.RefusedMore)
	if peak > floodMost {
		t.Errorf("%d KiB resident, %d at most", peak, floodMost)
	}
	if s.worker() != worker || st.WorkerRestarts != 0 {
		t.Error("the worker did not live through it")
	}
	if slowest > 500*time.Millisecond {
		t.Errorf("an allowed connection took %v", slowest)
	}
	if most := 2*60 + 2*int(took.Seconds()); len(lines) > most || size > most*512 {
		t.Errorf("%d lines of %d bytes together in %v", len(lines), size, took)
	}
	if st.State != spec.GateReady || len(st.RefusedNames) == 0 || st.RefusedMore == 0 {
		t.Errorf("%d names and %d more", len(st.RefusedNames), st.RefusedMore)
	}
	if n := len(p.sent("44.11.0.1")); n != 0 {
		t.Errorf("%d packets left", n)
	}
}

// An agent that floods from ports of a checker's costs it the proof for those, and not
// for the others.
func TestFloodFromProbePorts(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	s := p.start(document(allowed("api.allowed.test"))).ready()
	stop, full := make(chan struct{}), make(chan struct{})
	var flood sync.WaitGroup
	var sent atomic.Int64
	for _, port := range []int{spec.ProbePortLast - 9, spec.ProbePortLast - 8} {
		flood.Go(func() {
			err := in(p.gate, func() error {
				for {
					select {
					case <-stop:
						return nil
					default:
					}
					fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
					if err != nil {
						return err
					}
					if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port}); err != nil {
						unix.Close(fd)
						continue // the one before is not quite gone
					}
					err = unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: netip.MustParseAddr(canaryAddr).As4()})
					unix.Close(fd)
					if !errors.Is(err, unix.ECONNREFUSED) {
						return fmt.Errorf("somebody answers: %v", err)
					}
					if sent.Add(1) == 4000 { // what all probes together may have on record, and more
						close(full)
					}
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	<-full
	const probes = 50
	mark := s.verdicts(0).Mark
	p.probe(probes)
	proven := map[uint16]bool{}
	for _, v := range s.verdicts(mark).Verdicts {
		if v.Outcome == spec.OutcomeRejected && v.Rule == "unlisted" && v.Addr == netip.MustParseAddr(canaryAddr) && v.Port == servicePort {
			proven[v.Source] = true
		}
	}
	close(stop)
	flood.Wait()
	t.Logf("beside %d packets", sent.Load())
	if len(proven) != probes {
		t.Errorf("%d of %d probes proven", len(proven), probes)
	}
}

// What came too fast to be on record is counted: nobody reads an account as whole that
// a flood kept a destination out of.
func TestUnrecordedIsCounted(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	p.zone("drop.allowed.test", "A "+origin2Addr)
	s := p.start(document(allowed("api.allowed.test"), allowed("drop.allowed.test"))).ready()
	if st := s.status(); st.AllowedUnrecorded != 0 || st.DeniedUnrecorded != 0 {
		t.Errorf("%d and %d before", st.AllowedUnrecorded, st.DeniedUnrecorded)
	}
	const flood, few = 400, 3
	try := func(n int, to string) {
		p.must(p.gate, func() error {
			for range n {
				c, err := net.DialTimeout("tcp4", to, 3*time.Second)
				if err == nil {
					c.Close()
				}
				if granted := strings.HasSuffix(to, ":443"); granted != (err == nil) {
					return fmt.Errorf("%s: %v", to, err)
				}
			}
			return nil
		})
	}
	try(flood, originAddr+":443")
	try(few, origin2Addr+":443")
	try(flood, originAddr+":9")
	try(few, origin2Addr+":22")
	st := s.status()
	total := func(rows []spec.Traffic) (n uint64) {
		for _, r := range rows {
			if r.Proto == "tcp" {
				n += r.Count
			}
		}
		return n
	}
	if st.AllowedUnrecorded == 0 || total(st.Allowed)+st.AllowedUnrecorded != flood+few {
		t.Errorf("%d and %d connections of %d", total(st.Allowed), st.AllowedUnrecorded, flood+few)
	}
	const own = 10 // of the watchdog's, and what the kernel says to its neighbours
	if n := total(st.Denied) + st.DeniedUnrecorded; st.DeniedUnrecorded == 0 || n < flood+few || n > flood+few+own {
		t.Errorf("%d and %d packets of %d", total(st.Denied), st.DeniedUnrecorded, flood+few)
	}
	if out, err := s.exec("corral-gate", "status"); err != nil || !strings.Contains(out, fmt.Sprintf("not recorded: %d connections that were made", st.AllowedUnrecorded)) {
		t.Errorf("%v: %s", err, out)
	}
}

// A checker's probes are no news, and the same packets are at any other time.
func TestProbesOfAChecker(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.zone("api.allowed.test", "A "+originAddr)
	s := p.start(document(allowed("api.allowed.test"))).ready()
	elsewhere := netip.MustParseAddr("44.10.9.8")
	try := func(port uint16) {
		p.must(p.gate, func() error {
			for i := range 3 {
				d := net.Dialer{LocalAddr: &net.TCPAddr{Port: spec.ProbePortFirst + i}}
				if c, err := d.Dial("tcp4", netip.AddrPortFrom(elsewhere, port).String()); err == nil {
					c.Close()
				}
			}
			return nil
		})
	}
	// What the kernel itself says to its neighbours, by ICMPv6, is left out.
	denied := func(st spec.GateStatus) map[uint16]uint64 {
		counts := map[uint16]uint64{}
		for _, d := range st.Denied {
			if d.Proto != "icmp" {
				counts[d.Port] = d.Count
			}
		}
		return counts
	}
	if st := s.status(); len(denied(st)) != 0 || st.Probed != 0 {
		t.Errorf("its own self-check is news: %+v, %d", st.Denied, st.Probed)
	}
	try(1) // an agent's, before
	mark := s.verdicts(0).Mark
	try(2) // the checker's
	if got := s.verdicts(mark); len(got.Verdicts) != 3 {
		t.Errorf("%+v", got)
	}
	try(3) // an agent's, after
	st := s.status()
	counts := denied(st)
	if len(counts) != 2 || counts[1] != 3 || counts[3] != 3 || st.Probed != 3 {
		t.Errorf("%v, %d probed", counts, st.Probed)
	}
	s.saw(`"port":3,`)
	for _, line := range s.output() {
		if strings.Contains(line, `"port":2,`) {
			t.Error(line)
		}
	}
}

// storm is an agent that tries n destinations, looks n names up, and waits until
// it may end.
func storm(arg string) int {
	n, err := strconv.Atoi(arg)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("storming")
	var wg sync.WaitGroup
	var refused, blocked atomic.Int64
	each := func(workers int, do func(i int)) {
		var next atomic.Int64
		for range workers {
			wg.Go(func() {
				for i := next.Add(1); i <= int64(n); i = next.Add(1) {
					do(int(i))
				}
			})
		}
	}
	each(8, func(i int) {
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{44, 11, byte(i >> 8), byte(i)}), uint16(1+i>>16))
		if c, err := net.DialTimeout("tcp4", to.String(), time.Second); err == nil {
			c.Close()
		} else {
			refused.Add(1)
		}
	})
	conns := make(chan *dns.Conn, 64)
	for range cap(conns) {
		c, err := dns.DialTimeout("udp4", "127.0.0.1:53", time.Second)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		conns <- c
	}
	label := strings.Repeat("x", 60)
	each(cap(conns), func(i int) {
		c := <-conns
		defer func() { conns <- c }()
		q := new(dns.Msg).SetQuestion(fmt.Sprintf("%s.%s.%s.%048d.evil.test.", label, label, label, i), dns.TypeA)
		c.SetDeadline(time.Now().Add(2 * time.Second))
		if c.WriteMsg(q) != nil {
			return
		}
		if m, err := c.ReadMsg(); err == nil && m.Rcode == dns.RcodeNameError {
			blocked.Add(1)
		}
	})
	wg.Wait()
	fmt.Printf("%d connects refused, %d lookups answered", refused.Load(), blocked.Load())
	io.Copy(io.Discard, os.Stdin)
	return 0
}
