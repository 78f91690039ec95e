package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
)

// corralNetwork is what the engine has of a right one on a subnet.
func corralNetwork(t *testing.T, subnet string) (plan.Network, network.Inspect) {
	t.Helper()
	n, err := plan.Divide(netip.MustParsePrefix(subnet))
	if err != nil {
		t.Fatal(err)
	}
	return n, network.Inspect{
		Name: n.Name, ID: "0123456789abcdef", Driver: "bridge", Scope: "local",
		IPAM:    network.IPAM{Config: []network.IPAMConfig{{Subnet: n.Subnet.String(), IPRange: n.Range.String(), Gateway: n.Gateway.String()}}},
		Options: map[string]string{optionICC: "false", optionBridge: bridge},
		Labels:  map[string]string{labelRole: "network"},
	}
}

func route(to, dev string, table int) host.Route {
	return host.Route{To: netip.MustParsePrefix(to), Interface: dev, Table: table}
}

// R048: what a route does to the bridge and to the links in the upper half.
func TestRoutesAreJudged(t *testing.T) {
	const main, local, vpn = unix.RT_TABLE_MAIN, unix.RT_TABLE_LOCAL, 52
	want, got := corralNetwork(t, "172.30.0.0/16")
	for _, c := range []struct {
		to, dev string
		table   int
		is      string // nothing, lost or broken
	}{
		{"172.30.5.0/24", "tun0", main, "broken"},
		{"172.30.5.0/24", "", main, "broken"}, // a black hole
		{"172.30.5.0/24", "tun0", vpn, "broken"},
		{"172.30.5.7/32", "eth0", local, "broken"},
		{"172.30.0.0/17", "tun0", main, "broken"},
		{"172.30.200.0/28", "tun0", main, "broken"},
		{"172.30.0.0/16", "tun0", main, "broken"},
		{"172.30.0.0/16", "tun0", vpn, "broken"},
		{"172.30.0.0/15", "tun0", main, "lost"},
		{"172.16.0.0/12", "tun0", main, "lost"},
		{"172.16.0.0/12", "", main, "lost"},
		{"172.16.0.0/12", "tun0", vpn, "broken"}, // asked before the bridge's
		{"172.16.0.0/12", "lo", local, "broken"},
		{"172.31.0.0/16", "tun0", main, "nothing"},
		{"172.28.0.0/15", "tun0", main, "nothing"},
		{"172.29.255.255/32", "tun0", main, "nothing"},
		{"172.31.0.0/32", "tun0", vpn, "nothing"},
		{"10.0.0.0/8", "tun0", vpn, "nothing"},
		{"172.30.0.0/17", bridge, main, "nothing"},
		{"172.30.0.1/32", bridge, local, "nothing"},
	} {
		r := route(c.to, c.dev, c.table)
		around, err := others(nil, []host.Route{r})
		if err != nil {
			t.Fatal(err)
		}
		lost, err := judgeNetwork(want, netip.MustParsePrefix("172.30.0.0/16"), got, around)
		is := "nothing"
		var collision *Collision
		switch {
		case errors.As(err, &collision):
			is = "broken"
			if !strings.Contains(err.Error(), "route "+r.String()) || collision.Hint == "" {
				t.Errorf("%v: %v, hint %q", r, err, collision.Hint)
			}
		case err != nil:
			t.Errorf("%v: %v", r, err)
		case len(lost) > 0:
			is = "lost"
			if !strings.Contains(lost[0], "route "+r.String()) {
				t.Errorf("%v: %q", r, lost)
			}
		}
		if is != c.is {
			t.Errorf("%v: %s, want %s", r, is, c.is)
		}
	}
}

// A network that is wrong is wrong whatever the routes say.
func TestDifferencesComeFirst(t *testing.T) {
	want, got := corralNetwork(t, "172.30.0.0/16")
	got.Options = nil
	around := surroundings{routes: []host.Route{route("172.30.5.0/24", "tun0", unix.RT_TABLE_MAIN)}}
	_, err := judgeNetwork(want, netip.MustParsePrefix("172.30.0.0/16"), got, around)
	if !errors.As(err, new(*WrongNetwork)) {
		t.Errorf("%v, want a WrongNetwork", err)
	}
}

