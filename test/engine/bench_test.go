package engine

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/testenv"
	"github.com/corral-sandbox/corral/test/lab"
)

// How long OpenCode takes from its start to its first question to the model:
// fenced, and the same binary without a fence and with its own settings, whose
// lookups are refused at once. One round is one of each; the figures are
// medians, in seconds.
func BenchmarkFirstModelRequest(b *testing.B) {
	testenv.Require(b, "harness")
	model, err := lab.StartModel("127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { model.Close() })
	s := cloned(b, 0, fmt.Sprintf("profile: opencode\nname: oc\nhost_services:\n  - {name: model, port: %d}\n", model.Port()))
	s.env = append(s.env, "CORRAL_CA_BUNDLE="+machineRoots)
	config := func(host string) string {
		return fmt.Sprintf(`{"model":"local/scripted","provider":{"local":{"npm":"@ai-sdk/openai-compatible","name":"Local model",
			"options":{"baseURL":"http://%s:%d/v1"},"models":{"scripted":{"name":"scripted","limit":{"context":131072,"output":8192}}}}}}`, host, model.Port())
	}
	s.inHome(".config/opencode/opencode.json", config("corral-host"), 0o644)
	if r := s.build(); r.code != 0 {
		b.Fatal(r)
	}

	// The same binary in a container like the fence's, on the host's network, where
	// nothing answers lookups.
	image := strings.Fields(docker(b, "images", "--format", "{{.Repository}}:{{.Tag}}", "corral-"+s.id+"-main"))[0]
	binary := filepath.Join(filepath.Dir(s.dir), "opencode")
	from := docker(b, "create", image)
	docker(b, "cp", from+":/usr/local/bin/opencode", binary)
	docker(b, "rm", from)
	free := filepath.Join(filepath.Dir(s.dir), "free")
	s.own(free, filepath.Join(free, "project"), filepath.Join(free, ".config"), filepath.Join(free, ".config/opencode"))
	if err := os.WriteFile(filepath.Join(free, ".config/opencode/opencode.json"), []byte(config("127.0.0.1")), 0o644); err != nil {
		b.Fatal(err)
	}

	const script = `date +%s%N > started; exec opencode run hello`
	started := func(dir string) time.Time {
		text, err := os.ReadFile(filepath.Join(dir, "started"))
		if err != nil {
			b.Fatal(err)
		}
		ns, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		return time.Unix(0, ns)
	}
	first := func(run func()) time.Time {
		n := len(model.Requests())
		run()
		requests := model.Requests()[n:]
		if len(requests) == 0 {
			b.Fatal("the model was not asked")
		}
		return requests[0].At
	}
	var fenced, typed, unfenced []float64
	for b.Loop() {
		began := time.Now()
		at := first(func() {
			if r := s.corral("shell", "--", "sh", "-c", script); r.code != 0 {
				b.Fatal(r)
			}
		})
		fenced = append(fenced, at.Sub(started(s.dir)).Seconds())
		typed = append(typed, at.Sub(began).Seconds())

		at = first(func() {
			out, err := exec.Command("docker", "run", "--rm", "--network", "host", "--dns", "127.0.0.1", "--user", fmt.Sprintf("%d:%d", s.uid, s.gid),
				"--volume", binary+":/usr/local/bin/opencode:ro", "--volume", free+":"+free, "--env", "HOME="+free, "--workdir", filepath.Join(free, "project"),
				testenv.BaseImage, "sh", "-c", script).CombinedOutput()
			if err != nil {
				b.Fatalf("%v: %s", err, out)
			}
		})
		unfenced = append(unfenced, at.Sub(started(filepath.Join(free, "project"))).Seconds())
	}
	b.ReportMetric(median(fenced), "fenced-s")
	b.ReportMetric(median(typed), "typed-s")
	b.ReportMetric(median(unfenced), "unfenced-s")
	b.ReportMetric(median(fenced)/median(unfenced), "ratio")
	b.ReportMetric(median(typed)/median(unfenced), "typed-ratio")
	b.Logf("fenced %.2f, from corral on %.2f, unfenced %.2f", fenced, typed, unfenced)
}

// How long corral verify takes for OpenCode under a policy of ten lines: of a
// sandbox that is up, and with one that is brought up for it and taken down.
func BenchmarkVerify(b *testing.B) {
	testenv.Require(b, "harness")
	model, err := lab.StartModel("127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { model.Close() })
	s := cloned(b, 0, fmt.Sprintf(`profile: opencode
name: proven
egress:
  defaults: false
  allow:
    - one.proven.test
    - {domain: two.proven.test, ports: [443]}
host_services:
  - {name: model, port: %d}
resources: {memory: 2g}
`, model.Port()))
	s.env = append(s.env, "CORRAL_CA_BUNDLE="+machineRoots)
	for _, name := range []string{"one.proven.test", "two.proven.test"} {
		s.lab.DNS.Set(name, lab.A("44.10.0.10"))
	}
	if r := s.build(); r.code != 0 {
		b.Fatal(r)
	}
	verify := func(b *testing.B) {
		var took []float64
		for b.Loop() {
			began := time.Now()
			r := s.corral("verify")
			took = append(took, time.Since(began).Seconds())
			if r.code != 0 {
				b.Fatal(r)
			}
		}
		b.ReportMetric(median(took), "s/op")
		b.ReportMetric(0, "ns/op")
		b.Logf("%.2f", took)
	}
	b.Run("throw-away", verify)
	_, out := s.begin(os.Stderr, "shell", "--", "sh", "-c", "echo up; exec sleep infinity")
	if line, err := bufio.NewReader(out.f).ReadString('\n'); err != nil || line != "up\n" {
		b.Fatalf("%q, %v", line, err)
	}
	b.Run("up", verify) // corral down ends it
}

func median(s []float64) float64 {
	slices.Sort(s)
	return s[len(s)/2]
}
