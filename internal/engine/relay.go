package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/resolve"
	"github.com/corral-sandbox/corral/internal/spec"
)

// RoleRelay is a container on the host's own network that carries one port of
// the gateway's address to the host's loopback. It belongs to no sandbox: it is
// there while any gate's label names what it carries.
const RoleRelay = "relay"

const (
	labelRelays = "dev.corral.relays"     // of a gate: what it needs carried, like 53/dns,8081
	labelCarry  = "dev.corral.relay"      // of a relay: what it carries, one of these words
	labelTarget = "dev.corral.relay-for"  // of a relay: from where to where
	labelMade   = "dev.corral.relay-made" // of a relay: the digest of all it was made as
)

// What a relay's container is asked to be.
const (
	// relayTmpfs are the options of its /run, where its control socket is.
	relayTmpfs = "rw,nosuid,nodev,noexec,size=1m,mode=0755"
	// relayReadyWithin bounds the start of a program that asks nobody.
	relayReadyWithin = 15 * time.Second
	// acceptWithin bounds a connection, or a lookup, from this machine to itself.
	acceptWithin = time.Second
)

// lookupsSuffix ends the word for a relay that carries lookups.
const lookupsSuffix = "/dns"

// carried is the word for what a relay carries.
func carried(r plan.Relay) string {
	if len(r.DNS) > 0 {
		return fmt.Sprint(r.Port) + lookupsSuffix
	}
	return fmt.Sprint(r.Port)
}

// needs are the words for all that a gate of a plan needs.
func needs(p *plan.Plan, g plan.Gate) string {
	var words []string
	for _, r := range p.Relays {
		if g.Needs(r) {
			words = append(words, carried(r))
		}
	}
	slices.Sort(words)
	return strings.Join(words, ",")
}

func splitNeeds(label string) []string {
	return strings.FieldsFunc(label, func(r rune) bool { return r == ',' })
}

// relayCommand is what corral-gate is told: from where to where.
func relayCommand(r plan.Relay, gateway netip.Addr) []string {
	listen := netip.AddrPortFrom(gateway, r.Port).String()
	if len(r.DNS) == 0 {
		return []string{"relay", listen, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), r.Port).String()}
	}
	args := []string{"relay", "--dns", listen}
	for _, a := range r.DNS {
		args = append(args, netip.AddrPortFrom(a, r.Port).String())
	}
	return args
}

func relayRequest(image string, r plan.Relay, gateway netip.Addr) request {
	command := relayCommand(r, gateway)
	limit := int64(plan.RelayPids)
	user := fmt.Sprintf("%d:%d", spec.CarrierUID, spec.CarrierUID)
	tmpfs := fmt.Sprintf("%s,uid=%d,gid=%d", relayTmpfs, spec.CarrierUID, spec.CarrierUID)
	var capabilities []string
	if r.Port < plan.PrivilegedPorts {
		user, tmpfs, capabilities = "0:0", relayTmpfs, plan.RelayCapabilities
	}
	return request{
		name: fmt.Sprintf("corral-relay-%d", r.Port),
		config: &container.Config{
			Image:       image,
			User:        user,
			Cmd:         command,
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
			Labels:      map[string]string{labelRole: RoleRelay, labelCarry: carried(r), labelTarget: strings.Join(command, " ")},
		},
		host: &container.HostConfig{
			NetworkMode:    "host",
			IpcMode:        "private",
			CapAdd:         capabilities,
			ReadonlyRootfs: true,
			Tmpfs:          map[string]string{"/run": tmpfs},
			Resources:      container.Resources{PidsLimit: &limit, Memory: plan.RelayMemory, MemorySwap: plan.RelayMemory},
		},
	}
}