// The network records what was chosen.
func TestInForce(t *testing.T) {
	for _, subnet := range []string{"172.30.0.0/16", "10.255.0.0/16", "192.168.240.0/20", "172.16.0.0/12"} {
		want, got := corralNetwork(t, subnet)
		n, whole, err := inForce(netip.Prefix{}, got)
		if err != nil || n != want || whole.String() != subnet {
			t.Errorf("%s: %v of %v: %v", subnet, n, whole, err)
		}
		wish := netip.MustParsePrefix("10.7.0.0/16")
		n, whole, err = inForce(wish, got)
		if err != nil || whole != wish || len(networkDiff(n, got)) != 3 {
			t.Errorf("%s, another wished for: %v of %v: %v", subnet, n, whole, err)
		}
	}
	for name, configs := range map[string][]network.IPAMConfig{
		"none":          nil,
		"two":           {{Subnet: "172.30.0.0/17"}, {Subnet: "172.29.0.0/17"}},
		"empty":         {{}},
		"an upper half": {{Subnet: "172.30.128.0/17"}},
		"too narrow":    {{Subnet: "172.30.0.0/24"}},
		"IPv6":          {{Subnet: "fd00::/17"}},
	} {
		_, got := corralNetwork(t, "172.30.0.0/16")
		got.IPAM.Config = configs
		if n, whole, err := inForce(netip.Prefix{}, got); !errors.As(err, new(*WrongNetwork)) || whole.IsValid() {
			t.Errorf("%s: %v of %v: %v", name, n, whole, err)
		}
	}
}

// What is corral's own does not stand in its way.
func TestOthers(t *testing.T) {
	_, own := corralNetwork(t, "172.30.0.0/16")
	unlabelled := own
	unlabelled.Labels, unlabelled.Options = nil, nil
	link := network.Inspect{
		Name: "corral-p-link", ID: "fedcba9876543210", Labels: map[string]string{labelRole: "link"},
		IPAM: network.IPAM{Config: []network.IPAMConfig{{Subnet: "172.30.128.0/28"}}},
	}
	foreign := network.Inspect{
		Name: "x", ID: "aaaaaaaaaaaabbbb",
		IPAM: network.IPAM{Config: []network.IPAMConfig{{Subnet: "172.30.0.0/24"}, {Subnet: "fd00::/64"}}},
	}
	routes := []host.Route{
		route("172.30.0.0/17", bridge, unix.RT_TABLE_MAIN),
		route("172.30.0.0/17", "br-0123456789ab", unix.RT_TABLE_MAIN),
		route("172.30.128.0/28", "br-fedcba987654", unix.RT_TABLE_MAIN),
		route("172.30.0.0/24", "br-aaaaaaaaaaaa", unix.RT_TABLE_MAIN),
		route("172.30.9.0/24", "", unix.RT_TABLE_MAIN),
	}
	for _, c := range []struct {
		list []network.Summary
		want string
	}{
		{nil, "[] [172.30.0.0/17 dev br-0123456789ab 172.30.128.0/28 dev br-fedcba987654 172.30.0.0/24 dev br-aaaaaaaaaaaa 172.30.9.0/24]"},
		{[]network.Summary{own, link, {Name: "host"}}, "[] [172.30.0.0/17 dev br-0123456789ab 172.30.0.0/24 dev br-aaaaaaaaaaaa 172.30.9.0/24]"},
		{[]network.Summary{unlabelled, link, foreign}, `[network "x" (172.30.0.0/24) network "x" (fd00::/64)] [172.30.0.0/24 dev br-aaaaaaaaaaaa 172.30.9.0/24]`},
	} {
		s, err := others(c.list, routes)
		if got := fmt.Sprint(s.networks, " ", s.routes); err != nil || got != c.want {
			t.Errorf("%s, want %s: %v", got, c.want, err)
		}
	}
	foreign.IPAM.Config[0].Subnet = "somewhere"
	if _, err := others([]network.Summary{foreign}, nil); err == nil {
		t.Error("a subnet that cannot be read was taken for none")
	}
}

