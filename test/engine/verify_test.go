package engine

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
	"github.com/corral-sandbox/corral/test/lab"
)

func TestVerifyThrowAway(t *testing.T) {
	t.Parallel()
	s := project(t, allowed)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	r := s.corral("verify")
	if r.code != 0 || !strings.Contains(r.err, "corral: nothing is up: ") {
		t.Fatal(r)
	}
	for _, line := range []string{
		`ok +non-root`, `ok +no-capabilities`, `ok +same-netns-as-gate`, `ok +unlisted-host-blocked`, `ok +dns-closed`,
		`ok +names-only-pinned`, `ok +allowed:api\.allowed\.test:443`, `ok +port-not-listed-blocked:api\.allowed\.test`, `ok +gateway-closed`,
		`ok +host-home-only-mounts`, `ok +no-port-published`, `ok +host-port-undeclared-blocked`, `ok +no-credential-dir:\.cargo/credentials`,
		`skip +secret-absent-elsewhere: the policy has no secrets`, `\d+ passed, 1 skipped, 0 failed`,
	} {
		if !regexp.MustCompile(`(?m)^` + line + `$`).MatchString(r.out) {
			t.Errorf("no line %s in %s", line, r.out)
		}
	}
	if left := s.containers(); len(left) > 0 {
		t.Errorf("left after verify: %v", left)
	}
}

// Where nothing is up, each has a sandbox of its own made for it, one after the other.
func TestVerifyTwiceAtOnce(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	var at sync.WaitGroup
	results := make([]result, 2)
	for i := range results {
		at.Go(func() { results[i] = s.corral("verify") })
	}
	at.Wait()
	waited := 0
	for _, r := range results {
		if r.code != 0 {
			t.Errorf("beside another: %v", r)
		}
		if strings.Contains(r.err, "corral: waiting for another corral verify of "+s.id+"\n") {
			waited++
		}
	}
	if waited != 1 {
		t.Errorf("%d waited, and said so: %v", waited, results)
	}
	if left := s.containers(); len(left) > 0 {
		t.Errorf("left after both: %v", left)
	}
}

// A gate of a run whose service does not run yet, or any more, is a sandbox that is on its
// way, and neither one that is up nor none.
func TestVerifyWhileStarting(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	var labels []string
	for name, value := range map[string]string{"sandbox": s.id, "role": "gate", "service": "main", "purpose": "run", "policy-path": s.dir + "/corral.yaml", "address": "172.30.0.250"} {
		labels = append(labels, "--label", "dev.corral."+name+"="+value)
	}
	gate := docker(t, slices.Concat([]string{"create", "--name", s.gate()}, labels, []string{testenv.BaseImage, "true"})...)
	t.Cleanup(func() { docker(t, "rm", "--force", gate) })
	r := s.corral("verify")
	if r.code != 1 || r.out != "FAIL checks: cannot tell: sandbox "+s.id+" is starting or ending\n0 passed, 0 skipped, 1 failed\n" || !strings.Contains(r.err, "hint: wait") || strings.Contains(r.err, "is up already") {
		t.Error(r)
	}
}

// It proves the sandbox that is up, leaves it as it is, and says the same as
// JSON.
func TestVerifyRunning(t *testing.T) {
	t.Parallel()
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
	if !strings.HasPrefix(r.out, fmt.Sprintf(`{"version":%d,`, spec.Version)) || !strings.Contains(strings.SplitN(r.out, "\n", 2)[0], `"purpose":"run"`) || strings.Contains(r.err, "nothing is up") {
		t.Errorf("what was proven is told as %.200q, %q", r.out, r.err)
	}
	if events < 35 {
		t.Errorf("%d events", events)
	}
	// Several at once: each proves it by itself.
	var at sync.WaitGroup
	results := make([]result, 3)
	for i := range results {
		at.Go(func() { results[i] = s.corral("verify") })
	}
	at.Wait()
	for _, r := range results {
		if r.code != 0 {
			t.Errorf("beside two others: %v", r)
		}
	}
	if after := s.containers(); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("containers %v became %v", before, after)
	}
}

