package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/netfilter"
	"github.com/corral-sandbox/corral/internal/netguard"
	"github.com/corral-sandbox/corral/internal/resolve"
	"github.com/corral-sandbox/corral/internal/spec"
)

func addrs(s ...string) []netip.Addr {
	var all []netip.Addr
	for _, a := range s {
		all = append(all, addr(a))
	}
	return all
}

func pinOf(at time.Time, fading []spec.Fading, s ...string) spec.Pin {
	return spec.Pin{Domain: "a.test", Addrs: addrs(s...), Fading: fading, Ports: []uint16{443}, TTL: time.Minute, At: at, Origin: "corral.yaml:7"}
}

// What becomes of a name that had pins, by what its lookup gives now (R003).
func TestDecideAgain(t *testing.T) {
	earlier, later := noon.Add(-time.Hour), noon.Add(time.Hour)
	had := pinOf(noon, []spec.Fading{{Addr: addr("44.10.0.13"), Since: earlier, Ports: []uint16{443}}}, "44.10.0.10", "44.10.0.11")
	failure := resolution{err: errors.New("no answer")}
	found := func(s ...string) resolution { return resolution{addrs: addrs(s...), ttl: time.Second} }
	for what, tt := range map[string]struct {
		r       map[string]resolution
		private []netip.Prefix
		never   []netip.Prefix
		addrs   []string
		fading  string
		failed  string
		at      time.Time
	}{
		"the same":       {r: map[string]resolution{"a.test": found("44.10.0.10", "44.10.0.11")}, addrs: []string{"44.10.0.10", "44.10.0.11"}, fading: "44.10.0.13", at: later},
		"one less":       {r: map[string]resolution{"a.test": found("44.10.0.10")}, addrs: []string{"44.10.0.10"}, fading: "44.10.0.13 44.10.0.11", at: later},
		"one back":       {r: map[string]resolution{"a.test": found("44.10.0.13")}, addrs: []string{"44.10.0.13"}, fading: "44.10.0.10 44.10.0.11", at: later},
		"failure":        {r: map[string]resolution{"a.test": failure}, addrs: []string{"44.10.0.10", "44.10.0.11"}, fading: "44.10.0.13", failed: "no answer", at: noon},
		"private answer": {r: map[string]resolution{"a.test": found("10.0.0.1")}, addrs: []string{"44.10.0.10", "44.10.0.11"}, fading: "44.10.0.13", failed: "10.0.0.1 is refused", at: noon},
		"not asked":      {addrs: []string{"44.10.0.10", "44.10.0.11"}, fading: "44.10.0.13", at: noon},
		"may not any more": {r: map[string]resolution{"a.test": failure}, never: []netip.Prefix{netip.MustParsePrefix("44.10.0.11/32"), netip.MustParsePrefix("44.10.0.13/32")},
			addrs: []string{"44.10.0.10"}, failed: "no answer", at: noon},
	} {
		g := document
		g.Never = tt.never
		g.Names = []spec.Name{{Domain: "a.test", Ports: []uint16{443}, Private: tt.private, Origin: "corral.yaml:7"}}
		got, err := decide(g, outcome{pins: []spec.Pin{had}}, tt.r, later)
		if err != nil || len(got.pins) != 1 || len(got.unpinned) != 0 {
			t.Errorf("%s: %+v, %v", what, got, err)
			continue
		}
		p := got.pins[0]
		var fading []string
		for _, f := range p.Fading {
			fading = append(fading, f.Addr.String())
			if fresh := f.Addr != addr("44.10.0.13"); fresh != f.Since.Equal(later) {
				t.Errorf("%s: %s fades since %v", what, f.Addr, f.Since)
			}
		}
		if !slices.Equal(p.Addrs, addrs(tt.addrs...)) || strings.Join(fading, " ") != tt.fading || !p.At.Equal(tt.at) ||
			(tt.failed == "") != (p.Failed == "") || !strings.Contains(p.Failed, tt.failed) {
			t.Errorf("%s: %+v", what, p)
		}
	}
	// Nothing is left to keep: the refresh fails, or a soft name closes.
	g := document
	g.Never = []netip.Prefix{netip.MustParsePrefix("44.0.0.0/8")}
	g.Names = []spec.Name{{Domain: "a.test", Ports: []uint16{443}, Origin: "corral.yaml:7"}}
	if _, err := decide(g, outcome{pins: []spec.Pin{had}}, map[string]resolution{"a.test": failure}, later); err == nil {
		t.Error("nothing to keep, and no error")
	}
	g.Names[0].Soft = true
	before := outcome{unpinned: []spec.Unpinned{{Domain: "a.test", Reason: "as before", Origin: "corral.yaml:7"}}}
	if got, err := decide(g, before, nil, later); err != nil || len(got.pins) != 0 || len(got.unpinned) != 1 || got.unpinned[0].Reason != "as before" {
		t.Errorf("%+v, %v", got, err)
	}
	// What has failed once and is not asked has failed still.
	had.Failed = "no answer"
	g = document
	g.Names = []spec.Name{{Domain: "a.test", Ports: []uint16{443}}}
	if got, err := decide(g, outcome{pins: []spec.Pin{had}}, nil, later); err != nil || got.pins[0].Failed != "no answer" {
		t.Errorf("%+v, %v", got, err)
	}
}

