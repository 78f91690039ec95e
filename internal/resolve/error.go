package resolve

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/miekg/dns"
)

// Kind is a way for a name to have no address.
type Kind int

// The zero value is no kind.
const (
	_           Kind = iota
	NXDomain         // the name does not exist
	NoA              // it has IPv6 addresses only
	NoData           // it exists and has no address at all
	ServFail         // the server could not find out
	Refused          // the server does not answer us
	Timeout          // no answer in time
	Unreachable      // the server cannot be reached
	Malformed        // the answer makes no sense
	TooMuch          // the answer is beyond our limits
)

var kinds = [...]string{
	NXDomain:    "no such name (NXDOMAIN)",
	NoA:         "only IPv6 addresses (AAAA, no A); corral pins IPv4",
	NoData:      "the name exists but has no address (NOERROR, no A, no AAAA)",
	ServFail:    "the resolver failed (%s)",
	Refused:     "the resolver refused the question (REFUSED)",
	Timeout:     "no answer from the resolver in time",
	Unreachable: "the resolver cannot be reached",
	Malformed:   "an answer that makes no sense",
	TooMuch:     "an answer beyond the limits",
}

// Error is why a name has no address.
type Error struct {
	Name   string
	Kind   Kind
	Rcode  int // only for ServFail
	Server netip.AddrPort
	Detail string
}

func (e *Error) Error() string {
	msg := kinds[e.Kind]
	if e.Kind == ServFail {
		msg = fmt.Sprintf(msg, dns.RcodeToString[e.Rcode])
	}
	if e.Detail != "" {
		msg += ": " + e.Detail
	}
	if e.Server.IsValid() {
		msg += " [" + e.Server.String() + "]"
	}
	return e.Name + ": " + msg
}

// named gives an error of one query the name that was asked for in the end.
func named(err error, name string) error {
	if e, ok := errors.AsType[*Error](err); ok {
		e.Name = name
	}
	return err
}
