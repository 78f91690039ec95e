package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/test/lab"
)

// R051: the agent needs a name that the policy does not list. What it meets is
// named, with the line that would allow it; that very line, put into the policy,
// makes it work.
func TestDenialNamesItsLine(t *testing.T) {
	t.Parallel()
	s := project(t, allowed)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.lab.DNS.Set("files.allowed.test", lab.A("44.10.0.11"))
	const needs = connect + "t files.allowed.test 443; t files.allowed.test 443"
	r := s.sh(needs)
	line := regexp.MustCompile(`(?m)^corral: files\.allowed\.test would be allowed by this line of the policy, under egress\.allow: (- .*)$`).FindStringSubmatch(r.err)
	if line == nil || strings.Contains(r.out, "files.allowed.test 0 ") {
		t.Fatal(r)
	}
	s.write("corral.yaml", allowed+"    "+line[1]+"\n")
	s.accept()
	if r := s.sh(needs); r.code != 0 || strings.Count(r.out, "files.allowed.test 0 ") != 2 || strings.Contains(r.err, "denied") {
		t.Error(r)
	}
}

// R051: corral traffic tells all of it while the sandbox is up, follows it, and
// leaves out what corral itself tries.
func TestTraffic(t *testing.T) {
	t.Parallel()
	s := project(t, allowed)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	if r := s.corral("traffic"); r.code != 1 || !strings.Contains(r.err, "is up") {
		t.Errorf("without a sandbox: %v", r)
	}
	end := s.up(connect+fmt.Sprintf(`t api.allowed.test 443; t api.allowed.test 22; t %v 443; t 172.30.0.1 8081; getent hosts files.allowed.test; echo up; read -r _`, lab.Canary), "up")
	defer end()

	r := s.corral("traffic")
	for _, want := range []string{
		`denied +files\.allowed\.test +lookup +\d+ .* name not listed`, `denied +api\.allowed\.test \(44\.10\.0\.10\) +tcp 22 +1 .* not listed`,
		`denied +` + regexp.QuoteMeta(lab.Canary.String()) + ` +tcp 443 +1 .* not listed`, `denied +172\.30\.0\.1 +tcp 8081 +1 .* not listed`,
		`allowed +api\.allowed\.test \(44\.10\.0\.10\) +tcp 443 +1 .*`,
		`    - files\.allowed\.test`, `    - \{domain: api\.allowed\.test, ports: \[22, 80, 443\]\}  # in place of the entry of corral\.yaml:5`,
		`  - \{name: port-8081, port: 8081\}  # .*`, `  tcp 443 ` + regexp.QuoteMeta(lab.Canary.String()) + `: no listed name has this address.*`,
	} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(r.out) {
			t.Errorf("no line %s in %v", want, r)
		}
	}
	if st := s.corral("status"); !strings.Contains(st.out, "corral traffic") || strings.Count(st.out, "denied") != 4 {
		t.Error(st)
	}

	before := s.denials(t)
	if r := s.corral("verify"); r.code != 0 {
		t.Fatal(r)
	}
	if after := s.denials(t); !slices.Equal(before, after) || len(after) != 4 {
		t.Errorf("verify's probes are traffic: %v became %v", before, after)
	}
	if r := s.corral("traffic"); strings.Count(r.out, "\nallowed ") != 1 || !regexp.MustCompile(`(?m)^allowed +api\.allowed\.test \(44\.10\.0\.10\) +tcp 443 +1 `).MatchString(r.out) {
		t.Errorf("what corral connects to is traffic: %v", r)
	}

	// Somebody who looks, and goes.
	var errs bytes.Buffer
	c, screen := s.begin(&errs, "traffic", "-f", "--denied")
	screen.await(t, "egress.allow: - files.allowed.test")
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil || strings.Contains(screen.seen.String(), "allowed  ") {
		t.Errorf("%v, %s, %s", err, screen.seen.String(), errs.String())
	}
	// R013: after a refresh, what was refused before is told by what is in force.
	s.lab.DNS.Set("files.allowed.test", lab.A("44.10.0.11"))
	s.write("corral.yaml", allowed+"    - files.allowed.test\n")
	if r := s.corral("refresh", "--accept"); r.code != 0 {
		t.Fatal(r)
	}
	if r := s.corral("traffic"); !strings.Contains(r.out, "  lookup files.allowed.test: allowed now, since a refresh\n") || strings.Contains(r.out, "- files.allowed.test") || strings.Count(r.out, "\nallowed ") != 1 {
		t.Errorf("after a refresh: %v", r)
	}
	// Somebody who stays, as long as there is something to see.
	errs.Reset()
	c, screen = s.begin(&errs, "traffic", "-f", "--json")
	screen.await(t, `"name":"files.allowed.test"`)
	end()
	if err := c.Wait(); err != nil || !strings.Contains(errs.String(), "ended") {
		t.Errorf("%v, %s", err, errs.String())
	}
	seen := screen.seen.String()
	for l := range strings.Lines(seen[:strings.LastIndexByte(seen, '\n')+1]) { // what was read of it ends anywhere
		var ev struct {
			Version int    `json:"version"`
			Verdict string `json:"verdict"`
		}
		if err := json.Unmarshal([]byte(l), &ev); err != nil || ev.Version != 1 || ev.Verdict == "" {
			t.Errorf("%v: %s", err, l)
		}
	}
}

// denials are what was denied, how often.
func (s *sandbox) denials(t *testing.T) (all []string) {
	t.Helper()
	r := s.corral("traffic", "--denied", "--json")
	var got struct {
		Rows []struct {
			Name, Proto, Addr string
			Port              int
			Count             int
		}
		Probed uint64
	}
	if err := json.Unmarshal([]byte(r.out), &got); err != nil || r.code != 0 || got.Probed == 0 { // the handover's at least
		t.Fatalf("%v: %v", err, r)
	}
	for _, row := range got.Rows {
		all = append(all, fmt.Sprint(row))
	}
	return all
}
