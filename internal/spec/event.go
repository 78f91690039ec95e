package spec

import "net/netip"

// Result is what became of a check. The zero value counts as failed.
type Result string

const (
	Untold Result = ""       // it could not be told: fails
	OK     Result = "ok"     // holds
	Failed Result = "failed" // does not hold
	Skip   Result = "skip"   // does not apply here, for the reason given
	Note   Result = "note"   // a known limit, shown
)

// Crowded is what a checker says where its container may have no process more.
const Crowded = "there are as many processes and threads as there may be"

// Event is one line of the stream that a checker writes and a renderer reads.
type Event struct {
	Version int    `json:"version"`
	Service string `json:"service,omitempty"`
	Check   string `json:"check"`
	Result  Result `json:"result"`
	Detail  string `json:"detail,omitempty"`
	// Hint is what to do about it. It crosses no wall: nobody inside tells the owner
	// what to do.
	Hint string `json:"-"`
	// Probes are packets that should have been refused by the gate. The check
	// holds only if the gate confirms each of them.
	Probes []Probe `json:"probes,omitempty"`
	// Witnesses are the sides that say that it holds, of an event that does and that
	// was judged on the host. A checker's word on it counts for nothing.
	Witnesses []Witness `json:"witnesses,omitempty"`
}

// Probe is one packet sent from a known source port to prove what the gate does
// with it.
type Probe struct {
	Proto  string     `json:"proto"` // tcp, udp
	Source uint16     `json:"source"`
	Addr   netip.Addr `json:"addr"`
	Port   uint16     `json:"port"`
}
