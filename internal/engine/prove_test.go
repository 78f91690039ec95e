package engine

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
)

// All are proven at the same time, told in their order, and one that fails to answer
// costs no other one anything.
func TestSideBySide(t *testing.T) {
	const n = 3
	arrived, all := make(chan bool, n), make(chan bool)
	go func() {
		for range n {
			<-arrived
		}
		close(all) // each waits until all are there: one after the other would never end
	}()
	proves := func(name string, err error) subject {
		return subject{name, func(ctx context.Context) (report.Section, error) {
			arrived <- true
			<-all
			return report.Section{Service: name, Events: []spec.Event{{Check: "c", Result: spec.OK}}}, err
		}}
	}
	got := sideBySide(t.Context(), []subject{proves("b", nil), proves("a", fmt.Errorf("cannot tell: %w", exit.Failedf("try again", "it broke off"))), proves("c", nil)})
	var names []string
	for _, s := range got {
		names = append(names, s.Service)
	}
	if !slices.Equal(names, []string{"b", "a", "c"}) || !got[0].Holds() || !got[2].Holds() {
		t.Errorf("%+v", got)
	}
	if ev := got[1].Events; !got[1].Untold() || ev[0].Detail != "it broke off" || ev[0].Service != "a" || got[1].Hint != "try again" {
		t.Errorf("what failed: %+v", got[1])
	}
}

// A sandbox of three services whose engine answers nothing gives every section, each
// of which could not be told.
func TestProveWithoutAnswers(t *testing.T) {
	p := small(t)
	up := Standing{Gates: map[string]string{}, Services: map[string]string{}}
	one, service := p.Gates[0], p.Services[0]
	p.Gates, p.Services = nil, nil
	for _, name := range []string{"front", "back", "store"} {
		one.Name, service.Name, service.Gate = name, name, name
		p.Gates, p.Services = append(p.Gates, one), append(p.Services, service)
		up.Gates[name], up.Services[name] = "g-"+name, "s-"+name
	}
	delete(up.Services, "store")
	e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
		http.Error(w, `{"message":"no"}`, http.StatusInternalServerError)
	})
	proof, err := e.Prove(t.Context(), &Gate{Name: plan.Main, Plan: p}, nil, up)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range proof.Sections {
		names = append(names, s.Service)
		for _, ev := range s.Events {
			if ev.Result != spec.Untold || ev.Detail == "" || ev.Service != s.Service {
				t.Errorf("%s: %+v", s.Service, ev)
			}
		}
	}
	if want := []string{"front-gate", "back-gate", "store-gate", "relay-8081", "front", "back", "store"}; !slices.Equal(names, want) {
		t.Errorf("sections %q, not %q", names, want)
	}
	if last := proof.Sections[6].Events[0].Detail; last != errNotUp.Error() {
		t.Errorf("of what is not up: %q", last)
	}
	if proof.Digests["policy"] != p.Digest || len(proof.Versions) > 0 {
		t.Errorf("%+v", proof)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if proof, err := e.Prove(over, &Gate{Name: plan.Main, Plan: p}, nil, up); err == nil {
		t.Errorf("after the end: %+v", proof)
	}
}

func TestGateTitle(t *testing.T) {
	p := &plan.Plan{Gates: []plan.Gate{{Name: "main"}}}
	if got := gateTitle(p, p.Gates[0]); got != "gate" {
		t.Error(got)
	}
	p.Gates = append(p.Gates, plan.Gate{Name: "fetch"})
	if got := gateTitle(p, p.Gates[1]); got != "fetch-gate" {
		t.Error(got)
	}
}

// What is not as planned is made anew, and nothing else; what is somebody else's goes.
func TestRemedy(t *testing.T) {
	for _, tt := range []struct {
		result        spec.Result
		check, detail string
		want          string
	}{
		{spec.OK, "container-as-planned", "", ""},
		{spec.Untold, "container-as-planned", "", ""},
		{spec.Failed, "container-as-planned", "", "corral down"},
		{spec.Failed, "diff-expected", "", "corral down"},
		{spec.Failed, "no-strangers", "", "docker rm"},
		{spec.Failed, "host-service:8081", "", "start what listens"},
		{spec.Failed, "allowed:a.test:443", "connection refused", "see that who is allowed answers"},
		{spec.Untold, "allowed:a.test:443", "nobody answers", "see that who is allowed answers"},
		{spec.Failed, "allowed:a.test:443", "tcp 192.0.2.1:443 was refused by rule unlisted", ""},
		{spec.Untold, "allowed:a.test:443", "the gate has no record that it let tcp 192.0.2.1:443 through", ""},
		{spec.OK, "allowed:a.test:443", "", ""},
		{spec.Untold, "no-sudo", "no result within 2s: " + spec.Crowded + ", 64", "fewer processes inside"},
		{spec.Failed, "no-sudo", "/usr/bin/sudo exists", ""},
	} {
		got := remedy(spec.Event{Check: tt.check, Result: tt.result, Detail: tt.detail})
		if !strings.HasPrefix(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s %q: %q", tt.check, tt.result, got)
		}
	}
}
