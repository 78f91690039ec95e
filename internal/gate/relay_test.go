package gate_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/gate"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/internal/testenv"
)

// How the engine starts a relay, and runs commands beside it: with no right, or
// as root with what it takes to listen below 1024 and to stop being root.
var (
	asCarrier = []string{"setpriv", "--reuid", "64998", "--regid", "64998", "--clear-groups", "--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs"}
	asRoot    = []string{"setpriv", "--clear-groups", "--bounding-set", "-all,+net_bind_service,+setuid,+setgid", "--inh-caps", "-all", "--no-new-privs"}
)

const relayLaunch = `set -e
mount --make-rprivate /
mount -t tmpfs -o "$1" tmpfs /run
shift
exec "$@"
`

// relayHost is a namespace that is a host with a corral network.
func relayHost(t *testing.T) (ns string) {
	t.Helper()
	testenv.Require(t, "netns")
	ns = fmt.Sprintf("cr%d-%d", os.Getpid(), pairs.next())
	run(t, "ip", "netns", "add", ns)
	t.Cleanup(func() { run(t, "ip", "netns", "del", ns) })
	run(t, "ip", "-n", ns, "link", "set", "lo", "up")
	run(t, "ip", "-n", ns, "link", "add", "corral0", "type", "veth", "peer", "name", "wire")
	for _, a := range []string{worldAddr, "172.30.0.2", "172.30.0.3"} {
		run(t, "ip", "-n", ns, "addr", "add", a+"/24", "dev", "corral0")
	}
	run(t, "ip", "-n", ns, "link", "set", "corral0", "up")
	run(t, "ip", "-n", ns, "link", "set", "wire", "up")
	return ns
}

// relayProc is a running relay.
type relayProc struct {
	*exec.Cmd
	t    *testing.T
	who  []string
	out  *bufio.Reader
	errs *bytes.Buffer
}

func startRelay(t *testing.T, ns, run string, who []string, words ...string) *relayProc {
	t.Helper()
	binary, err := gateBinary()
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"--net=/run/netns/" + ns, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		"sh", "-c", relayLaunch, "sh", run}, who...)
	p := &relayProc{Cmd: exec.Command("nsenter", append(append(args, binary, "relay"), words...)...), t: t, who: who, errs: &bytes.Buffer{}}
	p.Stderr = p.errs
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Process.Kill() })
	return p
}

func (p *relayProc) ready() {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil || line != spec.RelayReady+"\n" {
		p.t.Fatalf("%q, %v: %s", line, err, p.errs)
	}
}

// ends waits for the end, and returns the status and what was said.
func (p *relayProc) ends() (status int, out string) {
	p.t.Helper()
	b, _ := io.ReadAll(p.out)
	p.Wait()
	return p.ProcessState.ExitCode(), string(b) + p.errs.String()
}

