package engine

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// R104: an engine that does not find what is there does not see this machine.
func TestEngineSeesOtherFiles(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	f := fake{create: func(m map[string]any) {
		if m["WorkingDir"] == s.dir {
			for _, b := range asList(m["HostConfig"].(map[string]any)["Mounts"]) {
				if b := b.(map[string]any); b["Source"] == s.dir {
					b["Source"] = s.dir + "/gone"
				}
			}
		}
	}}
	if r := s.with([]string{"DOCKER_HOST=" + f.at(t)}, "run", "--", "true"); r.code != 1 || strings.Contains(r.err, "does not see") || !strings.Contains(r.err, "bind source path does not exist") {
		t.Errorf("a source that is gone: %v", r)
	}
	f = fake{answer: func(method, path string) (int, string) {
		if method == "POST" && path == "/containers/create" {
			return 400, fmt.Sprintf(`{"message":"invalid mount config for type \"bind\": bind source path does not exist: %s"}`, s.dir)
		}
		return 0, ""
	}}
	r := s.with([]string{"DOCKER_HOST=" + f.at(t)}, "run", "--", "true")
	if r.code != 1 || !strings.Contains(r.err, "the Docker engine does not see this machine's files: "+s.dir) || !strings.Contains(r.err, "hint: ") {
		t.Errorf("a source that is here: %v", r)
	}
	if left := s.containers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// R131: a gate that stays closed for want of a way out says that a proxy is no
// way out, where one is set.
func TestGateNeedsDirectConnection(t *testing.T) {
	t.Parallel()
	s := project(t, "profile: shell\nname: direct\negress:\n  allow: [api.allowed.test]\n")
	silent := "CORRAL_RESOLVERS=44.10.0.99" // nobody's in the lab
	for _, tt := range []struct {
		env  []string
		want bool
	}{
		{[]string{silent}, false},
		{[]string{silent, "HTTPS_PROXY=http://192.0.2.1:3128"}, true},
	} {
		r := s.with(tt.env, "run", "--", "true")
		if r.code != 1 || !strings.Contains(r.err, "the gate stayed closed") || strings.Contains(r.err, "HTTPS_PROXY is set") != tt.want || strings.Contains(r.err, "not supported") != tt.want {
			t.Errorf("%v: %v", tt.env, r)
		}
	}
}

// R101: with SELinux enforcing, a project that containers may not read is named
// before anything is started.
func TestSELinuxDenies(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	f := fake{info: func(i map[string]any) { i["SecurityOptions"] = append(asList(i["SecurityOptions"]), "name=selinux") }}
	run := func(enforce, label string) result {
		if err := unix.Setxattr(s.dir, "security.selinux", []byte(label), 0); err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf(`mount -t tmpfs none /sys/fs && mkdir /sys/fs/selinux && echo %s > /sys/fs/selinux/enforce && exec setpriv --reuid %d --regid %d --groups %d "$0" run -- true`,
			enforce, ownerUID, ownerGID, dockerGroups()[0])
		cmd := exec.Command("unshare", "--mount", "sh", "-c", script, filepath.Join(s.bin, "corral"))
		cmd.Dir, cmd.Env = s.dir, append(s.env[:len(s.env):len(s.env)], "DOCKER_HOST="+f.at(t))
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
			t.Fatal(err)
		}
		return result{out.String(), errs.String(), cmd.ProcessState.ExitCode(), cmd.Process.Pid}
	}
	const home, contained = "unconfined_u:object_r:user_home_t:s0", "system_u:object_r:container_file_t:s0"
	r := run("1", home)
	if r.code != 2 || !strings.Contains(r.err, "SELinux denies "+s.dir+" (user_home_t)") || !strings.Contains(r.err, "hint: chcon -R -t container_file_t "+s.dir) {
		t.Errorf("%v", r)
	}
	if left := s.containers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	for _, fine := range [][2]string{{"1", contained}, {"0", home}} {
		if r := run(fine[0], fine[1]); r.code != 0 {
			t.Errorf("%v: %v", fine, r)
		}
	}
}
