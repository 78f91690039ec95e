package host

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/exit"
)

// lab is a company's authority, what it signed, and its key, each in PEM.
type lab struct{ root, expired, server, selfSigned, key string }

func newLab(t testing.TB) lab {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	make := func(name string, ca bool, until time.Time, by *x509.Certificate) (string, *x509.Certificate) {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Unix(0, 0), NotAfter: until, IsCA: ca, BasicConstraintsValid: true,
		}
		if by == nil {
			by = template
		}
		der, err := x509.CreateCertificate(rand.Reader, template, by, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), c
	}
	later := time.Unix(1<<33, 0)
	var l lab
	var root *x509.Certificate
	l.root, root = make("Company Root", true, later, nil)
	l.expired, _ = make("Old Root", true, time.Unix(1, 0), nil)
	l.server, _ = make("server.company.test", false, later, root)
	l.selfSigned, _ = make("box.company.test", false, later, nil)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	l.key = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	return l
}

// R130: what is baked is certificates and nothing else.
func TestCABundle(t *testing.T) {
	l := newLab(t)
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "company.pem")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	lines := func(n int) string { return strings.Repeat("# of the company\n", n) }
	for _, c := range []struct {
		name, text, want, hint string // want is the PEM that comes out, or the error
	}{
		{"one", l.root, l.root, ""},
		{"several, in order", l.server + l.root + l.expired, l.server + l.root + l.expired, ""},
		{"one twice", l.root + l.server + l.root, l.root + l.server, ""},
		{"expired", l.expired, l.expired, ""},
		{"a server that signed itself", l.selfSigned, l.selfSigned, ""},
		{"comments", lines(2) + l.root + "Issuer: x\n  -- y\n" + l.server + "end", l.root + l.server, ""},
		{"CRLF", strings.ReplaceAll(l.root+l.server, "\n", "\r\n"), l.root + l.server, ""},
		{"a byte order mark, no last line end", "\ufeff" + strings.TrimSuffix(l.root, "\n"), l.root, ""},
		{"blanks at the ends of lines", strings.ReplaceAll(l.root, "\n", " \t\n"), l.root, ""},

		{"empty", "", "no certificate in PEM", "BEGIN CERTIFICATE"},
		{"text", "hello\n", "no certificate in PEM", "BEGIN CERTIFICATE"},
		{"noise", string(bytes.Repeat([]byte{0, 0xff, '\n'}, 1000)), "no certificate in PEM", "BEGIN CERTIFICATE"},
		{"a server's own", l.server, "none of the 1 certificates is one of an authority", "signed it"},
		{"a key after a certificate", lines(1) + l.root + l.key, "block 2 (line 12): a private key", "certificates alone"},
		{"a key before it", l.key + l.root, "block 1 (line 1): a private key", "certificates alone"},
		{"a key of an old kind", strings.ReplaceAll(l.key, "PRIVATE", "RSA PRIVATE"), "block 1 (line 1): a private key", "certificates alone"},
		{"a key that says it is a certificate", strings.ReplaceAll(l.key, "PRIVATE KEY", "CERTIFICATE"), "block 1 (line 1): not a valid certificate", ""},
		{"another block", l.root + strings.ReplaceAll(l.key, "PRIVATE KEY", "X509 CRL"), "block 2 (line 11): not a certificate", "certificates alone"},
		{"OpenSSL's own form", strings.ReplaceAll(l.root, "CERTIFICATE", "TRUSTED CERTIFICATE"), "block 1 (line 1): a certificate in OpenSSL's own form", "openssl x509"},
		{"PKCS #7", strings.ReplaceAll(l.root, "CERTIFICATE", "PKCS7"), "block 1 (line 1): a PKCS #7 bundle", "openssl pkcs7"},
		{"cut short", strings.TrimSuffix(l.root, "-----END CERTIFICATE-----\n"), "block 1 (line 1): it does not end", ""},
		{"cut short before another", strings.TrimSuffix(l.root, "-----END CERTIFICATE-----\n") + l.root, "line 10: a BEGIN or END that is out of place", "lines of their own"},
		{"an end alone", "-----END CERTIFICATE-----\n" + l.root, "line 1: a BEGIN or END that is out of place", "lines of their own"},
		{"indented", "  " + strings.ReplaceAll(l.root, "\n", "\n  "), "line 1: a BEGIN or END that is out of place", "lines of their own"},
		{"lines ended by CR", strings.ReplaceAll(l.root, "\n", "\r"), "block 1 (line 1): not a certificate", ""},
		{"another end", strings.Replace(l.root, "END CERTIFICATE", "END PRIVATE KEY", 1), "a BEGIN or END that is out of place", "lines of their own"},
		{"not Base64", strings.Replace(l.root, "M", "!", 1), "block 1 (line 1): not Base64", ""},
		{"nothing in it", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n", "block 1 (line 1): not", ""},
		{"headers", strings.Replace(l.root, "-----\n", "-----\nProc-Type: 4,ENCRYPTED\n\n", 1), "block 1 (line 1): it has headers", ""},
		{"DER", func() string { p, _ := pem.Decode([]byte(l.root)); return string(p.Bytes) }(), "one certificate in DER", "openssl x509 -inform der"},
		{"just not too long", l.root + lines((maxBundle-len(l.root))/len(lines(1))), l.root, ""},
		{"too long", l.root + strings.Repeat("\n", 5<<20), "it is longer than 4 MiB", "already"},
		{"too long by one", l.root + strings.Repeat("\n", maxBundle+1-len(l.root)), "it is longer than 4 MiB", "already"},
	} {
		path := write(c.text)
		b, err := CABundle(path, uint32(os.Getuid()))
		if strings.HasPrefix(c.want, "-----BEGIN") {
			if err != nil || string(b.PEM) != c.want || len(b.Certificates) != strings.Count(c.want, "BEGIN") {
				t.Errorf("%s: %v\n%s", c.name, err, b.PEM)
			}
			continue
		}
		var e *exit.Error
		if !errors.As(err, &e) || e.Status != exit.Invalid || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "CA bundle "+path+": ") || !strings.Contains(e.Hint, c.hint) {
			t.Errorf("%s: %v, want %s, hint %s", c.name, err, c.want, c.hint)
			continue
		}
		if b.PEM != nil || b.Certificates != nil {
			t.Errorf("%s: refused and returned", c.name)
		}
		for _, line := range strings.Split(c.text, "\n") {
			if line = strings.TrimSpace(line); len(line) > 40 && !strings.HasPrefix(line, "---") && strings.Contains(err.Error()+e.Hint, line) {
				t.Errorf("%s: tells what the file holds: %v", c.name, err)
			}
		}
	}
}

