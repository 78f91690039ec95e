package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Member is one container of a sandbox.
type Member struct {
	ID       string
	Name     string
	Service  string
	Role     string
	Sandbox  string
	Running  bool
	Address  netip.Addr // a gate's planned address
	Link     netip.Addr // and that on the network between the gates, if it has one
	Gate     string     // whose network a service has
	Instance string     // the gate instance that a service was started behind
	State    string     // the engine's word: running, exited, created…
	Created  time.Time  // by the engine's clock, in whole seconds
	Policy   string
	Digest   string       // of the policy that it was made from
	Config   string       // digests of what was asked of the engine, see Differs
	Inode    string       // of the policy file, see plan.Plan
	Shields  []plan.Mount // those of a service
	// Furniture is what the profile brought a service.
	Furniture []plan.Mount
	// Submounts are those below a service's mounts when it was made; nil if that is not
	// on record.
	Submounts map[string][]string
	Relays    []string // what a gate needs carried from the host
	Purpose   string
	Owner     string // the process that looks after it
	Ended     string // why it does not run, where somebody looked
	// Unnamed says that its image has not the name any more by which it was made.
	Unnamed bool
}

// Members lists the containers of the sandbox of a policy file, whatever its
// name was when it was brought up; of all sandboxes for an empty path.
func (e *Engine) Members(ctx context.Context, policy string) ([]Member, error) {
	label := labelSandbox
	if policy != "" {
		label = labelPolicy + "=" + policy
	}
	list, err := e.ours(ctx, label)
	if err != nil {
		return nil, err
	}
	var out []Member
	for _, c := range list {
		m := Member{
			ID:       c.ID,
			Name:     strings.TrimPrefix(slices.Concat(c.Names, []string{""})[0], "/"),
			Service:  c.Labels[labelService],
			Role:     c.Labels[labelRole],
			Sandbox:  c.Labels[labelSandbox],
			Running:  c.State == "running",
			State:    c.State,
			Created:  time.Unix(c.Created, 0),
			Instance: c.Labels[labelInstance],
			Policy:   c.Labels[labelPolicy],
			Digest:   c.Labels[labelDigest],
			Config:   c.Labels[labelConfig],
			Inode:    c.Labels[labelInode],
			Purpose:  c.Labels[labelPurpose],
			Owner:    c.Labels[labelOwner],
			Relays:   splitNeeds(c.Labels[labelRelays]),
			// The engine says the name as long as it leads to the same image.
			Unnamed: c.Image == c.ImageID,
		}
		if a, err := netip.ParseAddr(c.Labels[labelAddress]); err == nil {
			m.Address = a
		}
		if a, err := netip.ParseAddr(c.Labels[labelLink]); err == nil {
			m.Link = a
		}
		if m.Role == RoleService {
			m.Gate = cmp.Or(c.Labels[labelGate], m.Service)
		}
		for name, mounts := range map[string]*[]plan.Mount{labelShields: &m.Shields, labelFurniture: &m.Furniture} {
			if label := c.Labels[name]; label != "" {
				if *mounts, err = parseMounts(label); err != nil {
					return nil, &Mislabelled{Container: m.Name, Label: name, Err: err}
				}
			}
		}
		if label := c.Labels[labelSubmounts]; label != "" {
			if m.Submounts, err = parseSubmounts(label); err != nil {
				return nil, &Mislabelled{Container: m.Name, Label: labelSubmounts, Err: err}
			}
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// AddressesOf are those that a sandbox's gates have.
func AddressesOf(members []Member) plan.Addresses {
	at := plan.Addresses{Gates: map[string]netip.Addr{}}
	for _, m := range members {
		if m.Role != RoleGate {
			continue
		}
		if m.Address.IsValid() {
			at.Gates[m.Service] = m.Address
		}
		if m.Link.IsValid() {
			at.Links = netip.PrefixFrom(m.Link, plan.LinkBits).Masked()
		}
	}
	return at
}

// Unattended says that the corral that looked after it is gone. Nobody looks
// after what is always on.
func (m Member) Unattended() bool { return m.Purpose != PurposeDaemon && ownerLife(m.Owner) == gone }

// Down takes containers away: what joins gates first, as Retire does, gates last.
// What relays did for them ends, and a relay that serves nobody goes, whoever left it.
func (e *Engine) Down(ctx context.Context, members []Member) error {
	var services []Member
	var gates []string
	for _, m := range members {
		if m.Role == RoleGate {
			gates = append(gates, m.ID)
		} else {
			services = append(services, m)
		}
	}
	if err := e.Retire(ctx, services...); err != nil {
		return err // what could not be ended stays behind its gate
	}
	err := e.takeAway(ctx, "", gates...)
	for _, m := range members {
		if m.Link.IsValid() {
			return errors.Join(err, e.unlink(context.WithoutCancel(ctx), m.Sandbox))
		}
	}
	return err
}

// Clear removes what a corral that was cut short left of a policy's sandbox.
// One that is up, or being brought up by a living process, is Running. Only
// what was judged is removed: what comes into being meanwhile is another's.
func (e *Engine) Clear(ctx context.Context, policy string) error {
	members, err := e.Members(ctx, policy)
	if err != nil {
		return err
	}
	err = leftovers(members)
	if alone := (*Running)(nil); errors.As(err, &alone) && alone.Unattended && e.dark(ctx, members) {
		err = nil // and nobody can bring its network back
	}
	if err != nil || len(members) == 0 {
		return err
	}
	return e.Down(ctx, members)
}

// dark reports whether no service has a network, or will have one.
func (e *Engine) dark(ctx context.Context, members []Member) bool {
	return !slices.ContainsFunc(e.Health(ctx, members), func(h Health) bool { return !h.Dark })
}

// leftovers is nil if nobody needs any of the members any more.
func leftovers(members []Member) error {
	for _, m := range members {
		switch {
		case m.Purpose == PurposeDaemon:
			return &Running{ID: m.Sandbox, Daemon: true}
		case m.Role == RoleService && m.Running && !(m.Purpose != PurposeRun && m.Unattended()):
			return &Running{ID: m.Sandbox, Unattended: m.Unattended()}
		case m.Role == RoleGate && !m.Unattended():
			return &Running{ID: m.Sandbox}
		}
	}
	return nil
}

// Sweep removes the containers of all sandboxes and tools of a purpose whose
// corral is gone.
func (e *Engine) Sweep(ctx context.Context, purpose string) error {
	return e.sweep(ctx, labelPurpose+"="+purpose)
}

// SweepTools removes the tools whose corral is gone: it was killed, and what it had
// made for a moment, the machine-wide lock say, would stay until somebody needs one.
func (e *Engine) SweepTools(ctx context.Context) error {
	return e.sweep(ctx, labelRole+"="+RoleTool)
}

func (e *Engine) sweep(ctx context.Context, label string) error {
	list, err := e.ours(ctx, label)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range list {
		if ownerLife(c.Labels[labelOwner]) == gone {
			errs = append(errs, e.remove(ctx, c.ID))
		}
	}
	return errors.Join(errs...)
}

// Health is what is known of one service.
type Health struct {
	Service string `json:"service"`
	State   string `json:"state"` // running, or what is wrong in plain words
	OK      bool   `json:"ok"`
	// Behind is the gate whose network namespace the service is in; empty if that
	// gate is gone.
	Behind string `json:"behind,omitempty"`
	// Made and Started are when its container was made and last started, by the
	// engine's clock; zero where it does not run, or the engine does not say.
	Made    time.Time `json:"made,omitzero"`
	Started time.Time `json:"started,omitzero"`
	// Gate is what the gate said; nil if it did not answer.
	Gate *spec.GateStatus `json:"gate,omitempty"`

	// Dark services have no network, and will have none.
	Dark bool `json:"-"`
	// Alone are those that nobody looks after any more, and nothing else is wrong with.
	Alone bool `json:"-"`
}

// Health looks at every service of a sandbox and at the gate it is behind. A
// gate without a service is told as well.
func (e *Engine) Health(ctx context.Context, members []Member) []Health {
	gates, services := map[string]Member{}, map[string]Member{}
	for _, m := range members {
		if !m.Running {
			m.Ended = e.WhyEnded(ctx, m)
		}
		switch m.Role {
		case RoleGate:
			gates[m.Service] = m
		case RoleService:
			services[m.Service] = m
		}
	}
	var out []Health
	said := map[string]*spec.GateStatus{}
	for name, gate := range gates {
		if gate.Running {
			if got, err := e.GateStatus(ctx, gate.ID); err == nil {
				said[name] = &got
			}
		}
	}
	serving := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(services)) {
		of := services[name].Gate
		gate, status := gates[of], said[of]
		serving[of] = true
		service := services[name]
		s, known := e.stateOf(ctx, service.ID)
		if service.Running && known && !s.Running { // it ended since it was listed
			service.Running, service.State, service.Ended = false, s.Status, e.WhyEnded(ctx, service)
		}
		h := health(service, gate, status).asSeen(service, s, known)
		out = append(out, h)
	}
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		if !serving[name] {
			out = append(out, Health{Service: name, State: "not started (there is a gate only)", Dark: true})
		}
	}
	return out
}

// asSeen is h with what the engine says of the very container. One of which it says
// nothing is not well: an agent that stops processes makes it deaf to what it asks there.
func (h Health) asSeen(service Member, s container.State, known bool) Health {
	switch {
	case (h.OK || h.Alone) && !known:
		h.State, h.OK, h.Alone = fmt.Sprintf("the engine does not answer about %s (corral verify looks into it)", h.Service), false, false
	case known && s.Running:
		h.Made = service.Created
		h.Started, _ = time.Parse(time.RFC3339Nano, s.StartedAt)
	}
	return h
}

// health judges a service by itself, its gate, and what that gate says.
func health(service, gate Member, status *spec.GateStatus) Health {
	h := Health{Service: service.Service, Gate: status}
	if gate.Running && (status == nil || status.Instance == service.Instance) {
		h.Behind = gate.Name
	}
	switch {
	case gate.State == container.StatePaused:
		h.State = "the gate is paused: it answers no lookup"
	case !gate.Running:
		h.State, h.Dark = "no network (gate is gone)", true
		if gate.Ended != "" {
			h.State += ": " + gate.Ended
		}
	case service.State == container.StatePaused:
		h.State = "paused"
	case status == nil:
		h.State = "gate does not answer"
	case !service.Running:
		h.State = cmp.Or(service.Ended, service.State)
	case status.Instance != service.Instance:
		h.State, h.Dark = "no network (gate was replaced)", true
	case unsound(*status) != "":
		h.State = unsound(*status)
	case service.Unattended():
		h.State, h.Alone = "running on, but the corral that looked after it is gone (corral down ends it)", true
	default:
		h.State, h.OK = "running", true
	}
	return h
}

const (
	// wordsKept of what a container said last are looked at.
	wordsKept = "40"
	// mostReasons are told of why one ended.
	mostReasons = 2
)

// longID is a container's whole identity, which tells a person nothing, or the
// digest of an image, which may be their own word for it.
var longID = regexp.MustCompile(`\b(sha256:)?[0-9a-f]{64}\b`)

// cutOff is how the client begins what it says of a connection that ended: with a
// request that nobody typed.
var cutOff = regexp.MustCompile(`error during connect: [A-Z][a-z]+ "[^"]*": `)

// fromDaemon begins what an engine says of a request, up to a megabyte of it.
const fromDaemon = "Error response from daemon: "

var ofDaemon = regexp.MustCompile(fromDaemon + `.*`)

// mostSaid bounds a line of others' words.
const mostSaid = 400

// clipped is a line of which no more is kept than a person reads.
func clipped(line string) string {
	if r := []rune(line); len(r) > mostSaid {
		return string(r[:mostSaid]) + "…"
	}
	return line
}

// goDump begins what Go prints of its threads where it cannot go on.
const goDump = "\ngoroutine "

// Plain is what was said without the identities of containers, with which the
// engine names them, and without the requests that corral made of it; of the engine's own
// words no more than a person reads.
func Plain(said string) string {
	if dump := strings.Index(said, goDump); dump >= 0 {
		said = strings.TrimRight(said[:dump], " \n:") + " (and a trace of the program that failed)"
	}
	said = cutOff.ReplaceAllString(said, "the connection to the engine broke off: ")
	said = longID.ReplaceAllStringFunc(said, func(id string) string {
		if strings.HasPrefix(id, "sha256:") {
			return id
		}
		return "…"
	})
	return ofDaemon.ReplaceAllStringFunc(said, func(line string) string {
		return fromDaemon + clipped(strings.TrimPrefix(line, fromDaemon))
	})
}

// WhyEnded says in words why a container does not run, by what it said itself
// and by what the engine knows; empty if it was never started, is paused, or
// nothing is known.
func (e *Engine) WhyEnded(ctx context.Context, m Member) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
	defer cancel()
	got, err := e.api.ContainerInspect(ctx, m.ID)
	if err != nil || got.State.Running || got.State.Status == container.StateCreated {
		return ""
	}
	switch s := got.State; {
	case s.OOMKilled:
		return "the kernel ended it, out of memory"
	case s.Error != "":
		return printable.Escape(Plain(s.Error))
	}
	said := ""
	if reasons := e.reasons(ctx, m, got.State.StartedAt, got.Config != nil && got.Config.Tty); len(reasons) > 0 {
		said = strings.Join(reasons[max(0, len(reasons)-mostReasons):], "; ")
	}
	switch {
	case said != "" && m.Role == RoleGate:
		return said
	case said != "": // perhaps the handover did, perhaps the agent
		return fmt.Sprintf("it ended with status %d, and said: %q", got.State.ExitCode, said)
	}
	switch got.State.ExitCode {
	case killed:
		return fmt.Sprintf("it was killed, status %d", killed) // by whom the engine does not say: docker kill, or stop, of what did not end in time
	case 0:
		if m.Role == RoleGate {
			return "it was stopped"
		}
	}
	return fmt.Sprintf("it ended with status %d", got.State.ExitCode)
}

