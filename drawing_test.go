package corral_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/profile"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Where the picture of a Hermes sandbox has its boxes, by their middle.
var drawn = map[string][2]int{
	plan.Main: {120, 90}, plan.Researcher: {360, 90}, plan.Search: {600, 40}, plan.Fetch: {600, 140},
	"this machine": {240, 210}, "the web": {780, 90},
}

const (
	boxWidth  = 164
	boxHeight = 44
)

// The picture of the parts of a Hermes sandbox is drawn from the plan: an arrow is a
// connection that a gate lets through, and there is no other.
func TestHermesDrawing(t *testing.T) {
	p := &policy.Policy{Name: "hermes", Dir: "/p", File: "/p/corral.yaml", HostServices: []policy.HostService{{Name: "llama", Port: 8081}}, Hermes: &policy.Hermes{
		Model:      policy.Model{BaseURL: "http://corral-host:8081/v1", Host: spec.HostName, Port: 8081, Name: "qwen", Context: 65536},
		Approvals:  policy.ApprovalsManual,
		Researcher: true, Fetch: true,
	}}
	p.Image.Base = policy.DefaultBase
	prof, err := profile.Load("hermes")
	if err != nil {
		t.Fatal(err)
	}
	planned, err := plan.Build(p, prof, plan.Host{UID: 1000, GID: 1000, Subnet: plan.DefaultSubnet, Resolvers: []netip.Addr{netip.MustParseAddr("10.0.0.53")}}, plan.Addresses{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const file = "docs/hermes.svg"
	got := drawing(t, planned)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := read(t, file); want != string(got) {
		t.Errorf("%s is not what is planned (go test . -run TestHermesDrawing -update accepts it)", file)
	}
}

// drawing is a plan's gates as boxes, with an arrow for each right.
func drawing(t *testing.T, p *plan.Plan) []byte {
	t.Helper()
	var arrows, boxes bytes.Buffer
	arrow := func(from, to, words string) {
		x1, y1, x2, y2 := ends(t, from, to)
		fmt.Fprintf(&arrows, "  <line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" marker-end=\"url(#tip)\"/>\n", x1, y1, x2, y2)
		fmt.Fprintf(&arrows, "  <text class=\"small\" x=\"%d\" y=\"%d\">%s</text>\n", (x1+x2)/2, (y1+y2)/2-5, words)
	}
	box := func(name, class, below string) {
		at := drawn[name]
		fmt.Fprintf(&boxes, "  <rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", class, at[0]-boxWidth/2, at[1]-boxHeight/2, boxWidth, boxHeight)
		fmt.Fprintf(&boxes, "  <text class=\"name\" x=\"%d\" y=\"%d\">%s</text>\n", at[0], at[1]-2, name)
		fmt.Fprintf(&boxes, "  <text class=\"small\" x=\"%d\" y=\"%d\">%s</text>\n", at[0], at[1]+14, below)
	}
	for _, g := range p.Gates {
		for _, l := range g.Spec.Links {
			arrow(g.Name, l.Name, fmt.Sprint(l.Port))
		}
		for _, port := range g.Spec.HostPorts {
			arrow(g.Name, "this machine", fmt.Sprint(port))
		}
		if g.Spec.Class == spec.ClassPublic {
			arrow(g.Name, "the web", "")
		}
		i := slices.IndexFunc(p.Services, func(s plan.Service) bool { return s.Gate == g.Name })
		box(g.Name, "part", rights(g, p.Services[i]))
	}
	box("this machine", "other", "the model")
	box("the web", "other", "public addresses")
	var b bytes.Buffer
	b.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 870 240" width="870" height="240" role="img">
  <title>The parts of a Hermes sandbox, each behind a gate of its own, and who may call whom</title>
  <style>
    text { font: 14px system-ui, sans-serif; fill: #1f2328; text-anchor: middle } .name { font-weight: 600 } .small { font-size: 11px }
    line { stroke: #656d76; stroke-width: 1.5 } #tip path { fill: #656d76 }
    .part { fill: #ddf4ff; stroke: #0969da } .other { fill: #f6f8fa; stroke: #8c959f; stroke-dasharray: 4 3 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .part { fill: #0c2d6b; stroke: #58a6ff } .other { fill: #161b22; stroke: #6e7681 }
    }
  </style>
  <defs><marker id="tip" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto"><path d="M0 0 L9 4 L0 8 z"/></marker></defs>
`)
	b.Write(arrows.Bytes())
	b.Write(boxes.Bytes())
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// rights is what a part has beside what its arrows say.
func rights(g plan.Gate, s plan.Service) string {
	var words []string
	if g.Spec.Class == spec.ClassPinned {
		words = append(words, "the policy's names")
	}
	if s.ReadOnly {
		words = append(words, "nothing of yours")
	} else {
		words = append(words, "mounts")
	}
	return strings.Join(words, ", ")
}

// ends are where an arrow from one box to another leaves and arrives.
func ends(t *testing.T, from, to string) (x1, y1, x2, y2 int) {
	t.Helper()
	a, known := drawn[from]
	b, also := drawn[to]
	if !known || !also {
		t.Fatalf("%s and %s: nobody said where they are drawn", from, to)
	}
	if b[1]-a[1] > boxHeight*2 { // below
		return a[0], a[1] + boxHeight/2, b[0] + (a[0]-b[0])/3, b[1] - boxHeight/2
	}
	return a[0] + boxWidth/2, a[1], b[0] - boxWidth/2, b[1] + (a[1]-b[1])/4
}
