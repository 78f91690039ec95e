package engine

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/test/lab"
)

func TestVerifyThrowAway(t *testing.T) {
	s := project(t, allowed)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	r := s.corral("verify")
	if r.code != 0 {
		t.Fatal(r)
	}
	for _, line := range []string{
		`ok +non-root`, `ok +no-capabilities`, `ok +same-netns-as-gate`, `ok +unlisted-host-blocked`, `ok +dns-closed`,
		`ok +names-only-pinned`, `ok +allowed:api\.allowed\.test:443`, `ok +port-not-listed-blocked:api\.allowed\.test`, `ok +gateway-closed`,
		`\d+ passed, 0 skipped, 0 failed`,
	} {
		if !regexp.MustCompile(`(?m)^` + line + `$`).MatchString(r.out) {
			t.Errorf("no line %s in %s", line, r.out)
		}
	}
	if left := s.containers(); len(left) > 0 {
		t.Errorf("left after verify: %v", left)
	}
}

// It proves the sandbox that is up, leaves it as it is, and says the same as
// JSON.
func TestVerifyRunning(t *testing.T) {
	s := project(t, allowed)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	end := s.up("echo up; read -r _", "up")
	defer end()
	before := s.containers()
	r := s.corral("verify", "--json")
	if r.code != 0 {
		t.Fatal(r)
	}
	dec := json.NewDecoder(strings.NewReader(r.out))
	events := 0
	for dec.More() {
		var ev map[string]any
		if err := dec.Decode(&ev); err != nil {
			t.Fatal(err)
		}
		events++
	}
	if events < 35 {
		t.Errorf("%d events", events)
	}
	if after := s.containers(); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("containers %v became %v", before, after)
	}
}

// R120: with the network cut nothing can be told, and that never passes.
func TestVerifyWithTheLinkCut(t *testing.T) {
	s := project(t, allowed)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	end := s.up("echo up; read -r _", "up")
	defer end()
	s.lab.Cut(t)
	r := s.corral("verify")
	s.lab.Mend(t)
	if r.code != 1 || !regexp.MustCompile(`(?m)^FAIL allowed:api\.allowed\.test:443: cannot tell: `).MatchString(r.out) {
		t.Error(r)
	}
	if r := s.corral("verify"); r.code != 0 {
		t.Errorf("after the link was mended: %v", r)
	}
}

// R035: an agent that is not in its gate's namespace is found, although
// everything else about it is right.
func TestVerifyAnotherNamespace(t *testing.T) {
	s := project(t, nothing)
	end := s.up("echo up; read -r _", "up")
	defer end()
	docker(t, "restart", s.gate())
	list := spec.Encode(spec.Verify{Version: spec.Version, Service: "main", Checks: []spec.Check{
		{Name: "same-netns-as-gate", Gate: &spec.Joined{Instance: "0", NetNS: 1}},
	}})
	s.write("list.json", string(list))
	out := docker(t, "exec", s.agent(), "sh", "-c", spec.GuestDir+"/bin/corral-verify < "+s.dir+"/list.json || true")
	if strings.Contains(out, `"result":"ok"`) || !strings.Contains(out, "same-netns-as-gate") {
		t.Errorf("an agent in another namespace: %s", out)
	}
}