func TestCABundleRefusesTheFile(t *testing.T) {
	l := newLab(t)
	for _, c := range []struct {
		name, want string
		prepare    func(dir, file string) error
	}{
		{"its owner's group may write", "", func(dir, file string) error { return os.Chmod(file, 0o664) }},
		{"in a directory for all", "", func(dir, file string) error { return os.Chmod(dir, 0o777|os.ModeSticky) }},
		{"a link", "", func(dir, file string) error {
			return errors.Join(os.Rename(file, dir+"/x"), os.Symlink("x", file))
		}},
		{"missing", "there is no such file", func(_, file string) error { return os.Remove(file) }},
		{"a dangling link", "there is no such file", func(_, file string) error { return errors.Join(os.Remove(file), os.Symlink("x", file)) }},
		{"links in a circle", "too many levels of symbolic links", func(_, file string) error { return errors.Join(os.Remove(file), os.Symlink(file, file)) }},
		{"a directory", "not a regular file", func(_, file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o755)) }},
		{"a FIFO that nobody writes", "not a regular file", func(_, file string) error { return errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600)) }},
		{"a FIFO by a link", "not a regular file", func(dir, file string) error {
			return errors.Join(os.Remove(file), syscall.Mkfifo(dir+"/x", 0o600), os.Symlink("x", file))
		}},
		{"a device", "not a regular file", func(_, file string) error { return errors.Join(os.Remove(file), os.Symlink("/dev/zero", file)) }},
		{"a socket", "not a regular file", func(_, file string) error {
			l, err := net.Listen("unix", file+".s")
			if err == nil {
				t.Cleanup(func() { l.Close() })
				err = errors.Join(os.Remove(file), os.Rename(file+".s", file))
			}
			return err
		}},
		{"writable by all", "it is writable by others (mode 0646)", func(_, file string) error { return os.Chmod(file, 0o646) }},
	} {
		dir := t.TempDir()
		file := dir + "/company.pem"
		if err := os.WriteFile(file, []byte(l.root), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := c.prepare(dir, file); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		b, err := CABundle(file, uint32(os.Getuid()))
		if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != "CA bundle "+file+": "+c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if err != nil && b.PEM != nil {
			t.Errorf("%s: refused and returned", c.name)
		}
	}
	for _, path := range []string{"", "company.pem"} {
		if _, err := CABundle(path, 0); err == nil {
			t.Errorf("%q: accepted", path)
		}
	}
}

// Owners are played, but for what root can give away.
func TestCABundleOwner(t *testing.T) {
	file := filepath.Join(t.TempDir(), "company.pem")
	if err := os.WriteFile(file, []byte(newLab(t).root), 0o644); err != nil {
		t.Fatal(err)
	}
	owner := uint32(os.Getuid())
	if owner == 0 {
		if _, err := CABundle(file, 12346); err != nil {
			t.Errorf("root's: %v", err)
		}
		if owner = 12345; os.Chown(file, 12345, 12345) != nil {
			t.Fatal("root cannot give a file away")
		}
	}
	for uid, want := range map[uint32]bool{owner: true, owner + 1: false, 0: false} {
		if _, err := CABundle(file, uid); (err == nil) != want {
			t.Errorf("uid %d's for uid %d: %v", owner, uid, err)
		}
	}
	for _, c := range []struct {
		mode, uid, gid uint32
		want           bool
	}{{0o644, 1000, 1000, false}, {0o664, 1000, 1000, false}, {0o664, 1000, 100, true}, {0o646, 1000, 1000, true}, {0o664, 0, 0, false}, {0o664, 0, 50, true}} {
		if got := writable(&syscall.Stat_t{Mode: syscall.S_IFREG | c.mode, Uid: c.uid, Gid: c.gid}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func FuzzCABundle(f *testing.F) {
	l := newLab(f)
	for _, s := range []string{l.root, l.root + "# x\n" + l.server, l.key, strings.ReplaceAll(l.root, "\n", "\r\n"), "-----BEGIN CERTIFICATE-----\nA: b\n\nAAAA\n-----END CERTIFICATE-----"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		b, err := parseBundle(src)
		if err != nil {
			return
		}
		again, err := parseBundle(b.PEM)
		if err != nil || !bytes.Equal(again.PEM, b.PEM) || len(again.Certificates) != len(b.Certificates) || len(b.Certificates) == 0 {
			t.Fatalf("%q is not what it says: %v", b.PEM, err)
		}
		for rest := b.PEM; len(rest) > 0; {
			var p *pem.Block
			if p, rest = pem.Decode(rest); p == nil || p.Type != "CERTIFICATE" {
				t.Fatalf("%q holds something else", b.PEM)
			}
		}
	})
}