// An address that a name no longer has is granted no port that it was not granted while
// it had it, whatever the document says since; what is taken away goes at once.
func TestFadingPorts(t *testing.T) {
	grant := func(anyPort bool, ports ...uint16) spec.Name {
		return spec.Name{Domain: "a.test", Ports: ports, AnyPort: anyPort, Origin: "corral.yaml:7"}
	}
	only := func(ports ...uint16) []spec.Name { return []spec.Name{grant(false, ports...)} }
	all := []spec.Name{grant(true)}
	gone := addr("44.10.0.10")
	for what, tt := range map[string]struct {
		had   []spec.Name
		since [][]spec.Name // one refresh each
		want  string
	}{
		"as it was":               {only(443), [][]spec.Name{only(443)}, "443"},
		"wider":                   {only(443), [][]spec.Name{only(443, 8443)}, "443"},
		"wider later":             {only(443), [][]spec.Name{only(443), only(22, 443)}, "443"},
		"any port":                {only(443), [][]spec.Name{all}, "443"},
		"any port later":          {only(443), [][]spec.Name{only(443), all}, "443"},
		"narrower":                {only(443, 8443), [][]spec.Name{only(8443)}, "8443"},
		"narrower later":          {only(443, 8443), [][]spec.Name{only(443, 8443), only(443)}, "443"},
		"narrower and wide again": {only(443, 8443), [][]spec.Name{only(443), only(443, 8443)}, "443"},
		"other ports":             {only(443), [][]spec.Name{only(8443)}, ""},
		"any as it was":           {all, [][]spec.Name{all}, "any"},
		"no longer any":           {all, [][]spec.Name{only(22)}, "22"},
		"no longer any, again":    {all, [][]spec.Name{only(22), all}, "22"},
		"listed twice":            {[]spec.Name{grant(false, 443), grant(false, 22)}, [][]spec.Name{only(22, 443, 80)}, "22 443"},
		"listed twice now":        {only(443), [][]spec.Name{{grant(false, 443), grant(false, 22)}}, "443"},
	} {
		for _, failing := range []bool{false, true} { // at last, which keeps what fades too
			g := document
			g.Names = tt.had
			got, err := decide(g, outcome{}, map[string]resolution{"a.test": {addrs: []netip.Addr{gone}}}, noon)
			for i, names := range tt.since {
				r := resolution{addrs: addrs("44.10.0.11")}
				if failing && i == len(tt.since)-1 && i > 0 {
					r = resolution{err: errors.New("no answer")}
				}
				g.Names = names
				if err == nil {
					got, err = decide(g, got, map[string]resolution{"a.test": r}, noon.Add(time.Minute))
				}
			}
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			var granted []string
			for e := range entries(sets(got.pins)) {
				if e.Addr == gone {
					granted = append(granted, portsText([]uint16{e.Port}, e.Port == 0))
				}
			}
			slices.Sort(granted)
			if strings.Join(granted, " ") != tt.want {
				t.Errorf("%s: granted %v, want %q", what, granted, tt.want)
			}
			for _, port := range []uint16{22, 80, 443, 8443} {
				named := len(namesOf(got.pins, netip.AddrPortFrom(gone, port))) > 0
				if want := tt.want == "any" || slices.Contains(granted, fmt.Sprint(port)); named != want {
					t.Errorf("%s: port %d is the name's: %v", what, port, named)
				}
			}
		}
	}
}