// exec runs a command beside the relay with the rights it was started with.
func (p *relayProc) exec(stdin string, words ...string) (string, error) {
	binary, err := gateBinary()
	if err != nil {
		p.t.Fatal(err)
	}
	args := append([]string{"-t", fmt.Sprint(child(p.t, p.Process.Pid)), "-m", "-n", "-p", "--"}, p.who...)
	cmd := exec.Command("nsenter", append(append(args, binary), words...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (p *relayProc) accept(sources ...string) {
	p.t.Helper()
	d := spec.Relay{Version: spec.Version}
	for _, s := range sources {
		d.Sources = append(d.Sources, netip.MustParseAddr(s))
	}
	if out, err := p.exec(string(spec.Encode(d)), "relay-sources"); err != nil || out != "" {
		p.t.Fatalf("relay-sources: %v, %s", err, out)
	}
}

// greeting is what a source hears at once from a port of the gateway.
func greeting(ns, from string, port int) (string, error) {
	var b []byte
	err := in(ns, func() error {
		c, err := net.DialTCP("tcp4", &net.TCPAddr{IP: net.ParseIP(from)}, &net.TCPAddr{IP: net.ParseIP(worldAddr), Port: port})
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		b, err = io.ReadAll(c)
		return err
	})
	return string(b), err
}

// greet is a host service on loopback.
func greet(t *testing.T, ns string, port int) {
	t.Helper()
	err := in(ns, func() error {
		l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				io.WriteString(c, "hello")
				c.Close()
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// rights are the lines of a process's status that tell what it may do.
var rights = regexp.MustCompile(`(?m)^(Uid|Gid|Groups|Cap...|NoNewPrivs):(.*)$`)

// A relay as it is in its container: with nothing but what it needs to start,
// and nothing at all once it serves.
func TestRelay(t *testing.T) {
	for _, tt := range []struct {
		name, run string
		who       []string
		port      int
		dns       bool
		bounding  string
	}{
		{"unprivileged", "mode=0755,uid=64998,gid=64998", asCarrier, 8081, false, "0000000000000000"},
		{"below 1024", "mode=0755", asRoot, 80, false, "00000000000004c0"},
		{"lookups", "mode=0755", asRoot, 53, true, "00000000000004c0"},
		{"all of root's rights", "mode=0755", []string{"env"}, 80, false, "0000000000000000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns := relayHost(t)
			greet(t, ns, tt.port)
			at := fmt.Sprintf("%s:%d", worldAddr, tt.port)
			words := []string{at, fmt.Sprintf("127.0.0.1:%d", tt.port)}
			if tt.dns {
				words = append([]string{"--dns"}, words...)
			}
			p := startRelay(t, ns, tt.run, tt.who, words...)
			p.ready()
			pid := child(t, p.Process.Pid)

			threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
			if err != nil || len(threads) == 0 {
				t.Fatal(threads, err)
			}
			for _, thread := range threads {
				b, err := os.ReadFile(thread)
				if err != nil {
					continue // it has ended
				}
				var lines []string
				for _, m := range rights.FindAllStringSubmatch(string(b), -1) {
					lines = append(lines, m[1]+" "+strings.Join(strings.Fields(m[2]), " "))
				}
				want := []string{"Uid 64998 64998 64998 64998", "Gid 64998 64998 64998 64998", "Groups ",
					"CapInh 0000000000000000", "CapPrm 0000000000000000", "CapEff 0000000000000000", "CapBnd " + tt.bounding, "CapAmb 0000000000000000", "NoNewPrivs 1"}
				if !slices.Equal(lines, want) {
					t.Errorf("%s:\n%q\nwant\n%q", thread, lines, want)
				}
			}
			socket := fmt.Sprintf("/proc/%d/root%s", pid, spec.RelaySocket)
			for path, mode := range map[string]os.FileMode{socket: os.ModeSocket | 0o600, filepath.Dir(socket): os.ModeDir | 0o700} {
				if info, err := os.Stat(path); err != nil || info.Mode() != mode {
					t.Errorf("%s: %v, %v; want %v", path, info, err, mode)
				}
			}
			if out, err := exec.Command("ip", "netns", "exec", ns, "ss", "-Hlntu").Output(); err != nil {
				t.Error(err)
			} else {
				want := []string{fmt.Sprintf("tcp 127.0.0.1:%d", tt.port), "tcp " + at}
				if tt.dns {
					want = append(want, "udp "+at)
				}
				var got []string
				for line := range strings.Lines(string(out)) {
					f := strings.Fields(line)
					got = append(got, f[0]+" "+f[4])
				}
				slices.Sort(got)
				if !slices.Equal(got, want) {
					t.Errorf("listening: %q, want %q", got, want)
				}
			}

			refused := func(from string) {
				t.Helper()
				if b, err := greeting(ns, from, tt.port); b != "" || !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("from %s: %q, %v", from, b, err)
				}
			}
			refused("172.30.0.2")
			p.accept("172.30.0.2")
			if b, err := greeting(ns, "172.30.0.2", tt.port); err != nil || b != "hello" {
				t.Errorf("%q, %v", b, err)
			}
			refused("172.30.0.3")
			for _, bad := range []string{"", "{}", `{"version":1,"sources":["127.0.0.1"]}`, `{"version":1,"sources":[],"more":1}`} {
				out, err := p.exec(bad, "relay-sources")
				var exited *exec.ExitError
				if !errors.As(err, &exited) || exited.ExitCode() != 2 || !strings.Contains(out, "relay spec") {
					t.Errorf("%q: %v, %s", bad, err, out)
				}
			}
			if b, err := greeting(ns, "172.30.0.2", tt.port); err != nil || b != "hello" {
				t.Errorf("after lists that were refused: %q, %v", b, err)
			}
			p.accept()
			refused("172.30.0.2")

			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if status, out := p.ends(); status != 0 || out != "" {
				t.Errorf("status %d after SIGTERM: %s", status, out)
			}
			if _, err := greeting(ns, "172.30.0.2", tt.port); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("somebody still listens: %v", err)
			}
		})
	}
}

// Whatever a relay cannot be sure of, it does not serve.
func TestRelayRefuses(t *testing.T) {
	ns := relayHost(t)
	greet(t, ns, 8081)
	taken := func(network string) {
		err := in(ns, func() error {
			if network == "udp" {
				c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(worldAddr), Port: 53})
				if err == nil {
					t.Cleanup(func() { c.Close() })
				}
				return err
			}
			l, err := net.ListenTCP("tcp4", &net.TCPAddr{Port: 8082})
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	taken("tcp")
	taken("udp")
	with := func(who []string, more ...string) []string { return append(slices.Clone(who), more...) }
	for name, tt := range map[string]struct {
		run, words string
		who        []string
		status     int
		want       string
	}{
		"taken by TCP":       {"mode=0755", worldAddr + ":8082 127.0.0.1:8082", asRoot, 1, "corral-gate: " + spec.RelayTaken + worldAddr + ":8082"},
		"taken by UDP":       {"mode=0755", "--dns " + worldAddr + ":53 127.0.0.1:53", asRoot, 1, "corral-gate: " + spec.RelayTaken + worldAddr + ":53"},
		"not our address":    {"mode=0755", "172.30.0.77:8081 127.0.0.1:8081", asRoot, 1, "cannot assign"},
		"no right to bind":   {"mode=0755,uid=64998", worldAddr + ":80 127.0.0.1:80", asCarrier, 1, "permission denied"},
		"another user":       {"mode=0777", worldAddr + ":8081 127.0.0.1:8081", []string{"setpriv", "--reuid", "1000", "--regid", "64998", "--clear-groups"}, 1, "uid [1000"},
		"another group":      {"mode=0777", worldAddr + ":8081 127.0.0.1:8081", []string{"setpriv", "--reuid", "64998", "--regid", "1000", "--clear-groups"}, 1, "gid [1000"},
		"more groups":        {"mode=0777", worldAddr + ":8081 127.0.0.1:8081", []string{"setpriv", "--reuid", "64998", "--regid", "64998", "--groups", "27"}, 1, "groups [27]"},
		"root who must stay": {"mode=0755", worldAddr + ":8081 127.0.0.1:8081", with(asRoot[:2:2], "--bounding-set", "-all,+net_bind_service"), 1, "operation not permitted"},
		"no place":           {"mode=0700", worldAddr + ":8081 127.0.0.1:8081", asCarrier, 1, "control socket"},
		"everywhere":         {"mode=0755", "0.0.0.0:8081 127.0.0.1:8081", asRoot, 2, "it must be one IPv4 address"},
		"elsewhere":          {"mode=0755", worldAddr + ":8081 172.30.0.2:8081", asRoot, 2, "it must be on loopback"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startRelay(t, ns, tt.run, tt.who, strings.Fields(tt.words)...)
			status, out := p.ends()
			if status != tt.status || !strings.Contains(out, tt.want) || strings.Contains(out, spec.RelayReady) {
				t.Errorf("status %d, %s; want %d, %q", status, out, tt.status, tt.want)
			}
		})
	}
}

func TestRelayCommandLine(t *testing.T) {
	for words, want := range map[string]string{
		"relay":                                   "no address",
		"relay 172.30.0.1:8081":                   "no target",
		"relay --udp 172.30.0.1:8081 [::1]:1":     "-udp",
		"relay 172.30.0.1:8081 127.0.0.1:1 --dns": `"--dns"`,
		"relay-sources now":                       `"now"`,
		"relay-sources":                           "relay spec",
	} {
		var out, errs bytes.Buffer
		status := gate.Main(t.Context(), strings.NewReader(""), &out, &errs, strings.Fields(words))
		if status != 2 || !strings.Contains(errs.String(), want) || out.Len() > 0 {
			t.Errorf("%q: status %d, %s", words, status, errs.String())
		}
	}
}
