package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

var (
	noon    = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	current = policy.Circumstances{
		Rules:   []policy.Rule{{Domain: "api.allowed.test", Ports: []uint16{80, 443}, Liveness: true, Pos: diag.Pos{File: "corral.yaml", Line: 5}}},
		Gateway: netip.MustParseAddr("172.30.0.1"),
		Network: netip.MustParsePrefix("172.30.0.0/16"),
	}
)

func account() spec.GateStatus {
	traffic := func(proto, to, name, rule string, n uint64) spec.Traffic {
		at := netip.MustParseAddrPort(to)
		return spec.Traffic{Proto: proto, Addr: at.Addr(), Port: at.Port(), Name: name, Rule: rule, Count: n, First: noon.Add(-3 * time.Hour), Last: noon.Add(-5 * time.Second)}
	}
	return spec.GateStatus{
		RefusedNames: []spec.Refused{
			{Name: "files.allowed.test", Count: 3, First: noon.Add(-2 * time.Minute), Last: noon},
			{Name: "api.a1lowed.test", Count: 2, First: noon.Add(-50 * time.Hour), Last: noon.Add(-49 * time.Hour)},
			{Name: "evil\x1b[2J.test", Count: 1, First: noon, Last: noon},
		},
		Denied: []spec.Traffic{
			traffic("tcp", "44.10.0.10:22", "api.allowed.test", "unlisted", 1),
			traffic("udp", "44.10.9.9:443", "", "unlisted", 4),
			traffic("tcp", "[2001:db8::1]:443", "", "ipv6", 1),
			traffic("tcp", "172.30.0.1:8081", "", "unlisted", 1),
		},
		Allowed:    []spec.Traffic{traffic("tcp", "44.10.0.10:443", "api.allowed.test", "", 9), {Proto: spec.ProtoLookup, Name: "page.example", Count: 1, First: noon, Last: noon}},
		DeniedMore: 7, Probed: 40,
	}
}

// R051: what was tried, why not, and which line would allow it.
func TestTrafficForPeople(t *testing.T) {
	r := trafficReport{Sandbox: "p-1"}
	r.add("main", account(), current, trafficWish{})
	var b strings.Builder
	if err := r.show(&b, noon, false); err != nil {
		t.Fatal(err)
	}
	const want = `VERDICT    WHAT                           HOW       TIMES  FIRST       LAST        WHY
denied     files.allowed.test             lookup    3      2 min ago   now         name not listed
denied     api.a1lowed.test               lookup    2      2 days ago  2 days ago  name not listed
denied     evil\x1b[2J.test               lookup    1      now         now         name not listed
denied     api.allowed.test (44.10.0.10)  tcp 22    1      3 h ago     5 s ago     not listed
denied     44.10.9.9                      udp 443   4      3 h ago     5 s ago     not listed
denied     2001:db8::1                    tcp 443   1      3 h ago     5 s ago     no IPv6
denied     172.30.0.1                     tcp 8081  1      3 h ago     5 s ago     not listed
allowed    api.allowed.test (44.10.0.10)  tcp 443   9      3 h ago     5 s ago
looked up  page.example                   lookup    1      now         now
7 packets to other destinations refused: the gate keeps only so many apart

Each of these lines of the policy would allow one of them (where a key is there already, the lines go below it):
egress:
  allow:
    - files.allowed.test
    - api.a1lowed.test  # CAREFUL: it could be taken for api.allowed.test, which is listed: look twice
    - {domain: api.allowed.test, ports: [22, 80, 443]}  # in place of the entry of corral.yaml:5
host_services:
  - {name: port-8081, port: 8081}  # a port of this machine's loopback: whatever listens there can be used in full

For these there is none:
  lookup evil\x1b[2J.test: no name that a policy takes: "evil\x1b[2J.test": label "evil\x1b[2J" must be of letters, digits, - and _, with no - at either end
  udp 443 44.10.9.9: no UDP leaves: a policy opens TCP ports (programs that try QUIC fall back to TCP)
  tcp 443 2001:db8::1: no IPv6 leaves: names are pinned to IPv4 addresses
`
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}

	// As it is printed, below a policy without such keys.
	block := want[strings.Index(want, "egress:\n"):strings.Index(want, "\nFor these")]
	p, err := policy.Parse(policy.FileName, []byte("profile: shell\n"+block))
	if err != nil || len(p.Egress.Allow) != 3 || len(p.HostServices) != 1 {
		t.Errorf("%+v: %v", p, err)
	}

	denied := trafficReport{}
	denied.add("main", account(), current, trafficWish{denied: true})
	if len(denied.Rows) != 7 {
		t.Errorf("%d rows of what was denied", len(denied.Rows))
	}
	for _, row := range denied.Rows {
		if !row.refused() || row.Suggestion == nil {
			t.Errorf("%+v", row)
		}
	}
}

