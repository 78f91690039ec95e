package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/corral-sandbox/corral/test/lab"
)

// alteredInspect is a proxy before the engine that lets change an inspect answer
// on a container of one of the names.
func alteredInspect(t *testing.T, socket, name string, change func(said map[string]any)) string {
	return between(t, socket, func(engine http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || path.Base(r.URL.Path) != "json" || path.Base(path.Dir(path.Dir(r.URL.Path))) != "containers" {
				engine.ServeHTTP(w, r)
				return
			}
			got := httptest.NewRecorder()
			engine.ServeHTTP(got, r)
			var said map[string]any
			b := got.Body.Bytes()
			if json.Unmarshal(b, &said) == nil && said["Name"] == "/"+name {
				change(said)
				b = encoded(said)
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(got.Code)
			w.Write(b)
		})
	})
}

// in is an object within decoded JSON.
func in(said map[string]any, names ...string) map[string]any {
	for _, n := range names {
		said, _ = said[n].(map[string]any)
	}
	return said
}

// Whatever an engine says of the service, or of the gate, that is not so, or leaves
// out, while all is well: verify does not pass, and the check that is about it says
// what it heard.
func TestWitnessesAreHeard(t *testing.T) {
	t.Parallel()
	s := project(t, allowed+"resources: {memory: 256m, cpus: 1}\n")
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	end := s.up("echo up; read -r _", "up")
	defer end()
	if r := s.corral("verify"); r.code != 0 {
		t.Fatal(r)
	}
	dir := public(t)
	part := func(name string) func(map[string]any) { return func(said map[string]any) { delete(said, name) } }
	of := func(part, name string, value any) func(map[string]any) {
		return func(said map[string]any) { in(said, part)[name] = value }
	}
	for i, tt := range []struct {
		of, what string
		change   func(map[string]any)
		line     string // a regular expression
	}{
		{s.agent(), "no settings", part("HostConfig"), `FAIL no-capabilities: cannot tell: `},
		{s.agent(), "no configuration", part("Config"), `FAIL uid-matches-host: cannot tell: `},
		{s.agent(), "no state", part("State"), `cannot tell`},
		{s.agent(), "no mounts", part("Mounts"), `FAIL mounts-only-declared: the engine says otherwise: .*Mounts /`},
		{s.agent(), "no networks", part("NetworkSettings"), `FAIL no-port-published: cannot tell: `},
		{s.gate(), "no settings", part("HostConfig"), `FAIL seccomp-on: cannot tell: `},
		{s.gate(), "no configuration", part("Config"), `FAIL secret-absent-elsewhere: |FAIL pids-limited: cannot tell: `},
		{s.agent(), "another process", of("State", "Pid", 1), `FAIL no-capabilities: cannot tell: the kernel does not bear it out`},
		{s.agent(), "another user", of("Config", "User", "0:0"), `FAIL non-root: the engine says otherwise: .*Config\.User`},
		{s.agent(), "a capability", of("HostConfig", "CapAdd", []string{"SYS_ADMIN"}), `FAIL no-capabilities: the engine says otherwise: .*HostConfig\.CapAdd`},
		{s.agent(), "no options", of("HostConfig", "SecurityOpt", nil), `FAIL no-new-privs: the engine says otherwise: .*it is not there`},
		{s.agent(), "no bound", of("HostConfig", "PidsLimit", nil), `FAIL pids-limited: the engine says otherwise: .*HostConfig\.PidsLimit`},
		{s.agent(), "swap", of("HostConfig", "MemorySwap", -1), `FAIL memory-limited: the engine says otherwise: .*HostConfig\.MemorySwap`},
		{s.agent(), "the host's processes", of("HostConfig", "PidMode", "host"), `FAIL gate-control-unreachable: the engine says otherwise: .*HostConfig\.PidMode`},
		{s.agent(), "another network", of("HostConfig", "NetworkMode", "bridge"), `FAIL same-netns-as-gate: the engine says otherwise: .*HostConfig\.NetworkMode`},
		{s.agent(), "devices", of("HostConfig", "Devices", []map[string]string{{"PathOnHost": "/dev/fuse", "PathInContainer": "/dev/fuse", "CgroupPermissions": "rwm"}}), `FAIL container-as-planned: .*HostConfig\.Devices`},
		{s.agent(), "the engine's socket", func(said map[string]any) {
			said["Mounts"] = append(list(said["Mounts"]), map[string]any{"Type": "bind", "Source": "/var/run/docker.sock", "Destination": "/x", "RW": true})
		}, `FAIL no-docker-socket:/var/run/docker.sock: the engine says otherwise: .*Mounts /x: nobody asked for it`},
	} {
		env := s.env
		s.env = append(env[:len(env):len(env)], "DOCKER_HOST="+alteredInspect(t, filepath.Join(dir, fmt.Sprintf("%d.sock", i)), tt.of, tt.change))
		r := s.corral("verify")
		s.env = env
		if r.code != 1 || !regexp.MustCompile(tt.line).MatchString(r.out+r.err) {
			t.Errorf("%s of %s: %v", tt.what, tt.of, r)
		}
	}
	if r := s.corral("verify"); r.code != 0 {
		t.Errorf("after all lies: %v", r)
	}
}

