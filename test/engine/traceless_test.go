package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/test/lab"
)

// Of a proof nothing is left: what a sandbox is and has is the same before and
// after, on both sides of its wall, and of the engine nothing was asked that
// makes, changes or removes anything.
func TestVerifyLeavesNothing(t *testing.T) {
	t.Parallel()
	s := project(t, allowed)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.write("notes.txt", "mine\n")
	run(t, "git", "-C", s.dir, "init", "--quiet")
	run(t, "chown", "--recursive", fmt.Sprintf("%d:%d", s.uid, s.gid), s.dir)
	s.up("echo up; read -r _", "up")
	temporary := public(t)
	s.own(temporary)
	s.env = append(s.env, "TMPDIR="+temporary)
	first := s.corral("verify") // what corral keeps for itself is there from now on
	if first.code != 0 {
		t.Fatal(first)
	}

	// Everything about it, by what it is.
	look := map[string]func() string{
		"the project":             func() string { return treeOf(t, s.dir) },
		"the home":                func() string { return treeOf(t, s.home()) },
		"temporary":               func() string { return treeOf(t, temporary) },
		"the agent's file system": func() string { return docker(t, "diff", s.agent()) },
		"the gate's file system":  func() string { return docker(t, "diff", s.gate()) },
		"containers":              func() string { return strings.Join(s.containers(), "\n") },
		"executions": func() string {
			return docker(t, "inspect", "--format", "{{json .ExecIDs}}", s.agent(), s.gate())
		},
		"processes": func() string {
			return docker(t, "top", s.agent(), "-eo", "pid,user,args") + docker(t, "top", s.gate(), "-eo", "pid,user,args")
		},
		"sockets": func() string { // 06: TIME_WAIT, a connection that is over
			return inNamespace(t, s.gate(), "sh", "-c", `cd /proc/self/net; cat tcp tcp6 udp udp6 raw raw6 icmp udplite packet unix netlink | awk '$4 != "06" {print $2, $3, $4, $8}' | sort`) // the kernel's order is no one's
		},
		"rules": func() string {
			text := inNamespace(t, s.gate(), "sh", "-c", "iptables-save; ip6tables-save; ipset save")
			return regexp.MustCompile(`(?m)^#.*\n| ?\[\d+:\d+\]`).ReplaceAllString(text, "")
		},
		"the gate's account": func() string {
			var st spec.GateStatus
			if err := json.Unmarshal([]byte(docker(t, "exec", s.gate(), spec.GuestDir+"/bin/corral-gate", "status", "--json")), &st); err != nil {
				t.Fatal(err)
			}
			b, err := json.MarshalIndent(map[string]any{"allowed": st.Allowed, "denied": st.Denied, "names": st.RefusedNames, "pins": st.Pins,
				"applied": st.Applied, "read back": st.ReadBack, "instance": st.Instance, "restarts": st.WorkerRestarts}, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		},
	}
	before := map[string]string{}
	for what, now := range look {
		before[what] = now()
	}
	m, r := s.meddled(t, meddling{})
	if r.code != 0 {
		t.Fatal(r)
	}
	for what, now := range look {
		after := now()
		// The engine forgets an execution, and the kernel a socket, when it has the time.
		for end := time.Now().Add(20 * time.Second); after != before[what] && time.Now().Before(end); {
			after = now()
		}
		if after != before[what] {
			t.Errorf("%s: %s", what, cmp.Diff(strings.Split(before[what], "\n"), strings.Split(after, "\n")))
		}
	}
	harmless := regexp.MustCompile(`^(GET|HEAD) |^POST (/v[0-9.]+)?(/containers/[^/]+/exec|/exec/[0-9a-f]+/start)$`)
	for _, request := range m.requests {
		if !harmless.MatchString(request) {
			t.Errorf("the engine was asked: %s", request)
		}
	}
	if !slices.ContainsFunc(m.requests, func(r string) bool { return strings.HasPrefix(r, "POST ") }) {
		t.Error("nothing was seen")
	}
	// Connections to what is granted were ended, not left.
	if flows := inNamespace(t, s.gate(), "cat", "/proc/self/net/nf_conntrack"); regexp.MustCompile(`ESTABLISHED.* sport=610\d\d `).MatchString(flows) {
		t.Errorf("connections are left: %s", flows)
	}
}

// treeOf is every file below dir with what stat says of it, but when it was read.
func treeOf(t *testing.T, dir string) string {
	t.Helper()
	if _, err := os.Stat(filepath.Clean(dir)); err != nil {
		t.Fatal(err)
	}
	return run(t, "sh", "-c", `find "$0" -printf '%p %i %M %U %G %s %T@ %C@ %l\n' | sort`, dir)
}