// headStart is by how much what a container says first may be older than what the engine
// takes for its start.
const headStart = time.Second

// reasons are what a gate said of why it ended, and a service of why it did not
// begin.
func (e *Engine) reasons(ctx context.Context, m Member, since string, tty bool) []string {
	var said bytes.Buffer
	if at, err := time.Parse(time.RFC3339Nano, since); err == nil {
		since = at.Add(-headStart).Format(time.RFC3339Nano)
	}
	// A terminal has one stream.
	logs, err := e.api.ContainerLogs(ctx, m.ID, container.LogsOptions{ShowStdout: tty, ShowStderr: true, Since: since, Tail: wordsKept})
	if err != nil {
		return nil
	}
	defer logs.Close()
	if tty {
		_, _ = io.Copy(&clip{&said, maxErrors}, logs)
	} else {
		_, _ = stdcopy.StdCopy(io.Discard, &clip{&said, maxErrors}, logs)
	}
	program := "corral-gate: "
	if m.Role != RoleGate {
		program = "corral-verify: "
	}
	var out []string
	for line := range strings.Lines(said.String()) {
		line, ours := strings.CutPrefix(strings.TrimSpace(line), program)
		if ours && !strings.HasPrefix(line, "worker: ") {
			out = append(out, printable.Escape(line))
		}
	}
	return out
}

// unsound says what is wrong with a gate by its own account, empty if nothing
// is. Digests that are not there agree about nothing.
func unsound(s spec.GateStatus) string {
	switch {
	case s.State != spec.GateReady:
		return "no network (gate is closed)"
	case s.Applied == "" || s.Applied != s.ReadBack:
		return "the gate's rules are not what it wrote" + firstOf(s.Differences)
	}
	return ""
}