// While something of the kernel changes, what is read of it does not count, and nobody
// waits for the reading unless there is one change after the other.
func TestSteady(t *testing.T) {
	for changes, want := range map[int]int{0: 1, 1: 2, steadyTries - 2: steadyTries - 1, steadyTries - 1: steadyTries, 100: steadyTries} {
		g := &gate{}
		readings := 0
		err := g.steady(func(a applied) error {
			readings++
			free := g.fence.TryLock()
			if free != (readings < steadyTries) {
				t.Errorf("reading %d of %d changes: fence free %v", readings, changes, free)
			}
			if free && readings <= changes {
				g.edition++
				g.applied.nat = fmt.Sprint(readings)
			}
			if free {
				g.fence.Unlock()
			}
			return errors.New(a.nat)
		})
		if last := readings - 1; readings != want || err == nil || last > 0 && err.Error() != fmt.Sprint(last) {
			t.Errorf("%d changes: %d readings, %v", changes, readings, err)
		}
	}
}

// Once a gate closes, a refresh that is under way changes nothing any more.
func TestNothingChangesWhileItCloses(t *testing.T) {
	g := &gate{}
	g.closing.Store(true)
	if err := g.putSets(t.Context(), sets([]spec.Pin{pinOf(noon, nil, "44.10.0.10")})); !errors.Is(err, errClosing) {
		t.Error(err)
	}
	if err := g.putChains(t.Context(), document, serving); !errors.Is(err, errClosing) {
		t.Error(err)
	}
}

func TestThin(t *testing.T) {
	g := spec.Gate{PinGrace: time.Minute}
	fading := func(age time.Duration, flows int) spec.Fading {
		return spec.Fading{Addr: addr("44.10.0.13"), Since: noon.Add(-age), Flows: flows}
	}
	for what, tt := range map[string]struct {
		grace, ttl time.Duration
		fading     []spec.Fading
		want       int
	}{
		"before its time":        {time.Minute, 0, []spec.Fading{fading(time.Minute-1, 0)}, 1},
		"at its time":            {time.Minute, 0, []spec.Fading{fading(time.Minute, 0)}, 0},
		"in use":                 {time.Minute, 0, []spec.Fading{fading(time.Hour, 1)}, 1},
		"twice the TTL, before":  {time.Minute, time.Hour, []spec.Fading{fading(2*time.Hour-1, 0)}, 1},
		"twice the TTL":          {time.Minute, time.Hour, []spec.Fading{fading(2*time.Hour, 0)}, 0},
		"the usual grace, short": {0, 0, []spec.Fading{fading(spec.DefaultPinGrace-1, 0)}, 1},
		"the usual grace":        {0, 0, []spec.Fading{fading(spec.DefaultPinGrace, 0)}, 0},
		"as many as may be":      {time.Minute, 0, slices.Repeat([]spec.Fading{fading(0, 0)}, maxFading), maxFading},
		"one more":               {time.Minute, 0, slices.Repeat([]spec.Fading{fading(0, 0)}, maxFading+1), maxFading},
		"more, all in use":       {time.Minute, 0, slices.Repeat([]spec.Fading{fading(0, 2)}, maxFading+9), maxFading + 9},
	} {
		g.PinGrace = tt.grace
		p := spec.Pin{TTL: tt.ttl, Fading: tt.fading}
		if got := thin(g, []spec.Pin{p}, noon)[0].Fading; len(got) != tt.want {
			t.Errorf("%s: %d", what, len(got))
		}
	}
	// Over the limit the longest gone without connections goes first.
	many := slices.Repeat([]spec.Fading{fading(0, 0)}, maxFading+1)
	many[0].Flows, many[1].Addr = 1, addr("44.10.0.14")
	got := thin(spec.Gate{}, []spec.Pin{{Fading: many}}, time.Time{})[0].Fading
	if len(got) != maxFading || got[0].Flows != 1 || got[1].Addr == addr("44.10.0.14") {
		t.Errorf("%d, %+v", len(got), got[:2])
	}
}

