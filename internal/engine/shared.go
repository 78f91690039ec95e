package engine

import (
	"fmt"
	"strings"

	"github.com/corral-sandbox/corral/internal/spec"
)

// sharedAddress is the kind of note that says what pins cannot refuse.
const sharedAddress = "shared-address"

// sharedNotes say of which names the gate cannot tell others apart: those that
// share an address with each other, one note an address, and in one more those
// that whoever else is at their addresses shares with. None without a pin.
func sharedNotes(service string, status spec.GateStatus) []spec.Event {
	var notes []spec.Event
	note := func(detail string) {
		notes = append(notes, spec.Event{Version: spec.Version, Service: service, Check: sharedAddress, Result: spec.Note, Detail: detail})
	}
	listed := map[string]bool{}
	for _, s := range spec.SharedAddresses(status.Pins) {
		for _, n := range s.Names {
			listed[n] = true
		}
		note(s.String())
	}
	var names []string
	for _, p := range status.Pins {
		if !listed[p.Domain] && len(p.Addrs) > 0 {
			names = append(names, p.Domain)
		}
	}
	if len(names) > 0 {
		const most = 2
		more := ""
		if n := len(names) - most; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		note(fmt.Sprintf("whatever else answers at the addresses of %s%s can be asked for by its own name: pins cannot tell names apart",
			strings.Join(names[:min(most, len(names))], ", "), more))
	}
	return notes
}