// R048: the next free subnet, or the one that was asked for, or what is in
// the way.
func TestChoose(t *testing.T) {
	const main = unix.RT_TABLE_MAIN
	private := []host.Route{route("10.0.0.0/8", "tun0", main), route("172.16.0.0/12", "tun0", main), route("192.168.0.0/16", "tun0", main)}
	x := []claim{{"x", netip.MustParsePrefix("172.30.0.0/24")}}
	for _, c := range []struct {
		name          string
		around        surroundings
		wish, present string
		want          string // a subnet, or what the error says
	}{
		{"nothing around", surroundings{}, "", "", "172.30.0.0/16"},
		{"a network", surroundings{networks: x}, "", "", "172.29.0.0/16"},
		{"a route", surroundings{routes: []host.Route{route("172.30.0.0/16", "lo", main)}}, "", "", "172.29.0.0/16"},
		{"a wider route", surroundings{routes: private[1:2]}, "", "", "10.255.0.0/16"},
		{"every private route", surroundings{routes: private}, "", "", "the subnet 172.30.0.0/16 collides with route 172.16.0.0/12 dev tun0, and every other"},
		{"the present one", surroundings{}, "", "10.7.0.0/16", "10.7.0.0/16"},
		{"the present one, taken", surroundings{routes: private[:1]}, "", "10.7.0.0/16", "172.30.0.0/16"},
		{"a wish", surroundings{}, "10.8.0.0/16", "172.30.0.0/16", "10.8.0.0/16"},
		{"a wish, taken by a route", surroundings{routes: []host.Route{route("10.8.0.0/16", "tun0", main)}}, "10.8.0.0/16", "", "the subnet 10.8.0.0/16 collides with route 10.8.0.0/16 dev tun0"},
		{"a wish, taken by a network", surroundings{networks: x}, "172.30.0.0/16", "", `the subnet 172.30.0.0/16 collides with network "x" (172.30.0.0/24)`},
		{"a wish within a wider route", surroundings{routes: private}, "10.8.0.0/16", "", "10.8.0.0/16"},
		{"a wish within a wider route of another table", surroundings{routes: []host.Route{route("10.0.0.0/8", "tun0", 52)}}, "10.8.0.0/16", "", "the subnet 10.8.0.0/16 collides with route 10.0.0.0/8 dev tun0 table 52"},
	} {
		var wish, present netip.Prefix
		if c.wish != "" {
			wish = netip.MustParsePrefix(c.wish)
		}
		if c.present != "" {
			present = netip.MustParsePrefix(c.present)
		}
		free, err := c.around.choose(wish, present)
		var collision *Collision
		switch {
		case errors.As(err, &collision):
			if !strings.HasPrefix(err.Error(), c.want) || collision.Hint == "" || free != nil {
				t.Errorf("%s: %v, %v (%q), want %s", c.name, free, err, collision.Hint, c.want)
			}
		case err != nil || free[0].String() != c.want || wish.IsValid() && len(free) > 1:
			t.Errorf("%s: %v, %v, want %s", c.name, free, err, c.want)
		}
	}
}

func TestCollisionIsOneLine(t *testing.T) {
	e := &Collision{Subnet: plan.DefaultSubnet}
	for i := range mostNamed {
		e.With = append(e.With, fmt.Sprintf("route %d", i))
	}
	if got := e.Error(); strings.Contains(got, "more") || strings.Count(got, "route") != mostNamed {
		t.Error(got)
	}
	e.With = append(e.With, "route x")
	if got := e.Error(); !strings.HasSuffix(got, "route 2, 1 more") || !slices.Contains(e.With, "route x") {
		t.Error(got)
	}
}

// stub is an engine that answers as it is told to.
func stub(t *testing.T, answer http.HandlerFunc) *Engine {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	api, err := client.NewClientWithOpts(client.WithHost("tcp://"+s.Listener.Addr().String()), client.WithVersion("1.44"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { api.Close() })
	return &Engine{api: api, Progress: func(string, ...any) {}}
}

// R048: the engine has pools of its own; the next subnet is tried then, and
// only then.
func TestNextPool(t *testing.T) {
	free := plan.Subnets(netip.Prefix{}, nil)[:3]
	for _, c := range []struct {
		says    string
		refused int
		want    string
		tried   int
	}{
		{"", 0, "172.30.0.0/17", 1},
		{"Pool overlaps with other one on this address space", 1, "172.29.0.0/17", 2},
		{"cannot create network: networks have overlapping IPv4", 2, "172.28.0.0/17", 3},
		{"Pool overlaps with other one on this address space", 3, "", 3},
		{"networks have same bridge name", 1, "", 1},
	} {
		tried := 0
		var told []string
		e := stub(t, func(w http.ResponseWriter, r *http.Request) {
			var asked network.CreateRequest
			b, err := io.ReadAll(r.Body)
			if err := errors.Join(err, json.Unmarshal(b, &asked)); err != nil || asked.IPAM == nil {
				t.Errorf("%s: %v", b, err)
			}
			w.Header().Set("Content-Type", "application/json")
			if tried++; tried <= c.refused {
				w.WriteHeader(http.StatusForbidden)
				fmt.Fprintf(w, `{"message": %q}`, c.says)
				return
			}
			fmt.Fprint(w, `{"Id": "x"}`)
		})
		e.Progress = func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
		n, err := e.makeNetwork(t.Context(), free, plan.DefaultSubnet, surroundings{})
		if tried != c.tried || (err == nil) != (c.want != "") || err == nil && n.Subnet.String() != c.want || err != nil && n.Subnet.IsValid() {
			t.Errorf("%q %d times: %v after %d: %v", c.says, c.refused, n, tried, err)
		}
		if (len(told) > 0) != (err == nil && c.refused > 0) {
			t.Errorf("%q %d times: told %q", c.says, c.refused, told)
		}
	}
}
