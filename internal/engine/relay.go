package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/spec"
)

// RoleRelay is a container on the host's own network that carries one port of
// the gateway's address to the host's loopback. It belongs to no sandbox: it is
// there while any gate's label names what it carries.
const RoleRelay = "relay"

const (
	labelRelays = "dev.corral.relays"    // of a gate: what it needs carried, like 53/dns,8081
	labelCarry  = "dev.corral.relay"     // of a relay: what it carries, one of these words
	labelTarget = "dev.corral.relay-for" // of a relay: from where to where
)

// What a relay's container is asked to be.
const (
	// relayTmpfs are the options of its /run, where its control socket is.
	relayTmpfs = "rw,nosuid,nodev,noexec,size=1m,mode=0755"
	// relayPids is room for its threads and for a question or two.
	relayPids = 64
	// relayMemory holds its connections several times over.
	relayMemory = 64 << 20
	// privileged is the first port that anybody may listen on.
	privileged = 1024
	// relayReadyWithin bounds the start of a program that asks nobody.
	relayReadyWithin = 15 * time.Second
	// acceptWithin bounds a connection from this machine to itself.
	acceptWithin = time.Second
)

// relayCapabilities listen on a port below privileged and give up root.
var relayCapabilities = []string{"NET_BIND_SERVICE", "SETUID", "SETGID"}

// carried is the word for what a relay carries.
func carried(r plan.Relay) string {
	if len(r.DNS) > 0 {
		return fmt.Sprintf("%d/dns", r.Port)
	}
	return fmt.Sprint(r.Port)
}

// needs are the words for all that the gates of a plan need.
func needs(p *plan.Plan) string {
	var words []string
	for _, r := range p.Relays {
		words = append(words, carried(r))
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
	limit := int64(relayPids)
	user := fmt.Sprintf("%d:%d", spec.CarrierUID, spec.CarrierUID)
	tmpfs := fmt.Sprintf("%s,uid=%d,gid=%d", relayTmpfs, spec.CarrierUID, spec.CarrierUID)
	var capabilities []string
	if r.Port < privileged {
		user, tmpfs, capabilities = "0:0", relayTmpfs, relayCapabilities
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
			Resources:      container.Resources{PidsLimit: &limit, Memory: relayMemory, MemorySwap: relayMemory},
		},
	}
}

// carriers are the relays of this machine and whom they serve, as the engine
// has it.
type carriers struct {
	relays []relay
	users  []user
}

type relay struct {
	id, carries, target, image string
	running                    bool
}

// user is a gate that needs relays, whether it runs or not.
type user struct {
	id      string
	address netip.Addr
	needs   []string
}

// carriers asks for the gates only where there are relays.
func (e *Engine) carriers(ctx context.Context) (carriers, error) {
	var c carriers
	list, err := e.labelled(ctx, labelRole+"="+RoleRelay)
	if err != nil || len(list) == 0 {
		return c, err
	}
	for _, r := range list {
		c.relays = append(c.relays, relay{r.ID, r.Labels[labelCarry], r.Labels[labelTarget], r.ImageID, r.State == container.StateRunning})
	}
	c.users, err = e.users(ctx)
	return c, err
}

func (e *Engine) users(ctx context.Context) ([]user, error) {
	list, err := e.labelled(ctx, labelRelays)
	if err != nil {
		return nil, err
	}
	var out []user
	for _, g := range list {
		address, err := netip.ParseAddr(g.Labels[labelAddress])
		if err != nil {
			return nil, fmt.Errorf("container %.12s: label %s: %w", g.ID, labelAddress, err)
		}
		if words := splitNeeds(g.Labels[labelRelays]); len(words) > 0 {
			out = append(out, user{g.ID, address, words})
		}
	}
	return out, nil
}

