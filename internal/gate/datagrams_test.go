package gate

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func TestReadLookup(t *testing.T) {
	pack := func(change func(*dns.Msg)) []byte {
		m := new(dns.Msg).SetQuestion("api.allowed.test.", dns.TypeA)
		m.Id = 7
		change(m)
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	good := pack(func(*dns.Msg) {})
	for what, tt := range map[string]struct {
		b      []byte
		lookup bool
		rcode  int // of the answer, -1 if there is none
	}{
		"a lookup":         {good, true, -1},
		"nothing":          {nil, false, -1},
		"half a header":    {good[:11], false, -1},
		"a header alone":   {good[:12], false, dns.RcodeFormatError},
		"cut off":          {good[:len(good)-1], false, dns.RcodeFormatError},
		"an answer":        {pack(func(m *dns.Msg) { m.Response = true }), false, -1},
		"an update":        {pack(func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }), false, dns.RcodeNotImplemented},
		"several lookups":  {pack(func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }), false, dns.RcodeFormatError},
		"no question":      {pack(func(m *dns.Msg) { m.Question = nil }), false, dns.RcodeFormatError},
		"something behind": {append(good[:len(good):len(good)], 1, 2, 3), true, -1},
	} {
		q, malformed := readLookup(tt.b)
		if (q != nil) != tt.lookup || (malformed == nil) != (tt.rcode < 0) {
			t.Errorf("%s: %v, %v", what, q, malformed)
			continue
		}
		if malformed != nil && (malformed.Rcode != tt.rcode || malformed.Id != 7 || !malformed.Response) {
			t.Errorf("%s: %v", what, malformed)
		}
	}
}

func FuzzReadLookup(f *testing.F) {
	b, _ := new(dns.Msg).SetQuestion("api.allowed.test.", dns.TypeA).Pack()
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		q, malformed := readLookup(b)
		if q != nil && (malformed != nil || len(q.Question) != 1 || q.Response) {
			t.Fatalf("%v, %v", q, malformed)
		}
		if malformed != nil {
			if out, err := malformed.Pack(); err != nil || len(out) > len(b) {
				t.Fatalf("%d bytes for %d, %v", len(out), len(b), err)
			}
		}
	})
}

// However many lookups come at once, as many are answered at a time as there is
// room for, and afterwards the rest.
func TestDatagramsAreBounded(t *testing.T) {
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	release, entered := make(chan struct{}), make(chan struct{}, 2*maxDatagrams)
	var mu sync.Mutex
	now, most := 0, 0
	h := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		entered <- struct{}{}
		<-release
		mu.Lock()
		now--
		mu.Unlock()
		w.WriteMsg(new(dns.Msg).SetReply(q))
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveDatagrams(ctx, pc, h) }()
	c, err := dns.DialTimeout("udp4", pc.LocalAddr().String(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const lookups = maxDatagrams + 20
	for range lookups {
		if err := c.WriteMsg(new(dns.Msg).SetQuestion("api.allowed.test.", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
	}
	for range maxDatagrams {
		<-entered
	}
	close(release)
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	for i := range lookups {
		if _, err := c.ReadMsg(); err != nil {
			t.Fatalf("after %d answers: %v", i, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if most != maxDatagrams {
		t.Errorf("%d at a time", most)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
