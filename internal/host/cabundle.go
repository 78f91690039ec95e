package host

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/printable"
)

// maxBundle is in bytes: all roots that browsers trust take a twentieth.
const maxBundle = 4 << 20

// Bundle is a company's own certificates, in the order of its file, each once.
type Bundle struct {
	// PEM has the certificates and nothing else.
	PEM          []byte
	Certificates []*x509.Certificate
}

// Each is every certificate by itself, in PEM.
func (b Bundle) Each() [][]byte {
	var out [][]byte
	for _, c := range b.Certificates {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	return out
}

// CABundle reads the certificates in the file at an absolute path, by symbolic
// links too: a regular file of uid's or root's that nobody else can write, in
// PEM, with text between the blocks at most. At least one certificate is that of
// an authority; whether they have expired is not judged. The error is an
// *exit.Error that holds nothing of the file.
func CABundle(path string, uid uint32) (Bundle, error) {
	src, err := readBundle(path, uid)
	if err == nil {
		var b Bundle
		if b, err = parseBundle(src); err == nil {
			return b, nil
		}
	}
	status, hint := exit.Invalid, ""
	if e, ok := errors.AsType[*exit.Error](err); ok {
		status, hint = e.Status, e.Hint
	}
	return Bundle{}, &exit.Error{Status: status, Hint: hint, Err: fmt.Errorf("CA bundle %s: %w", printable.Escape(path), err)}
}

func readBundle(path string, uid uint32) ([]byte, error) {
	if !filepath.IsAbs(path) {
		return nil, errors.New("not an absolute path")
	}
	src, err := ReadOwn(path, uid, maxBundle)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, exit.Invalidf("correct ca_bundle in config.yaml, or CORRAL_CA_BUNDLE", "there is no such file")
	case errors.Is(err, ErrTooLong):
		return nil, exit.Invalidf("name the company's own certificates only: the public ones are there already", "it is longer than 4 MiB")
	}
	return src, err
}

// writable reports whether somebody else than the owner can write. A group of
// the owner's own number is theirs alone, as distributions make them.
func writable(st *syscall.Stat_t) bool {
	return st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && st.Gid != st.Uid
}

// plainly is err without the path, which is said already.
func plainly(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// parseBundle reads the blocks of a PEM text and passes over what stands between
// them, which is comments.
func parseBundle(src []byte) (Bundle, error) {
	const (
		mark  = "-----"
		begin = mark + "BEGIN "
		end   = mark + "END "
		label = "CERTIFICATE"
	)
	if _, err := x509.ParseCertificate(src); err == nil {
		return Bundle{}, exit.Invalidf("convert it: openssl x509 -inform der -in FILE -out company.pem", "one certificate in DER, not in PEM")
	}
	var (
		b      Bundle
		seen   = map[string]bool{}
		block  []byte // the open one, nil outside
		first  int    // its line
		blocks int
	)
	refuse := func(hint, format string, args ...any) error {
		return exit.Invalidf(hint, "block %d (line %d): %s", blocks, first, fmt.Sprintf(format, args...))
	}
	n := 0
	for line := range bytes.Lines(bytes.TrimPrefix(src, []byte("\ufeff"))) {
		n++
		text := strings.TrimRight(string(line), "\r\n\t ")
		opens := strings.HasPrefix(text, begin) && strings.HasSuffix(text, mark)
		closes := text == end+label+mark
		switch {
		case opens && block == nil:
			blocks, first = blocks+1, n
			if kind := strings.TrimSuffix(strings.TrimPrefix(text, begin), mark); kind != label {
				what, hint := other(kind)
				return Bundle{}, refuse(hint, "%s", what)
			}
			block = []byte(text + "\n")
		case closes && block != nil:
			c, err := certificate(append(block, text...))
			if err != nil {
				return Bundle{}, refuse("", "%v", err)
			}
			if block = nil; !seen[string(c.Raw)] {
				seen[string(c.Raw)] = true
				b.Certificates = append(b.Certificates, c)
				b.PEM = append(b.PEM, pem.EncodeToMemory(&pem.Block{Type: label, Bytes: c.Raw})...)
			}
		case strings.Contains(text, begin) || strings.Contains(text, end):
			return Bundle{}, exit.Invalidf("each block starts and ends with lines of their own, which are not indented", "line %d: a BEGIN or END that is out of place", n)
		case block != nil:
			block = append(block, text+"\n"...)
		}
	}
	switch {
	case block != nil:
		return Bundle{}, refuse("", "it does not end")
	case len(b.Certificates) == 0:
		return Bundle{}, exit.Invalidf("it has blocks that start with "+begin+label+mark, "no certificate in PEM")
	}
	for _, c := range b.Certificates {
		if authority(c) {
			return b, nil
		}
	}
	return Bundle{}, exit.Invalidf("name that of the authority which signed it: this is a server's or a person's own", "none of the %d certificates is one of an authority", len(b.Certificates))
}

// other says what a block that is no certificate is, without a word of it.
func other(kind string) (what, hint string) {
	switch {
	case strings.Contains(kind, "PRIVATE KEY"):
		return "a private key, which is never to be given away", "keep the certificates alone in a file of their own"
	case kind == "TRUSTED CERTIFICATE":
		return "a certificate in OpenSSL's own form", "convert it: openssl x509 -in FILE -out company.pem"
	case kind == "PKCS7":
		return "a PKCS #7 bundle", "convert it: openssl pkcs7 -print_certs -in FILE -out company.pem"
	}
	return "not a certificate", "keep the certificates alone in a file of their own"
}

// certificate is that of one block with its first and last line.
func certificate(block []byte) (*x509.Certificate, error) {
	p, rest := pem.Decode(block)
	if p == nil || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("not Base64 between its first and last line")
	}
	if len(p.Headers) > 0 {
		return nil, errors.New("it has headers, which a certificate has not")
	}
	c, err := x509.ParseCertificate(p.Bytes)
	if err != nil { // whose words may be the file's
		return nil, errors.New("not a valid certificate")
	}
	return c, nil
}

// authority reports whether c may vouch for others. Roots of the first version
// of X.509 do not say so; that they name themselves as issuer does.
func authority(c *x509.Certificate) bool {
	return c.BasicConstraintsValid && c.IsCA || bytes.Equal(c.RawIssuer, c.RawSubject)
}