// Every field of a document is either one that a refresh may change, or is held fast.
func TestFixed(t *testing.T) {
	base := linked
	base.Names, base.Class = document.Names, spec.ClassPinned
	for what, tt := range map[string]struct {
		change func(*spec.Gate)
		want   string
	}{
		"nothing": {func(*spec.Gate) {}, ""},
		"all that may": {func(g *spec.Gate) {
			g.Policy, g.Refresh, g.PinGrace = "x", spec.RefreshAuto, 1
			g.Resolvers, g.Names, g.Never = addrs("44.10.0.55"), nil, open.Never
		}, ""},
		"no host ports, otherwise": {func(g *spec.Gate) { g.HostPorts = []uint16{} }, ""},
		"version":                  {func(g *spec.Gate) { g.Version = 2 }, "version"},
		"sandbox":                  {func(g *spec.Gate) { g.Sandbox = "x" }, "sandbox"},
		"service":                  {func(g *spec.Gate) { g.Service = "x" }, "service"},
		"class":                    {func(g *spec.Gate) { g.Class = spec.ClassPublic }, "class"},
		"address":                  {func(g *spec.Gate) { g.Address = addr("172.30.0.7") }, "address"},
		"gateway":                  {func(g *spec.Gate) { g.Gateway = addr("172.30.0.7") }, "gateway"},
		"sink":                     {func(g *spec.Gate) { g.SinkNames = false }, "sink_names"},
		"host ports":               {func(g *spec.Gate) { g.HostPorts = []uint16{1} }, "host_ports"},
		"links":                    {func(g *spec.Gate) { g.Links = g.Links[:1] }, "links"},
		"clients":                  {func(g *spec.Gate) { g.Clients = nil }, "clients"},
		"probes":                   {func(g *spec.Gate) { g.Probes.IPv6 = addr("2001:db8::2") }, "probes"},
	} {
		next := base
		tt.change(&next)
		if got := strings.Join(fixed(base, next), " "); got != tt.want {
			t.Errorf("%s: %q", what, got)
		}
	}
}

// grants says the same as the rules and sets: of what they grant, the neighbours are
// refused.
func TestGrants(t *testing.T) {
	pinned := entries(sets([]spec.Pin{
		{Domain: "a.test", Addrs: addrs("44.10.0.10"), Ports: []uint16{443}, Fading: []spec.Fading{{Addr: addr("44.10.0.12"), Ports: []uint16{443}}}},
		{Domain: "b.test", Addrs: addrs("44.10.0.20"), AnyPort: true},
	}))
	for _, tt := range []struct {
		g    spec.Gate
		to   string
		want bool
	}{
		{document, "44.10.0.10:443", true}, {document, "44.10.0.10:444", false}, {document, "44.10.0.11:443", false},
		{document, "44.10.0.12:443", true}, {document, "44.10.0.12:80", false},
		{document, "44.10.0.20:1", true}, {document, "44.10.0.20:65535", true}, {document, "44.10.0.21:1", false},
		{document, "172.30.0.1:8001", true}, {document, "172.30.0.1:8003", false}, {document, "172.30.0.2:8001", false},
		{linked, "172.30.128.4:8080", true}, {linked, "172.30.128.4:8766", false}, {linked, "172.30.128.2:8765", false},
		{linked, "93.184.215.14:443", false}, {linked, ":0", false},
		{open, "93.184.215.14:443", true}, {open, "93.184.215.14:80", true}, {open, "93.184.215.14:22", false},
		{open, "44.20.0.1:443", false}, {open, "44.21.0.1:443", true}, {open, "172.30.0.1:443", false}, {open, "10.0.0.1:80", false},
	} {
		to, _ := netip.ParseAddrPort(tt.to)
		if got := grants(tt.g, pinned, to); got != tt.want {
			t.Errorf("class %q, %s: %v", tt.g.Class, tt.to, got)
		}
	}
	for _, b := range netguard.Special(4) {
		if grants(open, nil, netip.AddrPortFrom(b.Prefix.Addr(), 443)) {
			t.Errorf("%s is granted to everybody", b.Prefix)
		}
	}
}

