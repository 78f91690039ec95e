package engine

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/state"
	"github.com/corral-sandbox/corral/test/lab"
)

// sweepsWanted names an environment variable: "all" fails every call of every command;
// a number draws the same sample of them, and the same kills, as the run that logged
// it. Without it each run draws its own.
const sweepsWanted = "CORRAL_TEST_SWEEPS"

// draw is where this test's random choices come from, and whether it has none.
func draw(t *testing.T) (r *rand.Rand, whole bool) {
	t.Helper()
	seed := rand.Uint64()
	switch wanted := os.Getenv(sweepsWanted); wanted {
	case "":
	case "all":
		whole = true
	default:
		n, err := strconv.ParseUint(wanted, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", sweepsWanted, err)
		}
		seed = n
	}
	name := fnv.New64()
	fmt.Fprint(name, t.Name())
	t.Logf("%s=%d draws the same again", sweepsWanted, seed)
	return rand.New(rand.NewPCG(seed, name.Sum64())), whole
}

// sample draws two calls of which a trace has the kinds, of different kinds: one that
// changes something, if any does, and any other.
func sample(r *rand.Rand, kinds []string) []int {
	of := map[string][]int{}
	for i, k := range kinds {
		of[k] = append(of[k], i+1)
	}
	names := slices.Sorted(maps.Keys(of))
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	if i := slices.IndexFunc(names, changes); i > 0 {
		names[0], names[i] = names[i], names[0]
	}
	var out []int
	for _, k := range names[:min(len(names), 2)] {
		out = append(out, of[k][r.IntN(len(of[k]))])
	}
	return out
}

// changes reports whether a call of a kind may change what the engine has.
func changes(kind string) bool {
	return !strings.HasPrefix(kind, "GET ") && !strings.HasPrefix(kind, "HEAD ")
}

// every is all the calls of a trace, and those that a command makes beyond it because
// one failed.
func every(kinds []string) []int {
	var out []int
	for n := range len(kinds) + 5 {
		out = append(out, n+1)
	}
	return out
}

// trial is a sandbox that goes through something, with what its host serves it.
type trial struct {
	*sandbox
	t       *testing.T
	served  *greeter // nil: nothing of this machine is opened
	sockets string
}

// carried are the ports that trials have opened, whose relays sandboxes may talk to.
var carried sync.Map

// astray is a packet that nothing of a trial may send. Where the engine gives addresses
// away there are no gates, but containers of corral install --check.
func astray(p lab.Packet) bool {
	if network, err := plan.Divide(lab.Corral); err == nil && network.Range.Contains(p.Src) {
		return false
	}
	if _, open := carried.Load(p.DstPort); open && p.Dst.String() == gateway {
		return false
	}
	return unlisted(p)
}

// nothingGetsOut prepares trials that run side by side: once all have ended, nothing of
// any of them may have gone to an address that is not listed, and no volume and nothing
// on the network may be left of them. Nobody else's sandbox may be up meanwhile.
func nothingGetsOut(t *testing.T) {
	t.Helper()
	first := project(t, always("first", forever))
	first.lab.DNS.Set("api.allowed.test", lab.A("44.10.0.10"))
	first.must("up")
	first.must("down")
	first.lab.Control(t, "corral")
	capture := first.lab.Capture(t, bridge)
	asked, heard := len(first.lab.DNS.Queries("secret.evil.test")), len(first.lab.Authority.Queries())
	volumes := unlabelled(t)
	t.Cleanup(func() {
		if left := capture.Match(astray); len(left) > 0 {
			t.Errorf("%d packets to unlisted addresses, the first %v", len(left), left[0])
		}
		if n := len(first.lab.DNS.Queries("secret.evil.test")) - asked + len(first.lab.Authority.Queries()) - heard; n > 0 {
			t.Errorf("%d lookups left", n)
		}
		if now := unlabelled(t); now != volumes {
			t.Errorf("volumes: %s became %s", volumes, now)
		}
		on := docker(t, "network", "inspect", "--format", "{{range .Containers}}{{.Name}} {{end}}", plan.NetworkName)
		if left := regexp.MustCompile(`corral-(first|sweep|looked-at|killed)-\S+`).FindAllString(on, -1); len(left) > 0 {
			t.Errorf("left on the network: %s", left)
		}
		if left := docker(t, "ps", "--all", "--format", "{{.Names}}", "--filter", "label=dev.corral.role=tool"); left != "" {
			t.Errorf("tools are left: %s", left)
		}
	})
}

