package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The demo's images are those of every other sandbox of this machine: with other
// certificates than corral install had, the gate's would be built once more.
func TestDemoTrustsWhomTheMachineTrusts(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_DATA_HOME", "")
	t.Setenv("XDG_CONFIG_HOME", "")
	if os.Getuid() == 0 {
		t.Setenv("SUDO_UID", "")
		if err := os.Chown(dir, demoUID, demoUID); err != nil {
			t.Fatal(err)
		}
	}
	bundle := filepath.Join(t.TempDir(), "company.pem")
	if err := os.WriteFile(bundle, authority(t), 0o644); err != nil {
		t.Fatal(err)
	}
	policy := filepath.Join(dir, "corral.yaml")
	if err := os.WriteFile(policy, []byte(demoPolicy), 0o644); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Chown(policy, demoUID, demoUID); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		bundle string
		want   int
	}{{"", 0}, {bundle, 1}} {
		t.Setenv("CORRAL_CA_BUNDLE", c.bundle)
		set, err := wished()
		if err != nil {
			t.Fatal(err)
		}
		installed, err := trusted(set)
		if err != nil || len(installed) != c.want {
			t.Fatalf("corral install trusts %d, %v", len(installed), err)
		}
		p, err := (&app{in: strings.NewReader(""), out: io.Discard, err: io.Discard}).hostile(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.host.Certificates) != c.want || c.want > 0 && string(p.host.Certificates[0]) != string(installed[0]) {
			t.Errorf("CA bundle %q: the demo trusts %d certificates", c.bundle, len(p.host.Certificates))
		}
	}
}

// authority is the certificate of one, in PEM.
func authority(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "company"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
