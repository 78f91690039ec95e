package cli

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
)

// chosen puts a settings file in force for the test, and no variable.
func chosen(t *testing.T, text string) {
	t.Helper()
	config := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	for _, v := range []string{"SUDO_UID", "CORRAL_SUBNET", "CORRAL_RESOLVERS", "CORRAL_PROBES", "CORRAL_CA_BUNDLE", "CORRAL_DETACH_KEYS"} {
		t.Setenv(v, "")
	}
	if err := os.Mkdir(filepath.Join(config, "corral"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config, "corral", "config.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// R130: a file once for the machine, a variable over it, and each says where it
// comes from.
func TestSettingsRows(t *testing.T) {
	const file = `subnet: 10.200.0.0/16
resolvers: [127.0.0.53]
probes:
  metadata: 192.0.2.9
  ipv6: 2001:db8::9
ca_bundle: /etc/company.pem
detach_keys: ctrl-]
`
	for _, c := range []struct{ name, file, env, want string }{
		{"defaults", "", "", `subnet = chosen by corral install [default]
ca_bundle = none [default]
detach_keys = ctrl-p,ctrl-q [default]
probes.unlisted = 198.51.100.1 [default]
probes.resolver = 203.0.113.53 [default]
probes.metadata = 169.254.169.254 [default]
probes.ipv6 = 2001:db8::1 [default]`},
		{"a file", file, "", `subnet = 10.200.0.0/16 [config.yaml:1]
resolvers = 127.0.0.53 (by way of the DNS relay) [config.yaml:2]
ca_bundle = /etc/company.pem [config.yaml:6]
detach_keys = ctrl-] [config.yaml:7]
probes.unlisted = 198.51.100.1 [default]
probes.resolver = 203.0.113.53 [default]
probes.metadata = 192.0.2.9 [config.yaml:4]
probes.ipv6 = 2001:db8::9 [config.yaml:5]`},
		{"variables over it", file, "SUBNET=10.201.0.0/16 RESOLVERS=10.0.0.53,::1 PROBES=ipv6=2001:db8::8,unlisted=192.0.2.8 CA_BUNDLE=/other.pem DETACH_KEYS=ctrl-a,d", `subnet = 10.201.0.0/16 [CORRAL_SUBNET]
resolvers = 10.0.0.53, ::1 (by way of the DNS relay) [CORRAL_RESOLVERS]
ca_bundle = /other.pem [CORRAL_CA_BUNDLE]
detach_keys = ctrl-a,d [CORRAL_DETACH_KEYS]
probes.unlisted = 192.0.2.8 [CORRAL_PROBES]
probes.resolver = 203.0.113.53 [default]
probes.metadata = 192.0.2.9 [config.yaml:4]
probes.ipv6 = 2001:db8::8 [CORRAL_PROBES]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			chosen(t, c.file)
			for _, v := range strings.Fields(c.env) {
				name, value, _ := strings.Cut(v, "=")
				t.Setenv("CORRAL_"+name, value)
			}
			set, _, err := settings()
			if err != nil {
				t.Fatal(err)
			}
			p := &project{host: plan.Host{Resolvers: set.Resolvers}}
			rows, err := p.settingsRows()
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, r := range rows {
				if r.Key == "resolvers" && r.Origin == "default" { // whatever this machine has
					continue
				}
				lines = append(lines, fmt.Sprintf("%s = %s [%s]", r.Key, r.Value, r.Origin))
			}
			if got := strings.Join(lines, "\n"); got != c.want {
				t.Errorf("--- got\n%s\n--- want\n%s", got, c.want)
			}
		})
	}
}

func TestSettingsOfTheFile(t *testing.T) {
	chosen(t, "subnet: 10.200.0.0/16\nresolvers: [127.0.0.53]\n")
	set, network, err := settings()
	if err != nil || network.Gateway != netip.MustParseAddr("10.200.0.1") || fmt.Sprint(set.Resolvers) != "[127.0.0.53]" {
		t.Errorf("%+v, %v: %v", set, network, err)
	}
	for _, name := range host.ProbeNames {
		if !set.Probe(name).IsValid() {
			t.Errorf("no probe %s", name)
		}
	}
	t.Setenv("CORRAL_SUBNET", "10.201.0.0/16")
	if set, err := wished(); err != nil || set.Subnet.String() != "10.201.0.0/16" || set.Resolvers == nil {
		t.Errorf("%+v: %v", set, err)
	}
}

// What is wrong in the file is the person's mistake, with its place, whatever
// the environment says.
func TestSettingsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"subnet: 10.0.0.0/21\n":             "config.yaml:1: subnet 10.0.0.0/21: it must be",
		"subnet: fd00::/16\n":               "config.yaml:1: subnet fd00::/16: it must be",
		"resolvers: [2001:db8::53]\n":       "config.yaml:1:13: settings error: ",
		"ca_bundle: here\nprobes: {x: 1}\n": "config.yaml:2:10: settings error: unknown key",
	} {
		chosen(t, text)
		t.Setenv("CORRAL_RESOLVERS", "10.0.0.53")
		_, err := wished()
		var mistake *exit.Error
		if !errors.As(err, new(diag.List)) && (!errors.As(err, &mistake) || mistake.Status != exit.Invalid) {
			t.Errorf("%s: not the person's mistake: %v", text, err)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