// unlabelled are the volumes but those of guest binaries, of which each build has one.
func unlabelled(t *testing.T) string {
	t.Helper()
	return regexp.MustCompile(`(?m)^corral-guest-.*\n?`).ReplaceAllString(docker(t, "volume", "ls", "--quiet"), "")
}

// undergo makes a trial of an always-on sandbox whose agent never stops trying to get
// out; served opens a port of this machine to it. It is up.
func undergo(t *testing.T, name string, served bool) *trial {
	t.Helper()
	s := cloned(t, 0, always(name, forever))
	s.write("restless.pl", strings.ReplaceAll(restless, "0.01", "0.05"))
	x := &trial{sandbox: s, t: t, sockets: public(t)}
	policy := strings.Replace(always(name, "[perl, "+s.dir+"/restless.pl]"), "egress:", "mounts: {ro: ["+s.dir+"/restless.pl]}\negress:", 1)
	if served {
		x.served = greet(t, "127.0.0.1:0")
		carried.Store(x.served.port, true)
		policy += fmt.Sprintf("host_services: [{name: served, port: %d}]\n", x.served.port)
	}
	s.write("corral.yaml", policy)
	s.must("up", "--accept")
	return x
}

// struck runs a command whose nth call the engine fails.
func (x *trial) struck(n int, how failure, args ...string) (*proxy, result) {
	x.t.Helper()
	p, address := before(x.t, x.sockets, n, how)
	o := *x.sandbox
	o.env = append(slices.Clone(x.env), "DOCKER_HOST="+address)
	return p, o.corral(args...)
}

// wholeID is a container's identity.
var wholeID = regexp.MustCompile(`\b[0-9a-f]{64}\b`)

// told: a command did what it was asked, or says in words of its own why not.
func (x *trial) told(what string, r result) {
	x.t.Helper()
	switch {
	case r.code != 0 && r.code != 1:
		x.t.Errorf("%s: %v", what, r)
	case r.code == 1 && !regexp.MustCompile(`(?m)^corral: .*\S`).MatchString(r.err) && r.out == "":
		x.t.Errorf("%s: a failure without a word: %v", what, r)
	case wholeID.MatchString(r.err) || strings.Contains(r.err, "panic"):
		x.t.Errorf("%s: not for people: %v", what, r)
	}
	if left := x.toolsOf(r.pid); len(left) > 0 {
		x.t.Errorf("%s: left of it: %v: %v", what, left, r)
	}
}

// toolsOf are the short-lived containers of a process.
func (x *trial) toolsOf(pid int) (left []string) {
	x.t.Helper()
	for line := range strings.Lines(docker(x.t, "ps", "--all", "--filter", "label=dev.corral.role=tool", "--format", `{{.Names}} {{.Label "dev.corral.owner"}}`)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == strconv.Itoa(pid) {
			left = append(left, f[0])
		}
	}
	return left
}

// confined: as far as the agent itself can tell, if there is one, it never got out.
func (x *trial) confined(what string) {
	x.t.Helper()
	said, _ := exec.Command("docker", "logs", x.agent()).CombinedOutput() // there may be none
	if regexp.MustCompile("CONNECTED|RESOLVED").Match(said) {
		x.t.Errorf("%s: the agent got out: %s", what, said)
	}
}

// comesUp: corral up brings it up, whatever there was, and all of it is well.
func (x *trial) comesUp(what string) {
	x.t.Helper()
	if r := x.corral("up"); r.code != 0 {
		x.t.Errorf("%s: corral up: %v", what, r)
	}
	if r := x.corral("status"); r.code != 0 {
		x.t.Errorf("%s: status after corral up: %v", what, r)
	}
}

