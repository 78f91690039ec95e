package fetch

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"regexp"
	"strings"

	"github.com/corral-sandbox/corral/internal/spec"
)

// kind is what a page is written in.
type kind int

const (
	unsupported kind = iota
	markup           // HTML
	plain            // passed on as it is
)

// sniffed is how much of a body without a type is looked at to find one.
const sniffed = 512

// kindOf judges a media type.
func kindOf(mediaType string) kind {
	switch mediaType {
	case "text/html", "application/xhtml+xml":
		return markup
	case "text/plain", "text/markdown", "text/x-markdown", "application/json", "text/json", "application/xml", "text/xml",
		"text/csv", "text/tab-separated-values", "text/yaml", "text/x-yaml", "application/yaml", "application/x-yaml", "text/x-python", "text/x-rst", "text/prs.fallenstein.rst", "text/calendar", "application/x-ndjson", "application/jsonl":
		return plain
	}
	top, sub, _ := strings.Cut(mediaType, "/")
	if (strings.HasSuffix(sub, "+json") || strings.HasSuffix(sub, "+xml")) && (top == "application" || top == "text") {
		return plain
	}
	return unsupported
}

// typeWord is a media type: two tokens.
var typeWord = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,127}/[A-Za-z0-9!#$%&'*+.^_`|~-]{1,127}$")

// mediaType is the type that a header names, without its parameters; empty if it
// names none.
func mediaType(header string) string {
	t, _, err := mime.ParseMediaType(header)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		t, _, _ = strings.Cut(header, ";")
		t, _ = splitAt(strings.ToLower(strings.TrimSpace(t)), " ,") // "text/html charset=utf-8", "text/html, text/html"
	}
	return t
}

// read takes the body, inflated, up to the bound. What no one can read is refused
// before a byte of it is taken.
func (f *follower) read(ctx context.Context, resp *http.Response, p *page) error {
	p.contentType = cut(resp.Header.Get("Content-Type"), maxField)
	if t := mediaType(p.contentType); t != "" && kindOf(t) == unsupported {
		if !typeWord.MatchString(t) { // a server's words, for whoever reads them
			return failf(spec.FetchContentType, "what the server says of the type is no type")
		}
		return failf(spec.FetchContentType, "%s", t)
	}
	var body io.Reader = resp.Body
	gzipped := false
	switch codings := resp.Header["Content-Encoding"]; {
	case len(codings) == 0:
	case len(codings) > 1 || strings.Contains(codings[0], ","):
		return failf(spec.FetchContentEncoding, "more than one coding")
	default:
		switch coding := strings.ToLower(strings.TrimSpace(codings[0])); coding {
		case "", "identity", "none", "utf-8": // the last two are no codings, and mean that there is none
		case "gzip", "x-gzip":
			gzipped = true
		default:
			return failf(spec.FetchContentEncoding, "another coding than gzip")
		}
	}
	wire := &wire{r: body}
	body = wire
	if gzipped {
		wire.most = int64(f.Body) + maxFraming
		z, err := newInflater(wire)
		switch {
		case errors.Is(err, io.EOF) && wire.n == 0: // an empty body, whatever it was said to be
			body = bytes.NewReader(nil)
		case err != nil:
			return f.broken(ctx, wire, err)
		default:
			body = z
		}
	}
	in := bufio.NewReaderSize(body, sniffed)
	if mediaType(p.contentType) == "" {
		head, err := in.Peek(sniffed)
		if err != nil && err != io.EOF {
			return f.broken(ctx, wire, err)
		}
		p.contentType = http.DetectContentType(head)
		if len(head) > 0 && kindOf(mediaType(p.contentType)) == unsupported {
			return failf(spec.FetchContentType, "%s, by what it begins with: the server does not say", mediaType(p.contentType))
		}
	}
	// What a server says of the length is only believed to be too much.
	var out bytes.Buffer
	_, err := io.Copy(&out, io.LimitReader(in, int64(f.Body)))
	if err != nil {
		return f.broken(ctx, wire, err)
	}
	p.body = out.Bytes()
	if len(p.body) < f.Body {
		return nil
	}
	if _, err := in.Peek(1); err == io.EOF {
		return nil
	} else if err != nil {
		return f.broken(ctx, wire, err)
	}
	if gzipped {
		return failf(spec.FetchTooLarge, "it inflates to more than %d bytes", f.Body)
	}
	if resp.ContentLength < 0 {
		return failf(spec.FetchTooLarge, "more than %d bytes, and no end in sight", f.Body)
	}
	p.cut = true
	return nil
}

// maxFraming is how much longer a compressed body may be than what is in it, in bytes:
// without a bound, blocks of nothing have no end.
const maxFraming = 64 << 10

// inflater reads one or more members of gzip, and the zeros that some servers send
// after them.
type inflater struct {
	in *bufio.Reader
	z  *gzip.Reader
}

func newInflater(r io.Reader) (*inflater, error) {
	in := bufio.NewReader(r)
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	z.Multistream(false)
	return &inflater{in, z}, nil
}

func (i *inflater) Read(b []byte) (int, error) {
	for {
		n, err := i.z.Read(b)
		if n > 0 || err != io.EOF {
			if err == io.EOF {
				err = nil
			}
			return n, err
		}
		next, err := i.in.Peek(1)
		if err != nil {
			return 0, err
		}
		if next[0] == 0 {
			return 0, i.padding()
		}
		if err := i.z.Reset(i.in); err != nil {
			return 0, err
		}
		i.z.Multistream(false)
	}
}

func (i *inflater) padding() error {
	for {
		switch c, err := i.in.ReadByte(); {
		case err != nil:
			return err
		case c != 0:
			return gzip.ErrHeader
		}
	}
}

// errFraming ends a compressed body that is longer than anything in it.
var errFraming = errors.New("more framing than content")

// wire is a body as it comes, and the error that ended it.
type wire struct {
	r    io.Reader
	n    int64
	most int64 // no bound if it is zero
	err  error
}

func (w *wire) Read(b []byte) (int, error) {
	if w.most > 0 && w.n > w.most {
		w.err = errFraming
		return 0, errFraming
	}
	n, err := w.r.Read(b)
	w.n += int64(n)
	if err != nil && err != io.EOF {
		w.err = err
	}
	return n, err
}

// broken is why a body has no end.
func (f *follower) broken(ctx context.Context, w *wire, err error) error {
	if err := ended(ctx, nil); err != nil {
		return err
	}
	if w.err == errFraming {
		return failf(spec.FetchTooLarge, "more than %d bytes, compressed", f.Body)
	}
	if w.err == nil { // the bytes came, and make no sense
		return failf(spec.FetchContentEncoding, "the gzip is broken")
	}
	return failf(spec.FetchBadResponse, "the body breaks off: %s", ownWords(err))
}
