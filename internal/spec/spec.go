// Package spec holds the words that the host side and the inside of a sandbox
// share: what a gate is told, what a service must prove, what is reported
// back. Plain data, versioned, strictly decoded. It decides nothing, opens
// nothing and imports nothing of corral.
package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Version is the version of every document of this package. A reader refuses
// any other: the binaries of one release are deployed together.
const Version = 1

// Fixed identities and places, the same in every sandbox.
const (
	// WorkerUID is the gate's worker: the only uid whose lookups leave.
	WorkerUID = 64999
	// CarrierUID runs relays and namespace holders.
	CarrierUID = 64998

	// ProbePortFirst and ProbePortLast bound the source ports that a probe
	// binds so that the gate can tell it from the agent's own traffic.
	ProbePortFirst = 61000
	ProbePortLast  = 61099

	// GateFile is where a gate finds its Gate document.
	GateFile = "/etc/corral/gate.json"
	// GateSocket is the gate's control socket, in its own file system only.
	GateSocket = "/run/corral/gate.sock"
	// GuestDir is where services find the guest binaries, in its bin.
	GuestDir = "/opt/corral"
	// HandoverEnv is the environment variable that carries a Handover document.
	HandoverEnv = "CORRAL_SPEC"
	// InitEnv tells the init of a service to signal process groups; handover
	// removes it as well.
	InitEnv = "TINI_KILL_PROCESS_GROUP"
	// HostName is what services call the host by: the gateway's address, where
	// host services answer.
	HostName = "corral-host"
	// Bridge is the interface of the corral network on the host.
	Bridge = "corral0"
	// ReadyLine is the last line a gate prints at bring-up.
	ReadyLine = "corral-gate: ready"
	// GateWarning begins a line about what a gate leaves closed for a reason that
	// does not stop it.
	GateWarning = "corral-gate: warning: "
	// GateNotice begins a line about what pins cannot tell apart.
	GateNotice = "corral-gate: notice: "
	// GateUnanswered is a line among the reasons of a gate that stays closed: what
	// failed is what a missing way out makes, lookups or connections that nobody
	// outside answers.
	GateUnanswered = "nobody outside answers"
	// ProbeDomain is what corral's own checks look up names below, to see them
	// refused. It exists nowhere (RFC 6761).
	ProbeDomain = "corral-probe.invalid"
	// InstanceName is the CHAOS TXT name under which a gate tells its instance
	// (RFC 4892).
	InstanceName = "id.server."
)

// Decode reads exactly one JSON document into v: unknown fields, trailing
// data and an absent document are errors.
func Decode(r io.Reader, v any) error {
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("data after the document")
	}
	return nil
}

// Encode writes v as one indented JSON document; equal values give equal bytes.
func Encode(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("spec: %T cannot be encoded: %v", v, err))
	}
	return b.Bytes()
}

func checkVersion(what string, v int) error {
	if v != Version {
		return fmt.Errorf("%s has version %d, this binary reads version %d", what, v, Version)
	}
	return nil
}