func TestSharedAddrs(t *testing.T) {
	pin := func(name string, s ...string) spec.Pin { return spec.Pin{Domain: name, Addrs: addrs(s...)} }
	if got := sharedAddrs([]spec.Pin{pin("a.test", "44.10.0.10"), pin("a.test", "44.10.0.10"), pin("b.test", "44.10.0.11")}); len(got) != 0 {
		t.Errorf("%q", got)
	}
	got := sharedAddrs([]spec.Pin{pin("c.test", "44.10.0.10"), pin("b.test", "44.10.0.11", "44.10.0.10"), pin("a.test", "44.10.0.11"), pin("d.test", "44.10.0.10")})
	want := []string{"b.test, c.test and 1 more share 44.10.0.10", "a.test, b.test share 44.10.0.11"}
	if len(got) != 2 || !strings.HasPrefix(got[0], want[0]) || !strings.HasPrefix(got[1], want[1]) {
		t.Errorf("%q", got)
	}
	var b strings.Builder
	g := &gate{out: &b}
	var pins []spec.Pin
	for i := range noticeShown + 2 {
		pins = append(pins, pin("a.test", fmt.Sprintf("44.10.0.%d", i)), pin("b.test", fmt.Sprintf("44.10.0.%d", i)))
	}
	g.notice(nil, pins)
	if n := strings.Count(b.String(), "\n"); n != noticeShown+1 || !strings.Contains(b.String(), "with 2 more addresses") {
		t.Errorf("%d lines: %s", n, b.String())
	}
	b.Reset()
	if g.notice(pins, pins); b.Len() > 0 {
		t.Errorf("told again: %s", b.String())
	}
}

// A reader of a file that is written in place never finds less than there is to find,
// nor the rest of what was.
func TestWriteInPlace(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "hosts")
	texts := []string{strings.Repeat("44.10.0.10\ta.test\n", 40), strings.Repeat("44.10.0.11\tb.test\n", 7)}
	if err := os.WriteFile(path, []byte(texts[0]), 0o644); err != nil {
		t.Fatal(err)
	}
	same, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	stop, bad := make(chan struct{}), make(chan string, 1)
	go func() {
		defer close(bad)
		for {
			select {
			case <-stop:
				return
			default:
			}
			b, err := os.ReadFile(path)
			text := strings.TrimRight(string(b), "\n")
			if err != nil || len(text) < len(texts[1])-1 || strings.ContainsFunc(text, func(r rune) bool { return r == 0 }) {
				bad <- fmt.Sprintf("%v: %q", err, b)
				return
			}
		}
	}()
	old := texts[0]
	for i := range 2000 {
		if err := writeInPlace(path, []byte(old), texts[(i+1)%2]); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		old = string(b)
	}
	close(stop)
	if b, torn := <-bad; torn {
		t.Error(b)
	}
	if err := writeInPlace(path, []byte(texts[0]), texts[1]); err != nil {
		t.Fatal(err)
	}
	blanked := texts[1] + strings.Repeat("\n", len(texts[0])-len(texts[1]))
	if b, err := os.ReadFile(path); err != nil || string(b) != blanked {
		t.Errorf("%q, %v", b, err)
	}
	if now, err := os.Stat(path); err != nil || !os.SameFile(same, now) || now.Size() != int64(len(texts[0])) {
		t.Errorf("%v, %v", now, err)
	}
}

