package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"

	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	optionICC    = "com.docker.network.bridge.enable_icc"
	optionBridge = "com.docker.network.bridge.name"
	bridge       = spec.Bridge
)

// WrongNetwork is a corral network that is missing or not as corral makes it.
// Nothing is ever started on another one.
type WrongNetwork struct{ Differences []string }

func (e *WrongNetwork) Error() string {
	return "the corral network is not as it must be: " + strings.Join(e.Differences, "; ")
}

// Collision is a subnet of corral's that something else on this machine uses.
type Collision struct {
	Subnet netip.Prefix
	With   []string // routes and networks, in words
	// None says that every other subnet that corral takes collides too.
	None bool
	Hint string
}

func (e *Collision) Error() string {
	s := fmt.Sprintf("the subnet %v collides with %s", e.Subnet, few(e.With))
	if e.None {
		s += ", and every other one that corral takes with something, too"
	}
	return s
}

// mostNamed bounds a line: a VPN may bring hundreds of routes.
const mostNamed = 3

func few(list []string) string {
	if more := len(list) - mostNamed; more > 0 {
		list = append(slices.Clone(list[:mostNamed]), fmt.Sprintf("%d more", more))
	}
	return strings.Join(list, ", ")
}

// Hints of a collision, by who has to give way.
const (
	hintMove   = "corral down ends what runs; then corral install --repair takes another subnet"
	hintChosen = "set CORRAL_SUBNET to another, or unset it and corral install chooses"
	hintNone   = "set CORRAL_SUBNET to one (say 10.200.0.0/16) that lies within a wider route and that this machine can do without"
)

// EnsureNetwork makes the corral network if it is missing, on wish, or if that
// is zero on the first subnet that nothing else uses, and returns the one that
// there is. One that differs, or that collides, is an error, unless repair is
// asked for and no container uses it: then it is made anew, on the same subnet
// if that is free or wished for.
func (e *Engine) EnsureNetwork(ctx context.Context, wish netip.Prefix, repair bool) (plan.Network, error) {
	around, err := e.surroundings(ctx)
	if err != nil {
		return plan.Network{}, err
	}
	got, err := e.api.NetworkInspect(ctx, plan.NetworkName, network.InspectOptions{})
	if errdefs.IsNotFound(err) {
		free, err := around.choose(wish, netip.Prefix{})
		if err != nil {
			return plan.Network{}, err
		}
		return e.makeNetwork(ctx, free, cmp.Or(wish, plan.DefaultSubnet), around)
	}
	if err != nil {
		return plan.Network{}, fmt.Errorf("network %s: %w", plan.NetworkName, err)
	}
	var lost []string
	have, subnet, wrong := inForce(wish, got)
	if wrong == nil {
		lost, wrong = judgeNetwork(have, subnet, got, around)
	}
	free, none := around.choose(wish, subnet)
	switch {
	case wrong == nil && (!repair || len(lost) == 0 || wish.IsValid() || none != nil):
		e.tell(lost)
		return have, nil
	case !repair:
		return plan.Network{}, wrong
	case none != nil:
		return plan.Network{}, none // the one that there is stays
	}
	if err := e.removeNetwork(ctx, got); err != nil {
		return plan.Network{}, err
	}
	return e.makeNetwork(ctx, free, cmp.Or(wish, subnet, plan.DefaultSubnet), around)
}

// MendNetwork makes the corral network as EnsureNetwork does if it is gone, which the
// engine's own prune does to one that nobody uses at the moment. It reports whether it
// was.
func (e *Engine) MendNetwork(ctx context.Context, guests host.Guests, wish netip.Prefix) (bool, error) {
	if gone, err := e.NetworkGone(ctx); err != nil || !gone {
		return false, err
	}
	image, err := e.GateImage(ctx, guests)
	if err != nil {
		return false, err
	}
	unlock, err := e.lock(ctx, image) // the engine makes two of one name
	if err != nil {
		return false, err
	}
	gone, err := e.NetworkGone(ctx)
	if err == nil && gone {
		e.Progress("the corral network is made anew (it is gone)")
		_, err = e.EnsureNetwork(ctx, wish, false)
	}
	return gone, errors.Join(err, unlock())
}

// NetworkGone reports whether there is no corral network.
func (e *Engine) NetworkGone(ctx context.Context) (bool, error) {
	_, err := e.api.NetworkInspect(ctx, plan.NetworkName, network.InspectOptions{})
	if errdefs.IsNotFound(err) {
		return true, nil
	}
	return false, err
}

