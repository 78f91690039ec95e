package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/test/lab"
)

// together brings up n always-on sandboxes at once, all with one port of this machine
// that they share and another each, and says how long each took.
func together(t testing.TB, n int, shared uint16, own func(i int) uint16) (all []*sandbox, took []time.Duration) {
	t.Helper()
	first := cloned(t, 0, always("many", forever))
	first.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	for i := range n {
		s := first.another(filepath.Join(filepath.Dir(first.dir), fmt.Sprint("many", i)), always("many", forever)+
			fmt.Sprintf("host_services: [{name: shared, port: %d}, {name: own, port: %d}]\n", shared, own(i)))
		t.Cleanup(func() {
			if r := s.corral("down"); r.code != 0 {
				t.Errorf("corral down: %v", r)
			}
			if left := s.containers(); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
		if r := s.corral("build", "--accept"); r.code != 0 {
			t.Fatal(r)
		}
		all = append(all, s)
	}
	took = make([]time.Duration, n)
	results := each(all, func(i int, s *sandbox) result {
		began := time.Now()
		r := s.corral("up")
		took[i] = time.Since(began)
		return r
	})
	for i, r := range results {
		if r.code != 0 {
			t.Fatalf("number %d: %v", i, r)
		}
	}
	return all, took
}

// each does something with every sandbox at once.
func each[T any](all []*sandbox, do func(i int, s *sandbox) T) []T {
	out := make([]T, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() { out[i] = do(i, s) })
	}
	wg.Wait()
	return out
}

// Always-on sandboxes that come up at once have nothing of each other's: names,
// addresses, network namespaces, ports. Each is proven, and they go at once, too.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	n := 4
	if _, whole := draw(t); whole {
		n = 10
	}
	shared := greet(t, "127.0.0.1:0")
	var own []*greeter
	for range n {
		own = append(own, greet(t, "127.0.0.1:0"))
	}
	all, took := together(t, n, shared.port, func(i int) uint16 { return own[i].port })
	t.Logf("up after %v", took)
	distinct := map[string]int{}
	for i, s := range all {
		for _, what := range []string{
			s.id,
			docker(t, "inspect", "--format", "{{.NetworkSettings.Networks.corral.IPAddress}}", s.gate()),
			docker(t, "inspect", "--format", "{{.NetworkSettings.Networks.corral.MacAddress}}", s.gate()),
			inNamespace(t, s.gate(), "readlink", "/proc/self/ns/net"),
		} {
			if other, taken := distinct[what]; taken || what == "" {
				t.Errorf("number %d has %q of number %d", i, what, other)
			}
			distinct[what] = i
		}
		if !s.hears(t, shared.port) || !s.hears(t, own[i].port) {
			t.Errorf("number %d does not hear what it declared", i)
		}
		if s.hears(t, own[(i+1)%n].port) {
			t.Errorf("number %d hears what another one declared", i)
		}
	}
	if got := relays(t, shared.port); len(got) != 1 {
		t.Errorf("%v carry one port", got)
	}
	for i, r := range each(all, func(_ int, s *sandbox) result { return s.corral("verify") }) {
		if r.code != 0 {
			t.Errorf("number %d: %v", i, r)
		}
	}
	ps := all[0].corral("ps")
	for i, s := range all {
		if row := rowOf(ps.out, s.id); !strings.Contains(row, " well ") {
			t.Errorf("number %d: ps: %s", i, row)
		}
	}
	for i, r := range each(all, func(_ int, s *sandbox) result { return s.corral("down") }) {
		if r.code != 0 {
			t.Errorf("number %d: %v", i, r)
		}
	}
	for _, port := range []uint16{shared.port, own[0].port} {
		if left := relays(t, port); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}

// What ten always-on sandboxes that come up at once cost: seconds until each is up, and
// memory.
func BenchmarkTen(b *testing.B) {
	const n = 10
	shared := greet(b, "127.0.0.1:0")
	var own []*greeter
	for range n {
		own = append(own, greet(b, "127.0.0.1:0"))
	}
	for b.Loop() {
		before := available(b)
		all, took := together(b, n, shared.port, func(i int) uint16 { return own[i].port })
		cost := before - available(b)
		var gates, services []float64
		for i, s := range all {
			gate, service := resident(b, s.gate()), resident(b, s.agent())
			gates, services = append(gates, gate), append(services, service)
			b.Logf("| %d | %.1f s | %.1f MB | %.1f MB |", i+1, took[i].Seconds(), gate, service)
		}
		relay := resident(b, relays(b, shared.port)[0])
		var seconds []float64
		for _, d := range took {
			seconds = append(seconds, d.Seconds())
		}
		b.ReportMetric(slices.Max(seconds), "s-to-the-last")
		b.ReportMetric(median(seconds), "s-median")
		b.ReportMetric(median(gates), "MB-gate")
		b.ReportMetric(median(services), "MB-service")
		b.ReportMetric(relay, "MB-relay")
		b.ReportMetric(cost, "MB-whole-machine")
		b.ReportMetric(0, "ns/op")
		for i, r := range each(all, func(_ int, s *sandbox) result { return s.corral("verify") }) {
			if r.code != 0 {
				b.Errorf("number %d: %v", i, r)
			}
		}
		for _, s := range all {
			s.must("down")
		}
	}
}

// resident is the memory that the processes of a container hold, in megabytes, with
// what they share counted once for each.
func resident(t testing.TB, container string) (mb float64) {
	t.Helper()
	for line := range strings.Lines(docker(t, "top", container, "-eo", "pid,rss")) {
		f := strings.Fields(line)
		if kb, err := strconv.ParseFloat(f[len(f)-1], 64); err == nil { // not the names of the columns
			mb += kb * 1024 / 1e6
		}
	}
	return mb
}

// available is the memory that this machine has left, in megabytes.
func available(t testing.TB) float64 {
	t.Helper()
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); f[0] == "MemAvailable:" {
			kb, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb * 1024 / 1e6
		}
	}
	t.Fatal("MemAvailable is not there")
	return 0
}
