package verify

import (
	"net/netip"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	inetHeader = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	gateNames  = "   0: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 100 2 0 0\n"
	docker     = "   1: 0B00007F:A3D1 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 101 1 0 100 0 0 10 0\n"
	agents     = "   2: 0100007F:1000 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 102 1 0 100 0 0 10 0\n"
	stranger   = "   3: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 103 1 0 100 0 0 10 0\n"
	connected  = "   4: 0500A8C0:9C40 0100000A:0035 01 00000000:00000000 00:00000000 00000000 64999        0 104 2 0 0\n"
)

func TestParseInet(t *testing.T) {
	v6 := "   0: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     5        0 9 1 0\n"
	all, err := parseInet([]byte(inetHeader + gateNames + docker + v6))
	if err != nil || len(all) != 3 {
		t.Fatal(all, err)
	}
	for i, want := range []inetSocket{
		{netip.MustParseAddrPort("127.0.0.1:53"), udpUnbound, 0},
		{netip.MustParseAddrPort("127.0.0.11:41937"), tcpListen, 0},
		{netip.MustParseAddrPort("[::1]:22"), tcpListen, 5},
	} {
		if all[i] != want {
			t.Errorf("%+v, want %+v", all[i], want)
		}
	}
	for _, bad := range []string{"0: 0100007F:0035\n", "0: 0100007:0035 a 07 b c d 0 e\n", "0: 0100007F:10035 a 07 b c d 0 e\n", "0: 0100007F:0035 a xx b c d 0 e\n", "0: 0100007F:0035 a 07 b c d -1 e\n"} {
		if all, err := parseInet([]byte(inetHeader + bad)); err == nil {
			t.Errorf("%q is read as %+v", bad, all)
		}
	}
}

func FuzzParseInet(f *testing.F) {
	f.Add([]byte(inetHeader + gateNames + docker + connected))
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = parseInet(b) })
}

func TestParseUnix(t *testing.T) {
	all, err := parseUnix([]byte(unixHeader +
		"0000000000000000: 00000002 00000000 00010000 0001 01 123 @abstract name\n" +
		"0000000000000000: 00000003 00000000 00000000 0001 03 124\n" +
		"0000000000000000: 00000002 00000000 00000000 0002 01 125 /dev/log\n" +
		"0000000000000000: 00000003 00000000 00000000 0001 03 126 /run/x.sock\n"))
	if err != nil || len(all) != 3 {
		t.Fatal(all, err)
	}
	for i, want := range []unixSocket{{"@abstract name", true, "123"}, {"/dev/log", true, "125"}, {"/run/x.sock", false, "126"}} {
		if all[i] != want {
			t.Errorf("%+v, want %+v", all[i], want)
		}
	}
}

func FuzzParseUnix(f *testing.F) {
	f.Add([]byte(unixHeader + "0: 00000002 00000000 00010000 0001 01 123 @a b\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, _ := parseUnix(b)
		for _, s := range all {
			if s.path == "" {
				t.Error("a socket without a name")
			}
		}
	})
}

func TestGateControlUnreachable(t *testing.T) {
	c := spec.Check{Name: "gate-control-unreachable"}
	base := func(more map[string]string) *env {
		files := map[string]string{
			"/proc/self/status": statusFile(1000, 1000, "", noCaps, 1, 2),
			"/proc/1/status":    statusFile(1000, 1000, "", noCaps, 1, 2),
			"/proc/net/tcp":     inetHeader + docker + agents,
			"/proc/net/udp":     inetHeader + gateNames + connected,
			"/proc/net/unix":    unixHeader + "0: 00000002 00000000 00010000 0001 01 123 /run/corral/gate.sock\n",
		}
		for name, content := range more {
			files[name] = content
		}
		return tree(t, files)
	}
	want(t, base(nil), c, spec.OK, "")
	want(t, base(map[string]string{"/run/corral/": ""}), c, spec.Failed, "/run/corral exists")
	want(t, base(map[string]string{"/proc/net/tcp": inetHeader + stranger}), c, spec.Failed, "0.0.0.0:8080 listens, uid 0")
	want(t, base(map[string]string{"/proc/net/udp6": inetHeader + stranger}), c, spec.Failed, "udp6 0.0.0.0:8080")
	want(t, base(map[string]string{"/proc/net/unix": unixHeader + "0: 00000002 00000000 00010000 0001 01 123 @gate\n"}), c, spec.Failed, "abstract socket @gate")
	want(t, base(map[string]string{"/proc/7/status": statusFile(spec.WorkerUID, 0, "", noCaps, 1, 2)}), c, spec.Failed, "is the gate's")
	want(t, base(map[string]string{"/proc/net/tcp": "x\ny\n"}), c, spec.Untold, "socket table")
}
