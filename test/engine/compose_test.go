package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/corral-sandbox/corral/internal/command"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/test/lab"
)

// composeBrought is where setup puts Docker Compose if the machine has none.
const composeBrought = "/var/cache/corral-setup/docker-compose"

// composeCommand is Docker Compose: the machine's, or what setup brought.
var composeCommand = sync.OnceValues(func() ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var errs []error
	for _, argv := range [][]string{{"docker", "compose"}, {composeBrought}} {
		_, err := command.Run(ctx, nil, append(slices.Clone(argv), "version")...)
		if err == nil {
			return argv, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no Docker Compose, which make setup brings: %w", errors.Join(errs...))
})

// compose is a command of Docker Compose in a folder.
func compose(t testing.TB, dir string, env []string, as *syscall.Credential, args ...string) result {
	t.Helper()
	return composeTold(t, "", dir, env, as, args...)
}

// composeTold gives it something to read.
func composeTold(t testing.TB, stdin, dir string, env []string, as *syscall.Credential, args ...string) result {
	t.Helper()
	argv, err := composeCommand()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	argv = slices.Concat(argv, args)
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out, errs bytes.Buffer
	c.Dir, c.Env, c.Stdin, c.Stdout, c.Stderr, c.WaitDelay = dir, env, strings.NewReader(stdin), &out, &errs, 10*time.Second
	if as != nil {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	}
	if err := c.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return result{out.String(), errs.String(), c.ProcessState.ExitCode(), c.Process.Pid}
}

// proven are the events of corral verify --json, by check, without what differs
// from one run to the next.
func proven(t *testing.T, r result) map[string]string {
	t.Helper()
	if r.code != 0 {
		t.Fatal(r)
	}
	all := map[string]string{}
	for dec := json.NewDecoder(strings.NewReader(r.out)); dec.More(); {
		var ev spec.Event
		if err := dec.Decode(&ev); err != nil {
			t.Fatal(err)
		}
		if ev.Check != "" {
			all[ev.Check] = fmt.Sprintf("%s %s", ev.Result, ev.Detail)
		}
	}
	return all
}

// The rendered compose.yaml, brought up by Docker Compose as its first lines say,
// is the same sandbox to corral verify as what corral brings up.
func TestComposeFileIsProven(t *testing.T) {
	// Alone: the checks of a sandbox name every other one that is up.
	s := cloned(t, 0, nothing)
	shared, notes := filepath.Join(filepath.Dir(s.dir), "shared"), filepath.Join(filepath.Dir(s.dir), "notes: old, #1")
	s.own(shared, notes, filepath.Join(s.dir, ".git"), filepath.Join(s.dir, ".git", "hooks"))
	s.write(".git/HEAD", "ref: refs/heads/main\n")
	s.write(".git/config", "[core]\n\tbare = false\n")
	file := s.private("project.env", "TOKEN="+canary+"\nPRICE=it costs $5 and ${HOME}\n", 0o600)
	s.write("corral.yaml", `profile: shell
name: nothing
mounts:
  rw: [`+shared+`]
  ro: ["`+notes+`"]
egress:
  allow:
    - api.allowed.test
    - {domain: git.allowed.test, ports: [22], liveness: false}
secrets: {env_file: `+file+`}
resources: {memory: 1g, cpus: 1.5, pids: 500}
profile_options: {shell: {command: [sleep, infinity]}}
`)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.lab.DNS.Set("git.allowed.test", lab.A("44.10.0.11"))
	s.lab.Echo(t, "44.10.0.11:22")
	s.accept()

	end := s.up("echo up; read -r _", "up")
	image := docker(t, "inspect", "--format", "{{.Config.Image}}", s.gate())
	guests := docker(t, "inspect", "--format", `{{range .Mounts}}{{if eq .Destination "/opt/corral"}}{{.Name}}{{end}}{{end}}`, s.agent())
	want := proven(t, s.corral("verify", "--json"))
	end()
	if len(want) < 60 {
		t.Fatalf("corral's own: %v", want)
	}

	r := s.corral("render")
	if r.code != 0 {
		t.Fatal(r)
	}
	dir := strings.TrimSpace(r.out)
	env := append(slices.Clone(s.env), "CORRAL_GATE_IMAGE="+image, "CORRAL_GUEST_VOLUME="+guests,
		"TOKEN="+canary, "PRICE=it costs $5 and ${HOME}")
	owner := &syscall.Credential{Uid: s.uid, Gid: s.gid, Groups: dockerGroups()}
	run := func(args ...string) result {
		t.Helper()
		r := compose(t, dir, env, owner, args...)
		if r.code != 0 {
			t.Fatalf("%v: %v\n%s", args, r, docker(t, "logs", s.gate()))
		}
		return r
	}
	t.Cleanup(func() { compose(t, dir, env, owner, "down", "--timeout", "1") })
	run("up", "--detach", "--wait", "main-gate")
	var status spec.GateStatus
	if err := json.Unmarshal([]byte(run("exec", "-T", "main-gate", "/opt/corral/bin/corral-gate", "status", "--json").out), &status); err != nil {
		t.Fatal(err)
	}

	// Not told which run of the gate it joins, no service starts.
	run("up", "--detach", "main")
	if code := docker(t, "wait", s.agent()); code == "0" {
		t.Error("a service that was told of no gate has run")
	}
	if said := run("logs", "main").out; !strings.Contains(said, "handover refused: same-netns-as-gate: ") {
		t.Errorf("a service that was told of no gate says %s", said)
	}

	env = append(env, "CORRAL_MAIN_GATE_INSTANCE="+status.Instance, fmt.Sprintf("CORRAL_MAIN_GATE_NETNS=%d", status.NetNS))
	run("up", "--detach", "main")
	if diff := cmp.Diff(want, proven(t, s.corral("verify", "--json"))); diff != "" {
		t.Errorf("corral's own (-) and Compose's (+):\n%s", diff)
	}
	// What the repository was like at first nobody has written down.
	if r := s.corral("status"); !strings.Contains(r.out, "main: running\n") || !strings.Contains(r.out, "cannot tell what changed") {
		t.Errorf("corral status: %v", r)
	}
	if r := s.corral("run", "--", "true"); r.code == 0 || !strings.Contains(r.err, "is up already") {
		t.Errorf("a second sandbox beside it: %v", r)
	}
}
