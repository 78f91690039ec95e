package fetch

import (
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/netguard"
	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/test/lab"
)

// vector is one row of testdata/ssrf-vectors.tsv.
type vector struct {
	text, resolvesTo, right, class, stage string
}

// url is the vector as what is sent.
func (v vector) url(t testing.TB) string {
	t.Helper()
	s, err := strconv.Unquote(`"` + v.text + `"`)
	if err != nil {
		t.Fatalf("%s: %v", v.text, err)
	}
	return s
}

// address is the one that the row is about, if it is about one.
func (v vector) address(t testing.TB) netip.Addr {
	t.Helper()
	word, _, _ := strings.Cut(v.resolvesTo, " ")
	if a, err := netip.ParseAddr(word); err == nil {
		return a
	}
	if u, err := url.Parse(v.url(t)); err == nil {
		if a, err := netip.ParseAddr(u.Hostname()); err == nil && a.Zone() == "" {
			return a
		}
	}
	return netip.Addr{}
}

// vectors are the rows of some classes.
func vectors(t testing.TB, classes ...string) (all []vector) {
	t.Helper()
	b, err := os.ReadFile("testdata/ssrf-vectors.tsv")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(cells) != 5 {
			t.Fatalf("%q has %d columns", line, len(cells))
		}
		if n++; n == 1 {
			continue // what the columns are
		}
		v := vector{cells[0], cells[1], cells[2], cells[3], cells[4]}
		if slices.Contains(classes, v.class) {
			all = append(all, v)
		}
	}
	if n < 240 || len(all) == 0 {
		t.Fatalf("%d rows, %d of %v", n, len(all), classes)
	}
	return all
}

var urlClasses = []string{"ipv4-form", "ipv6-form", "range", "name", "name-match", "url-syntax", "scheme"}

// nothingSpecial are the rows about lists of names, which corral-fetch has none of:
// these are public hosts like any other, whatever name they resemble.
var nothingSpecial = map[string]string{
	"https://api.openai.com.attacker.test/":                "api.openai.com.attacker.test",
	"https://xapi.openai.com/":                             "xapi.openai.com",
	"https://api-openai.com/":                              "api-openai.com",
	"https://attacker.test/?api.openai.com":                "attacker.test",
	"http://make-1.2.3.4-rebind-169.254-169.254-rr.1u.ms/": "make-1.2.3.4-rebind-169.254-169.254-rr.1u.ms",
}

// names are what a name server says of the names among the vectors. Those that may
// not be asked about are there as well: with an address that would answer.
func (a *asker) names(t testing.TB) {
	t.Helper()
	for _, v := range vectors(t, urlClasses...) {
		u, err := url.Parse(v.url(t))
		if err != nil || u.Hostname() == "" {
			continue
		}
		a.lab.DNS.Set(u.Hostname(), lab.A("44.10.0.12"))
	}
	for name, reply := range map[string]lab.Reply{
		"localtest.me":               lab.A("::1", "127.0.0.1"),
		"localh.st":                  lab.A("127.0.0.1"),
		"169.254.169.254.nip.io":     lab.A("169.254.169.254"),
		"127.0.0.1.nip.io":           lab.A("127.0.0.1"),
		"7f000001.c0a80001.rbndr.us": lab.A("192.168.0.1", "127.0.0.1").Rotating(1),
	} {
		a.lab.DNS.Set(name, reply)
	}
	a.lab.DNS.Set("make-1.2.3.4-rebind-169.254-169.254-rr.1u.ms", lab.A("1.2.3.4").TTL(0), lab.A("1.2.3.4").TTL(0), lab.A("169.254.169.254").TTL(0))
}

// refusals are the reasons that a row may be refused for, by the stage at which it
// must have ended.
var refusals = map[string][]spec.FetchReason{
	"parse":    {spec.FetchInvalidURL, spec.FetchScheme, spec.FetchBlocked},
	"name":     {spec.FetchInvalidURL, spec.FetchBlocked},
	"resolve":  {spec.FetchBlocked},
	"dial":     {spec.FetchBlocked},
	"redirect": {spec.FetchBlocked, spec.FetchBadRedirect},
}

