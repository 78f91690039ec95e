package engine

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/command"
	"github.com/corral-sandbox/corral/internal/testenv"
	"github.com/corral-sandbox/corral/test/lab"
)

// other is a stack of somebody else's with gates of ours, from one of the
// examples, in the lab.
type other struct {
	t        *testing.T
	dir      string
	env      []string
	override string
	project  string
}

// gateTag is the tag of the gate image that the stacks of others share. Whoever asks
// for it removes the image.
var gateTag = sync.OnceValues(buildGate)

// buildGate builds the gate image as make image does, and returns its tag.
func buildGate() (string, error) {
	dirs, err := built()
	if err != nil {
		return "", err
	}
	tag := "test-" + strings.ToLower(rand.Text())
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	said, err := command.Run(ctx, nil, "../../deploy/images/gate/build", dirs[0], tag)
	if err != nil {
		return "", err
	}
	if want := "CORRAL_VERSION=" + tag + "\n"; !strings.HasSuffix(string(said), want) {
		return "", fmt.Errorf("the last line is not %q: %s", want, said)
	}
	return tag, nil
}

// example prepares a folder of deploy/compose. Only the environment and a second
// file, which overrides, put it into the lab.
func example(t *testing.T, name, override string) *other {
	t.Helper()
	tag, err := gateTag()
	if err != nil {
		t.Fatal(err)
	}
	o := &other{t: t, dir: filepath.Join("..", "..", "deploy", "compose", name), project: "corral-test-" + name,
		override: filepath.Join(t.TempDir(), "lab.yaml"),
		env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "CORRAL_VERSION=" + tag, "CORRAL_RESOLVERS=" + lab.NameServer.String(),
			probesOfTheLab()}}
	if err := os.WriteFile(o.override, []byte(override), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if r := o.compose("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "1"); r.code != 0 {
			t.Errorf("down: %v", r)
		}
		for _, what := range [][]string{{"ps", "--all"}, {"volume", "ls"}, {"network", "ls"}} {
			if left := docker(t, append(what, "--quiet", "--filter", "label=com.docker.compose.project="+o.project)...); left != "" {
				t.Errorf("left behind: %v %s", what, left)
			}
		}
	})
	return o
}

func (o *other) compose(args ...string) result {
	o.t.Helper()
	return compose(o.t, o.dir, o.env, nil, o.args(args...)...)
}

func (o *other) args(more ...string) []string {
	return append([]string{"--project-name", o.project, "--file", "compose.yaml", "--file", o.override}, more...)
}

// up brings the stack up as its reader would. Its volume of programs is its own,
// though other stacks have the same version.
func (o *other) up() {
	o.t.Helper()
	if r := o.compose("up", "--detach", "--build", "--wait", "--wait-timeout", "90"); r.code != 0 {
		o.t.Fatalf("%v\n%s", r, o.compose("logs").out)
	}
	tag, err := gateTag()
	if err != nil {
		o.t.Fatal(err)
	}
	if whose := docker(o.t, "volume", "inspect", "--format", `{{index .Labels "com.docker.compose.project"}}`, o.project+"-guest-"+tag); whose != o.project {
		o.t.Errorf("the programs of %s are in a volume of %q", o.project, whose)
	}
}

// in runs a script in a service.
func (o *other) in(service, script string) result {
	o.t.Helper()
	return o.compose("exec", "-T", service, "bash", "-c", script)
}

// alone proves a service by the one command of docs/alone.md.
func (o *other) alone(service string) {
	o.t.Helper()
	r := o.compose("exec", "-T", service, "/opt/corral/bin/corral-verify", "alone")
	if r.code != 0 || !regexp.MustCompile(`(?m)^[0-9]+ passed, [0-9]+ skipped, 0 failed$`).MatchString(r.out) {
		o.t.Errorf("%s: %v", service, r)
	}
	for _, check := range []string{"no-capabilities", "no-new-privs", "unlisted-host-blocked", "udp-closed"} {
		if !regexp.MustCompile(`(?m)^ok +` + check + `$`).MatchString(r.out) {
			o.t.Errorf("%s: no check %s in %s", service, check, r.out)
		}
	}
}

// dial is a script that opens a TCP connection and says so. Who is dropped and not
// refused waits for nothing.
func dial(addr any, port any) string {
	return fmt.Sprintf("timeout 3 bash -c 'exec 3<>/dev/tcp/%v/%v && echo open'", addr, port)
}