// goesDown: corral down leaves nothing, of whatever there was.
func (x *trial) goesDown(what string) {
	x.t.Helper()
	if r := x.corral("down"); r.code != 0 {
		x.t.Errorf("%s: corral down: %v", what, r)
	}
	if left := x.containers(); len(left) > 0 {
		x.t.Errorf("%s: left %v", what, left)
	}
	if x.served != nil {
		if left := relays(x.t, x.served.port); len(left) > 0 {
			x.t.Errorf("%s: left %v", what, left)
		}
	}
	kept := filepath.Join(x.home(), ".local/share/corral")
	entries, err := os.ReadDir(filepath.Join(kept, x.id))
	if err != nil {
		x.t.Error(err)
	}
	for _, e := range entries {
		if name := e.Name(); name == "wanted" || name == "wayback.json" || name == "heals.json" || strings.HasPrefix(name, ".") {
			x.t.Errorf("%s: the state has %s", what, name)
		}
	}
	if unlock, err := state.Lock(kept, x.id); err != nil { // the file is there: corral down made it
		x.t.Errorf("%s: %v", what, err)
	} else {
		unlock()
	}
	if r := x.corral("status"); r.code != 1 || !strings.Contains(r.out, "not up") {
		x.t.Errorf("%s: status after corral down: %v", what, r)
	}
	if r := x.corral("ps"); r.code != 0 || strings.Contains(r.out, x.id+" ") {
		x.t.Errorf("%s: ps after corral down: %v", what, r)
	}
}

// losing is an engine from which a container of the sandbox goes while a call is made,
// as by docker rm.
func (x *trial) losing(r *rand.Rand) failure {
	return func(_ int64, engine http.Handler, w http.ResponseWriter, req *http.Request) {
		all := []string{x.gate(), x.agent()}
		if x.served != nil {
			all = append(all, fmt.Sprintf("corral-relay-%d", x.served.port))
		}
		_ = exec.Command("docker", "rm", "--force", all[r.IntN(len(all))]).Run() // it may not be there yet
		engine.ServeHTTP(w, req)
	}
}

// damages are what a corral up has to mend.
var damages = map[string]func(x *trial){
	"from nothing":     func(x *trial) { x.must("down") },
	"the gate is lost": func(x *trial) { docker(x.t, "rm", "--force", x.gate()) },
	"main is lost":     func(x *trial) { docker(x.t, "rm", "--force", x.agent()) },
}

// hows are what may become of a call, as failures has it, or as losing does it.
var hows = []string{"refused", "lost", "removed"}

// Whichever call of a command the engine fails, and whatever is removed under a corral
// up: it is told, nothing gets out, corral down leaves nothing, and corral up works.
func TestUpSweep(t *testing.T) {
	// Alone: nothing of any sandbox may leave meanwhile.
	_, whole := draw(t)
	nothingGetsOut(t)
	// The whole takes many sandboxes at the same time, a sample few.
	parts := [][]string{hows}
	if whole {
		parts = [][]string{{"refused"}, {"lost"}, {"removed"}}
	}
	for name := range damages {
		for _, part := range parts {
			t.Run(name+", "+strings.Join(part, " "), func(t *testing.T) {
				t.Parallel()
				r, _ := draw(t)
				x := undergo(t, "sweep", name == "from nothing")
				x.sweepUp(r, whole, name, part)
				if r := x.corral("verify"); r.code != 0 {
					t.Errorf("at the end: %v", r)
				}
				x.goesDown("at the end")
			})
		}
	}
	for i := range looks {
		t.Run(fmt.Sprintf("other commands %d", i+1), func(t *testing.T) {
			t.Parallel()
			r, _ := draw(t)
			x := undergo(t, "looked-at", false)
			for _, args := range looks[i] {
				switch {
				case whole:
					x.sweep(refuse, r, true, args...)
					x.sweep(cut, r, true, args...)
				case !slices.Equal(args, []string{"install"}): // it drops the other build's image
					x.sweep([]failure{refuse, cut}[r.IntN(2)], r, false, args...)
				}
			}
			if r := x.corral("verify"); r.code != 0 {
				t.Errorf("at the end: %v", r)
			}
			x.goesDown("at the end")
		})
	}
}