func TestSchedule(t *testing.T) {
	within := func(what string, d due, from, to time.Duration) {
		t.Helper()
		if at := d.at.Sub(noon); at < from*9/10 || at > to*11/10 {
			t.Errorf("%s: due after %v", what, at)
		}
	}
	g := &gate{dated: make(chan struct{}, 1), spec: spec.Gate{Refresh: spec.RefreshAuto, Names: []spec.Name{
		{Domain: "short.test"}, {Domain: "usual.test"}, {Domain: "long.test"}, {Domain: "failing.test"}, {Domain: "soft.test", Soft: true}}},
		pins: []spec.Pin{{Domain: "short.test", TTL: 1}, {Domain: "usual.test", TTL: 10 * time.Minute}, {Domain: "long.test", TTL: 24 * time.Hour},
			{Domain: "failing.test", TTL: time.Hour, Failed: "no answer"}},
		due: map[string]due{"gone.test": {at: noon}}}
	asked := map[string]resolution{"short.test": {}, "usual.test": {}, "long.test": {}, "failing.test": {}, "soft.test": {}, "gone.test": {}}
	g.schedule(asked, noon)
	within("floor", g.due["short.test"], minAge, minAge)
	within("TTL", g.due["usual.test"], 10*time.Minute, 10*time.Minute)
	within("ceiling", g.due["long.test"], maxAge, maxAge)
	within("soft", g.due["soft.test"], failureDelay, failureDelay)
	within("first failure", g.due["failing.test"], minAge, minAge)
	if _, there := g.due["gone.test"]; there || len(g.due) != 5 {
		t.Errorf("due: %v", g.due)
	}
	if next := g.nextRefresh(); next.After(noon.Add(minAge * 11 / 10)) {
		t.Errorf("next: %v", next)
	}
	for range 3 {
		g.schedule(map[string]resolution{"failing.test": {}}, noon)
	}
	within("fourth failure", g.due["failing.test"], 4*time.Minute, 4*time.Minute)
	for range 100 {
		g.schedule(map[string]resolution{"failing.test": {}}, noon)
	}
	within("failures", g.due["failing.test"], failureDelay, failureDelay)
	g.pins[3].Failed = ""
	g.schedule(map[string]resolution{"failing.test": {}}, noon)
	if d := g.due["failing.test"]; d.failures != 0 {
		t.Errorf("after a success: %+v", d)
	}
	g.spec.Refresh = spec.RefreshManual
	if next := g.nextRefresh(); !next.IsZero() {
		t.Errorf("on command only, and next is %v", next)
	}
}

// What a refresh prints and answers is bounded, and has a line for each kind of change.
// A name server that answers with other addresses each time, and connections to each of
// them, make what there is to compare long; the comparison does not grow faster.
func TestManyChanges(t *testing.T) {
	for _, n := range []int{1, 1000, 10000} {
		before, next := crowd(n)
		lines, more := changes(document, before, next)
		if want := n + 2*resolve.MaxRecords; len(lines) != min(want, changesShown) || len(lines)+more != want {
			t.Errorf("%d fading: %d lines and %d more, %d together", n, len(lines), more, want)
		}
		// What is looked up in is made once a pin, not once an address.
		if made := testing.AllocsPerRun(1, func() { changes(document, before, next) }); made > float64(1000+4*n) {
			t.Errorf("%d fading: %v allocations", n, made)
		}
	}
}

// crowd is a name whose answer has changed as a whole, with n addresses that faded and
// have left.
func crowd(n int) (before, next outcome) {
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{44, 12, byte(i >> 8), byte(i)}) }
	old, now := pinOf(noon, nil), pinOf(noon, nil)
	for i := range resolve.MaxRecords {
		old.Addrs = append(old.Addrs, at(i))
		now.Addrs = append(now.Addrs, at(resolve.MaxRecords+i))
		now.Fading = append(now.Fading, spec.Fading{Addr: at(i), Ports: now.Ports, Flows: 1})
	}
	for i := range n {
		old.Fading = append(old.Fading, spec.Fading{Addr: at(2*resolve.MaxRecords + i), Ports: old.Ports, Flows: 1})
	}
	return outcome{pins: []spec.Pin{old}}, outcome{pins: []spec.Pin{now}}
}

func BenchmarkChanges(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			before, next := crowd(n)
			for b.Loop() {
				changes(document, before, next)
			}
		})
	}
}

