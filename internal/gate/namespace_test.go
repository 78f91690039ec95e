package gate

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

// A gate tells what it sees of its namespace: IPv6 that is on, addresses, and the
// sockets of root's and its own users' that wait; what it cannot read it does not
// call nothing.
func TestNamespaceIsSeen(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	line := func(at, state, uid string) string {
		return "   0: " + at + " 00000000:0000 " + state + " 00000000:00000000 00:00000000 00000000 " + uid + " 0 1\n"
	}
	files := map[string]string{
		"proc/net/if_inet6":                        "00000000000000000000000000000001 01 80 10 80       lo\nfd000000000000000000000000000002 02 40 00 80     eth0\n",
		"proc/sys/net/ipv6/conf/all/disable_ipv6":  "1\n",
		"proc/sys/net/ipv6/conf/lo/disable_ipv6":   "0\n",
		"proc/sys/net/ipv6/conf/eth0/disable_ipv6": "0\n",
		"proc/net/tcp":                             head + line("0100007F:0035", "0A", "0") + line("0100007F:1F90", "0A", "1000") + line("0100007F:0016", "01", "0") + line("00000000:0050", "0A", "61003"),
		"proc/net/tcp6":                            head + line("00000000000000000000000001000000:0035", "0A", "0"),
		"proc/net/udp":                             head + line("0B00007F:A000", "07", "0"),
	}
	look := func(change map[string]string) (*spec.Namespace, error) {
		t.Helper()
		root := t.TempDir()
		for name, text := range files {
			if changed, is := change[name]; is {
				text = changed
			}
			if text == "none" {
				continue
			}
			if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return namespace(root)
	}
	n, err := look(nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(n.IPv6, []string{"eth0"}) || !slices.Equal(n.Addresses, []string{"fd00::2 on eth0"}) {
		t.Errorf("%+v", n)
	}
	want := []spec.Listener{{Proto: "tcp", Addr: netip.MustParseAddrPort("127.0.0.1:53")}, {Proto: "tcp6", Addr: netip.MustParseAddrPort("[::1]:53")}, {Proto: "udp", Addr: netip.MustParseAddrPort("127.0.0.11:40960")}}
	got := slices.DeleteFunc(n.Listeners, func(l spec.Listener) bool { return l.UID == spec.WorkerUID || l.UID == spec.CarrierUID })
	if !slices.Equal(got, want) {
		t.Errorf("%+v, not %+v", got, want)
	}
	without := map[string]string{"proc/net/if_inet6": "none"}
	for name := range files {
		if strings.Contains(name, "ipv6/conf") {
			without[name] = "none"
		}
	}
	if n, err := look(without); err != nil || n.IPv6 == nil || len(n.IPv6)+len(n.Addresses) > 0 {
		t.Errorf("a kernel without IPv6: %+v, %v", n, err)
	}
	delete(without, "proc/net/if_inet6")
	if _, err := look(without); err == nil {
		t.Error("IPv6 without settings is nothing")
	}
	for name, text := range map[string]string{
		"proc/net/if_inet6": "00 01 80 10 80 lo\n", "proc/net/tcp": head + "   0: x\n",
		"proc/net/udp": head + line("0B00007F", "07", "0"), "proc/net/tcp6": head + line("0B00007F:1", "zz", "0"),
	} {
		if n, err := look(map[string]string{name: text}); err == nil {
			t.Errorf("%s %q: %+v", name, text, n)
		}
	}
}