// sweepUp fails calls of a corral up that has something to mend.
func (x *trial) sweepUp(r *rand.Rand, whole bool, damage string, how []string) {
	x.t.Helper()
	damages[damage](x)
	p, up := x.struck(0, nil, "up")
	if up.code != 0 {
		x.t.Fatal(up)
	}
	kinds := p.kinds
	for _, how := range how {
		fails, calls := failures[how], sample(r, kinds)
		if fails == nil {
			fails = x.losing(r)
		}
		if whole {
			calls = every(kinds)
		}
		struck := 0
		for i, n := range calls {
			x.must("up")
			damages[damage](x)
			p, up := x.struck(n, fails, "up")
			if p.calls.Load() < int64(n) {
				continue
			}
			struck++
			what := fmt.Sprintf("%s %d (%s) of %v", how, n, p.kinds[n-1], p.calls.Load())
			x.t.Logf("%s: %v", what, up)
			x.told(what, up)
			x.confined(what)
			if up.code == 0 && how != "removed" {
				if r := x.corral("status"); r.code != 0 {
					x.t.Errorf("%s: success, and status says %v", what, r)
				}
			}
			if i%2 == 0 { // from what is left, and from nothing
				x.comesUp(what)
				x.confined(what)
			}
			x.goesDown(what)
			x.comesUp(what)
		}
		if struck == 0 {
			x.t.Errorf("%s: no call was failed", how)
		}
	}
}

// looks are the commands beside run and up, in groups that take about as long as each
// other.
var looks = [][][]string{
	{{"verify"}, {"status"}, {"ps"}, {"logs"}, {"traffic"}, {"shell", "--", "true"}},
	{{"install", "--check"}, {"install"}, {"refresh"}, {"build"}, {"down"}},
}

// sweep fails calls of a command that changes nothing of what is up, or ends it.
func (x *trial) sweep(fails failure, r *rand.Rand, whole bool, args ...string) {
	x.t.Helper()
	p, got := x.struck(0, nil, args...)
	if got.code != 0 {
		x.t.Fatalf("corral %v: %v", args, got)
	}
	if args[0] == "down" {
		x.comesUp("after a corral down")
	}
	calls := sample(r, p.kinds)[:1]
	if whole {
		calls = every(p.kinds)
	}
	struck := 0
	for _, n := range calls {
		gate, agent := x.identity(x.gate()), x.identity(x.agent())
		p, got := x.struck(n, fails, args...)
		if p.calls.Load() < int64(n) {
			if args[0] == "down" { // with fewer calls than before it did all that it does
				x.comesUp("after a corral down that nothing was failed of")
			}
			continue
		}
		struck++
		what := fmt.Sprintf("corral %s: call %d (%s) of %v", strings.Join(args, " "), n, p.kinds[n-1], p.calls.Load())
		x.t.Logf("%s: status %d, %s", what, got.code, got.err)
		x.told(what, got)
		x.confined(what)
		if args[0] == "down" {
			x.goesDown(what)
			x.comesUp(what)
			continue
		}
		if x.identity(x.gate()) != gate || x.identity(x.agent()) != agent {
			x.t.Errorf("%s: something was made anew", what)
		}
		if r := x.corral("status"); r.code != 0 {
			x.t.Errorf("%s: status: %v", what, r)
		}
	}
	if struck == 0 {
		x.t.Errorf("corral %v: no call was failed", args)
	}
}

// end is how a corral is killed at a call of the engine's.
type end int

const (
	beforeCall end = iota // the engine never hears of it
	beforeWord            // the engine does it, and nobody hears that
	afterWord             // a moment later
	ends                  // how many there are
)

func (e end) String() string { return [...]string{"before it", "before its answer", "after it"}[e] }

