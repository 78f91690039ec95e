package spec

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func aResearcher() Researcher {
	return Researcher{
		Version: Version, Listen: netip.MustParseAddrPort("0.0.0.0:8765"),
		Command:     []string{"hermes", "-z", BridgePrompt, "-t", "web", "--usage-file", BridgeUsage},
		Environment: map[string]string{"PATH": "/usr/bin:/bin"}, Home: map[string]string{"config.yaml": "{}"},
		Directory: "/tmp/calls", Scratch: []string{"/dev/shm"},
		Search: "http://search:8080", Fetch: "http://fetch:8766",
		Slots: 1, Queue: 4, Limit: 600_000, Beat: 10_000,
	}
}

func TestResearcherRoundTrip(t *testing.T) {
	bare := aResearcher()
	bare.Environment, bare.Home, bare.Scratch, bare.Slots, bare.Queue, bare.Limit, bare.Beat = nil, nil, nil, 0, 0, 0, 0
	most := aResearcher()
	most.Slots, most.Queue, most.Limit, most.Beat = bridgeSlots, bridgeQueue, bridgeLimit, bridgeBeat
	none := aResearcher()
	none.Queue = -1 // nobody waits
	for _, b := range []Researcher{aResearcher(), bare, most, none} {
		got, err := ParseResearcher(bytes.NewReader(Encode(b)))
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(b, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
			t.Error(diff)
		}
	}
}

func TestResearcherRefusals(t *testing.T) {
	for name, change := range map[string]func(*Researcher){
		"version":             func(b *Researcher) { b.Version = 2 },
		"no address":          func(b *Researcher) { b.Listen = netip.AddrPort{} },
		"IPv6":                func(b *Researcher) { b.Listen = netip.MustParseAddrPort("[::]:8765") },
		"no command":          func(b *Researcher) { b.Command = nil },
		"empty command":       func(b *Researcher) { b.Command = []string{"", BridgePrompt} },
		"no prompt":           func(b *Researcher) { b.Command = []string{"hermes"} },
		"two prompts":         func(b *Researcher) { b.Command = []string{"hermes", BridgePrompt, BridgePrompt} },
		"prompt in a word":    func(b *Researcher) { b.Command = []string{"sh", "-c", "echo " + BridgePrompt} },
		"odd variable":        func(b *Researcher) { b.Environment = map[string]string{"A=B": ""} },
		"variable of ours":    func(b *Researcher) { b.Environment = map[string]string{"HERMES_HOME": "/"} },
		"zero byte":           func(b *Researcher) { b.Environment = map[string]string{"A": "\x00"} },
		"file outside home":   func(b *Researcher) { b.Home = map[string]string{"../x": ""} },
		"file below home":     func(b *Researcher) { b.Home = map[string]string{"a/b": ""} },
		"no file":             func(b *Researcher) { b.Home = map[string]string{"": ""} },
		"relative directory":  func(b *Researcher) { b.Directory = "tmp" },
		"directory with dots": func(b *Researcher) { b.Directory = "/tmp/../etc" },
		"root":                func(b *Researcher) { b.Directory = "/" },
		"scratch is root":     func(b *Researcher) { b.Scratch = []string{"/"} },
		"https":               func(b *Researcher) { b.Search = "https://search" },
		"path":                func(b *Researcher) { b.Fetch = "http://fetch:8766/v1" },
		"no sidecar":          func(b *Researcher) { b.Search = "" },
		"user":                func(b *Researcher) { b.Search = "http://a@search" },
		"slots":               func(b *Researcher) { b.Slots = bridgeSlots + 1 },
		"negative slots":      func(b *Researcher) { b.Slots = -1 },
		"queue":               func(b *Researcher) { b.Queue = -2 },
		"limit":               func(b *Researcher) { b.Limit = bridgeLimit + 1 },
		"silence":             func(b *Researcher) { b.Beat = bridgeBeat + 1 },
	} {
		b := aResearcher()
		change(&b)
		if _, err := ParseResearcher(bytes.NewReader(Encode(b))); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for name, in := range map[string]string{
		"empty": ``, "null": `null`, "unknown field": `{"version":1,"port":1}`, "two": string(Encode(aResearcher())) + "{}",
	} {
		if _, err := ParseResearcher(strings.NewReader(in)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzParseResearcher(f *testing.F) {
	f.Add(Encode(aResearcher()))
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		b, err := ParseResearcher(bytes.NewReader(in))
		if err != nil {
			return
		}
		if again, err := ParseResearcher(bytes.NewReader(Encode(b))); err != nil {
			t.Errorf("%s: %v, %+v", in, err, again)
		}
		if !json.Valid(Encode(b)) {
			t.Error("no JSON")
		}
	})
}
