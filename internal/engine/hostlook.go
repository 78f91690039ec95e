package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
)

func lookGuests(_ context.Context, s *survey) Finding {
	var err error
	if s.guests, err = host.FindGuests(); err != nil {
		return fails("install corral, corral-gate and corral-verify together, from one build (make build)", "%v", err)
	}
	return holds("")
}

func lookCommand(_ context.Context, s *survey) Finding {
	var err error
	s.command, err = dockerCommand()
	return found(err)
}

// lookEngine finds the engine, and clears away what a survey that was cut short
// left there.
func lookEngine(ctx context.Context, s *survey) Finding {
	var err error
	if s.e, err = reach(ctx); err != nil {
		return found(err)
	}
	s.e.Progress, s.e.Trusted, s.e.Watcher = s.Progress, s.Trusted, s.Watcher
	if s.said, err = s.e.said(ctx, s.command); err != nil {
		return found(err)
	}
	if err := s.e.Sweep(ctx, PurposeCheck); err != nil {
		return found(err)
	}
	return holds("")
}

func lookResolvers(_ context.Context, s *survey) Finding {
	list := s.Settings.Resolvers
	switch {
	case len(list) == 0:
		return fails("set CORRAL_RESOLVERS to the addresses of name servers (say 192.0.2.53), or name one in /etc/resolv.conf",
			"this machine names no name server that a gate could ask")
	case !slices.ContainsFunc(list, func(a netip.Addr) bool { return !a.IsLoopback() }):
		return mentions("set CORRAL_RESOLVERS to the addresses of name servers, if there are any that answer to containers",
			"this machine's name server is its own (%v): a relay on the gateway's address carries what gates ask it", list[0])
	}
	return holds("")
}

func lookProxy(context.Context, *survey) Finding {
	if set := proxies(); len(set) > 0 {
		return mentions("nothing to do if this machine has a direct way out as well; "+hintProxy,
			"%s is set: gates connect directly, and no agent is given it", strings.Join(set, ", "))
	}
	return holds("")
}

// leastSpace holds the images of a gate and of one service, and what an agent
// writes at first.
const leastSpace = 2 << 30

func lookDisk(_ context.Context, s *survey) Finding {
	dir := s.said.info.DockerRootDir
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return mentions("see that this is the engine's directory on this machine: docker info --format '{{.DockerRootDir}}'",
			"cannot tell how much room there is in %s: %v", dir, err)
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < leastSpace {
		return mentions("docker system df shows what takes it, docker system prune removes what nothing uses",
			"%d MiB are free in %s, where the engine keeps its images: that is less than %d GiB", free>>20, dir, leastSpace>>30)
	}
	return holds("")
}

func lookImage(ctx context.Context, s *survey) Finding {
	var err error
	if s.image, err = s.e.GateImage(ctx, s.guests); err != nil {
		return fails("what is needed is the image "+gateBase+" and Debian's iptables package: see that docker pull "+gateBase+" works", "%v", err)
	}
	return holds(s.image)
}

// Remedies of the network.
const (
	hintMissing = "corral install makes it"
	hintAltered = "corral down ends what runs; then corral install --repair makes it anew"
)

// lookNetwork makes the network if that is asked for, or judges it, and where
// there is none whether there could be one.
func lookNetwork(ctx context.Context, s *survey) Finding {
	wish := s.Settings.Subnet
	var err error
	if s.Make {
		s.network, err = s.e.EnsureNetwork(ctx, wish, s.Repair)
		return ofNetwork(err)
	}
	around, err := s.e.surroundings(ctx)
	if err != nil {
		return found(err)
	}
	got, err := s.e.inspectNetwork(ctx, plan.NetworkName)
	if errors.As(err, new(*WrongNetwork)) {
		free, err := around.choose(wish, netip.Prefix{})
		if err != nil {
			return ofNetwork(err)
		}
		return fails(hintMissing, "there is no network %q yet; %v is free for it", plan.NetworkName, free[0])
	}
	var subnet netip.Prefix
	if err == nil {
		s.network, subnet, err = inForce(wish, got)
	}
	var lost []string
	if err == nil {
		lost, err = judgeNetwork(s.network, subnet, got, around)
	}
	if err == nil && len(lost) > 0 {
		return mentions("corral install --repair takes another subnet, if one is free", "%s", lost[0])
	}
	return ofNetwork(err)
}