// However much there is, what is shown is bounded, and says what it leaves out.
func TestTrafficIsBounded(t *testing.T) {
	s := spec.GateStatus{RefusedMore: 1, AllowedMore: 2, AllowedUnrecorded: 3, DeniedUnrecorded: 4}
	for i := range 500 {
		s.RefusedNames = append(s.RefusedNames, spec.Refused{Name: fmt.Sprintf("x%d.example", i), Count: 1}, spec.Refused{Name: strings.Repeat("y", 200) + fmt.Sprint(i), Count: 1})
		s.Allowed = append(s.Allowed, spec.Traffic{Proto: "tcp", Addr: netip.MustParseAddr("44.10.0.10"), Port: uint16(i + 1), Count: 1})
	}
	r := trafficReport{}
	r.add("main", s, current, trafficWish{})
	var b strings.Builder
	if err := r.show(&b, noon, true); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if n := strings.Count(text, "\n"); n > 2*mostTraffic+2*mostSuggestions+20 || len(text) > 20<<10 {
		t.Errorf("%d lines, %d bytes", n, len(text))
	}
	for _, want := range []string{"main: x0.example", "and 1420 rows more (--json has them)", "1 lookup of other names refused: ", "2 connections to other", "not recorded: 3 connections; too many came at a time", "not recorded: 4 refused packets", "more (--json has them)\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestTrafficAsItComes(t *testing.T) {
	told := map[string]bool{}
	var b strings.Builder
	for _, d := range []decided{
		{Verdict: spec.VerdictRefusedName, Name: "files.allowed.test"},
		{Verdict: spec.VerdictRefusedName, Name: "files.allowed.test"},
		{Verdict: spec.VerdictAllowed, Proto: "tcp", Addr: netip.MustParseAddr("44.10.0.10"), Port: 443, Name: "api.allowed.test"},
		{Verdict: spec.VerdictDenied, Proto: "icmp", Addr: netip.MustParseAddr("44.10.9.9"), Rule: "unlisted"},
		{Verdict: spec.VerdictNotShown},
		{Verdict: "\x1b[2J", Name: "\u202e"},
	} {
		d.judge(current)
		if err := (trafficEvent{Time: noon, decided: d, Count: 3}).show(&b, told); err != nil {
			t.Fatal(err)
		}
	}
	at := clock(noon)
	want := strings.ReplaceAll(`AT  denied  lookup files.allowed.test (3 times): name not listed
          egress.allow: - files.allowed.test
AT  denied  lookup files.allowed.test (3 times): name not listed
AT  allowed  tcp 443 api.allowed.test (44.10.0.10) (3 times)
AT  denied  icmp 44.10.9.9 (3 times): not listed
          no ICMP leaves: a policy opens TCP ports, and a ping proves nothing about those
AT  3 decisions more than there are lines for
AT  \x1b[2J  lookup \u202e (3 times)
`, "AT", at)
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	for range 2 * mostTold {
		d := decided{Verdict: spec.VerdictRefusedName, Name: fmt.Sprintf("x%d.example", len(told))}
		d.judge(current)
		if err := (trafficEvent{decided: d}).show(&b, told); err != nil {
			t.Fatal(err)
		}
	}
	if len(told) > mostTold {
		t.Errorf("%d are remembered", len(told))
	}
}

func TestTrafficAsJSON(t *testing.T) {
	r := trafficReport{Version: spec.Version}
	r.add("main", account(), current, trafficWish{})
	text := string(printable.JSON(spec.Encode(r)))
	for _, want := range []string{`"verdict": "refused-name"`, `"entry": "files.allowed.test"`, `"first": "2030-01-01T11:58:00Z"`, `"reason": "no IPv6"`, `"probed": 40`, `"denied_more": 7`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	var b strings.Builder
	d := decided{Verdict: spec.VerdictRefusedName, Name: "files.allowed.test\u202e"}
	d.judge(current)
	if err := writeEvent(&b, trafficEvent{Version: spec.Version, Time: noon, Service: "main", decided: d, Count: 1}); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil || strings.Count(b.String(), "\n") != 1 || got["name"] != d.Name || strings.Contains(b.String(), "\u202e") {
		t.Errorf("%v: %s", err, b.String())
	}
}

// R051: the end of a run names the line for what was missed most, if there is a
// plain one.
func TestRemedy(t *testing.T) {
	refused := func(names ...string) (s spec.GateStatus) {
		for _, n := range names {
			s.RefusedNames = append(s.RefusedNames, spec.Refused{Name: n, Count: 1})
		}
		return s
	}
	for want, s := range map[string]spec.GateStatus{
		"": refused(), "files.allowed.test": refused("files.allowed.test", "other.example"),
		"other.example": refused("api.a1lowed.test", "evil\x1b.test", "xn--mller-kva.example", "other.example"),
	} {
		got := remedy(s, current.Rules)
		if want != "" {
			want += " would be allowed by this line of the policy, under egress.allow: - " + want
		}
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestAgo(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "now", time.Second - 1: "now", time.Second: "1 s ago", time.Minute - 1: "59 s ago", time.Minute: "1 min ago",
		time.Hour: "1 h ago", 48*time.Hour - 1: "47 h ago", 48 * time.Hour: "2 days ago",
	} {
		if got := ago(noon, noon.Add(-d)); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

// Whatever a gate's log says an agent asked for, a terminal and a program get
// one line that neither acts on.
func FuzzTrafficLine(f *testing.F) {
	f.Add(spec.VerdictDenied, "tcp", "a.test", "unlisted", []byte{192, 0, 2, 1}, uint16(443))
	f.Add(spec.VerdictRefusedName, "", "x\x1b]0;y\a\u202e\u009b2J.test", "", []byte(nil), uint16(0))
	f.Add(spec.VerdictNotShown, "\n", "\r", "\x7f", []byte("0123456789abcdef"), uint16(1))
	f.Fuzz(func(t *testing.T, verdict, proto, name, rule string, addr []byte, port uint16) {
		a, _ := netip.AddrFromSlice(addr)
		ev := trafficEvent{Version: spec.Version, Service: "main", decided: decided{Verdict: verdict, Proto: proto, Name: name, Rule: rule, Addr: a, Port: port}, Count: 2}
		ev.judge(policy.Circumstances{})
		var text, stream bytes.Buffer
		if err := errors.Join(ev.show(&text, map[string]bool{}), writeEvent(&stream, ev)); err != nil {
			t.Fatal(err)
		}
		for _, said := range []string{text.String(), stream.String()} {
			if strings.ContainsFunc(strings.ReplaceAll(said, "\n", ""), func(r rune) bool { return r != utf8.RuneError && !printable.Is(r) }) || !strings.HasSuffix(said, "\n") {
				t.Errorf("%q", said)
			}
		}
		if n := strings.Count(text.String(), "\n"); n > 2 || strings.Count(stream.String(), "\n") != 1 || !json.Valid(stream.Bytes()) {
			t.Errorf("%d lines: %q, %q", n, text.String(), stream.String())
		}
	})
}