// digest tells requests for a relay apart: all that the engine is asked for,
// what create adds to every container included, and the ID of the image.
func (r request) digest(imageID string) string {
	b, err := json.Marshal([]any{imageID, r.name, r.config, r.host, r.options, logging(), render.NoNewPrivileges})
	if err != nil {
		panic(fmt.Sprintf("request of %s: %v", r.name, err))
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// carriers are the relays of this machine and whom they serve, as the engine
// has it.
type carriers struct {
	relays []relay
	users  []user
}

type relay struct {
	id, carries, target, image, made string
	state                            string // the engine's word
}

func (r relay) running() bool { return r.state == container.StateRunning }

// ended says that a relay serves nobody, and nobody either when it is started
// again. One that is paused goes on with the list that it has.
func (r relay) ended() bool {
	return r.state == container.StateExited || r.state == container.StateCreated || r.state == container.StateDead
}

// user is a gate that needs relays, whether it runs or not.
type user struct {
	id      string
	address netip.Addr
	needs   []string
	ended   bool // it asks nothing any more
}

// carriers asks for the gates only where there are relays. On an error there is
// nothing to judge by: a relay without users serves nobody, and these may not be
// known.
func (e *Engine) carriers(ctx context.Context) (carriers, error) {
	list, err := e.ours(ctx, labelRole+"="+RoleRelay)
	if err != nil || len(list) == 0 {
		return carriers{}, err
	}
	var c carriers
	for _, r := range list {
		c.relays = append(c.relays, relay{r.ID, r.Labels[labelCarry], r.Labels[labelTarget], r.ImageID, r.Labels[labelMade], r.State})
	}
	if c.users, err = e.users(ctx); err != nil {
		return carriers{}, err
	}
	return c, nil
}

func (e *Engine) users(ctx context.Context) ([]user, error) {
	list, err := e.ours(ctx, labelRelays)
	if err != nil {
		return nil, err
	}
	var out []user
	for _, g := range list {
		if g.Labels[labelRole] != RoleGate {
			continue
		}
		words := splitNeeds(g.Labels[labelRelays])
		if len(words) == 0 {
			continue
		}
		address, err := netip.ParseAddr(g.Labels[labelAddress])
		if err != nil {
			return nil, &Mislabelled{Container: strings.TrimPrefix(g.Names[0], "/"), Label: labelAddress, Err: err}
		}
		out = append(out, user{g.ID, address, words, g.State == container.StateExited || g.State == container.StateDead})
	}
	return out, nil
}

// sources are the addresses of the gates that need something carried, leaving
// some out.
func sources(users []user, word string, leaving ...string) []netip.Addr {
	var out []netip.Addr
	for _, u := range users {
		if slices.Contains(u.needs, word) && !slices.Contains(leaving, u.id) {
			out = append(out, u.address)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// without leaves an address out of what its gate does not declare.
func without(users []user, address netip.Addr, declared []string) []user {
	var out []user
	for _, u := range users {
		if u.address == address {
			u.needs = slices.DeleteFunc(slices.Clone(u.needs), func(word string) bool { return !slices.Contains(declared, word) })
		}
		out = append(out, u)
	}
	return out
}

// carry makes every relay that a gate of a plan needs carry for it: one that
// is not there, does not run, or was made otherwise is made anew. All the
// others are told whom they serve too: the gate's address may be that of one
// which went without their knowledge. The caller holds the machine-wide lock,
// and has created the gate and not started it.
func (e *Engine) carry(ctx context.Context, image string, g *Gate) error {
	p, planned := g.Plan, g.planned()
	declared := splitNeeds(needs(p, planned))
	have, err := e.carriers(ctx)
	if err == nil && len(have.relays) == 0 && len(declared) > 0 {
		have.users, err = e.users(ctx)
	}
	if err != nil {
		return err
	}
	have.users = without(have.users, planned.Spec.Address, declared)
	for _, r := range have.relays {
		if slices.Contains(declared, r.carries) {
			continue
		}
		if err := e.renew(ctx, r, sources(have.users, r.carries)); err != nil {
			return fmt.Errorf("relay of %s: %w", r.carries, err)
		}
	}
	if len(declared) == 0 {
		return nil
	}
	made, err := e.api.ImageInspect(ctx, image)
	if err != nil {
		return fmt.Errorf("image %s: %w", image, err)
	}
	for _, r := range p.Relays {
		if !planned.Needs(r) {
			continue
		}
		want := relayRequest(image, r, p.Network.Gateway)
		want.config.Labels[labelMade] = want.digest(made.ID)
		if err := e.carryOne(ctx, want, r, p, have); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) carryOne(ctx context.Context, want request, r plan.Relay, p *plan.Plan, have carriers) error {
	to := sources(have.users, carried(r))
	for _, old := range have.relays {
		if old.carries != carried(r) {
			continue
		}
		if err := sameServers(old, want, have.users, p); err != nil {
			return err
		}
		why := "it was made otherwise than this corral makes it"
		if old.running() && old.made == want.config.Labels[labelMade] {
			if e.tellSources(ctx, old.id, to) == nil {
				return nil
			}
			why = "it did not take its new list"
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !old.ended() {
			e.Progress("the relay of port %d is made anew (%s): what other sandboxes have open through it ends", r.Port, why)
		}
		if err := e.remove(ctx, old.id); err != nil {
			return fmt.Errorf("relay of port %d: %w", r.Port, err)
		}
	}
	id, err := e.create(ctx, want)
	if err != nil {
		return fmt.Errorf("relay of port %d: %w", r.Port, err)
	}
	if err = e.startRelay(ctx, id); err == nil {
		err = e.tellSources(ctx, id, to)
	}
	if err == nil {
		return nil
	}
	if left := e.remove(ctx, id); left != nil {
		return errors.Join(err, left)
	}
	if taken := (*relayTaken)(nil); errors.As(err, &taken) {
		return e.withoutRelay(ctx, r, netip.AddrPortFrom(p.Network.Gateway, r.Port))
	}
	return fmt.Errorf("relay of port %d: %w", r.Port, err)
}

// sameServers refuses to lead a relay of lookups to other name servers while
// gates of other plans ask by way of it: their names would be somebody else's.
func sameServers(old relay, want request, users []user, p *plan.Plan) error {
	if want.config.Labels[labelTarget] == old.target || !strings.HasSuffix(old.carries, lookupsSuffix) {
		return nil
	}
	others := slices.ContainsFunc(users, func(u user) bool {
		ours := slices.ContainsFunc(p.Gates, func(g plan.Gate) bool { return g.Spec.Address == u.address })
		return !ours && !u.ended && slices.Contains(u.needs, old.carries)
	})
	if !others {
		return nil
	}
	return exit.Failedf("use the same `resolvers` as they do (in config.yaml, or CORRAL_RESOLVERS), or wait until they have ended",
		"other sandboxes of this machine ask the name servers %s by way of its one relay of lookups, and this one is to ask %s",
		servers(old.target), servers(want.config.Labels[labelTarget]))
}

// servers are the targets in the words that a relay of lookups is told.
func servers(target string) string {
	if words := strings.Fields(target); len(words) > 3 {
		return strings.Join(words[3:], ", ") // after relay, --dns and where it listens
	}
	return "that are not known"
}

// renew lets a relay serve the listed addresses and nobody else. One that does
// not take its new list, and one that serves nobody any more, is removed.
func (e *Engine) renew(ctx context.Context, r relay, to []netip.Addr) error {
	if len(to) > 0 {
		if r.ended() {
			return nil // who needs it next makes it anew
		}
		failed := e.tellSources(ctx, r.id, to)
		if failed == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e.Progress("the relay of %s is removed, since it did not take its new list (the sandboxes that use it are without it until corral up, or the next corral run): %v", r.carries, failed)
	}
	return e.remove(ctx, r.id)
}

// relayTaken is a relay whose address somebody else listens on.
type relayTaken struct{ said string }

func (e *relayTaken) Error() string { return e.said }

// startRelay starts a relay and waits for its ready line. It accepts nobody
// yet.
func (e *Engine) startRelay(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, relayReadyWithin, fmt.Errorf("not ready within %v", relayReadyWithin))
	defer cancel()
	stream, err := e.Start(ctx, id)
	if err != nil {
		return err
	}
	defer stream.Close()
	for {
		line, more := stream.Next()
		if !more {
			break
		}
		if line == spec.RelayReady {
			return nil
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return relayFailed(stream.Errors())
}

// relayFailed makes sense of what a relay said before it ended.
func relayFailed(said string) error {
	said, _, _ = strings.Cut(said, "\n") // below it is a hint for a person inside
	said = strings.TrimPrefix(said, "corral-gate: ")
	if strings.HasPrefix(said, spec.RelayTaken) {
		return &relayTaken{said}
	}
	return errors.New(cmp.Or(said, "it ended and said nothing"))
}

// relayChances is how often a relay is told its list before it is taken for one that
// does not listen: others go by it, and one question may be lost. Its own no stands.
const relayChances = 2

// tellSources tells a relay whom it serves from now on. Whoever else is
// connected is not any more when it returns.
func (e *Engine) tellSources(ctx context.Context, id string, to []netip.Addr) error {
	ctx, cancel := context.WithTimeoutCause(ctx, answerWithin, fmt.Errorf("no answer within %v", answerWithin))
	defer cancel()
	doc := spec.Encode(spec.Relay{Version: spec.Version, Sources: append([]netip.Addr{}, to...)})
	var err error
	for range relayChances {
		_, err = e.exec(ctx, id, doc, spec.GuestDir+"/bin/corral-gate", "relay-sources")
		if err == nil || ctx.Err() != nil || errors.As(err, new(*ExecError)) {
			break
		}
	}
	return err
}

// withoutRelay goes without one where a program of this machine answers at the
// gateway's address by itself, which is told; anything else that holds the
// address is in the way.
func (e *Engine) withoutRelay(ctx context.Context, r plan.Relay, at netip.AddrPort) error {
	err := byItself(ctx, at, len(r.DNS) > 0)
	if err == nil {
		e.Progress("port %d needs no relay: a program of this machine listens on %v by itself, as on every address; other containers reach it there too, and other machines if no firewall is before it", r.Port, at)
		return nil
	}
	return exit.Failedf(fmt.Sprintf("ss -ltnup 'sport = :%d' shows which program (as root, whosever it is): if it is yours, let it listen on 127.0.0.1 alone; if not, it has to go", r.Port),
		"the relay of port %d cannot listen on %v: %w", r.Port, at, err)
}

// byItself is nil if a program of this machine answers at an address of it, as
// it does on every other. That it listens on all of them is what makes it the
// service that is meant: nobody else can have the port on loopback then, where a
// relay would have led. On one address any user of this machine may listen.
func byItself(ctx context.Context, at netip.AddrPort, lookups bool) error {
	protos := []string{"tcp"}
	if lookups {
		protos = []string{"udp", "tcp"}
	}
	for i, proto := range protos {
		every, alone, err := listeners(procNet, proto, at)
		switch {
		case err != nil:
			return fmt.Errorf("who holds it cannot be told: %w", err)
		case alone:
			return fmt.Errorf("a program of this machine listens there alone (%s), and would receive what is meant for the service on loopback", proto)
		case !every && i == 0: // name servers need no TCP
			return fmt.Errorf("no program of this machine listens on every address at port %d (%s)", at.Port(), proto)
		}
	}
	switch {
	case lookups && !looksUp(ctx, at):
		return errors.New("a program of this machine holds it, and answers no lookup there")
	case !lookups && !accepts(ctx, at):
		return errors.New("a program of this machine holds it, and accepts no connection there")
	}
	return nil
}

// ErrUnserved is a port of this machine's that nobody has opened, or not yet.
var ErrUnserved = errors.New("nothing listens")

// Unserved refuses a port of loopback on which nothing of this machine listens,
// as a gate that carries it would. Whatever else is wrong with it is the gate's to
// find: what comes there goes through the relay.
func Unserved(ctx context.Context, port uint16) error {
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	conn, err := (&net.Dialer{Timeout: acceptWithin}).DialContext(ctx, "tcp", at.String())
	switch {
	case err == nil:
		conn.Close()
	case errors.Is(err, syscall.ECONNREFUSED):
		return exit.Failedf(fmt.Sprintf("start what listens on port %d, or take it out of host_services (ss -ltn shows what listens)", port),
			"host service on port %d: %w on %v of this machine", port, ErrUnserved, at)
	}
	return nil
}

func accepts(ctx context.Context, at netip.AddrPort) bool {
	conn, err := (&net.Dialer{Timeout: acceptWithin}).DialContext(ctx, "tcp", at.String())
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// looksUp reports whether a name server answers, whatever it says.
func looksUp(ctx context.Context, at netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, acceptWithin)
	defer cancel()
	c := resolve.Client{Servers: []netip.AddrPort{at}, Timeout: acceptWithin}
	_, err := c.A(ctx, "relay."+spec.ProbeDomain)
	var failed *resolve.Error
	return err == nil || errors.As(err, &failed) &&
		!slices.Contains([]resolve.Kind{resolve.Timeout, resolve.Unreachable, resolve.Malformed}, failed.Kind)
}

// procNet is where this machine lists its sockets.
const procNet = "/proc/net"

// Columns of its lists, and the states in them of a socket that takes what
// anybody sends.
const (
	columnLocal = 1
	columnState = 3
	tcpListens  = "0A"
	udpListens  = "07"
)

// listeners says who takes what is sent to an address and port of this machine:
// a socket of every address, one of that address alone, or both, of which the
// second gets it. A socket of one interface looks like one of every.
func listeners(dir, proto string, at netip.AddrPort) (every, alone bool, err error) {
	state := tcpListens
	if proto == "udp" {
		state = udpListens
	}
	for _, file := range []string{proto, proto + "6"} {
		b, err := os.ReadFile(filepath.Join(dir, file))
		if errors.Is(err, fs.ErrNotExist) && file != proto {
			continue // no IPv6 in this kernel
		}
		if err != nil {
			return false, false, err
		}
		n := 0
		for line := range strings.Lines(string(b)) {
			if n++; n == 1 {
				continue // the names of the columns
			}
			f := strings.Fields(line)
			if len(f) <= columnState {
				return false, false, fmt.Errorf("%s: %q", file, strings.TrimSpace(line))
			}
			if f[columnState] != state {
				continue
			}
			local, err := parseSocket(f[columnLocal])
			if err != nil {
				return false, false, fmt.Errorf("%s: %w", file, err)
			}
			if local.Port() == at.Port() {
				every = every || local.Addr().IsUnspecified()
				alone = alone || local.Addr() == at.Addr()
			}
		}
	}
	return every, alone, nil
}

// parseSocket reads an address as /proc/net has it: words of four bytes in the
// order of this machine, in hex, then the port.
func parseSocket(s string) (netip.AddrPort, error) {
	words, tail, _ := strings.Cut(s, ":")
	port, err := strconv.ParseUint(tail, 16, 16)
	if err != nil || len(words) != 8 && len(words) != 32 {
		return netip.AddrPort{}, fmt.Errorf("%q is no socket's address", s)
	}
	var b []byte
	for ; words != ""; words = words[8:] {
		w, err := strconv.ParseUint(words[:8], 16, 32)
		if err != nil {
			return netip.AddrPort{}, fmt.Errorf("%q is no socket's address", s)
		}
		b = binary.NativeEndian.AppendUint32(b, uint32(w))
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(port)), nil
}

// takeAway removes gates together with what relays still do for them. It takes
// the machine-wide lock if there is a relay that this is about; image is what
// the lock is made from, empty if that is not known. The gates go in any case,
// also when ctx has ended or relays could not be told: whoever gets the address
// next renews their lists before its gate starts.
func (e *Engine) takeAway(ctx context.Context, image string, gates ...string) error {
	ctx = context.WithoutCancel(ctx)
	if image == "" {
		have, err := e.carriers(ctx)
		if err != nil {
			return errors.Join(err, e.removeAll(ctx, gates))
		}
		if image = have.concerned(gates); image == "" {
			return e.removeAll(ctx, gates)
		}
	}
	unlock, err := e.lock(ctx, image)
	if err != nil {
		return errors.Join(fmt.Errorf("relays were not told: %w", err), e.removeAll(ctx, gates))
	}
	defer func() {
		if left := unlock(); left != nil {
			e.Progress("the machine-wide lock was not given back: %v", left)
		}
	}()
	return e.dismiss(ctx, gates...)
}

// concerned is the image of a relay that serves one of the gates, or nobody;
// empty if there is none.
func (c carriers) concerned(gates []string) string {
	for _, r := range c.relays {
		before, after := sources(c.users, r.carries), sources(c.users, r.carries, gates...)
		if len(after) == 0 || len(after) < len(before) {
			return r.image
		}
	}
	return ""
}

// dismiss is takeAway for who holds the machine-wide lock. Relays are told
// first: an address must not be served any more once it is free, whatever
// becomes of this process in between. If who uses them cannot be told, they are
// left as they are: whoever gets the address next renews their lists.
func (e *Engine) dismiss(ctx context.Context, gates ...string) error {
	ctx = context.WithoutCancel(ctx)
	have, err := e.carriers(ctx)
	errs := []error{err}
	for _, r := range have.relays {
		errs = append(errs, e.renew(ctx, r, sources(have.users, r.carries, gates...)))
	}
	return errors.Join(append(errs, e.removeAll(ctx, gates))...)
}

func (e *Engine) removeAll(ctx context.Context, ids []string) error {
	var errs []error
	for _, id := range ids {
		errs = append(errs, e.remove(ctx, id))
	}
	return errors.Join(errs...)
}

// RelayHealth is how one port of the host's that a sandbox needs is carried.
type RelayHealth struct {
	Carries string `json:"carries"` // like 8081, or 53/dns
	State   string `json:"state"`   // running, or what is wrong in plain words
	OK      bool   `json:"ok"`
	Why     string `json:"-"` // what is wrong, without the remedy
}

// RelayHealth looks at the relays that the gates among members need. It is
// empty for gates that need none, and asks nobody then.
func (e *Engine) RelayHealth(ctx context.Context, members []Member) ([]RelayHealth, error) {
	var words []string
	remedy := "corral down, then corral run, starts it"
	for _, m := range members {
		words = append(words, m.Relays...)
		if m.Purpose == PurposeDaemon {
			remedy = "corral up makes it anew"
		}
	}
	slices.Sort(words)
	words = slices.Compact(words)
	if len(words) == 0 {
		return nil, nil
	}
	have, err := e.ours(ctx, labelRole+"="+RoleRelay)
	if err != nil {
		return nil, err
	}
	states := map[string]string{}
	for _, r := range have {
		states[r.Labels[labelCarry]] = r.State
	}
	var out []RelayHealth
	for _, word := range words {
		h := relayHealth(word, states[word], remedy)
		if states[word] == "" {
			network, _, err := e.Network(ctx, netip.Prefix{})
			if err != nil && !errors.As(err, new(*WrongNetwork)) { // then nobody has its gateway's address
				return nil, err
			}
			port, lookups := strings.CutSuffix(word, lookupsSuffix)
			if at, err := netip.ParseAddrPort(fmt.Sprintf("%v:%s", network.Gateway, port)); err == nil && byItself(ctx, at, lookups) == nil {
				h.State, h.OK, h.Why = fmt.Sprintf("needs no relay: a program of this machine listens on %v by itself", at), true, ""
			}
		}
		out = append(out, h)
	}
	return out, nil
}

// relayHealth judges a relay by the engine's word for its state, empty if there
// is none; remedy brings one back.
func relayHealth(word, state, remedy string) RelayHealth {
	if state == container.StateRunning {
		return RelayHealth{Carries: word, State: "relay running", OK: true}
	}
	why := "it is " + cmp.Or(state, "gone")
	if state == container.StateExited {
		why = "it ended"
	}
	return RelayHealth{Carries: word, State: fmt.Sprintf("relay %s (%s)", cmp.Or(state, "is gone"), remedy), Why: why}
}
