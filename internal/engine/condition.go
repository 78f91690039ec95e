package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Condition is one thing about a machine and its engine that a fence there
// stands on, and how it is proven.
type Condition struct {
	Name   string
	Proves string   // in words that follow "that"
	After  []string // the conditions without which this one means nothing
	Unmet  Unmet

	// One of the two: by the engine's words alone, or by looking.
	by   func(said) Finding
	look func(context.Context, *survey) Finding
	// makes says that corral install makes what is missing: only where nothing
	// has failed.
	makes bool
}

// Unmet is what comes of a condition that does not hold. The zero value is the
// hardest.
type Unmet string

const (
	Refused  Unmet = ""         // by every command
	Ends     Unmet = "ends"     // corral install, before it makes anything
	Mentions Unmet = "mentions" // a warning
)

// Finding is what became of a condition.
type Finding struct {
	spec.Event
	Hint string `json:"hint,omitempty"` // what to do, exactly
}

// Holds says whether nothing stands against a fence.
func (f Finding) Holds() bool { return f.Result == spec.OK || f.Result == spec.Note }

func holds(detail string) Finding {
	return Finding{Event: spec.Event{Result: spec.OK, Detail: detail}}
}

func fails(hint, format string, args ...any) Finding {
	return Finding{Event: spec.Event{Result: spec.Failed, Detail: fmt.Sprintf(format, args...)}, Hint: hint}
}

func mentions(hint, format string, args ...any) Finding {
	f := fails(hint, format, args...)
	f.Result = spec.Note
	return f
}

// found is what an error says of a condition: an engine that corral cannot
// work with fails it, anything else could not be told.
func found(err error) Finding {
	var unusable *NotUsable
	switch {
	case err == nil:
		return holds("")
	case errors.As(err, &unusable):
		return fails(unusable.Hint, "%s", unusable.Reason)
	}
	return Finding{Event: spec.Event{Detail: err.Error()}, Hint: "try again; docker info and the engine's log (journalctl -u docker) may say more"}
}

// Conditions are all of them, in the order in which they are looked at.
var Conditions = slices.Concat([]Condition{
	{Name: "guest-binaries", Proves: "the programs that run inside are there, static, and of this corral's version", Unmet: Ends, look: lookGuests},
	{Name: "docker-command", Proves: "there is a docker command, for builds and terminals", look: lookCommand},
	{Name: "engine-answers", Proves: "the active Docker engine is at a socket of this machine, answers, and may be used", After: []string{"docker-command"}, look: lookEngine},
}, saidConditions, []Condition{
	{Name: "resolvers", Proves: "there is a name server for gates to ask", Unmet: Ends, look: lookResolvers},
	{Name: "direct-connection", Proves: "no proxy is set, which would mean that this machine has no other way out", Unmet: Mentions, look: lookProxy},
	{Name: "disk-space", Proves: "where the engine keeps images there is room for some", After: usableEngine, Unmet: Mentions, look: lookDisk},
	{Name: "gate-image", Proves: "the image of gates can be built from what is in this corral and a public base image", After: append([]string{"guest-binaries"}, usableEngine...), Unmet: Ends, look: lookImage, makes: true},
	{Name: "engine-sees-files", Proves: "a container sees this machine's files", After: []string{"gate-image"}, Unmet: Ends, look: lookFiles},
	{Name: "kernel", Proves: "the engine's kernel takes a gate's rules and sets, tried in a container's own namespace with a gate's rights", After: []string{"engine-sees-files"}, Unmet: Ends, look: lookKernel},
	{Name: "network", Proves: "the corral network is as it must be, and no route or network takes its addresses", After: usableEngine, Unmet: Ends, look: lookNetwork, makes: true},
	{Name: "isolation", Proves: "containers on the corral network cannot reach each other, whatever gates do", After: []string{"engine-sees-files", "network"}, Unmet: Mentions, look: lookIsolation},
	{Name: "gateway-address", Proves: "this machine can listen on the gateway's address", After: []string{"network"}, Unmet: Ends, look: lookGateway},
	{Name: "firewall", Proves: "what sandboxes send to the gateway's address arrives", After: []string{"engine-sees-files", "gateway-address"}, Unmet: Mentions, look: lookFirewall},
})

// Machine is what a survey is told.
type Machine struct {
	// Settings are those in force, but for the subnet, which is the person's wish.
	Settings host.Settings
	// Make makes the gate image and the network where they are missing; Repair
	// makes the network anew. Without Make nothing stays that was not there but
	// the gate image, which cannot be tried before it is built.
	Make, Repair bool
	// Trusted are certificates that building the gate image trusts, in PEM.
	Trusted  [][]byte
	Progress func(format string, args ...any)
	Watcher
}

// survey is a machine being looked at, with what has come to light.
type survey struct {
	Machine
	command string
	e       *Engine
	said    said
	guests  host.Guests
	image   string
	network plan.Network
	scratch scratch
	tried   func(context.Context) tried // once
}

// Survey looks at every condition and tells each finding as it comes. It
// reports whether all hold.
func Survey(ctx context.Context, m Machine, tell func(Finding)) (bool, error) {
	s := &survey{Machine: m}
	defer s.close()
	s.tried = once(s.try)
	unmet := map[string]bool{}
	for _, c := range Conditions {
		done := s.waiting("looking at %s", c.Name)
		f := s.judge(ctx, c, unmet)
		done()
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		f.Version, f.Check = spec.Version, c.Name
		unmet[c.Name] = !f.Holds()
		tell(f)
	}
	for _, bad := range unmet {
		if bad {
			return false, nil
		}
	}
	if m.Make {
		s.e.Prune(ctx, s.guests, s.image)
	}
	return true, nil
}

func (s *survey) judge(ctx context.Context, c Condition, unmet map[string]bool) Finding {
	if c.makes && s.Make {
		for _, earlier := range Conditions {
			if unmet[earlier.Name] {
				return skips("not made, since %s does not hold", earlier.Name)
			}
		}
	}
	for _, earlier := range c.After {
		if unmet[earlier] {
			return skips("not looked at, since %s does not hold", earlier)
		}
	}
	if c.by != nil {
		return c.by(s.said)
	}
	return c.look(ctx, s)
}

func skips(format string, args ...any) Finding {
	return Finding{Event: spec.Event{Result: spec.Skip, Detail: fmt.Sprintf(format, args...)}}
}

func once[T any](f func(context.Context) T) func(context.Context) T {
	var done bool
	var v T
	return func(ctx context.Context) T {
		if !done {
			done, v = true, f(ctx)
		}
		return v
	}
}