// killed runs a command and kills it at the nth call of the engine's, or once it has
// said what it says when it is done with what can be cut short; a command that ends
// by itself is not killed then.
func (x *trial) killed(n int, how end, later time.Duration, said string, args ...string) (p *proxy, text string, dead bool) {
	x.t.Helper()
	begun := make(chan *os.Process, 1)
	p, address := before(x.t, x.sockets, n, func(_ int64, engine http.Handler, w http.ResponseWriter, r *http.Request) {
		process := <-begun
		switch how {
		case beforeCall:
			_ = process.Kill()
			panic(http.ErrAbortHandler)
		case beforeWord:
			defer process.Kill()
			engine.ServeHTTP(lost{}, r)
			panic(http.ErrAbortHandler)
		}
		time.AfterFunc(later, func() { _ = process.Kill() })
		engine.ServeHTTP(w, r)
	})
	o := *x.sandbox
	o.env = append(slices.Clone(x.env), "DOCKER_HOST="+address)
	c := o.cmd(args...)
	out := &lines{news: make(chan struct{}, 1)}
	c.Stdout, c.Stderr = out, out
	if err := c.Start(); err != nil {
		x.t.Fatal(err)
	}
	begun <- c.Process
	over := make(chan struct{})
	go func() { _ = c.Wait(); close(over) }()
	late := time.After(limit)
	for said == "" || !strings.Contains(out.String(), said) {
		select {
		case <-over:
			return p, out.String(), c.ProcessState.ExitCode() == -1
		case <-out.news:
		case <-late:
			_ = c.Process.Kill()
			<-over
			x.t.Fatalf("corral %v does not end: %s", args, out)
		}
	}
	if err := c.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		x.t.Fatal(err)
	}
	<-over
	return p, out.String(), c.ProcessState.ExitCode() == -1
}

// Wherever a corral is killed: nothing gets out, corral down leaves nothing, corral up
// works, and what it brings up is proven.
func TestKillSweep(t *testing.T) {
	// Alone: nothing of any sandbox may leave meanwhile.
	nothingGetsOut(t)
	for name, c := range map[string]struct {
		args  []string
		said  string         // by one that does not end by itself
		first func(x *trial) // what there is before; nil: all of it is up
		run   bool           // it is of a policy for one run
	}{
		"run":                     {[]string{"run", "--", "perl", "restless.pl"}, "up\n", nil, true},
		"up":                      {[]string{"up"}, "", damages["from nothing"], false},
		"up, the gate is lost":    {[]string{"up"}, "", damages["the gate is lost"], false},
		"down":                    {[]string{"down"}, "", nil, false},
		"refresh":                 {[]string{"refresh"}, "", nil, false},
		"watch, the gate is lost": {[]string{"up", "--watch"}, "watching", damages["the gate is lost"], false},
		"watch, main is lost":     {[]string{"up", "--watch"}, "watching", damages["main is lost"], false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, whole := draw(t)
			kills := 2
			if whole {
				kills = 25
			}
			x := undergo(t, "killed", name == "up")
			if c.run {
				x.goesDown("before")
				x.write("corral.yaml", "profile: shell\nname: killed\negress: {allow: [{domain: api.allowed.test, ports: [443]}]}\n")
				x.accept()
			}
			calls := 0
			for i := range kills + 1 { // the first finds out how many calls there are
				if !c.run {
					x.must("up")
				}
				if c.first != nil {
					c.first(x)
				}
				n, how, later := 0, end(r.IntN(int(ends))), time.Duration(r.Int64N(int64(40*time.Millisecond)))
				if i > 0 {
					n = 1 + r.IntN(calls)
				}
				p, said, dead := x.killed(n, how, later, c.said, c.args...)
				calls = max(calls, int(p.calls.Load()))
				what := fmt.Sprintf("killed at call %d of %d, %v, %v", n, calls, how, later)
				t.Logf("%s: %v: %s", what, dead, said)
				x.confined(what)
				if !c.run && i%2 == 0 {
					x.comesUp(what)
					x.confined(what)
				}
				x.goesDown(what)
				if c.run {
					if r := x.sh("echo well"); r.code != 0 || r.out != "well\n" {
						t.Errorf("%s: the next run: %v", what, r)
					}
				} else {
					x.comesUp(what)
				}
				if r := x.corral("verify"); r.code != 0 {
					t.Errorf("%s: verify: %v", what, r)
				}
			}
			x.goesDown("at the end")
		})
	}
}