// R120: with the network cut nothing can be told, and that never passes.
func TestVerifyWithTheLinkCut(t *testing.T) {
	// Alone: it cuts everybody's link.
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
	t.Parallel()
	s := project(t, "profile: shell\nname: elsewhere\nmode: daemon\nprofile_options: {shell: {command: "+forever+"}}\n") // a run ends with its gate
	if r := s.corral("up"); r.code != 0 {
		t.Fatal(r)
	}
	docker(t, "restart", s.gate())
	list := spec.Encode(spec.Verify{Version: spec.Version, Service: "main", Checks: []spec.Check{
		{Name: "same-netns-as-gate", Gate: &spec.Joined{Instance: "0", NetNS: 1}},
	}})
	out := docker(t, "exec", s.agent(), "sh", "-c", "echo '"+string(list)+"' | "+spec.GuestDir+"/bin/corral-verify || true")
	if strings.Contains(out, `"result":"ok"`) || !strings.Contains(out, "same-netns-as-gate") {
		t.Errorf("an agent in another namespace: %s", out)
	}
}

// What somebody puts where the person's home would be is seen, also if it comes
// with the image.
func TestVerifyHostHome(t *testing.T) {
	t.Parallel()
	home, err := os.MkdirTemp("/var/tmp", "corral-home-") // no /tmp: the agent has its own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) }) // after corral down there
	s := cloned(t, 0, nothing)
	s.own(home, filepath.Join(home, "project"))
	s.env = append(s.env, "HOME="+home)
	s.dir = filepath.Join(home, "project")
	s.id = plan.ID("nothing", filepath.Join(s.dir, "corral.yaml"))
	s.write("corral.yaml", nothing)
	s.accept()
	if r := s.corral("verify"); r.code != 0 || !strings.Contains(r.out, "ok   host-home-only-mounts\n") {
		t.Error(r)
	}
	// One that mounts no project brings no directory of that name.
	s.write("corral.yaml", nothing+"mode: daemon\nprofile_options: {shell: {command: "+forever+"}}\n")
	s.must("up", "--accept")
	if r := s.corral("verify"); r.code != 0 || !strings.Contains(r.out, "ok   host-home-only-mounts\n") {
		t.Error(r)
	}
	if r := s.corral("shell", "--", "sh", "-c", "pwd; ls -d "+home); r.out != plan.Home+"\n" || !strings.Contains(r.err, "No such file") {
		t.Error(r)
	}
	s.must("down")
	s.write("corral.yaml", nothing+"image:\n  run: [\"mkdir -p "+home+" && echo x > "+home+"/.bashrc\"]\n")
	if r := s.corral("verify", "--accept"); r.code != 1 || !strings.Contains(r.out, "FAIL host-home-only-mounts: "+home+"/.bashrc is there\n") {
		t.Error(r)
	}
}

// R117: a secret that is baked into the image, or on a command line, is found
// and not shown; beside a sandbox that is up as well.
func TestVerifySecretElsewhere(t *testing.T) {
	t.Parallel()
	s := cloned(t, 0, nothing)
	file := s.private("project.env", "TOKEN="+canary+"\nPIN=1234\n", 0o600)
	with := nothing + "secrets:\n  env_file: " + file + "\n"
	s.write("corral.yaml", with)
	s.accept()
	const holds = "ok   secret-absent-elsewhere: not looked for, being shorter than 8 bytes: PIN\n"
	if r := s.corral("verify"); r.code != 0 || !strings.Contains(r.out, holds) {
		t.Error(r)
	}
	red := func(what string, r result) {
		t.Helper()
		if r.code != 1 || !strings.Contains(r.out, "FAIL secret-absent-elsewhere: the value of TOKEN is in "+what) || strings.Contains(r.out, canary) {
			t.Errorf("want %q, and no secret, in %v", what, r)
		}
	}
	end := s.up("echo up; read -r _", "up")
	if r := s.corral("verify"); r.code != 0 || !strings.Contains(r.out, holds) {
		t.Errorf("beside an agent: %v", r)
	}
	end()
	end = s.up("perl -e 'print qq(up\\n); $| = 1; print qq(up\\n); <STDIN>' $TOKEN", "up")
	red("the command line of process ", s.corral("verify"))
	end()

	s.write("corral.yaml", with+"image:\n  run: [\"echo x"+canary+"y > /etc/leak\"]\n")
	red("/etc/leak\n", s.corral("verify", "--accept"))

	// What in an image was not looked at is told.
	s.write("corral.yaml", with+"image:\n  run: [\"truncate -s 17M /opt/large && truncate -s 16M /opt/largest\"]\n")
	r := s.corral("verify", "--accept")
	if r.code != 0 || !strings.Contains(r.out, "ok   secret-absent-elsewhere: not looked for, being shorter than 8 bytes: PIN; 1 files larger than 16 MiB were not looked into\n") {
		t.Error(r)
	}

	s.private("project.env", "PIN=1234\n", 0o600)
	s.write("corral.yaml", with)
	if r := s.corral("verify", "--accept"); r.code != 0 || !strings.Contains(r.out, "skip secret-absent-elsewhere: each value is shorter than 8 bytes: PIN\n") {
		t.Error(r)
	}
}