// reaches and shut say whether a script's connection was made.
func (o *other) reaches(service string, addr, port any) {
	o.t.Helper()
	if r := o.in(service, dial(addr, port)); !strings.Contains(r.out, "open\n") {
		o.t.Errorf("%s does not reach %v port %v: %v", service, addr, port, r)
	}
}

func (o *other) shut(service string, addr, port any) {
	o.t.Helper()
	if r := o.in(service, dial(addr, port)); strings.Contains(r.out, "open\n") || r.code == 0 {
		o.t.Errorf("%s reaches %v port %v: %v", service, addr, port, r)
	}
}

// The examples come up with plain Docker Compose, are proven from the inside, and
// leave nothing.
func TestAloneInOtherStacks(t *testing.T) {
	// Alone: its networks lie in the range of the corral network, in the way of every corral command.
	testenv.Require(t, "netns", "engine")
	l := lab.Use(t)
	l.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	tag, err := gateTag()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { docker(t, "rmi", "--no-prune", "corral-gate:"+tag) })
	// An image that people gave a name stays when corral tidies up.
	project(t, nothing).must("install")
	docker(t, "image", "inspect", "--format", "{{.Id}}", "corral-gate:"+tag)
	t.Run("examples", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *lab.Lab){"any-app": anyApp, "linked": linked, "root-start": rootStart, "fetch": fetcher} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, l)
			})
		}
	})
}

// inTheLab is what the second file says of a gate: the addresses that it may dial
// are the lab's, and its health is asked for more often.
const inTheLab = `    environment: {CORRAL_ALLOW: api.allowed.test, CORRAL_PROBES: "${CORRAL_PROBES}"}
    healthcheck: {interval: 1s}
`

// network is a network of the second file's with a bridge and a subnet that the
// lab guards.
func network(name, bridge, subnet string) string {
	return fmt.Sprintf("networks:\n  %s: {driver_opts: {com.docker.network.bridge.name: %s}, ipam: {config: [{subnet: %s}]}}\n", name, bridge, subnet)
}

// unfenced is a container of the same networks with nothing of corral's, that
// listens on port 80: who reaches it, or is reached by it, shows that a network
// connects.
const unfenced = `  unfenced:
    image: debian:bookworm-slim
    command: [perl, -MIO::Socket::INET, -e, '$$SIG{PIPE} = "IGNORE"; $$l = IO::Socket::INET->new(Listen => 9, LocalPort => 80) or die; while ($$c = $$l->accept) { print $$c "hello\n"; close $$c }']
    init: true
`

// listens starts a listener in a service and waits for it.
func (o *other) listens(service string, port int) {
	o.t.Helper()
	script := fmt.Sprintf(`perl -MIO::Socket::INET -e '$SIG{PIPE} = "IGNORE"; $l = IO::Socket::INET->new(Listen => 9, LocalPort => %d) or die; exit if fork; close STDOUT; close STDERR; while ($c = $l->accept) { close $c }'`, port)
	if r := o.in(service, script); r.code != 0 {
		o.t.Fatalf("%s: %v", service, r)
	}
	o.reaches(service, "127.0.0.1", port)
}