// Network returns the corral network that is in force and the whole subnet
// that it is the lower half of: what follows from wish, or if that is zero
// what the engine has. It is CheckNetwork that compares the two.
func (e *Engine) Network(ctx context.Context, wish netip.Prefix) (plan.Network, netip.Prefix, error) {
	if wish.IsValid() {
		n, err := plan.Divide(wish)
		return n, wish, err
	}
	got, err := e.inspectNetwork(ctx, plan.NetworkName)
	if err != nil {
		return plan.Network{}, netip.Prefix{}, err
	}
	return inForce(wish, got)
}

// CheckNetwork is nil if the corral network exists, is as it must be, and no
// route of this machine takes addresses away from it. A route that corral
// takes addresses away from is told as progress.
func (e *Engine) CheckNetwork(ctx context.Context, want plan.Network) error {
	around, err := e.surroundings(ctx)
	if err != nil {
		return err
	}
	got, err := e.inspectNetwork(ctx, want.Name)
	if err != nil {
		return err
	}
	subnet, err := plan.Undivide(want.Subnet)
	if err != nil {
		return err
	}
	lost, err := judgeNetwork(want, subnet, got, around)
	if err != nil {
		return err
	}
	e.tell(lost)
	return nil
}

func (e *Engine) inspectNetwork(ctx context.Context, name string) (network.Inspect, error) {
	got, err := e.api.NetworkInspect(ctx, name, network.InspectOptions{})
	if errdefs.IsNotFound(err) {
		return got, &WrongNetwork{[]string{"it does not exist"}}
	}
	if err != nil {
		return got, fmt.Errorf("network %s: %w", name, err)
	}
	return got, nil
}

func (e *Engine) tell(lost []string) {
	for _, line := range lost {
		e.Progress("%s", line)
	}
}

// inForce is the network that follows from wish, or if that is zero from the
// bridge's subnet as the engine has it, and the whole subnet of either. One
// that cannot be told is a WrongNetwork.
func inForce(wish netip.Prefix, got network.Inspect) (plan.Network, netip.Prefix, error) {
	subnet := wish
	if !wish.IsValid() {
		if n := len(got.IPAM.Config); n != 1 {
			return plan.Network{}, subnet, &WrongNetwork{append(kindDiff(got), fmt.Sprintf("it has %d subnets, not 1", n))}
		}
		half, err := netip.ParsePrefix(got.IPAM.Config[0].Subnet)
		if err == nil {
			subnet, err = plan.Undivide(half)
		}
		if err != nil {
			return plan.Network{}, netip.Prefix{}, &WrongNetwork{append(kindDiff(got), fmt.Sprintf("subnet is %q: %v", got.IPAM.Config[0].Subnet, err))}
		}
	}
	n, err := plan.Divide(subnet)
	return n, subnet, err
}

// judgeNetwork compares a network with what it must be, and its whole subnet, links
// included, with the routes of this machine.
//
// The kernel takes the longest prefix of a table. So a route in the main table
// that is wider than the subnet leaves the bridge and the links working, since
// theirs are longer, and loses the subnet's addresses to them: that is worth a
// line. Everything else that overlaps is an error: one as wide as the subnet
// claims all of it, a narrower one takes sandboxes' addresses away or gives
// them to somebody else, and one in another table, whatever its width, may be
// asked before the bridge's.
func judgeNetwork(want plan.Network, subnet netip.Prefix, got network.Inspect, around surroundings) (lost []string, err error) {
	if diff := networkDiff(want, got); len(diff) > 0 {
		return nil, &WrongNetwork{diff}
	}
	breaking, wider := around.over(subnet)
	if len(breaking) > 0 {
		return nil, &Collision{Subnet: subnet, With: breaking, Hint: hintMove}
	}
	for _, r := range wider {
		lost = append(lost, fmt.Sprintf("%s does not lead to %v while corral has it (corral install --repair takes another subnet, if one is free)", r, subnet))
	}
	return lost, nil
}

// surroundings are what else on this machine uses addresses: nothing of
// corral's own.
type surroundings struct {
	networks []claim
	routes   []host.Route
}

// claim is a subnet of another network.
type claim struct {
	network string
	subnet  netip.Prefix
}

func (c claim) String() string { return fmt.Sprintf("network %q (%v)", c.network, c.subnet) }

func (e *Engine) surroundings(ctx context.Context) (surroundings, error) {
	list, err := e.api.NetworkList(ctx, network.ListOptions{})
	if err != nil {
		return surroundings{}, fmt.Errorf("networks: %w", err)
	}
	routes, err := host.Routes()
	if err != nil {
		return surroundings{}, err
	}
	return others(list, routes)
}

