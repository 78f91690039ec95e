package gate

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/mdlayher/netlink"
	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/resolve"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Files that PID 1 passes to the worker.
const (
	fdLink = 3 + iota
	fdNamesUDP
	fdNamesTCP
	fdRecords
)

// maxResolutions bounds how many names are resolved at the same time.
const maxResolutions = 64

// namesServer is where services ask for names.
var namesServer = netip.MustParseAddrPort("127.0.0.1:53")

// worker is the process without rights. It reads everything that comes from
// the network: lookups of services, answers of resolvers, copies of packets.
type worker struct {
	audit *audit
	names names
	slots chan struct{}
	// asking is the name that the worker itself asks the names server for.
	asking atomic.Pointer[string]

	records syscall.RawConn
	drain   sync.Mutex // held while records are read, so that a reader sees all that came before

	out struct {
		sync.Mutex
		*json.Encoder
	}
}

// work is the worker's main: it ends when PID 1's end of the link closes.
func work(ctx context.Context) error {
	thrift()
	if err := dropRights(); err != nil {
		return err
	}
	conn, err := net.FileConn(os.NewFile(fdLink, "link"))
	if err != nil {
		return fmt.Errorf("%w (the worker is started by serve only)", err)
	}
	pc, err := net.FilePacketConn(os.NewFile(fdNamesUDP, "names udp"))
	if err != nil {
		return err
	}
	listener, err := net.FileListener(os.NewFile(fdNamesTCP, "names tcp"))
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(fdRecords, true); err != nil {
		return err
	}
	records, err := os.NewFile(fdRecords, "records").SyscallConn()
	if err != nil {
		return err
	}
	w := &worker{audit: newAudit(), slots: make(chan struct{}, maxResolutions), records: records}
	w.out.Encoder = json.NewEncoder(conn)
	w.names.slots = make(chan struct{}, maxForwards)
	w.names.lookedUp = w.audit.lookedUp
	w.names.verdicts = func(p spec.Probe) ([]spec.Verdict, uint64) {
		w.readRecords() // what cannot be read stays unproven
		return w.audit.about(p)
	}
	w.names.refused = func(name string) {
		if own := w.asking.Load(); own == nil || *own != name {
			w.audit.lookup(name, time.Now())
		}
	}
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return w.names.run(ctx, pc, listener) })
	tasks.Go(func() error { return w.watchRecords(ctx) })
	tasks.Go(func() error {
		return w.audit.run(ctx, func(l auditLine) error { return w.send(reply{Audit: &l}) })
	})
	tasks.Go(func() error {
		defer conn.Close()
		<-ctx.Done()
		return nil
	})
	tasks.Go(func() error { return w.obey(ctx, conn, tasks) })
	if err := tasks.Wait(); !errors.Is(err, errLinkClosed) {
		return err
	}
	return nil
}

var errLinkClosed = errors.New("PID 1 is gone")

// obey does what the link asks, each request beside the others, but tables in the
// order in which they come.
func (w *worker) obey(ctx context.Context, conn io.Reader, tasks *errgroup.Group) error {
	err := readLines(conn, func(line []byte) error {
		var q request
		if err := json.Unmarshal(line, &q); err != nil {
			return err
		}
		if q.Table != nil {
			w.take(*q.Table)
		}
		tasks.Go(func() error { return w.send(w.serve(ctx, q)) })
		return nil
	})
	return errors.Join(err, errLinkClosed)
}

// dropRights makes sure that nothing is left to drop: another user, no
// capability, and none to gain by running a program.
func dropRights() error {
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("no_new_privs: %w", errno)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none)), 0); errno != 0 {
		return fmt.Errorf("capabilities: %w", errno)
	}
	if r, e, s := unix.Getresuid(); r != spec.WorkerUID || e != r || s != r {
		return fmt.Errorf("the worker runs as uid %d, not %d", e, spec.WorkerUID)
	}
	if r, e, s := unix.Getresgid(); r != spec.WorkerUID || e != r || s != r {
		return fmt.Errorf("the worker runs as gid %d, not %d", e, spec.WorkerUID)
	}
	return nil
}

func (w *worker) send(r reply) error {
	w.out.Lock()
	defer w.out.Unlock()
	return w.out.Encode(r)
}

// take goes by another table from now on.
func (w *worker) take(t table) {
	w.audit.set(t)
	w.names.zone.Store(newZone(t))
}