func anyApp(t *testing.T, l *lab.Lab) {
	const net = "172.30.251.0/24"
	o := example(t, "any-app", `services:
  gate:
`+inTheLab+`  app: {environment: {CORRAL_PROBES: "${CORRAL_PROBES}"}}
  careless:
    extends: {file: compose.yaml, service: app}
    cap_drop: !reset []
    command: [echo, it runs]
    profiles: [careless]
  unproven:
    extends: {file: compose.yaml, service: app}
    cap_drop: !reset []
    entrypoint: [sleep]
    command: [infinity]
    environment: {CORRAL_PROBES: "${CORRAL_PROBES}"}
    profiles: [careless]
  worker:
    extends: {file: compose.yaml, service: app}
    user: "64999:1000"
    command: [echo, it runs]
    profiles: [careless]
`+unfenced+network("default", "corraltest1", net))
	o.up()
	l.Control(t, o.project+"_default")
	out := l.Capture(t, "corraltest1")
	o.alone("app")
	if r := o.compose("exec", "gate", "/opt/corral/bin/corral-gate", "status"); r.code != 0 || strings.Contains(r.out, "denied ") || !strings.Contains(r.out, "\nprobed ") {
		t.Errorf("the proof's own probes are in the account: %v", r)
	}
	o.reaches("app", "api.allowed.test", 443)
	o.reaches("unfenced", "unfenced", 80)
	o.shut("app", "api.allowed.test", 22)
	o.shut("app", lab.Canary, 443)
	o.shut("app", ipOf(t, o, "unfenced"), 80)
	o.shut("app", "172.30.251.1", 80)
	if r := o.in("app", "getent hosts evil.test"); r.code == 0 {
		t.Errorf("an unlisted name: %v", r)
	}
	if sent := out.Match(func(p lab.Packet) bool { return p.Dst == lab.Canary }); len(sent) > 0 {
		t.Errorf("to the canary went %v", sent)
	}

	// What was denied is told, in the two places that docs/alone.md names.
	if r := o.compose("exec", "gate", "/opt/corral/bin/corral-gate", "status"); r.code != 0 || !strings.Contains(r.out, lab.Canary.String()) || !strings.Contains(r.out, "evil.test") {
		t.Errorf("status: %v", r)
	}
	o.says("gate", `"addr":"`+lab.Canary.String()+`","port":443,`)
	o.says("gate", `"name":"evil.test"`)

	// R019: with what Docker gives, a container is not fenced; it does not start, and
	// one that started without asking is told.
	if r := o.compose("run", "--rm", "-T", "careless"); r.code == 0 || strings.Contains(r.out, "it runs") || !strings.Contains(r.err, "NET_RAW") || !strings.Contains(r.err, "cap_drop") {
		t.Errorf("without cap_drop: %v", r)
	}
	if r := o.compose("run", "--rm", "-T", "worker"); r.code == 0 || strings.Contains(r.out, "it runs") || !strings.Contains(r.err, "user-not-the-gates: ") || !strings.Contains(r.err, "choose another") {
		t.Errorf("as the gate's worker: %v", r)
	}
	if r := o.compose("up", "--detach", "unproven"); r.code != 0 {
		t.Fatal(r)
	}
	if r := o.compose("exec", "-T", "unproven", "/opt/corral/bin/corral-verify", "alone"); r.code != 1 || !regexp.MustCompile(`(?m)^FAIL no-capabilities: .*NET_RAW`).MatchString(r.out) {
		t.Errorf("alone without cap_drop: %v", r)
	}

	// R031: a gate that died leaves the program dark, one that was started again too;
	// docs/alone.md says what brings both back.
	docker(t, "kill", strings.TrimSpace(o.compose("ps", "--quiet", "gate").out))
	for range 2 {
		o.shut("app", "44.10.0.10", 443)
		o.shut("app", lab.Canary, 443)
		if r := o.compose("exec", "-T", "app", "/opt/corral/bin/corral-verify", "alone"); r.code == 0 || !regexp.MustCompile(`(?m)^FAIL gate-answers: .*--force-recreate`).MatchString(r.out) {
			t.Errorf("alone without a gate: %v", r)
		}
		if r := o.compose("up", "--detach", "--wait"); r.code != 0 {
			t.Error(r)
		}
	}
	if r := o.compose("up", "--detach", "--wait", "--force-recreate", "--timeout", "1"); r.code != 0 {
		t.Error(r)
	}
	o.alone("app")
	o.reaches("app", "api.allowed.test", 443)
}