// What is in force before anything is looked up grants nothing that only one of both
// documents does, and all that both do.
func TestNarrowed(t *testing.T) {
	grant := func(domain string, private string, ports ...uint16) spec.Name {
		n := spec.Name{Domain: domain, Ports: ports, AnyPort: len(ports) == 0, Origin: "corral.yaml:7"}
		for _, p := range strings.Fields(private) {
			n.Private = append(n.Private, netip.MustParsePrefix(p))
		}
		return n
	}
	pins := []spec.Pin{pinOf(noon, nil, "44.10.0.10", "10.1.0.1"), {Domain: "b.test", Addrs: addrs("44.10.0.11"), Ports: []uint16{443}}}
	a, b := grant("a.test", "10.0.0.0/8", 443), grant("b.test", "", 443)
	for what, tt := range map[string]struct {
		was, doc []spec.Name
		never    string
		want     []spec.Name
		same     bool
	}{
		"the same":             {was: []spec.Name{a, b}, doc: []spec.Name{b, a}, want: []spec.Name{a, b}, same: true},
		"more names":           {was: []spec.Name{a}, doc: []spec.Name{a, b}, want: []spec.Name{a}, same: true},
		"another origin":       {was: []spec.Name{a}, doc: []spec.Name{{Domain: "a.test", Ports: a.Ports, Private: a.Private, Soft: true}}, want: []spec.Name{a}, same: true},
		"fewer names":          {was: []spec.Name{a, b}, doc: []spec.Name{b}, want: []spec.Name{b}},
		"none":                 {was: []spec.Name{a, b}, want: nil},
		"another":              {was: []spec.Name{a}, doc: []spec.Name{b}, want: nil},
		"more ports":           {was: []spec.Name{a}, doc: []spec.Name{grant("a.test", "10.0.0.0/8", 80, 443)}, want: []spec.Name{a}, same: true},
		"any port now":         {was: []spec.Name{a}, doc: []spec.Name{grant("a.test", "10.0.0.0/8")}, want: []spec.Name{a}, same: true},
		"fewer ports":          {was: []spec.Name{grant("a.test", "", 80, 443)}, doc: []spec.Name{grant("a.test", "", 443)}, want: []spec.Name{grant("a.test", "", 443)}},
		"other ports":          {was: []spec.Name{grant("a.test", "", 80)}, doc: []spec.Name{grant("a.test", "", 443)}, want: nil},
		"no longer any port":   {was: []spec.Name{grant("a.test", "")}, doc: []spec.Name{grant("a.test", "", 443, 22)}, want: []spec.Name{grant("a.test", "", 22, 443)}},
		"listed twice now":     {was: []spec.Name{grant("a.test", "", 80, 443)}, doc: []spec.Name{grant("a.test", "", 80), grant("a.test", "", 443)}, want: []spec.Name{grant("a.test", "", 80), grant("a.test", "", 443)}, same: true},
		"no private, in words": {was: []spec.Name{grant("a.test", "", 443)}, doc: []spec.Name{{Domain: "a.test", Ports: []uint16{443}, Private: []netip.Prefix{}}}, want: []spec.Name{grant("a.test", "", 443)}, same: true},
		"wider private":        {was: []spec.Name{a}, doc: []spec.Name{grant("a.test", "10.0.0.0/7", 443)}, want: []spec.Name{a}, same: true},
		"wider in two":         {was: []spec.Name{a}, doc: []spec.Name{grant("a.test", "10.1.0.0/16 10.0.0.0/8", 443)}, want: []spec.Name{a}, same: true},
		"narrower private":     {was: []spec.Name{a}, doc: []spec.Name{grant("a.test", "10.1.0.0/16 172.16.0.0/12", 443)}, want: []spec.Name{grant("a.test", "10.1.0.0/16", 443)}},
		"no private":           {was: []spec.Name{a}, doc: []spec.Name{grant("a.test", "", 443)}, want: []spec.Name{grant("a.test", "", 443)}},
		"private by port":      {was: []spec.Name{grant("a.test", "10.0.0.0/8", 80, 443)}, doc: []spec.Name{grant("a.test", "10.0.0.0/8", 80), grant("a.test", "", 443)}, want: []spec.Name{grant("a.test", "10.0.0.0/8", 80), grant("a.test", "", 443)}},
		"never, one of two":    {was: []spec.Name{a, b}, doc: []spec.Name{a, b}, never: "10.1.0.0/24", want: []spec.Name{a, b}},
		"never, all of a name": {was: []spec.Name{a, b}, doc: []spec.Name{a, b}, never: "44.10.0.11/32", want: []spec.Name{a}},
		"never, nobody's":      {was: []spec.Name{a, b}, doc: []spec.Name{a, b}, never: "192.168.0.0/16", want: []spec.Name{a, b}, same: true},
	} {
		was, doc := document, document
		was.Names, was.Policy, doc.Names, doc.Policy = tt.was, "old", tt.doc, "new"
		was.Never = []netip.Prefix{netip.MustParsePrefix("172.17.0.0/16")}
		never := 1
		if tt.never != "" {
			doc.Never = []netip.Prefix{netip.MustParsePrefix(tt.never)}
			never = 2
		}
		got, less := narrowed(was, doc, pins)
		if !reflect.DeepEqual(got.Names, tt.want) && len(got.Names)+len(tt.want) > 0 || less == tt.same || len(got.Never) != never || got.Policy != "part of new" {
			t.Errorf("%s: less %v, never %v, names %+v", what, less, got.Never, got.Names)
		}
		if len(was.Never) != 1 {
			t.Errorf("%s: what is in force was written into", what)
		}
	}
}