// others leaves out corral's own networks and the routes by their bridges.
func others(list []network.Summary, routes []host.Route) (surroundings, error) {
	own := map[string]bool{bridge: true}
	var s surroundings
	for _, n := range list {
		if n.Name == plan.NetworkName || n.Labels[labelRole] != "" {
			own[bridgeOf(n)] = true
			continue
		}
		subnets, err := subnetsOf(n)
		if err != nil {
			return s, err
		}
		for _, p := range subnets {
			s.networks = append(s.networks, claim{n.Name, p})
		}
	}
	for _, r := range routes {
		if !own[r.Interface] {
			s.routes = append(s.routes, r)
		}
	}
	return s, nil
}

// bridgeOf is the interface of a bridge network, as the engine names it.
func bridgeOf(n network.Summary) string {
	if name := n.Options[optionBridge]; name != "" {
		return name
	}
	return "br-" + n.ID[:min(len(n.ID), 12)]
}

func subnetsOf(n network.Summary) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, c := range n.IPAM.Config {
		p, err := netip.ParsePrefix(c.Subnet)
		if err != nil {
			return nil, fmt.Errorf("network %s has subnet %q: %w", n.Name, c.Subnet, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// taken are the ranges that corral does not choose: a wider route counts,
// since who wrote it means to reach what it leads to.
func (s surroundings) taken() []netip.Prefix {
	var out []netip.Prefix
	for _, c := range s.networks {
		out = append(out, c.subnet)
	}
	for _, r := range s.routes {
		out = append(out, r.To)
	}
	return out
}

// over sorts the routes over a subnet, in words, by what they do to a bridge
// in it: see judgeNetwork.
func (s surroundings) over(subnet netip.Prefix) (breaking, wider []string) {
	for _, r := range s.routes {
		switch {
		case !r.To.Overlaps(subnet):
		case r.Main() && r.To.Bits() < subnet.Bits():
			wider = append(wider, "route "+r.String())
		default:
			breaking = append(breaking, "route "+r.String())
		}
	}
	return breaking, wider
}

// within names the networks that overlap a subnet.
func (s surroundings) within(subnet netip.Prefix) []string {
	var out []string
	for _, c := range s.networks {
		if c.subnet.Overlaps(subnet) {
			out = append(out, c.String())
		}
	}
	return out
}

// choose returns the subnets that the corral network may be made on, best
// first: wish or none, else the present one if it is free, and then the rest.
// A person's wish may lie within a wider route: that is theirs to know, and
// where a VPN takes every private range there is no other way.
func (s surroundings) choose(wish, present netip.Prefix) ([]netip.Prefix, error) {
	if wish.IsValid() {
		breaking, _ := s.over(wish)
		if with := append(s.within(wish), breaking...); len(with) > 0 {
			return nil, &Collision{Subnet: wish, With: with, Hint: hintChosen}
		}
		return []netip.Prefix{wish}, nil
	}
	free := plan.Subnets(present, s.taken())
	if len(free) == 0 {
		return nil, &Collision{Subnet: plan.DefaultSubnet, With: s.reasons(plan.DefaultSubnet), None: true, Hint: hintNone}
	}
	return free, nil
}

// reasons are why a subnet is not chosen.
func (s surroundings) reasons(subnet netip.Prefix) []string {
	breaking, wider := s.over(subnet)
	return slices.Concat(s.within(subnet), breaking, wider)
}

// makeNetwork makes the corral network on the first of some subnets that the
// engine takes, and says so if that is not what a person expects.
func (e *Engine) makeNetwork(ctx context.Context, free []netip.Prefix, expected netip.Prefix, around surroundings) (plan.Network, error) {
	var err error
	for _, subnet := range free {
		var n plan.Network
		if n, err = plan.Divide(subnet); err != nil {
			return n, err
		}
		if err = e.createNetwork(ctx, n); err == nil {
			if subnet != expected {
				e.Progress("the corral network takes %v, since %s", subnet, around.why(expected))
			}
			return n, nil
		}
		if !poolTaken(err) {
			return plan.Network{}, err
		}
	}
	return plan.Network{}, err
}

// poolTaken reports whether the engine would have made the network elsewhere:
// it knows of pools that no list shows.
func poolTaken(err error) bool { return strings.Contains(err.Error(), "overlap") }

// why says in words why a subnet was not taken.
func (s surroundings) why(subnet netip.Prefix) string {
	if with := s.reasons(subnet); len(with) > 0 {
		return (&Collision{Subnet: subnet, With: with}).Error()
	}
	return fmt.Sprintf("the engine does not give %v away", subnet)
}

// removeNetwork removes the corral network if no container is on it, whether
// it runs or not.
func (e *Engine) removeNetwork(ctx context.Context, got network.Inspect) error {
	list, err := e.api.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("network", got.Name))})
	if err != nil {
		return fmt.Errorf("containers: %w", err)
	}
	var users []string
	for _, c := range list {
		users = append(users, strings.TrimPrefix(slices.Concat(c.Names, []string{c.ID})[0], "/"))
	}
	for _, c := range got.Containers {
		if !slices.Contains(users, c.Name) {
			users = append(users, c.Name)
		}
	}
	if len(users) > 0 {
		slices.Sort(users)
		return fmt.Errorf("network %s is used by %s: take them down before it can be repaired", got.Name, few(users))
	}
	if err := e.api.NetworkRemove(ctx, got.ID); err != nil {
		return fmt.Errorf("network %s: %w", got.Name, err)
	}
	return nil
}

