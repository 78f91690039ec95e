package fetch

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/corral-sandbox/corral/internal/spec"
)

// maxDetail bounds what an error tells, of which others may have said a part.
const maxDetail = 300

// failure is why there is no page: one of the closed set of reasons, and what
// exactly.
type failure struct {
	reason spec.FetchReason
	detail string
}

func (f *failure) Error() string { return string(f.reason) + ": " + f.detail }

func failf(reason spec.FetchReason, format string, args ...any) *failure {
	return &failure{reason: reason, detail: cut(fmt.Sprintf(format, args...), maxDetail)}
}

// cut is the beginning of s, of at most n bytes and whole characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// alerted is how the library begins an alert of TLS.
const alerted = "remote error: tls: "

// ownWords is what the network or a library said, in words of ours: theirs are about
// their insides, and may hold what a server wrote for whoever reads it.
func ownWords(err error) string {
	var errno syscall.Errno
	var timed net.Error
	var record tls.RecordHeaderError
	var nobody x509.UnknownAuthorityError
	var other x509.HostnameError
	var invalid x509.CertificateInvalidError
	var broken *tls.CertificateVerificationError
	said := err.Error()
	has := func(words string) bool { return strings.Contains(said, words) }
	switch {
	case errors.As(err, &nobody):
		return "its certificate is signed by nobody who is trusted"
	case errors.As(err, &other):
		return "its certificate is another name's"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "its certificate has expired, or is not valid yet"
	case errors.As(err, &invalid), errors.As(err, &broken):
		return "its certificate is not valid"
	case errors.As(err, &record):
		return "it does not speak TLS"
	case has(alerted): // and one of a few words of the library's
		_, alert, _ := strings.Cut(said, alerted)
		return "it ends TLS, saying " + alert
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &timed) && timed.Timeout():
		return "it takes too long"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), has("EOF"):
		return "the connection ended"
	case has("tls:"), has("x509:"):
		return "its TLS does not hold"
	case has("headers exceeded"), has("header line too long"):
		return fmt.Sprintf("its headers have more than %d bytes", maxHeaders)
	case has("Content-Length"), has("transfer encoding"), has("Transfer-Encoding"):
		return "it does not say in one way how long it is"
	case has("chunk"):
		return "its chunks are broken"
	}
	return "it is not HTTP as it should be"
}