// What fades has an end, even if all of it is in use.
func TestCrop(t *testing.T) {
	same := func(a, b spec.Fading) bool { return a.Addr == b.Addr }
	at := func(i int) spec.Fading {
		return spec.Fading{Addr: netip.AddrFrom4([4]byte{44, 12, byte(i >> 8), byte(i)}), Since: noon.Add(time.Duration(i)), Flows: 1}
	}
	for _, over := range []int{-1, 0, 1, 64} {
		var fading []spec.Fading
		for i := range maxFadingInUse + over {
			fading = append(fading, at(i))
		}
		pins, crowded := crop([]spec.Pin{pinOf(noon, fading, "44.10.0.10"), pinOf(noon, nil, "44.10.0.11")})
		left := max(0, over)
		want := fmt.Sprintf("a.test (corral.yaml:7) had more than %d addresses before that are in use still: the %d longest gone leave", maxFadingInUse, over)
		if len(pins) != 2 || len(pins[0].Fading) != len(fading)-left || !slices.EqualFunc(pins[0].Fading, fading[left:], same) || len(pins[1].Fading) != 0 ||
			len(crowded) != min(1, left) || left > 0 && !strings.HasPrefix(crowded[0], want) {
			t.Errorf("%d over: %d kept, %q", over, len(pins[0].Fading), crowded)
		}
	}
}

func TestChanges(t *testing.T) {
	before := outcome{pins: []spec.Pin{pinOf(noon, []spec.Fading{{Addr: addr("44.10.0.13"), Ports: []uint16{443}}}, "44.10.0.10", "44.10.0.11"),
		{Domain: "gone.test", Addrs: addrs("44.10.0.20"), Ports: []uint16{443}}}}
	after := pinOf(noon, []spec.Fading{{Addr: addr("44.10.0.11")}}, "44.10.0.10", "44.10.0.12")
	after.Ports, after.Failed = []uint16{22}, "no answer"
	next := outcome{pins: []spec.Pin{after}, unpinned: []spec.Unpinned{{Domain: "soft.test", Reason: "no such name", Origin: "profile x"}}}
	lines, more := changes(spec.Gate{PinGrace: time.Hour}, before, next)
	got := strings.Join(lines, "\n")
	want := strings.Join([]string{
		"pinned a.test 44.10.0.12, ports 22, for 1m0s (corral.yaml:7)",
		"a.test no longer has 44.10.0.11, which stays pinned for 1h0m0s at least, and while it is in use (corral.yaml:7)",
		"removed a.test 44.10.0.13 (corral.yaml:7)",
		"warning: a.test (corral.yaml:7) keeps what it had: no answer",
		"a.test had ports 443, and has ports 22 (corral.yaml:7)",
		"removed gone.test and its 1 address",
		"warning: soft.test (profile x) stays closed: no such name",
	}, "\n")
	if got != want || more != 0 {
		t.Errorf("%d more, got:\n%s", more, got)
	}
	if same, more := changes(spec.Gate{}, before, before); len(same) != 0 || more != 0 {
		t.Errorf("nothing changed: %q and %d", same, more)
	}
	had, has := sets(before.pins), sets(next.pins)
	if got := gone(had, has); !slices.Equal(got, []string{"44.10.0.10:443", "44.10.0.11:443", "44.10.0.13:443", "44.10.0.20:443"}) {
		t.Errorf("gone: %q", got)
	}
	if got := netfilter.DiffSets(union(had, has), union(has, had)); len(got) != 0 {
		t.Errorf("union: %q", got)
	}
}