func (e *Engine) createNetwork(ctx context.Context, n plan.Network) error {
	no := false
	_, err := e.api.NetworkCreate(ctx, n.Name, network.CreateOptions{
		Driver:     "bridge",
		EnableIPv6: &no,
		IPAM: &network.IPAM{Driver: "default", Config: []network.IPAMConfig{{
			Subnet: n.Subnet.String(), IPRange: n.Range.String(), Gateway: n.Gateway.String(),
		}}},
		Options: map[string]string{optionICC: "false", optionBridge: bridge},
		Labels:  map[string]string{labelRole: "network"},
	})
	if err != nil {
		return fmt.Errorf("network %s (%v): %w", n.Name, n.Subnet, err)
	}
	return nil
}

// kindDiff is how a network differs from every corral network.
func kindDiff(got network.Inspect) []string {
	var diff differences
	diff.compare("driver", "bridge", got.Driver)
	diff.compare("scope", "local", got.Scope)
	diff.compare("IPv6", "false", fmt.Sprint(got.EnableIPv6))
	diff.compare("internal", "false", fmt.Sprint(got.Internal))
	diff.compare("inter-container communication", "false", got.Options[optionICC])
	diff.compare("bridge", bridge, got.Options[optionBridge])
	return diff
}

// networkDiff is how a network differs from the one that is wanted.
func networkDiff(want plan.Network, got network.Inspect) []string {
	diff := differences(kindDiff(got))
	if len(got.IPAM.Config) != 1 {
		return append(diff, fmt.Sprintf("it has %d subnets, not 1", len(got.IPAM.Config)))
	}
	c := got.IPAM.Config[0]
	diff.compare("subnet", want.Subnet.String(), c.Subnet)
	diff.compare("ip range", want.Range.String(), c.IPRange)
	diff.compare("gateway", want.Gateway.String(), c.Gateway)
	return diff
}

type differences []string

func (d *differences) compare(what, want, got string) {
	if want != got {
		*d = append(*d, fmt.Sprintf("%s is %q, not %q", what, got, want))
	}
}

// Subnets returns every subnet of every network of the engine: no name may be
// pinned into one.
func (e *Engine) Subnets(ctx context.Context) ([]netip.Prefix, error) {
	list, err := e.api.NetworkList(ctx, network.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("networks: %w", err)
	}
	var out []netip.Prefix
	for _, n := range list {
		subnets, err := subnetsOf(n)
		if err != nil {
			return nil, err
		}
		out = append(out, subnets...)
	}
	return out, nil
}

// used returns the addresses of the corral network that are taken: by running
// containers, and by gates that exist but do not run.
func (e *Engine) used(ctx context.Context, n plan.Network) (map[netip.Addr]bool, error) {
	got, err := e.api.NetworkInspect(ctx, n.Name, network.InspectOptions{})
	if err != nil {
		return nil, fmt.Errorf("network %s: %w", n.Name, err)
	}
	used := map[netip.Addr]bool{}
	for _, c := range got.Containers {
		if p, err := netip.ParsePrefix(c.IPv4Address); err == nil {
			used[p.Addr()] = true
		}
	}
	list, err := e.ours(ctx, labelAddress)
	if err != nil {
		return nil, fmt.Errorf("containers: %w", err)
	}
	for _, c := range list {
		if a, err := netip.ParseAddr(c.Labels[labelAddress]); err == nil {
			used[a] = true
		}
	}
	return used, nil
}
