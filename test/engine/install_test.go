package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
	"github.com/corral-sandbox/corral/test/lab"
)

// fake is an engine that says something else than the one behind it. Only the
// wire is faked: what is not named here is the real engine's.
type fake struct {
	info    func(map[string]any)                    // changes what docker info says
	api     string                                  // the version that it claims to speak
	create  func(map[string]any)                    // changes containers that are asked for
	answer  func(method, path string) (int, string) // in place of the engine; 0 for its own
	network func(map[string]any)                    // changes what the corral network is said to be
	mu      sync.Mutex
	made    []string // what was asked to be made
}

var (
	versioned = regexp.MustCompile(`^/v[0-9.]+`)
	makes     = regexp.MustCompile(`^/(networks/create|build|images/create|volumes/create|containers/create)$`)
)

func (f *fake) before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := versioned.ReplaceAllString(r.URL.Path, "")
		if r.Method == http.MethodPost && makes.MatchString(path) {
			f.mu.Lock()
			f.made = append(f.made, path)
			f.mu.Unlock()
		}
		if f.answer != nil {
			if status, body := f.answer(r.Method, path); status != 0 {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status)
				io.WriteString(w, body)
				return
			}
		}
		switch {
		case path == "/containers/create" && f.create != nil:
			b, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			b = changed(b, f.create)
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
			next.ServeHTTP(w, r)
		case path == "/info" && f.info != nil:
			f.rewritten(w, r, next, f.info)
		case r.Method == http.MethodGet && path == "/networks/corral" && f.network != nil:
			f.rewritten(w, r, next, f.network)
		case path == "/_ping" && f.api != "":
			next.ServeHTTP(&headed{w, f.api}, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// headed is an answer that names another version of the API.
type headed struct {
	http.ResponseWriter
	api string
}

func (h *headed) WriteHeader(status int) {
	h.Header().Set("Api-Version", h.api)
	h.ResponseWriter.WriteHeader(status)
}

// whole keeps an answer until it is complete.
type whole struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (w *whole) WriteHeader(status int)      { w.status = status }
func (w *whole) Write(b []byte) (int, error) { return w.body.Write(b) }
func (w *whole) Flush()                      {}

func (f *fake) rewritten(w http.ResponseWriter, r *http.Request, next http.Handler, change func(map[string]any)) {
	kept := &whole{ResponseWriter: w, status: http.StatusOK}
	next.ServeHTTP(kept, r)
	b := kept.body.Bytes()
	if kept.status == http.StatusOK {
		b = changed(b, change)
	}
	w.Header().Del("Content-Length")
	w.WriteHeader(kept.status)
	w.Write(b)
}

func changed(b []byte, change func(map[string]any)) []byte {
	var v map[string]any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		panic(err)
	}
	change(v)
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// at is the fake's address.
func (f *fake) at(t *testing.T) string {
	t.Helper()
	p, address := before(t, public(t), -1, refuse)
	p.next = f.before(p.next)
	return address
}

// machine is a person without a project, on a machine where corral is
// installed.
func machine(t *testing.T) *sandbox {
	t.Helper()
	testenv.Require(t, "netns", "engine")
	l := lab.Use(t)
	dirs, err := built()
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.MkdirTemp("", "corral-home-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	s := &sandbox{tb: t, lab: l, bin: dirs[0], dir: home, uid: ownerUID, gid: ownerGID}
	s.own(home)
	s.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "CORRAL_RESOLVERS=" + lab.NameServer.String()}
	return s
}

// public is a directory that everybody can enter.
func public(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "corral-public-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// with runs a command with more in the environment.
func (s *sandbox) with(env []string, args ...string) result {
	s.tb.Helper()
	plain := s.env
	defer func() { s.env = plain }()
	s.env = slices.Concat(plain, env)
	return s.corral(args...)
}

// tools are the scratch containers that exist.
func tools(t *testing.T) []string {
	return strings.Fields(docker(t, "ps", "--all", "--quiet", "--filter", "label=dev.corral.purpose=check"))
}

// On a machine on which corral is installed everything holds, twice, and
// nothing is left of the looking.
func TestInstallCheck(t *testing.T) {
	// Alone: install drops the images of other builds, and scratch containers are looked for.
	s := machine(t)
	for range 2 {
		if r := s.corral("install"); r.code != 0 || !strings.HasSuffix(r.err, "corral: this machine is ready\n") || r.out != "" {
			t.Fatalf("install: %v", r)
		}
	}
	r := s.corral("install", "--check")
	if r.code != 0 || strings.Contains(r.out, "FAIL") || strings.Contains(r.out, "\nskip ") || !strings.Contains(r.out, "\nok   kernel: rules by ") || !strings.HasSuffix(r.out, " 0 skipped, 0 failed\n") {
		t.Errorf("check: %v", r)
	}
	j := s.corral("install", "--check", "--json")
	var last struct{ OK bool }
	lines := strings.Split(strings.TrimSpace(j.out), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || !last.OK || j.code != 0 || len(lines) != strings.Count(r.out, "\n") {
		t.Errorf("JSON: %v, %v", err, j)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 {
		t.Errorf("left in the home directory: %v, %v", left, err)
	}
	if left := tools(t); len(left) > 0 {
		t.Errorf("left on the engine: %v", left)
	}
}

// R101: what a scratch container reads is read whatever its label, and nothing
// of an earlier look that was killed stays in the home directory.
func TestInstallScratch(t *testing.T) {
	// Alone: it is about all scratch containers.
	s := machine(t)
	left, used := filepath.Join(s.dir, ".corral-check-1"), filepath.Join(s.dir, ".corral-check-2")
	s.own(left, used)
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(left, old, old); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var options []string
	unread, unlabelled := 0, 0
	f := fake{create: func(m map[string]any) {
		mu.Lock()
		defer mu.Unlock()
		host := m["HostConfig"].(map[string]any)
		o := fmt.Sprint(host["SecurityOpt"])
		options = append(options, o)
		if mounts, _ := host["Mounts"].([]any); len(mounts) == 0 { // the neighbour that is called
			unread++
		}
		if strings.Contains(o, "label=disable") {
			unlabelled++
		}
	}}
	if r := s.with([]string{"DOCKER_HOST=" + f.at(t)}, "install", "--check"); r.code != 0 {
		t.Error(r)
	}
	if len(options) != 4 || unread != 1 || unlabelled != 3 || slices.ContainsFunc(options, func(o string) bool {
		return !strings.Contains(o, "no-new-privileges")
	}) {
		t.Errorf("scratch containers are made with %q, %d of them without a mount", options, unread)
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(used) {
		t.Errorf("in the home directory: %v, %v", entries, err)
	}
}

// Each thing that stands against a fence is named, with what to do, and nothing
// is made. R042: what a kernel can is tried in a container on the engine, so it
// is the engine's kernel that is judged.
func TestInstallConditions(t *testing.T) {
	// Alone: it is about all scratch containers.
	s := machine(t)
	if r := s.corral("install"); r.code != 0 {
		t.Fatal(r)
	}
	option := func(o string) func(map[string]any) {
		return func(info map[string]any) {
			info["SecurityOptions"] = append(info["SecurityOptions"].([]any), "name="+o)
		}
	}
	value := func(key string, v any) func(map[string]any) {
		return func(m map[string]any) { m[key] = v }
	}
	mount := func(m map[string]any) map[string]any {
		return m["HostConfig"].(map[string]any)["Mounts"].([]any)[0].(map[string]any)
	}
	elsewhere := public(t)
	// says is a scratch container whose trial says that features are not there,
	// or that says no more after one of them.
	says := func(last string, failed map[string]string) func(map[string]any) {
		script := `printf '{"version":1,"check":"read","result":"ok","detail":"%s"}\n' "$(cat "$4")"` + "\n"
		for _, f := range spec.TrialFeatures {
			result, why := "ok", failed[f.Name]
			if why != "" {
				result = "failed"
			}
			script += fmt.Sprintf("echo '{\"version\":1,\"check\":%q,\"result\":%q,\"detail\":%q}'\n", f.Name, result, why)
			if f.Name == last {
				break
			}
		}
		return func(m map[string]any) {
			if m["HostConfig"].(map[string]any)["NetworkMode"] == "none" {
				words := []any{"/bin/sh", "-c", script, "trial"}
				m["Cmd"] = append(words[1:], append([]any{m["Entrypoint"].([]any)[0]}, m["Cmd"].([]any)...)...)
				m["Entrypoint"] = words[:1]
				m["Image"] = testenv.BaseImage // the gate's has no shell
			}
		}
	}
	// less is one without a right.
	less := func(capability string) func(map[string]any) {
		return func(m map[string]any) {
			host := m["HostConfig"].(map[string]any)
			host["CapAdd"] = slices.DeleteFunc(slices.Clone(asList(host["CapAdd"])), func(c any) bool { return strings.HasSuffix(c.(string), capability) })
		}
	}
	refused := func(method, path string, status int, body string) func(string, string) (int, string) {
		return func(m, p string) (int, string) {
			if m == method && regexp.MustCompile(path).MatchString(p) {
				return status, body
			}
			return 0, ""
		}
	}
	small := filepath.Join(public(t), "small")
	if err := errors.Join(os.Mkdir(small, 0o755), syscall.Mount("tmpfs", small, "tmpfs", 0, "size=64m")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Unmount(small, 0) })
	t.Cleanup(func() { // when all have ended
		if left := tools(t); len(left) > 0 {
			t.Errorf("left on the engine: %v", left)
		}
	})

	for _, tt := range []struct {
		name   string
		fake   *fake
		env    []string
		unmet  string // the condition
		said   string
		remedy string
		note   bool
		skips  string // a condition that is not looked at then
	}{
		{name: "old API", fake: &fake{api: "1.40"}, unmet: "engine-version", said: "speaks API 1.40, and corral needs 1.41", remedy: "install Docker 20.10 or newer", skips: "kernel"},
		{name: "Windows containers", fake: &fake{info: value("OSType", "windows")}, unmet: "linux-containers", said: "runs windows containers", remedy: "docker context use default", skips: "kernel"},
		{name: "rootless", fake: &fake{info: option("rootless")}, unmet: "engine-root", said: "is rootless", remedy: "sudo systemctl enable --now docker", skips: "gate-image"},
		{name: "userns-remap", fake: &fake{info: option("userns")}, unmet: "engine-users", said: "remaps users (userns-remap)", remedy: "/etc/docker/daemon.json", skips: "network"},
		{name: "Docker Desktop", fake: &fake{info: value("OperatingSystem", "Docker Desktop")}, unmet: "engine-machine", said: "is Docker Desktop's", remedy: "sudo apt-get install docker.io", skips: "firewall"},
		{name: "a virtual machine", fake: &fake{info: value("KernelVersion", "6.6.0-colima")}, unmet: "engine-machine", said: "another kernel (6.6.0-colima", remedy: "docker context use default", skips: "engine-sees-files"},
		{name: "snap", fake: &fake{info: value("DockerRootDir", "/var/snap/docker/common/var-lib-docker")}, unmet: "engine-package", said: "cannot read ~/.local", remedy: "sudo snap remove docker", skips: "disk-space"},
		{name: "no seccomp", fake: &fake{info: value("SecurityOptions", []any{"name=apparmor"})}, unmet: "seccomp", said: "does not filter system calls", remedy: "CONFIG_SECCOMP_FILTER"},
		{name: "no pids cgroup", fake: &fake{info: value("PidsLimit", false)}, unmet: "process-limit", said: "cannot limit processes", remedy: "CONFIG_CGROUP_PIDS"},
		{name: "no memory cgroup", fake: &fake{info: value("MemoryLimit", false)}, unmet: "memory-limit", said: "cannot limit memory", remedy: "cgroup_enable=memory", note: true},
		{name: "vfs", fake: &fake{info: value("Driver", "vfs")}, unmet: "storage-driver", said: "copies the whole image", remedy: `"storage-driver": "overlay2"`, note: true},
		{name: "little room", fake: &fake{info: value("DockerRootDir", small)}, unmet: "disk-space", said: "MiB are free in " + small, remedy: "docker system prune", note: true},
		{name: "a proxy", env: []string{"https_proxy=http://192.0.2.1:3128"}, unmet: "direct-connection", said: "https_proxy is set", remedy: "is not supported", note: true},
		{name: "no image", fake: &fake{answer: func(m, p string) (int, string) {
			if strings.HasPrefix(p, "/images/corral-gate:") {
				return 404, `{"message":"No such image"}`
			}
			return refused("POST", "^/build$", 500, `{"message":"no space left on device"}`)(m, p)
		}}, unmet: "gate-image", said: "no space left on device", remedy: "docker pull debian:bookworm-slim", skips: "engine-sees-files"},
		{name: "no base image", fake: &fake{answer: func(m, p string) (int, string) {
			if strings.HasPrefix(p, "/images/debian") {
				return 404, `{"message":"No such image"}`
			}
			return refused("POST", "^/images/create$", 500, `{"message":"registry is unreachable"}`)(m, p)
		}}, unmet: "gate-image", said: "registry is unreachable", remedy: "docker pull debian:bookworm-slim", skips: "kernel"},
		{name: "the source is not there", fake: &fake{create: func(m map[string]any) { mount(m)["Source"] = mount(m)["Source"].(string) + "/gone" }},
			unmet: "engine-sees-files", said: "bind source path does not exist", skips: "kernel"},
		{name: "the source is here and not there", fake: &fake{answer: refused("POST", "^/containers/create$", 400, fmt.Sprintf(`{"message":"invalid mount config for type \"bind\": bind source path does not exist: %s"}`, elsewhere))},
			unmet: "engine-sees-files", said: "does not see this machine's files: " + elsewhere, remedy: "docker context use default", skips: "kernel"},
		{name: "other files", fake: &fake{create: func(m map[string]any) { mount(m)["Source"] = elsewhere }},
			unmet: "engine-sees-files", said: "does not see this machine's files", remedy: "unset DOCKER_HOST", skips: "firewall"},
		{name: "no right to rules", fake: &fake{create: less("NET_ADMIN")}, unmet: "kernel", said: "without the capability NET_ADMIN", remedy: "cap_add"},
		{name: "no right to sets", fake: &fake{create: less("NET_RAW")}, unmet: "kernel", said: "without the capability NET_RAW", remedy: "cap_add"},
		{name: "no set match", fake: &fake{create: says("rules", map[string]string{"set-match": "missing kernel module?"})},
			unmet: "kernel", said: "lacks set-match (modules xt_set; ", remedy: "sudo modprobe -a xt_set"},
		{name: "no NFLOG", fake: &fake{create: says("rules", map[string]string{"nflog-target": "no chain/target/match by that name"})},
			unmet: "kernel", said: "no chain/target/match by that name", remedy: "sudo modprobe -a xt_NFLOG"},
		{name: "no ip6tables", fake: &fake{create: says("backend", map[string]string{"backend": "cannot close IPv6: ip6tables --wait -S: exit status 3"})},
			unmet: "kernel", said: "cannot close IPv6", remedy: "sudo modprobe -a nf_tables nft_compat ip6_tables ip6table_filter"},
		{name: "a trial that is cut off", fake: &fake{create: says("set-hash-ip", nil)}, unmet: "kernel", said: "said nothing", remedy: "sudo modprobe"},
		{name: "no network", fake: &fake{answer: refused("GET", "^/networks/corral$", 404, `{"message":"network corral not found"}`)},
			unmet: "network", said: `there is no network "corral" yet`, remedy: "corral install makes it", skips: "firewall"},
		{name: "a network that was altered", fake: &fake{network: value("EnableIPv6", true)}, unmet: "network", said: `IPv6 is "true", not "false"`, remedy: "corral install --repair", skips: "gateway-address"},
		{name: "a gateway that is not here", fake: &fake{network: func(m map[string]any) {
			m["IPAM"].(map[string]any)["Config"] = []any{map[string]any{"Subnet": "10.231.0.0/17", "IPRange": "10.231.127.0/24", "Gateway": "10.231.0.1"}}
		}}, unmet: "gateway-address", said: "cannot listen on the gateway's address 10.231.0.1", remedy: "sudo systemctl restart docker", skips: "firewall"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := *s
			s.tb = t
			if tt.fake == nil {
				tt.fake = new(fake)
			}
			env := append([]string{"DOCKER_HOST=" + tt.fake.at(t)}, tt.env...)
			r := s.with(env, "install", "--check")
			word, code := "FAIL", 1
			if tt.note {
				word, code = "note", 0
			}
			line, rest, _ := strings.Cut(after(r.out, "\n"+word+" "+tt.unmet+": "), "\n")
			hint, _, _ := strings.Cut(rest, "\n")
			if r.code != code || !strings.Contains(line, tt.said) || !strings.HasPrefix(hint, "  hint: ") || !strings.Contains(hint, tt.remedy) {
				t.Errorf("%s (%q): %v", tt.unmet, line, r)
			}
			if n := strings.Count(r.out, "\nFAIL "); n != code {
				t.Errorf("%d failures: %v", n, r)
			}
			if tt.skips != "" && !strings.Contains(r.out, "\nskip "+tt.skips+": not looked at, since ") {
				t.Errorf("%s is not told as not looked at: %v", tt.skips, r)
			}
			if tt.note || tt.unmet == "network" || tt.unmet == "gateway-address" {
				return
			}
			// The same ends what would make something.
			f := tt.fake.again()
			r = s.with([]string{"DOCKER_HOST=" + f.at(t)}, "install")
			if r.code != 1 || r.out != "" || !strings.Contains(r.err, "FAIL "+tt.unmet+": ") || !strings.Contains(r.err, tt.remedy) || !strings.Contains(r.err, "this machine is not ready") {
				t.Errorf("install: %v", r)
			}
			if slices.Contains(f.made, "/networks/create") || tt.unmet != "gate-image" && slices.Contains(f.made, "/build") {
				t.Errorf("made: %v", f.made)
			}
		})
	}
}

func (f *fake) again() *fake {
	return &fake{info: f.info, api: f.api, create: f.create, answer: f.answer, network: f.network}
}

func asList(v any) []any {
	list, _ := v.([]any)
	return list
}

// after is what follows the first occurrence of a mark, empty if there is none.
func after(s, mark string) string {
	_, rest, _ := strings.Cut("\n"+s, mark)
	return rest
}

// R047: a firewall of the host that drops what comes from the bridge is named,
// with the lines that let it in.
func TestInstallFirewall(t *testing.T) {
	// Alone: a firewall is in the way of every sandbox.
	s := machine(t)
	if r := s.corral("install"); r.code != 0 {
		t.Fatal(r)
	}
	for _, how := range [][]string{{"DROP"}, {"REJECT", "--reject-with", "icmp-host-prohibited"}} {
		rule := append([]string{"INPUT", "-i", bridge, "-p", "tcp", "-j"}, how...)
		iptables := func(op string) error {
			out, err := exec.Command("iptables", append([]string{"--wait", op}, rule...)...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}
		if err := iptables("-I"); err != nil {
			t.Fatal(err)
		}
		remove := sync.OnceFunc(func() {
			if err := iptables("-D"); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(remove)
		r := s.corral("install", "--check")
		remove()
		gateway := corralSubnet(t).Addr().Next()
		for _, want := range []string{
			"\nnote firewall: ", "a firewall of this machine drops it",
			fmt.Sprintf("sudo ufw allow in on corral0 to %v port PORT proto tcp", gateway),
			"sudo firewall-cmd --permanent",
		} {
			if r.code != 0 || !strings.Contains(r.out, want) {
				t.Errorf("%v: no %q: %v", how, want, r)
			}
		}
	}
}

// R048: a route that takes the subnet is found by looking, too.
func TestInstallCheckCollision(t *testing.T) {
	// Alone: a route is in the way of every corral command.
	s := machine(t)
	if r := s.corral("install"); r.code != 0 {
		t.Fatal(r)
	}
	whole := corralSubnet(t)
	addRoute(t, whole)
	r := s.corral("install", "--check")
	if r.code != 1 || !strings.Contains(r.out, fmt.Sprintf("FAIL network: the subnet %v collides with route %v dev lo\n  hint: corral down ends what runs; then corral install --repair", whole, whole)) {
		t.Errorf("%v", r)
	}
	missing := fake{answer: func(_, path string) (int, string) {
		if path == "/networks/corral" {
			return 404, `{"message":"network corral not found"}`
		}
		return 0, ""
	}}
	r = s.with([]string{"DOCKER_HOST=" + missing.at(t), "CORRAL_SUBNET=" + whole.String()}, "install", "--check")
	if r.code != 1 || !strings.Contains(r.out, fmt.Sprintf("FAIL network: the subnet %v collides with route %v dev lo\n  hint: set CORRAL_SUBNET", whole, whole)) {
		t.Errorf("%v", r)
	}
}

// An engine that cannot be asked: who answers, who may ask, where it is.
func TestInstallNoEngine(t *testing.T) {
	s := machine(t)
	locked := filepath.Join(s.dir, "locked.sock")
	if err := syscall.Mknod(locked, syscall.S_IFSOCK|0o600, 0); err != nil {
		t.Fatal(err)
	}
	nothing := public(t)
	if out, err := exec.Command("docker", "--config", filepath.Join(s.dir, ".docker"), "context", "create", "far", "--docker", "host=ssh://build.example").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := exec.Command("chown", "-R", fmt.Sprint(ownerUID), filepath.Join(s.dir, ".docker")).Run(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		env                 []string
		unmet, said, remedy string
	}{
		{[]string{"PATH=" + nothing}, "docker-command", "there is no docker command", "sudo apt-get install docker.io"},
		{[]string{"DOCKER_HOST=unix:///nonexistent/docker.sock"}, "engine-answers", "no Docker engine answers at /nonexistent/docker.sock", "sudo systemctl start docker"},
		{[]string{"DOCKER_HOST=unix://" + locked}, "engine-answers", "no permission to use the Docker engine at " + locked, `sudo usermod -aG docker "$USER"`},
		{[]string{"DOCKER_HOST=tcp://192.0.2.7:2375"}, "engine-answers", "tcp://192.0.2.7:2375, and corral needs the Unix socket", "unset DOCKER_HOST"},
		{[]string{"DOCKER_HOST=ssh://build.example"}, "engine-answers", "ssh://build.example, and corral needs the Unix socket", "docker context use default"},
		{[]string{"DOCKER_CONTEXT=far"}, "engine-answers", "ssh://build.example, and corral needs the Unix socket", "docker context use default"},
		{[]string{"DOCKER_CONTEXT=none"}, "engine-answers", "the active Docker context cannot be read", "docker context ls"},
	} {
		r := s.with(tt.env, "install", "--check")
		if r.code != 1 || !strings.Contains(r.out, "\nFAIL "+tt.unmet+": ") || !strings.Contains(r.out, tt.said) || !strings.Contains(r.out, tt.remedy) || !strings.Contains(r.out, "skip kernel: not looked at, since ") {
			t.Errorf("%v: %v", tt.env, r)
		}
	}
}

// What the machine has no name server, or the binaries of another build, is
// said as well.
func TestInstallMachine(t *testing.T) {
	s := machine(t)
	root := func(setup string, env ...string) result {
		cmd := exec.Command("unshare", "--mount", "sh", "-c", setup+` && exec "$0" install --check`, filepath.Join(s.bin, "corral"))
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir}, env...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
			t.Fatal(err)
		}
		return result{out.String(), errs.String(), cmd.ProcessState.ExitCode(), cmd.Process.Pid}
	}
	hide := `for f in /etc/resolv.conf /run/systemd/resolve/resolv.conf; do if [ -e $f ]; then mount --bind /dev/null $f; fi; done`
	if r := root(hide); r.code != 1 || !strings.Contains(r.out, "\nFAIL resolvers: this machine names no name server") || !strings.Contains(r.out, "hint: set CORRAL_RESOLVERS") {
		t.Errorf("no name server: %v", r)
	}
	for _, tt := range []struct {
		name  string
		guest string
		said  string
	}{
		{"missing", "", "install it together with corral"},
		{"not static", "/bin/true", "is not a static Linux program"},
		{"another program", filepath.Join(s.bin, "corral-verify"), "this is corral "},
	} {
		dir := public(t)
		if err := os.Link(filepath.Join(s.bin, "corral"), filepath.Join(dir, "corral")); err != nil {
			b, err := os.ReadFile(filepath.Join(s.bin, "corral"))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "corral"), b, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if tt.guest != "" {
			b, err := os.ReadFile(tt.guest)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "corral-gate"), b, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		o := *s
		o.bin = dir
		if r := o.corral("install", "--check"); r.code != 1 || !strings.Contains(r.out, "FAIL guest-binaries: ") || !strings.Contains(r.out, tt.said) || !strings.Contains(r.out, "hint: install corral, corral-gate and corral-verify together") || !strings.Contains(r.out, "skip kernel") {
			t.Errorf("%s: %v", tt.name, r)
		}
	}
}

// An engine on which a fence is untrue is refused by every command, not by
// corral install alone.
func TestEngineRefused(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	for name, change := range map[string]func(map[string]any){
		"is rootless":      func(i map[string]any) { i["SecurityOptions"] = []any{"name=seccomp", "name=rootless"} },
		"remaps users":     func(i map[string]any) { i["SecurityOptions"] = []any{"name=seccomp", "name=userns"} },
		"another kernel":   func(i map[string]any) { i["KernelVersion"] = "5.10.0" },
		"Docker Desktop's": func(i map[string]any) { i["OperatingSystem"] = "Docker Desktop" },
		"no seccomp":       func(i map[string]any) { i["SecurityOptions"] = nil },
	} {
		f := fake{info: change}
		env := []string{"DOCKER_HOST=" + f.at(t)}
		for _, args := range [][]string{{"run", "--", "true"}, {"verify"}, {"demo"}} {
			if r := s.with(env, args...); r.code != 1 || !strings.Contains(r.err, name) || !strings.Contains(r.err, "  hint: ") {
				t.Errorf("corral %v on an engine that %s: %v", args, name, r)
			}
		}
		if len(f.made) > 0 {
			t.Errorf("%s: made %v", name, f.made)
		}
	}
}

// R131: no proxy of the host's reaches an agent, wherever the host has it from.
func TestNoProxyInside(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	config := filepath.Join(filepath.Dir(s.dir), "home", ".docker")
	s.own(config)
	text := `{"proxies":{"default":{"httpProxy":"http://192.0.2.1:3128","httpsProxy":"http://192.0.2.1:3128","noProxy":"example.org","allProxy":"socks5://192.0.2.1:1080"}}}`
	if err := os.WriteFile(filepath.Join(config, "config.json"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	env := []string{"HTTPS_PROXY=http://192.0.2.1:3128", "http_proxy=http://192.0.2.1:3128", "ALL_PROXY=socks5://192.0.2.1:1080"}
	r := s.with(env, "run", "--", "sh", "-c", "env; cat /proc/1/environ | tr '\\0' '\\n'")
	if r.code != 0 || !strings.Contains(r.out, "PATH=") {
		t.Fatal(r)
	}
	if strings.Contains(strings.ToLower(r.out), "_proxy=") || strings.Contains(r.out, "192.0.2.1") {
		t.Errorf("a proxy is inside: %s", r.out)
	}
}
