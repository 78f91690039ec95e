package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

func (a *app) ps() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "ps",
		Short: "List every sandbox on this machine",
		Long: `Lists what is up on this machine's engine, whoever's it is and wherever you are:
which sandbox, what it was brought up for, how it is, since when, and its policy.
corral status, in a project, says more of one.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			list, err := a.sandboxes(c.Context())
			if err != nil {
				return err
			}
			return a.showSandboxes(list, asJSON, time.Now())
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return c
}

// sandboxList is what ps says.
type sandboxList struct {
	Version   int         `json:"version"`
	Sandboxes []sandboxUp `json:"sandboxes"`
}

// sandboxUp is one sandbox of which anything is left.
type sandboxUp struct {
	Sandbox string `json:"sandbox"`
	// Purpose is run, daemon (corral up), verify, demo or check.
	Purpose string `json:"purpose"`
	Policy  string `json:"policy"`
	// Enabled says that systemd brings it up for who asks: corral enable did that.
	Enabled bool `json:"enabled"`
	// Created is when the first of its containers was made.
	Created  time.Time       `json:"created"`
	Well     bool            `json:"well"`
	Services []serviceStatus `json:"services"`
	// Relays carry what its policy opens of the host's loopback.
	Relays []engine.RelayHealth `json:"relays,omitempty"`
	// ImagesGone are the containers whose images are gone by their names.
	ImagesGone []string `json:"images_gone,omitempty"`
}

type serviceStatus struct {
	Service string `json:"service"`
	State   string `json:"state"` // running, or what is wrong in plain words
	OK      bool   `json:"ok"`
}

// sandboxes looks at all that is up, sorted by name. Each is asked beside the others.
func (a *app) sandboxes(ctx context.Context) (sandboxList, error) {
	r := sandboxList{Version: spec.Version, Sandboxes: []sandboxUp{}}
	e, err := a.connect(ctx)
	if err != nil {
		return r, err
	}
	members, err := e.Members(ctx, "")
	if err != nil {
		return r, err
	}
	var of [][]engine.Member
	for _, m := range members {
		i := slices.IndexFunc(of, func(o []engine.Member) bool { return o[0].Sandbox == m.Sandbox && o[0].Policy == m.Policy })
		if i < 0 {
			i, of = len(of), append(of, nil)
		}
		of[i] = append(of[i], m)
	}
	slices.SortStableFunc(of, func(x, y []engine.Member) int { return strings.Compare(x[0].Sandbox, y[0].Sandbox) })
	r.Sandboxes = make([]sandboxUp, len(of))
	var all sync.WaitGroup
	errs := make([]error, len(of))
	for i, members := range of {
		all.Go(func() {
			var relays []engine.RelayHealth
			relays, errs[i] = e.RelayHealth(ctx, members)
			r.Sandboxes[i] = sandbox(members, e.Health(ctx, members), relays)
		})
	}
	all.Wait()
	// What cannot be told is none of it.
	own, _ := ownUnits(func(string) bool { return true })
	for i, s := range r.Sandboxes {
		r.Sandboxes[i].Enabled = slices.ContainsFunc(own, func(u enabledUnit) bool { return u.starts && u.sandbox == s.Sandbox })
	}
	return r, cmp.Or(ctx.Err(), errors.Join(errs...))
}

// sandbox sums up the containers of one.
func sandbox(members []engine.Member, health []engine.Health, relays []engine.RelayHealth) sandboxUp {
	s := sandboxUp{Sandbox: members[0].Sandbox, Purpose: members[0].Purpose, Policy: members[0].Policy, Services: []serviceStatus{}, Relays: relays, ImagesGone: unnamed(members)}
	s.Well = len(health) > 0 && len(allUnwell(health, relays, s.ImagesGone)) == 0
	for _, m := range members {
		if s.Created.IsZero() || m.Created.Before(s.Created) {
			s.Created = m.Created
		}
	}
	for _, h := range health {
		s.Services = append(s.Services, serviceStatus{Service: h.Service, State: h.State, OK: unwell(h) == ""})
	}
	return s
}

// purposes are what people call what a sandbox is for.
var purposes = map[string]string{
	engine.PurposeRun:    "run",
	engine.PurposeDaemon: "always on",
	engine.PurposeVerify: "a proof",
	engine.PurposeDemo:   "the demo",
	engine.PurposeCheck:  "a check of this machine",
}

// wrongWith is the first thing that is wrong with a sandbox: what it lacks to run at
// all before what it can run without.
func wrongWith(s sandboxUp) string {
	for _, v := range s.Services {
		if !v.OK {
			return v.Service + ": " + v.State
		}
	}
	for _, wrong := range allUnwell(nil, s.Relays, s.ImagesGone) {
		return wrong
	}
	return "not well"
}

// mostPiped bounds a name that no person reads in a column.
const mostPiped = 300

func (a *app) showSandboxes(r sandboxList, asJSON bool, now time.Time) error {
	if asJSON {
		_, err := a.out.Write(document(r))
		return err
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	// Who reads it by a program finds whole names, as far as they are any; --json has all.
	name, state := mostPiped, mostState
	if terminal(a.out) {
		name, state = mostWidth, mostWidth
	}
	fmt.Fprintln(w, "SANDBOX\tFOR\tSTATE\tAGE\tPOLICY")
	for _, s := range r.Sandboxes {
		how := "well"
		if !s.Well {
			how = "nothing of it runs"
		}
		if len(s.Services) > 0 && !s.Well {
			how = wrongWith(s)
		}
		purpose, known := purposes[s.Purpose]
		if !known {
			purpose = s.Purpose
		}
		if s.Enabled && s.Purpose == engine.PurposeDaemon {
			purpose += ", enabled"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", cut(printable.Escape(s.Sandbox), name), cut(printable.Escape(purpose), name), cut(printable.Escape(how), state), age(now.Sub(s.Created)), cut(printable.Escape(s.Policy), mostState))
	}
	return w.Flush()
}