func (e *Engine) labelled(ctx context.Context, label string) ([]container.Summary, error) {
	list, err := e.api.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", label))})
	if err != nil {
		return nil, fmt.Errorf("containers: %w", err)
	}
	return list, nil
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

// carry makes every relay that the gates of a plan need carry for them: one
// that is not there, does not run or leads elsewhere is made anew. The caller
// holds the machine-wide lock, and has created the gates and not started them.
func (e *Engine) carry(ctx context.Context, image string, p *plan.Plan) error {
	if len(p.Relays) == 0 {
		return nil
	}
	have, err := e.carriers(ctx)
	if err == nil && len(have.relays) == 0 {
		have.users, err = e.users(ctx)
	}
	if err != nil {
		return err
	}
	for _, r := range p.Relays {
		if err := e.carryOne(ctx, image, r, p.Network.Gateway, have); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) carryOne(ctx context.Context, image string, r plan.Relay, gateway netip.Addr, have carriers) error {
	want := relayRequest(image, r, gateway)
	to := sources(have.users, carried(r))
	for _, old := range have.relays {
		if old.carries != want.config.Labels[labelCarry] {
			continue
		}
		if old.running && old.target == want.config.Labels[labelTarget] && e.tellSources(ctx, old.id, to) == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if old.running {
			e.Progress("the relay of port %d is made anew: it led elsewhere, or did not take its new list", r.Port)
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
		return e.withoutRelay(ctx, r, netip.AddrPortFrom(gateway, r.Port))
	}
	return fmt.Errorf("relay of port %d: %w", r.Port, err)
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

// tellSources tells a relay whom it serves from now on. Whoever else is
// connected is not any more when it returns.
func (e *Engine) tellSources(ctx context.Context, id string, to []netip.Addr) error {
	ctx, cancel := context.WithTimeoutCause(ctx, answerWithin, fmt.Errorf("no answer within %v", answerWithin))
	defer cancel()
	doc := spec.Relay{Version: spec.Version, Sources: append([]netip.Addr{}, to...)}
	_, err := e.exec(ctx, id, spec.Encode(doc), spec.GuestDir+"/bin/corral-gate", "relay-sources")
	return err
}

// withoutRelay goes without one where a program of this machine listens at the
// gateway's address by itself, which is told; anything else that holds the
// address is in the way.
func (e *Engine) withoutRelay(ctx context.Context, r plan.Relay, at netip.AddrPort) error {
	if accepts(ctx, at) {
		e.Progress("port %d needs no relay: a program of this machine listens on %v by itself; other containers reach it there too, and other machines if it listens on every address and no firewall is before it", r.Port, at)
		return nil
	}
	return exit.Failedf(fmt.Sprintf("ss -ltnup 'sport = :%d' shows which program (as root, whosever it is); let it listen on 127.0.0.1 alone", r.Port),
		"the relay of port %d cannot listen on %v: a program of this machine holds it, and accepts no connection there", r.Port, at)
}

func accepts(ctx context.Context, at netip.AddrPort) bool {
	conn, err := (&net.Dialer{Timeout: acceptWithin}).DialContext(ctx, "tcp", at.String())
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// takeAway removes gates together with what relays still do for them. It takes
// the machine-wide lock if there is a relay that this is about; image is what
// the lock is made from, empty if that is not known. The gates go in any case,
// also when ctx has ended.
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
// becomes of this process in between. One that does not take its new list, and
// one that serves nobody any more, is removed.
func (e *Engine) dismiss(ctx context.Context, gates ...string) error {
	ctx = context.WithoutCancel(ctx)
	have, err := e.carriers(ctx)
	errs := []error{err}
	for _, r := range have.relays {
		to := sources(have.users, r.carries, gates...)
		if len(to) > 0 && !r.running {
			continue // it serves nobody as it is; who needs it next makes it anew
		}
		if len(to) > 0 {
			failed := e.tellSources(ctx, r.id, to)
			if failed == nil {
				continue
			}
			e.Progress("the relay of %s is removed, since it did not take its new list (the sandboxes that use it are without it until the next corral run): %v", r.carries, failed)
		}
		errs = append(errs, e.remove(ctx, r.id))
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
}

// RelayHealth looks at the relays that the gates among members need. It is
// empty for gates that need none, and asks nobody then.
func (e *Engine) RelayHealth(ctx context.Context, members []Member) ([]RelayHealth, error) {
	var words []string
	for _, m := range members {
		words = append(words, m.Relays...)
	}
	slices.Sort(words)
	words = slices.Compact(words)
	if len(words) == 0 {
		return nil, nil
	}
	have, err := e.labelled(ctx, labelRole+"="+RoleRelay)
	if err != nil {
		return nil, err
	}
	states := map[string]string{}
	for _, r := range have {
		states[r.Labels[labelCarry]] = r.State
	}
	var out []RelayHealth
	for _, word := range words {
		h := relayHealth(word, states[word])
		if states[word] == "" {
			network, _, err := e.Network(ctx, netip.Prefix{})
			if err != nil {
				return nil, err
			}
			if at, err := netip.ParseAddrPort(fmt.Sprintf("%v:%s", network.Gateway, strings.TrimSuffix(word, "/dns"))); err == nil && accepts(ctx, at) {
				h.State, h.OK = fmt.Sprintf("needs no relay: a program of this machine listens on %v by itself", at), true
			}
		}
		out = append(out, h)
	}
	return out, nil
}

// relayHealth judges a relay by the engine's word for its state, empty if there
// is none.
func relayHealth(word, state string) RelayHealth {
	if state == container.StateRunning {
		return RelayHealth{Carries: word, State: state, OK: true}
	}
	return RelayHealth{Carries: word, State: fmt.Sprintf("relay %s (corral down, then corral run, starts it)", cmp.Or(state, "is gone"))}
}
