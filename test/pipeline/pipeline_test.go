// Package pipeline tests the pure half of corral as one: a policy goes in; the
// plan's files, or the mistakes, come out. One txtar file a scenario; run with
// -update to accept what changed, and read the diff.
package pipeline

import (
	"bytes"
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/profile"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/spec"
)

var update = flag.Bool("update", false, "accept what comes out")

func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			in := txtar.Parse(want)
			if len(in.Files) == 0 || in.Files[0].Name != "corral.yaml" {
				t.Fatal("a scenario starts with its corral.yaml")
			}
			given := 1
			facts := map[string][]string{}
			for _, f := range in.Files[1:] {
				if f.Name != "shields" && f.Name != "secrets" {
					break
				}
				facts[f.Name] = strings.Split(strings.TrimSpace(string(f.Data)), "\n")
				given++
			}
			out := &txtar.Archive{Comment: in.Comment, Files: slices.Clone(in.Files[:given])}
			for name, b := range through(t, in.Files[0].Data, facts) {
				out.Files = append(out.Files, txtar.File{Name: name, Data: b})
			}
			slices.SortFunc(out.Files[given:], func(a, b txtar.File) int { return strings.Compare(a.Name, b.Name) })
			got := txtar.Format(out)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if !bytes.Equal(got, want) {
				t.Errorf("the output changed (run with -update to accept):\n%s", got)
			}
		})
	}
}

// through takes a policy through the pipeline and returns what is worth a look.
// The facts are what the host side found out beside: the names in the secrets'
// file, and shields, each with ro or rw before its path.
func through(t *testing.T, src []byte, facts map[string][]string) map[string][]byte {
	t.Helper()
	p, err := policy.Parse("corral.yaml", src)
	if err != nil {
		var mistakes diag.List
		if !errors.As(err, &mistakes) {
			t.Fatalf("not a list of mistakes: %v", err)
		}
		return map[string][]byte{"errors": []byte(mistakes.Error() + "\n")}
	}
	p.File, p.Dir = "/home/dev/project/corral.yaml", "/home/dev/project"
	p.Project = policy.Mount{Path: p.Dir, Dev: 1, Ino: 2}
	p.Self = policy.Mount{Path: p.File, ReadOnly: true, Dev: 1, Ino: 3}
	if p.Name == "" {
		p.Name = "project"
	}
	prof, err := profile.Load(p.Profile)
	if err != nil {
		t.Fatal(err)
	}
	h := plan.Host{
		UID: 1000, GID: 1000, Homes: []string{"/home/dev"}, CPUs: 2,
		Resolvers:   []netip.Addr{netip.MustParseAddr("10.0.0.53")},
		Probes:      spec.DefaultProbes(),
		Subnet:      plan.DefaultSubnet,
		Never:       []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16")},
		Environment: map[string]string{"TERM": "xterm"},
		Secrets:     facts["secrets"],
	}
	for i, line := range facts["shields"] {
		how, path, _ := strings.Cut(line, " ")
		h.Shields = append(h.Shields, plan.Mount{Path: path, ReadOnly: how == "ro", Dev: 1, Ino: uint64(100 + i)})
	}
	planned, err := plan.Build(p, prof, h, plan.At(netip.MustParseAddr("172.30.0.2")), nil)
	if err != nil {
		return map[string][]byte{"errors": []byte(err.Error() + "\n")}
	}
	one, err := render.Render(planned)
	if err != nil {
		t.Fatal(err)
	}
	two, err := render.Render(planned)
	if err != nil {
		t.Fatal(err)
	}
	if one.Digest() != two.Digest() {
		t.Error("the same plan gave two trees")
	}
	delete(one, "seccomp.json") // generated; its own test knows what it may hold
	one["command"] = []byte(strings.Join(planned.Services[0].Command, "\n") + "\n")
	return one
}
