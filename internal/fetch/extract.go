package fetch

import (
	"bytes"
	"context"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/html/charset"
	"golang.org/x/text/transform"

	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	// maxField bounds what is told of a page beside its text, in bytes.
	maxField = 1 << 10
)

// text is what a page says.
type text struct {
	title, markdown string
	cut             bool // there was more
}

// small is the largest page, in bytes, that is extracted beside others.
const small = 64 << 10

// one larger page at a time: a tree is many times as large as its page.
var one = make(chan struct{}, 1)

// extract is the text of a page, of at most so many bytes. It uses the body up.
func extract(ctx context.Context, p *page, most int) (t text, err error) {
	if len(p.body) > small {
		select {
		case one <- struct{}{}:
			defer func() { <-one }()
		case <-ctx.Done():
			return text{}, ended(ctx, nil)
		}
	}
	content, more := decode(p.body, p.contentType)
	t.cut, p.body = more, nil
	switch kindOf(mediaType(p.contentType)) {
	case markup:
		t.title, t.markdown, more, err = markdown(ctx, content, p.target.url, most)
		if err != nil {
			return text{}, err
		}
		t.cut = t.cut || more
	case plain:
		t.markdown = content
	default:
		return text{}, failf(spec.FetchContentType, "%s", mediaType(p.contentType))
	}
	t.title = cut(strings.Join(strings.Fields(legible(t.title)), " "), maxField)
	t.markdown = legible(t.markdown)
	if len(t.markdown) > most {
		t.markdown, t.cut = cut(t.markdown, most), true
	}
	return t, nil
}

// decode is a body in UTF-8: by its byte order mark, or what the header says, or a
// meta element, or what it looks like. It never grows beyond the body's own bound.
func decode(body []byte, contentType string) (s string, more bool) {
	most := max(len(body), 1)
	if cap := defaults().Body; most < cap {
		most = min(3*most, cap) // a byte of an 8-bit charset is at most three
	}
	encoding, name, _ := charset.DetermineEncoding(body[:min(len(body), 1024)], contentType)
	var in io.Reader = bytes.NewReader(body)
	if name != "utf-8" {
		in = transform.NewReader(in, encoding.NewDecoder())
	}
	var out strings.Builder
	if name == "utf-8" {
		out.Grow(len(body))
	}
	_, err := io.Copy(&out, io.LimitReader(in, int64(most)))
	if err == nil {
		n, _ := io.ReadFull(in, make([]byte, 1))
		more = n > 0
	}
	s = strings.TrimPrefix(out.String(), "\ufeff")
	return s, more
}

// legible is s without what nobody sees: bytes that are no characters, controls,
// and the characters that carry hidden words in plain sight.
func legible(s string) string {
	bad := func(r rune) bool {
		switch {
		case r == '\n' || r == '\t':
			return false
		case r == utf8.RuneError: // a broken byte reads like one
			return false
		case unicode.IsControl(r), r >= 0xe0000 && r <= 0xe0fff, r == 0xfeff, r >= 0xfff9 && r <= 0xfffb:
			return true
		}
		return false
	}
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = strings.ToValidUTF8(s, "\ufffd")
	if strings.IndexFunc(s, bad) < 0 {
		return s
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\r':
			return '\n'
		case bad(r):
			return -1
		}
		return r
	}, s)
}

// stoppable is a reader that ends with a context.
type stoppable struct {
	ctx context.Context
	r   io.Reader
}

func (s stoppable) Read(b []byte) (int, error) {
	if s.ctx.Err() != nil {
		return 0, ended(s.ctx, nil)
	}
	return s.r.Read(b)
}
