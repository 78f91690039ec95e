package domain

import (
	"strings"
	"testing"
)

// What cannot be the name of a public host is refused before anything is asked
// (R020); its neighbours are not.
func TestNotPublic(t *testing.T) {
	label := strings.Repeat("a", 63)
	long := label + "." + label + "." + label + "."
	for _, tt := range []struct {
		name, why string
	}{
		{"example.com.", ""},
		{"www.a--b.xn--p1ai.", ""},
		{"1.2.3.com.", ""},
		{"xn--bcher-kva.de.", ""},
		{"files.evil.test.", ""}, // a test network's own resolver knows it
		{label + ".com.", ""},
		{long + strings.Repeat("a", 57) + ".com.", ""}, // 253
		{long + strings.Repeat("a", 58) + ".com.", "longer than a name"},
		{label + "a.com.", "longer than 63"},
		{"invalid.com.", ""}, {"x.invalid.", "invalid"}, {"x.corral-probe.invalid.", "invalid"}, {"invalid.", "invalid"},
		{"localhost.com.", ""}, {"x.localhost.", "this machine"}, {"localhost.localdomain.", "this machine"},
		{"printer.local.", "a link's own"}, {"local.dev.", ""},
		{"x.onion.", "not in the DNS"}, {"x.alt.", "not in the DNS"}, {"x.example.", "exist nowhere"}, {"example.org.", ""},
		{"nas.home.arpa.", "arpa"}, {"1.0.0.10.in-addr.arpa.", "arpa"}, {"arpa.net.", ""},
		{"vault.internal.", "private network"}, {"internal.io.", ""}, {"x.corp.", "private network"}, {"x.home.", "private network"}, {"x.lan.", "private network"},
		{"com.", "single label"}, {"metadata.", "single label"}, {".", "empty label"},
		{"_dmarc.example.com.", "letters, digits and hyphens"}, {"a_b.example.com.", ""}, {"_.example.com.", "letters"}, {"a_.example.com.", "letters"}, {"a._tcp.example.com.", "letters"}, {`a\.b.com.`, "letters"}, {`a\032b.com.`, "letters"}, {"*.example.com.", "letters"},
		{"kubernetes.default.svc.", "cluster"}, {"svc.dev.", ""},
		{"-a.com.", "letters"}, {"a-.com.", "letters"},
		{"127.0.0.1.", "number"}, {"a.1.", "number"}, {"a.0x7f.", "number"},
	} {
		if got := NotPublic(tt.name); (got == "") != (tt.why == "") || !strings.Contains(got, tt.why) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.why)
		}
	}
}