// liar is the checker of a service that has been taken over: it probes as the real
// one does, and says that all holds.
const liar = `/opt/corral/bin/corral-verify | sed 's/"result":"[a-z]*"/"result":"ok"/; s/,"detail":"[^"]*"//'; exit 0`

func resend(r *http.Request, body any) {
	b := encoded(body)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
}

// With everything inside lying, what is weakened about a sandbox is still seen from
// outside, by the check that is about it.
func TestEverythingInsideLies(t *testing.T) {
	t.Parallel()
	s := cloned(t, 0, nothing)
	file := s.private("project.env", "TOKEN="+canary+"\n", 0o600)
	s.write("corral.yaml", strings.Replace(allowed, "profile: shell", "profile: shell\nsecrets: {env_file: "+file+"}\nresources: {memory: 256m, cpus: 1}", 1))
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	s.accept()
	env, dir := s.env, public(t)
	for name, tt := range map[string]struct {
		weaken func(body map[string]any)
		red    []string // at least these kinds
	}{
		"nothing":      {func(map[string]any) {}, nil},
		"root":         {func(b map[string]any) { b["User"] = "0:0" }, []string{"non-root", "uid-matches-host"}},
		"capabilities": {func(b map[string]any) { in(b, "HostConfig")["CapDrop"] = nil }, []string{"no-capabilities", "iptables-refused", "raw-sockets-refused"}},
		"privileged":   {func(b map[string]any) { in(b, "HostConfig")["Privileged"] = true }, []string{"no-capabilities", "seccomp-on", "raw-sockets-refused", "vsock-refused", "mounts-only-declared"}},
		"no filter": {func(b map[string]any) {
			in(b, "HostConfig")["SecurityOpt"] = []string{"no-new-privileges", "seccomp=unconfined"}
		}, []string{"seccomp-on", "vsock-refused"}},
		"new privileges": {func(b map[string]any) {
			in(b, "HostConfig")["SecurityOpt"] = list(in(b, "HostConfig")["SecurityOpt"])[1:]
		}, []string{"no-new-privs"}},
		"no bounds": {func(b map[string]any) {
			h := in(b, "HostConfig")
			h["PidsLimit"], h["Memory"], h["MemorySwap"], h["NanoCpus"] = 0, 0, 0, 0
		}, []string{"pids-limited", "memory-limited", "cpus-limited"}},
		"the host mounted": {func(b map[string]any) { in(b, "HostConfig")["Binds"] = []string{"/:/host"} },
			[]string{"mounts-only-declared", "host-home-only-mounts", "no-credential-dir", "no-docker-socket", "env-file-not-mounted"}},
		"a policy that can be written": {func(b map[string]any) {
			for _, m := range list(in(b, "HostConfig")["Mounts"]) {
				delete(m.(map[string]any), "ReadOnly")
			}
		}, []string{"policy-read-only", "mounts-only-declared"}},
		"another network":      {func(b map[string]any) { in(b, "HostConfig")["NetworkMode"] = "corral" }, []string{"same-netns-as-gate", "unlisted-host-blocked", "allowed", "dns-closed", "udp-closed", "no-port-published"}},
		"the host's processes": {func(b map[string]any) { in(b, "HostConfig")["PidMode"] = "host" }, []string{"gate-control-unreachable"}},
		"a secret as a label":  {func(b map[string]any) { in(b, "Labels")["x"] = canary }, []string{"secret-absent-elsewhere"}},
		"a device": {func(b map[string]any) {
			in(b, "HostConfig")["Devices"] = []map[string]string{{"PathOnHost": "/dev/null", "PathInContainer": "/dev/x", "CgroupPermissions": "rwm"}}
		}, []string{"container-as-planned"}},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Pointer[[2]any] // the entry point and the command that corral asks for
			s.env = append(env[:len(env):len(env)], "DOCKER_HOST="+between(t, filepath.Join(dir, strings.ReplaceAll(name, " ", "-")), func(engine http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					what, where := path.Base(r.URL.Path), path.Base(path.Dir(r.URL.Path))
					var body map[string]any
					switch {
					case r.Method == http.MethodPost && what == "create" && where == "containers" && strings.HasSuffix(r.URL.Query().Get("name"), "-main"):
						json.Unmarshal(again(r), &body)
						asked.Store(&[2]any{body["Entrypoint"], body["Cmd"]})
						body["Entrypoint"], body["Cmd"] = kept, nil // no handover refuses it first
						tt.weaken(body)
						resend(r, body)
					case r.Method == http.MethodPost && what == "exec":
						if b := again(r); strings.Contains(string(b), "corral-verify") {
							json.Unmarshal(b, &body)
							body["Cmd"] = []string{"sh", "-c", liar}
							resend(r, body)
						}
					case r.Method == http.MethodGet && what == "json" && asked.Load() != nil:
						got := httptest.NewRecorder()
						engine.ServeHTTP(got, r)
						b := got.Body.Bytes()
						json.Unmarshal(b, &body)
						if c := in(body, "Config"); c != nil && fmt.Sprint(c["Entrypoint"]) == fmt.Sprint(kept) {
							c["Entrypoint"], c["Cmd"] = asked.Load()[0], asked.Load()[1]
							b = encoded(body)
						}
						w.Header().Set("Content-Type", "application/json")
						w.WriteHeader(got.Code)
						w.Write(b)
						return
					}
					engine.ServeHTTP(w, r)
				})
			}))
			r := s.corral("verify", "--json")
			s.env = env
			kinds, said := red(r)
			t.Logf("red: %s", strings.Join(kinds, " "))
			if (r.code != 0) != (len(tt.red) > 0) {
				t.Errorf("status %d: %s%s", r.code, said, r.err)
			}
			for _, kind := range tt.red {
				if !slices.Contains(kinds, kind) {
					t.Errorf("%s is not red: %s%s", kind, said, r.err)
				}
			}
		})
	}
}

// A second root over the first, with all that is mounted there, is seen by whoever
// enters as one: the first process lives below it, and its mounts say so. The guests
// mounted over themselves are seen from both sides.
func TestMountedOver(t *testing.T) {
	t.Parallel()
	s := project(t, allowed)
	s.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	end := s.up("echo up; read -r _", "up")
	defer end()
	within := func(args ...string) {
		run(t, append([]string{"nsenter", "--target", strconv.Itoa(pid(t, s.agent())), "--mount", "mount"}, args...)...)
	}
	verify := func(want string) {
		t.Helper()
		if r := s.corral("verify"); r.code != 1 || !regexp.MustCompile(`(?m)^FAIL mounts-only-declared: .*`+want).MatchString(r.out) {
			t.Errorf("not %q: status %d: %s%s", want, r.code, r.out, r.err)
		}
	}
	within("--rbind", "/", "/")
	verify(`the kernel says otherwise: mountinfo /: it is mounted over`)
	within("--bind", "/opt/corral", "/opt/corral")
	within("-o", "remount,bind,ro", "/opt/corral")
	verify(`/opt/corral is mounted over`)
}
