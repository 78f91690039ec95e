package netfilter

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// entryOf is one entry of a listing as a kernel gives it: a connection in state 3 from
// 192.0.2.1:40000 to 192.0.2.77:443, which nat sends to 192.0.2.9:443.
const entryOf = "02000000" +
	"34000180" + "14000180" + "08000100c0000201" + "08000200c000024d" + "1c000280" + "0500010006000000" + "060002009c400000" + "0600030001bb0000" +
	"34000280" + "14000180" + "08000100c0000209" + "08000200c0000201" + "1c000280" + "0500010006000000" + "0600020001bb0000" + "060003009c400000" +
	"10000480" + "0c000180" + "0500010003000000"

func entryBytes(t testing.TB, changes ...string) []byte {
	b, err := hex.DecodeString(strings.NewReplacer(changes...).Replace(entryOf))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParseFlow(t *testing.T) {
	want := Flow{Source: netip.MustParseAddrPort("192.0.2.1:40000"), Destination: netip.MustParseAddrPort("192.0.2.9:443"), Proto: "tcp", State: "ESTABLISHED",
		dialled: netip.MustParseAddrPort("192.0.2.77:443")}
	got, ok, err := parseFlow(entryBytes(t))
	if err != nil || !ok || got != want || got.String() != "tcp 192.0.2.1:40000 → 192.0.2.9:443" || !got.Live() {
		t.Errorf("%+v, %v, %v", got, ok, err)
	}
	for what, change := range map[string][]string{
		"UDP":             {"0500010006", "0500010011"},
		"IPv6":            {"02000000340001", "0a000000340001"},
		"inside":          {"08000100c0000209", "080001007f000001"},
		"from itself":     {"08000100c0000209", "08000100c0000201"},
		"no reply":        {"34000280", "34000580"},
		"an address of 3": {"08000100c0000201", "07000100c0000201"},
	} {
		if got, ok, err := parseFlow(entryBytes(t, change...)); ok || err != nil {
			t.Errorf("%s: %+v, %v, %v", what, got, ok, err)
		}
	}
	for state, live := range map[string]bool{"07": false, "08": false, "01": true, "06": true, "ff": true} {
		if got, ok, err := parseFlow(entryBytes(t, "0500010003", "05000100"+state)); !ok || err != nil || got.Live() != live {
			t.Errorf("state %s: %+v, %v", state, got, err)
		}
	}
	for n := range 4 {
		if _, _, err := parseFlow(entryBytes(t)[:n]); err == nil {
			t.Errorf("%d bytes are enough", n)
		}
	}
	if _, _, err := parseFlow(entryBytes(t, "34000180", "ff000180")); err == nil {
		t.Error("an attribute beyond the end is none")
	}
}

// Both ends have agreed to a connection in some states only.
func TestEstablished(t *testing.T) {
	want := map[string]bool{"ESTABLISHED": true, "FIN_WAIT": true, "CLOSE_WAIT": true, "LAST_ACK": true}
	for _, state := range append(tcpStates[:], "") {
		if got := (Flow{State: state}).Established(); got != want[state] {
			t.Errorf("%q: %v", state, got)
		}
	}
}

// A listing that is begun anew is looked at anew: nothing is counted twice.
func TestFlowsAreSeenOnce(t *testing.T) {
	for _, failures := range []int{0, flowTries - 1, flowTries} {
		lists, seen := 0, 0
		flows, err := flowsOf(t.Context(), func() func(Flow) bool {
			seen = 0
			return func(Flow) bool { seen++; return true }
		}, func(which func(Flow) bool) ([]Flow, error) {
			lists++
			which(Flow{})
			if lists <= failures {
				return nil, netlink.ErrDumpInterrupted
			}
			which(Flow{})
			return make([]Flow, seen), nil
		})
		if failures == flowTries {
			if err == nil || lists != flowTries {
				t.Errorf("%d listings, %v", lists, err)
			}
			continue
		}
		if err != nil || seen != 2 || len(flows) != 2 || lists != failures+1 {
			t.Errorf("%d failures: %d seen, %v, %v", failures, seen, flows, err)
		}
	}
}

// Whatever a kernel may say, nothing panics and nothing is made up.
func FuzzParseFlow(f *testing.F) {
	f.Add(entryBytes(f))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok, err := parseFlow(b)
		if ok && (err != nil || !got.Source.IsValid() || !got.Destination.IsValid() || !got.dialled.IsValid() || !got.Destination.Addr().Is4() || got.Proto != "tcp") {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestEncodeChains(t *testing.T) {
	rule := Rule{ID: "id", Match: "-o lo", Target: "ACCEPT", Reason: "reason"}
	got := encodeChains(IPv4, []Chain{{Name: "corral-b", Rules: []Rule{rule}}, {Name: "corral-a"}})
	want := "*filter\n:corral-a - [0:0]\n:corral-b - [0:0]\n-A corral-b -o lo -m comment --comment \"id: reason\" -j ACCEPT\nCOMMIT\n"
	if got != want {
		t.Errorf("got:\n%s", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("a built-in chain can be replaced alone")
		}
	}()
	encodeChains(IPv4, []Chain{{Name: "OUTPUT"}})
}

func TestChanged(t *testing.T) {
	rule := Rule{ID: "id", Target: "ACCEPT", Reason: "reason"}
	have := Ruleset{Family: IPv4, Chains: []Chain{{Name: "a", Rules: []Rule{rule}}, {Name: "b"}}}
	want := Ruleset{Family: IPv4, Chains: []Chain{{Name: "b", Rules: []Rule{rule}}, {Name: "a", Rules: []Rule{rule}}, {Name: "c"}}}
	got := Changed(have, want)
	if len(got) != 2 || got[0].Name != "b" || got[1].Name != "c" {
		t.Errorf("%+v", got)
	}
	want.Chains = append(want.Chains, Chain{Name: "OUTPUT", Rules: []Rule{rule}})
	if got := Changed(have, want); len(got) != 3 || got[0].Name != "OUTPUT" {
		t.Errorf("%+v", got)
	}
}