// serve does what one request asks.
func (w *worker) serve(ctx context.Context, q request) reply {
	r := reply{ID: q.ID}
	switch {
	case q.Table != nil: // it is in force
		if q.Table.Serving {
			settle()
		}
	case q.Resolve != nil:
		w.slots <- struct{}{}
		defer func() { <-w.slots }()
		c := resolve.Client{Servers: q.Resolve.Servers}
		answer, err := c.A(ctx, q.Resolve.Name)
		if err != nil {
			r.Err = strings.TrimPrefix(err.Error(), q.Resolve.Name+": ")
			if e := (*resolve.Error)(nil); errors.As(err, &e) {
				r.Kind = e.Kind
			}
		}
		r.Addrs, r.TTL = answer.Addrs, answer.TTL
	case q.Refusal != "":
		if err := w.askRefused(ctx, q.Refusal); err != nil {
			r.Err = err.Error()
		}
	case q.Verdicts != nil:
		if err := w.readRecords(); err != nil {
			r.Err = err.Error()
		}
		r.Verdicts = w.audit.verdicts(*q.Verdicts)
	case q.Checking != nil:
		// What came before the checker counts as it did then.
		if err := w.readRecords(); err != nil {
			r.Err = err.Error()
		}
		w.audit.check(*q.Checking, time.Now())
	case q.Account:
		if err := w.readRecords(); err != nil {
			r.Err = err.Error()
		}
		r.Account = w.audit.report()
	default:
		r.Err = "nothing is asked"
	}
	return r
}

// askRefused asks the names server, over the loopback interface, for a name
// that no policy lists and nobody has: it must be blocked, or be the sink's.
func (w *worker) askRefused(ctx context.Context, name string) error {
	name = dns.Fqdn(name)
	w.asking.Store(&name)
	defer w.asking.Store(nil)
	sink := w.names.zone.Load().sink
	q := new(dns.Msg).SetQuestion(name, dns.TypeA)
	q.SetEdns0(dns.DefaultMsgSize, false)
	for _, network := range []string{"udp", "tcp"} {
		c := dns.Client{Net: network}
		m, _, err := c.ExchangeContext(ctx, q, namesServer.String())
		if err != nil {
			return err
		}
		if sink.IsValid() {
			if a, ok := only(m).(*dns.A); m.Rcode != dns.RcodeSuccess || !ok || !a.A.Equal(sink.AsSlice()) {
				return fmt.Errorf("%s: answer %s, %v, not %v", network, dns.RcodeToString[m.Rcode], m.Answer, sink)
			}
			continue
		}
		blocked := false
		if opt := m.IsEdns0(); opt != nil {
			for _, o := range opt.Option {
				ede, ok := o.(*dns.EDNS0_EDE)
				blocked = blocked || ok && ede.InfoCode == dns.ExtendedErrorCodeBlocked
			}
		}
		if m.Rcode != dns.RcodeNameError || !blocked || len(m.Answer) > 0 {
			return fmt.Errorf("%s: answer %s, blocked %v, %d records", network, dns.RcodeToString[m.Rcode], blocked, len(m.Answer))
		}
	}
	return nil
}

// only is the one record of an answer, nil if there is none or more.
func only(m *dns.Msg) dns.RR {
	if len(m.Answer) != 1 {
		return nil
	}
	return m.Answer[0]
}

// watchRecords takes in NFLOG records as they come. (go-nflog would do this
// from opening the socket on, but that takes a right that the worker does not
// have, and it cannot take over a socket that PID 1 has opened.)
func (w *worker) watchRecords(ctx context.Context) error {
	for {
		var failed error
		first := true
		err := w.records.Read(func(uintptr) bool {
			failed = w.readRecords()
			waited := !first
			first = false
			return waited || failed != nil
		})
		if ctx.Err() != nil {
			return nil
		}
		if err := errors.Join(err, failed); err != nil {
			return fmt.Errorf("records: %w", err)
		}
	}
}

// maxDrain bounds how long one reader may hold the others up.
const maxDrain = 8192

// readRecords takes in every record that the kernel has handed over so far.
func (w *worker) readRecords() error {
	w.drain.Lock()
	defer w.drain.Unlock()
	buf := make([]byte, 16<<10)
	var failed error
	err := w.records.Control(func(fd uintptr) {
		for range maxDrain {
			n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
			switch {
			case errors.Is(err, unix.EAGAIN):
				return
			case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOBUFS):
				continue // ENOBUFS: some records are lost, their probes stay unproven
			case err != nil:
				failed = err
				return
			}
			w.takeRecords(buf[:n])
		}
	})
	return errors.Join(err, failed)
}

// takeRecords reads one datagram of netlink messages. A message that makes no
// sense is no record; the ones after it still count.
func (w *worker) takeRecords(b []byte) {
	now := time.Now()
	for len(b) >= unix.SizeofNlMsghdr {
		var m netlink.Message
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) || m.UnmarshalBinary(b[:size]) != nil {
			return
		}
		if p, err := parseRecord(m.Data); err == nil {
			w.audit.packet(p, now)
		}
		b = b[min(len(b), (size+3)&^3):]
	}
}