// R058, R062, R064, R065: every given URL is refused, for what it is and before it
// costs a packet to where it leads; those that are like any other lead to that host.
func TestVectors(t *testing.T) {
	a := serving(t, nil)
	a.names(t)
	for _, v := range vectors(t, urlClasses...) {
		t.Run(v.text, func(t *testing.T) {
			dialled, asked := len(a.dialled()), len(a.lab.DNS.Queries())
			got := a.get(v.url(t))
			if host := nothingSpecial[v.text]; host != "" {
				want := netip.MustParseAddr("44.10.0.12")
				if v.stage == "dial" {
					want = netip.MustParseAddr("1.2.3.4")
				}
				if got.code != 200 || got.Hops[0].Address != want || !strings.Contains(got.ContentMarkdown, "GET "+host) {
					t.Errorf("%v", got)
				}
				return
			}
			if !slices.Contains(refusals[v.stage], got.reason()) || got.code != got.reason().Status() {
				t.Errorf("%v; right: %s", got, v.right)
			}
			if to := a.dialled()[dialled:]; len(to) > 0 {
				t.Errorf("dialled %v", to)
			}
			if q := a.lab.DNS.Queries()[asked:]; len(q) > 0 && v.stage != "resolve" && v.stage != "dial" {
				t.Errorf("asked %v", q)
			}
			if addr := v.address(t); v.stage == "resolve" && addr.IsValid() && !strings.Contains(got.failure.Detail, "port ") && !reasoned(got.failure.Detail, addr) {
				t.Errorf("%s is %s: %v", addr, netguard.Classify(addr), got)
			}
		})
	}
}

// reasoned reports whether a refusal says what is special about an address, or that
// it is inside another one.
func reasoned(detail string, addr netip.Addr) bool {
	for _, c := range []netguard.Class{netguard.Classify(addr), netguard.Translated, netguard.Tunnelled} {
		if strings.Contains(detail, ": "+c.String()+": ") {
			return true
		}
	}
	return false
}

// R060: the same at the end of a redirect, where only the public host is dialled.
func TestVectorsRedirected(t *testing.T) {
	a := serving(t, nil)
	a.names(t)
	for _, v := range vectors(t, urlClasses...) {
		t.Run(v.text, func(t *testing.T) {
			a.raw("HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\nLocation: " + v.url(t) + "\r\n\r\n")
			dialled := len(a.dialled())
			got := a.get("http://" + hopHost + "/")
			to := a.dialled()[dialled:]
			switch {
			case nothingSpecial[v.text] != "":
				if got.code != 200 || len(got.Hops) != 2 || got.Hops[1].Address == netip.MustParseAddr("169.254.169.254") || !strings.Contains(got.ContentMarkdown, nothingSpecial[v.text]) {
					t.Errorf("%v", got)
				}
			case v.text == "http": // a path beside the page's own, which sends there again
				if got.reason() != spec.FetchRedirects || !strings.HasSuffix(got.failure.Hops[1].URL, hopHost+"/http") {
					t.Errorf("%v", got)
				}
			default:
				if !slices.Contains(refusals["redirect"], got.reason()) {
					t.Errorf("%v; right: %s", got, v.right)
				}
				if len(to) != 1 || to[0] != netip.MustParseAddrPort(hopAddr+":80") {
					t.Errorf("dialled %v", to)
				}
			}
		})
	}
}

// The same address after a public one in one answer: the name is refused whole.
func TestVectorsAsSecondRecord(t *testing.T) {
	a := serving(t, nil)
	n := 0
	for _, v := range vectors(t, urlClasses...) {
		addr := v.address(t)
		if !addr.IsValid() || netguard.Classify(addr) == netguard.Public {
			continue
		}
		n++
		name := fmt.Sprintf("second-%d.evil.test", n)
		a.lab.DNS.Set(name, lab.A(otherAddr, addr.String()))
		got := a.get("http://" + name + "/")
		if got.reason() != spec.FetchBlocked {
			t.Errorf("%s (%s): %v", addr, v.text, got)
		}
	}
	if n < 80 {
		t.Errorf("%d rows have an address: the search is broken", n)
	}
	if to := a.dialled(); len(to) > 0 {
		t.Errorf("dialled %v", to)
	}
}