// The name of the host is proven like any other: it leads to the gateway, or
// the check goes red.
func TestVerifyNameOfTheHost(t *testing.T) {
	t.Parallel()
	service := greet(t, "127.0.0.1:0")
	s := project(t, serviced("named", service.port))
	end := s.up("echo up; read -r _", "up")
	defer end()
	if r := s.corral("verify"); r.code != 0 || !strings.Contains(r.out, "ok   names-only-pinned\n") {
		t.Fatal(r)
	}
	hosts := docker(t, "inspect", "--format", "{{.HostsPath}}", s.gate())
	whole, err := os.ReadFile(hosts)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ becomes, said string }{
		{"192.0.2.1 " + spec.HostName, spec.HostName + " is [192.0.2.1] in /etc/hosts and [" + gateway + "] from the gate"},
		{"", spec.HostName + " is [] in /etc/hosts"},
	} {
		changed := regexp.MustCompile(`(?m)^.*\b`+spec.HostName+`$`).ReplaceAllString(string(whole), tt.becomes)
		if changed == string(whole) {
			t.Fatalf("%s is not in %s", spec.HostName, whole)
		}
		if err := os.WriteFile(hosts, []byte(changed), 0o644); err != nil {
			t.Fatal(err)
		}
		if r := s.corral("verify"); r.code != 1 || !strings.Contains(r.out, "FAIL names-only-pinned: "+tt.said) {
			t.Errorf("%q: %v", tt.becomes, r)
		}
	}
}

// R024: the check of a port of the host's goes red for a container without a
// fence, which reaches it.
func TestUndeclaredPortWithoutAFence(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	end := s.up("echo up; read -r _", "up")
	defer end()
	gateway := docker(t, "network", "inspect", "--format", "{{(index .IPAM.Config 0).Gateway}}", "corral")
	l, err := net.Listen("tcp4", gateway+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := netip.MustParseAddrPort(l.Addr().String())
	list := spec.Encode(spec.Verify{Version: spec.Version, Service: "main", Checks: []spec.Check{{Name: "host-port-undeclared-blocked", Addr: at.Addr(), Port: at.Port()}}})
	s.write("list.json", string(list))
	guests := docker(t, "inspect", "--format", `{{range .Mounts}}{{if eq .Destination "/opt/corral"}}{{.Name}}{{end}}{{end}}`, s.agent())
	out := docker(t, "run", "--rm", "--network", "corral", "--volume", guests+":/opt/corral:ro", "--volume", s.dir+":/list:ro", "--user", "1000:1000",
		"debian:bookworm-slim", "sh", "-c", "/opt/corral/bin/corral-verify < /list/list.json || true")
	if want := fmt.Sprintf(`"result":"failed","detail":"tcp %v answers"`, at); !strings.Contains(out, want) {
		t.Errorf("no %s in %s", want, out)
	}
}