// says waits until a service has logged a text.
func (o *other) says(service, text string) {
	o.t.Helper()
	argv, err := composeCommand()
	if err != nil {
		o.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	argv = slices.Concat(argv, []string{"--project-name", o.project, "--file", "compose.yaml", "--file", o.override, "logs", "--follow", service})
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Dir, c.Env, c.WaitDelay = o.dir, o.env, 10*time.Second
	out, err := c.StdoutPipe()
	if err != nil {
		o.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		o.t.Fatal(err)
	}
	said := bufio.NewScanner(out)
	for said.Scan() {
		if strings.Contains(said.Text(), text) {
			cancel()
			_ = c.Wait() // it was ended
			return
		}
	}
	o.t.Errorf("%s does not say %q (%v)", service, text, c.Wait())
}

// ipOf is the address of a service in the stack's default network.
func ipOf(t *testing.T, o *other, service string) string {
	t.Helper()
	id := strings.TrimSpace(o.compose("ps", "--quiet", service).out)
	return docker(t, "inspect", "--format", `{{(index .NetworkSettings.Networks "`+o.project+`_default").IPAddress}}`, id)
}

// fetcher is the stack of docs/fetch.md: a page comes in by it, and nothing else does;
// what it is asked for is refused by the gate of class public as well as by itself.
func fetcher(t *testing.T, l *lab.Lab) {
	const reader, fetch, linkGateway = "10.213.78.2", "10.213.78.3", "10.213.78.1"
	tag, err := gateTag()
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := built()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if out, err := command.Run(ctx, nil, "../../deploy/images/fetch/build", dirs[0], tag); err != nil || !strings.HasSuffix(string(out), "CORRAL_VERSION="+tag+"\n") {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { docker(t, "rmi", "--no-prune", "corral-fetch:"+tag) })
	l.DNS.Set("page.evil.test", lab.A("44.10.0.12"))
	l.DNS.Set("inner.evil.test", lab.A("10.1.2.3"))
	l.Handle(t, "page.evil.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/inward":
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		default:
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, "<title>A page</title><p>It has <b>some</b> words.<p hidden>and others")
		}
	}))
	o := example(t, "fetch", `services:
  fetch-gate:
    environment: {CORRAL_PROBES: "${CORRAL_PROBES}"}
    healthcheck: {interval: 1s}
  reader-gate:
    environment: {CORRAL_PROBES: "${CORRAL_PROBES}"}
    healthcheck: {interval: 1s}
  fetch: {environment: {CORRAL_PROBES: "${CORRAL_PROBES}"}, healthcheck: {interval: 1s}}
  reader: {environment: {CORRAL_PROBES: "${CORRAL_PROBES}"}}
`+network("default", "corraltest4", "172.30.254.0/24"))
	o.up()
	o.alone("reader")
	if r := o.compose("exec", "-T", "fetch", "/opt/corral/bin/corral-verify", "alone"); r.code != 0 || !regexp.MustCompile(`(?m)^ok +public-only\b`).MatchString(r.out) {
		t.Errorf("fetch: %v", r)
	}
	ask := func(url string) string {
		body := `{"url": "` + url + `"}`
		return o.in("reader", fmt.Sprintf(`exec 3<>/dev/tcp/fetch/8766; printf 'POST /v1/fetch HTTP/1.0\r\nHost: fetch\r\nContent-Length: %d\r\n\r\n%s' >&3; cat <&3`, len(body), body)).out
	}
	for url, want := range map[string]string{
		"http://page.evil.test/":       `"content_markdown":"It has **some** words.\n"`,
		"http://page.evil.test/inward": `"error":"blocked_destination"`,
		"http://inner.evil.test/":      `"error":"dns_error"`, // the gate has filtered the answer
		"http://127.0.0.1/":            `"error":"blocked_destination"`,
		"http://172.30.254.1/":         `"error":"blocked_destination"`,
		"http://reader:80/":            `"error":"blocked_destination"`,
	} {
		if got := ask(url); !strings.Contains(got, want) {
			t.Errorf("%s: %s", url, got)
		}
	}
	o.says("fetch", `"error":"blocked_destination"`)
	o.shut("reader", fetch, 80)
	o.shut("reader", "44.10.0.12", 80)
	o.shut("reader", lab.Canary, 443)
	o.shut("reader", linkGateway, 22)
}