func ofNetwork(err error) Finding {
	var collision *Collision
	switch {
	case errors.As(err, &collision):
		return fails(collision.Hint, "%v", err)
	case errors.As(err, new(*WrongNetwork)):
		return fails(hintAltered, "%v", err)
	}
	return found(err)
}

func lookGateway(_ context.Context, s *survey) Finding {
	var err error
	if s.scratch.listener, err = net.Listen("tcp4", netip.AddrPortFrom(s.network.Gateway, 0).String()); err != nil {
		return fails(fmt.Sprintf("ip addr show %s shows what addresses the bridge has; sudo systemctl restart docker gives them back", bridge),
			"cannot listen on the gateway's address %v, where host services are carried to: %v", s.network.Gateway, err)
	}
	return holds("")
}

// neighbourWithin is for one packet between neighbours, and its answer.
const neighbourWithin = 500 * time.Millisecond

// lookIsolation has one container on the corral network listen, reaches it from
// the host, so that it is known to answer, and has another one try.
func lookIsolation(ctx context.Context, s *survey) Finding {
	ctx, cancel := context.WithTimeout(ctx, scratchWithin)
	defer cancel()
	id, stream, err := s.e.StartTool(ctx, Tool{Purpose: PurposeCheck, Image: s.image, Network: s.network.Name,
		Args: []string{spec.GuestDir + "/bin/corral-gate", "trial", "--listen"}})
	if err != nil {
		return found(err)
	}
	defer func() { _ = s.e.remove(ctx, id) }() // its owner label lets a later sweep find it
	defer stream.Close()
	line, _ := stream.Next()
	events, err := report.Read(strings.NewReader(line + "\n"))
	if err != nil || len(events) != 1 || events[0].Check != spec.TrialListen {
		return found(errors.Join(errors.New("the scratch container did not say where it listens"), err))
	}
	at := events[0].Detail
	conn, err := net.DialTimeout("tcp4", at, neighbourWithin)
	if err != nil {
		return mentions("see that no firewall of this machine drops what it sends to "+bridge,
			"cannot tell, since this machine does not reach a container of its own on the corral network: %v", err)
	}
	conn.Close()
	events, err = s.run(ctx, s.network.Name, nil, "--reach", at, "--within", neighbourWithin.String())
	switch {
	case err != nil:
		return found(err)
	case len(events) != 1 || events[0].Check != spec.TrialReach:
		return found(errors.New("the scratch container did not say whether it reached its neighbour"))
	case events[0].Result == spec.OK:
		return mentions("sudo systemctl restart docker puts the engine's rules back, after every reload of a firewall that removes them; they also need sudo modprobe br_netfilter and net.bridge.bridge-nf-call-iptables=1",
			"a container on the corral network reached another one, which the engine was told to prevent: its rules on this machine are gone, or do not see what crosses a bridge. Gates still keep sandboxes apart")
	}
	return holds("")
}

// lookFirewall has a container on the corral network connect to the listener.
// Since somebody listens, whatever keeps it from there is between the two.
func lookFirewall(ctx context.Context, s *survey) Finding {
	events, err := s.run(ctx, s.network.Name, nil, "--reach", s.scratch.listener.Addr().String())
	switch {
	case err != nil:
		return found(err)
	case len(events) != 1 || events[0].Check != spec.TrialReach:
		return found(errors.New("the scratch container did not say whether it reached the listener"))
	case events[0].Result != spec.OK:
		g := s.network.Gateway
		return mentions(fmt.Sprintf("for each port of a host service, with ufw: sudo ufw allow in on %s to %v port PORT proto tcp; "+
			"with firewalld: sudo firewall-cmd --permanent --add-rich-rule='rule family=\"ipv4\" destination address=\"%v\" port port=\"PORT\" protocol=\"tcp\" accept' && sudo firewall-cmd --reload", bridge, g, g),
			"corral listens on %v, and what a container on the corral network sends there does not arrive (%s): a firewall of this machine drops it, and no host service will be reached", g, events[0].Detail)
	}
	return holds("")
}
