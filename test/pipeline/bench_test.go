package pipeline

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/profile"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/spec"
)

// BenchmarkLarge takes a policy of 3,000 domains and 300 mounts from its file
// to the files that containers are made of, compared with what was accepted on
// the way: 300 ms is the most that a person should wait for it.
func BenchmarkLarge(b *testing.B) {
	root, err := filepath.EvalSymlinks(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	project := filepath.Join(root, "project")
	text := &strings.Builder{}
	text.WriteString("profile: shell\nname: large\nmounts:\n  ro:\n")
	for i := range 300 {
		dir := filepath.Join(root, fmt.Sprintf("mounts/%02d/%03d", i%20, i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		fmt.Fprintf(text, "    - %s\n", dir)
	}
	text.WriteString("egress:\n  allow:\n")
	for i := range 3000 {
		fmt.Fprintf(text, "    - {domain: host-%d.example.com, ports: [443, %d]}\n", i, 1000+i)
	}
	if err := os.MkdirAll(project, 0o755); err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(project, policy.FileName)
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		b.Fatal(err)
	}
	prof, err := profile.Load("shell")
	if err != nil {
		b.Fatal(err)
	}
	host := plan.Host{UID: 1000, GID: 1000, Homes: []string{"/home/dev"}, Resolvers: []netip.Addr{netip.MustParseAddr("10.0.0.53")},
		Probes: spec.DefaultProbes(), Subnet: plan.DefaultSubnet}
	for b.Loop() {
		p, err := policy.Load(file, policy.Env{Home: filepath.Join(root, "home"), UID: os.Getuid(), Profiles: profile.Names()})
		if err != nil {
			b.Fatal(err)
		}
		now := p.Effective(plan.Defaults(prof))
		before, err := policy.DecodeEffective(now.Encode())
		if err != nil {
			b.Fatal(err)
		}
		if d := policy.Diff(before, now); len(d) > 0 {
			b.Fatal(d)
		}
		planned, err := plan.Build(p, prof, host, plan.At(netip.MustParseAddr("172.30.0.2")), nil)
		if err != nil {
			b.Fatal(err)
		}
		tree, err := render.Render(planned)
		if err != nil {
			b.Fatal(err)
		}
		if len(tree) == 0 {
			b.Fatal("no files")
		}
	}
}
