package engine

import (
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/corral-sandbox/corral/test/lab"
)

const twoNames = `profile: shell
name: refreshed
egress:
  allow:
    - {domain: stays.allowed.test, ports: [443]}
    - {domain: goes.allowed.test, ports: [443]}
`

// hold connects to a name and says when that ends.
const hold = `h() { exec {fd}<>/dev/tcp/$1/443 && echo "open $1"; (cat <&$fd >/dev/null 2>&1; echo "ended $1") & }; `

// corral refresh in a run: what is taken away ends, what stays lives on, what is
// added is reached, nothing is restarted, and anything but names is refused
// (R011, R013).
func TestRefresh(t *testing.T) {
	t.Parallel()
	s := project(t, twoNames)
	s.lab.DNS.Set("stays.allowed.test", lab.A("44.10.0.10"))
	s.lab.DNS.Set("goes.allowed.test", lab.A("44.10.0.11"))
	s.lab.DNS.Set("comes.allowed.test", lab.A("44.10.0.12"))
	if r := s.corral("refresh"); r.code != 1 || !strings.Contains(r.err, "nothing of") {
		t.Errorf("nothing is up: %v", r)
	}
	c, screen := s.begin(nil, "run", "--", "bash", "-c", hold+connect+"h stays.allowed.test; h goes.allowed.test; echo up; sleep infinity")
	defer func() { s.corral("down"); _ = c.Wait() }()
	screen.await(t, "up\n")
	gate, agent := s.identity(s.gate()), s.identity(s.agent())
	if r := s.corral("refresh"); r.code != 0 || r.out != "no name differs\n" {
		t.Errorf("as it is: %v", r)
	}

	fewer := strings.Replace(twoNames, "    - {domain: goes.allowed.test, ports: [443]}\n", "", 1)
	s.write("corral.yaml", fewer)
	if r := s.corral("status"); !strings.Contains(r.out, "was changed") {
		t.Errorf("status before the refresh: %v", r)
	}
	if r := s.corral("refresh"); r.code != 0 || !strings.Contains(r.out, "removed  44.10.0.11:443") || !strings.Contains(r.out, "ended    1 connection to") {
		t.Errorf("a name less: %v", r)
	}
	screen.await(t, "ended goes.allowed.test")
	if strings.Contains(screen.seen.String(), "ended stays.allowed.test") {
		t.Error("a connection to what stayed allowed has ended")
	}

	s.write("corral.yaml", fewer+"    - {domain: comes.allowed.test, ports: [443]}\n")
	if r := s.corral("refresh"); r.code != 2 {
		t.Errorf("a name more, without a yes: %v", r)
	}
	if r := s.corral("refresh", "--accept"); r.code != 0 || !strings.Contains(r.out, "added    44.10.0.12:443") {
		t.Errorf("a name more: %v", r)
	}
	out := docker(t, "exec", s.agent(), "bash", "-c", connect+"t comes.allowed.test 443; t goes.allowed.test 443; t stays.allowed.test 443")
	if !strings.Contains(out, "comes.allowed.test 0") || strings.Contains(out, "goes.allowed.test 0") || !strings.Contains(out, "stays.allowed.test 0") {
		t.Errorf("after the refresh: %s", out)
	}
	if r := s.corral("status"); r.code != 0 || strings.Contains(r.out, "was changed") {
		t.Errorf("status after the refresh: %v", r)
	}
	if r := s.corral("verify"); r.code != 0 {
		t.Errorf("verify after the refresh: %v", r)
	}
	if s.identity(s.gate()) != gate || s.identity(s.agent()) != agent {
		t.Error("something was restarted")
	}

	// A lookup that fails keeps what there was.
	s.lab.DNS.Set("stays.allowed.test", lab.Rcode(dns.RcodeServerFailure))
	if r := s.corral("refresh"); r.code != 0 || !strings.Contains(r.out, "kept     stays.allowed.test") {
		t.Errorf("a lookup that fails: %v", r)
	}
	s.lab.DNS.Set("stays.allowed.test", lab.A("44.10.0.10"))

	docker(t, "pause", s.gate())
	if r := s.corral("refresh"); r.code != 1 || !strings.Contains(r.err, "the gate: it is paused") {
		t.Errorf("a paused gate: %v", r)
	}
	docker(t, "unpause", s.gate())

	for _, more := range []struct{ key, part string }{
		{"resources: {pids: 444}\n", "resources"},
		{"host_services: [{name: x, port: 8098}]\n", "host services"},
		{"image: {run: [\"true\"]}\n", "the image"},
	} {
		s.write("corral.yaml", fewer+more.key)
		if r := s.corral("refresh", "--accept"); r.code != 2 || !strings.Contains(r.err, "differs from what is up: "+more.part) || !strings.Contains(r.err, "corral down") {
			t.Errorf("%s: %v", more.part, r)
		}
	}
}

// What was taken away and goes on is no success of anybody's: not of a refresh, of
// an up, or of a watch; and status is not well.
func TestRefreshThatEndsNotAll(t *testing.T) {
	t.Parallel()
	both := strings.Replace(always("unended", forever), "allow: [", "allow: [{domain: goes.allowed.test, ports: [443]}, ", 1)
	s := slowed(t, both)
	s.env = append(s.env, "CORRAL_GATE_FAILPOINT=flows:wait:/never") // no connection can be listed
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.lab.DNS.Set("goes.allowed.test", lab.A("44.10.0.11"))
	said := &lines{news: make(chan struct{}, 1)}
	c, _ := s.begin(said, "up", "--watch")
	mark := said.await(t, 0, "watching "+s.id)
	s.write("corral.yaml", always("unended", forever))
	docker(t, "kill", s.agent())
	mark = said.await(t, mark, "removed  44.10.0.11:443")
	mark = said.await(t, mark, "not ended: ")
	said.await(t, mark, "corral: connections to what is not allowed any more go on: ")
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 1 || !strings.Contains(said.String(), "is not well: main: connections to what is not allowed any more go on") {
		t.Errorf("the watch ended with %d: %s", code, said)
	}
	for _, c := range []struct {
		args      []string
		out, errs string
	}{
		{[]string{"refresh"}, "not ended: ", "go on: "},
		{[]string{"refresh", "--json"}, `"unended": "`, "go on: "},
		{[]string{"up"}, "", "go on: "},
		{[]string{"status"}, "not ended  connections to what is not allowed any more go on", ""},
	} {
		if r := s.corral(c.args...); r.code != 1 || !strings.Contains(r.out, c.out) || !strings.Contains(r.err, c.errs) || strings.Contains(r.out+r.err, "no name differs") || strings.Contains(r.err, "is up already") {
			t.Errorf("corral %v: %v", c.args, r)
		}
	}
	// It is up, so there is something to watch.
	said = &lines{news: make(chan struct{}, 1)}
	c, _ = s.begin(said, "up", "--watch")
	mark = said.await(t, 0, "go on: ")
	said.await(t, mark, "watching "+s.id)
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
}