func linked(t *testing.T, l *lab.Lab) {
	const (
		web, db, linkGateway = "10.213.77.2", "10.213.77.3", "10.213.77.1"
		stranger             = "10.213.77.4"
	)
	p := lab.Probes()
	o := example(t, "linked", fmt.Sprintf(`services:
  web-gate:
`+inTheLab+`  web: {environment: {CORRAL_PROBES: "${CORRAL_PROBES}"}}
  db: {environment: {CORRAL_PROBES: "${CORRAL_PROBES}"}}
  db-gate:
    healthcheck: {interval: 1s}
`+unfenced+`    dns: %v
    networks: {default: {}, link: {ipv4_address: %s}}
configs:
  db-gate:
    content: |
      {"version": 1, "sandbox": "linked", "service": "db", "class": "",
       "clients": [{"addr": "%s", "port": 5432}],
       "probes": {"unlisted": "%v", "resolver": "%v", "metadata": "%v", "ipv6": "%v"}}
`+network("default", "corraltest2", "172.30.252.0/24"), lab.NameServer, stranger, web, p.Unlisted, p.Resolver, p.Metadata, p.IPv6))
	o.up()
	o.alone("web")
	o.alone("db")

	if r := o.in("web", "exec 3<>/dev/tcp/db/5432 && cat <&3"); r.out != "hello\n" {
		t.Errorf("the link: %v", r)
	}
	o.reaches("web", "api.allowed.test", 443)
	o.listens("web", 5432)
	o.listens("db", 5433)
	gateway, err := net.Listen("tcp4", linkGateway+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer gateway.Close()
	host := netip.MustParseAddrPort(gateway.Addr().String())
	// The network itself connects all of them.
	o.reaches("unfenced", stranger, 80)
	o.reaches("unfenced", linkGateway, host.Port())
	for _, tt := range []struct {
		from string
		to   string
		port any
	}{
		{"db", web, 5432},       // the other way
		{"web", db, 5433},       // another port
		{"web", stranger, 80},   // another peer
		{"db", stranger, 80},    //
		{"unfenced", db, 5432},  // another client
		{"unfenced", web, 5432}, //
		{"web", linkGateway, host.Port()},
		{"db", linkGateway, host.Port()},
		{"db", "44.10.0.10", 443},
		{"web", lab.Canary.String(), 443},
	} {
		o.shut(tt.from, tt.to, tt.port)
	}

	// docs/alone.md: a gate that a document tells goes by another one in place.
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/etc/corral/gate.json", pid(t, strings.TrimSpace(o.compose("ps", "--quiet", "db-gate").out))))
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	for _, tt := range []struct {
		doc, says string
		code      int
	}{
		{strings.Replace(doc, `"class"`, `"never": ["192.0.2.0/24"], "class"`, 1), "0 pins, ", 0},
		{strings.Replace(doc, `"class"`, `"klass"`, 1), "what was in force stays in force", 2},
		{strings.Replace(doc, "5432}", "5433}", 1), "cannot change clients", 2},
	} {
		if r := composeTold(t, tt.doc, o.dir, o.env, nil, o.args("exec", "-T", "db-gate", "/opt/corral/bin/corral-gate", "refresh", "--spec", "-")...); r.code != tt.code || !strings.Contains(r.out+r.err, tt.says) {
			t.Errorf("%s: %v", tt.doc, r)
		}
	}
	o.alone("db")

	// R022: where there is only an internal network, no lookup leaves either.
	word := func(kind string) string { return kind + "-" + strings.ToLower(rand.Text()) + ".evil.test" }
	control, inside := word("control"), word("inside")
	l.DNS.Set(control, lab.A("44.10.0.12"))
	o.in("unfenced", "getent hosts "+control)
	l.DNS.Await(t, func(q lab.Query) bool { return q.Name == control })
	o.in("db", "getent hosts "+inside+"; "+askDocker(inside))
	if asked := append(l.DNS.Queries(inside), l.Authority.Queries(inside)...); len(asked) > 0 {
		t.Errorf("a lookup of db's left: %v", asked)
	}
}

// askDocker is a script that asks Docker's resolver for a name by UDP and by TCP.
func askDocker(name string) string {
	var b strings.Builder
	b.WriteString(`\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00`)
	for _, label := range strings.Split(name, ".") {
		fmt.Fprintf(&b, `\x%02x%s`, len(label), label)
	}
	b.WriteString(`\x00\x00\x01\x00\x01`)
	size := len(name) + 2 + 16
	return fmt.Sprintf(`(printf '%s' >/dev/udp/127.0.0.11/53); (printf '\x%02x\x%02x%s' >/dev/tcp/127.0.0.11/53); true`, b.String(), size>>8, size&0xff, b.String())
}

func rootStart(t *testing.T, l *lab.Lab) {
	tag := "corral-test-app-" + strings.ToLower(rand.Text())
	o := example(t, "root-start", `services:
  gate:
`+inTheLab+`  prepare: {image: `+tag+`}
  app: {image: `+tag+`, environment: {CORRAL_PROBES: "${CORRAL_PROBES}"}}
`+network("default", "corraltest3", "172.30.253.0/24"))
	t.Cleanup(func() {
		o.compose("down", "--volumes", "--timeout", "1")
		docker(t, "rmi", "--no-prune", tag)
	})
	o.up()
	o.alone("app")
	o.reaches("app", "api.allowed.test", 443)
	o.shut("app", lab.Canary, 443)
	if r := o.in("app", "cat /data/store/log; stat -c %u /data/store; id -u"); r.out != "started as 1000\nstarted as 1000\n1000\n1000\n" {
		t.Errorf("the two halves: %v", r)
	}
}