// What must be accepted: as it is, and as the address of a name.
func TestControls(t *testing.T) {
	a := serving(t, nil)
	b, err := os.ReadFile("testdata/address-controls.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(b))
	if len(lines) < 31 {
		t.Fatalf("%d addresses", len(lines))
	}
	for i, line := range lines {
		addr := netip.MustParseAddr(line)
		host, name := line, fmt.Sprintf("control-%d.lab.test", i)
		if addr.Is6() {
			host = "[" + line + "]"
		}
		a.lab.DNS.Set(name, lab.A(line))
		for _, u := range []string{"http://" + host + "/", "https://" + host + "/", "http://" + name + "/", "https://" + name + "/"} {
			got := a.get(u)
			if got.code != 200 || got.Hops[0].Address != addr || !strings.Contains(got.ContentMarkdown, "origin "+netip.AddrPortFrom(addr, 80).String()) && !strings.Contains(got.ContentMarkdown, "origin "+netip.AddrPortFrom(addr, 443).String()) {
				t.Errorf("%s: %v", u, got)
			}
		}
	}
}

// R062: every IPv6 form of an IPv4 address that must not be reached, as a literal
// and as an answer.
func TestEmbedded(t *testing.T) {
	a := serving(t, nil)
	for i, inner := range []string{"127.0.0.1", "169.254.169.254", "10.0.0.1", "100.100.100.200", "44.10.0.11"} {
		v4 := netip.MustParseAddr(inner).As4()
		hex := fmt.Sprintf("%02x%02x:%02x%02x", v4[0], v4[1], v4[2], v4[3])
		for j, form := range []string{"::ffff:" + hex, "::" + hex, "2002:" + hex + "::", "2002:" + hex + "::1", "64:ff9b::" + hex, "64:ff9b:1::" + hex, "2001:0:" + hex + "::1",
			fmt.Sprintf("64:ff9b:1:%02x%02x:%02x:%02x00::", v4[0], v4[1], v4[2], v4[3]), "fe80::5efe:" + hex} {
			name := fmt.Sprintf("embedded-%d-%d.evil.test", i, j)
			a.lab.DNS.Set(name, lab.A(form))
			for _, u := range []string{"http://[" + form + "]/", "http://" + name + "/"} {
				if got := a.get(u); got.reason() != spec.FetchBlocked {
					t.Errorf("%s (%s in %s): %v", u, inner, form, got)
				}
			}
		}
	}
	if to := a.dialled(); len(to) > 0 {
		t.Errorf("dialled %v", to)
	}
}

// R065: spellings of 169.254.169.254 that some program takes for it, with and
// without what else there is to a URL.
func TestSpellings(t *testing.T) {
	a := serving(t, nil)
	a.lab.DNS.Set("allowed.test", lab.A(otherAddr))
	for _, host := range []string{"2852039166", "2852039166.", "0xA9FEA9FE", "0xa9fea9fe.", "0251.0376.0251.0376", "0251.0376.0251.0376.", "169.254.43518", "169.16689662", "0251.254.169.254",
		"169.254.169.254.", "169.254.169.0xfe", "１６９.254.169.254", "１６９。２５４。１６９。２５４", "169%2e254%2e169%2e254", "%31%36%39.254.169.254", "169.254.169.254%00", "①⑥⑨.254.169.254",
		"allowed.test@169.254.169.254", "allowed.test:80@169.254.169.254", "169.254.169.254#@allowed.test", "169.254.169.254?@allowed.test", `allowed.test\@169.254.169.254`,
		"[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "169.254.169.254:80:80", "169.254.169.254:080", "0.169.254.169.254", "169.254.169.254.0", "+169.254.169.254", "169 .254.169.254", "169..254.169.254"} {
		if got := a.get("http://" + host + "/"); got.reason() != spec.FetchInvalidURL && got.reason() != spec.FetchBlocked {
			t.Errorf("%s: %v", host, got)
		}
	}
	if to := a.dialled(); len(to) > 0 {
		t.Errorf("dialled %v", to)
	}
	if q := a.lab.DNS.Queries(); len(q) > 0 {
		t.Errorf("asked %v", q)
	}
}

// R064: what the standard library calls global and is not.
func TestSpecialBlocks(t *testing.T) {
	a := serving(t, nil)
	for _, family := range []int{4, 6} {
		for _, b := range netguard.Special(family) {
			host := b.Prefix.Addr().String()
			if family == 6 {
				host = "[" + host + "]"
			}
			if got := a.get("http://" + host + "/"); got.reason() != spec.FetchBlocked {
				t.Errorf("%s: %v", b.Prefix, got)
			}
		}
	}
	if to := a.dialled(); len(to) > 0 {
		t.Errorf("dialled %v", to)
	}
}
