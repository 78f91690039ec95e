package fetch

import (
	"bytes"
	"context"
	"io"
	"mime"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/encoding"

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

var (
	xmlEncoding = regexp.MustCompile(`^(?:\xef\xbb\xbf)?\s*<\?xml[^>]*?\sencoding\s*=\s*["']([A-Za-z0-9._:-]{1,40})["']`)
)

// encodingOf is how the characters of a body are written. JSON is UTF-8 always; XML says
// it in its first line, HTML in a meta element, and other text in neither. A body that
// is valid UTF-8 from end to end is UTF-8 if nothing says otherwise.
func encodingOf(body []byte, contentType string) (encoding.Encoding, string) {
	media := mediaType(contentType)
	head := body[:min(len(body), 1024)]
	for _, mark := range []string{"\xef\xbb\xbf", "\xfe\xff", "\xff\xfe"} {
		if bytes.HasPrefix(body, []byte(mark)) {
			e, name, _ := charset.DetermineEncoding(head, "")
			return e, name
		}
	}
	if strings.HasSuffix(media, "json") {
		return charset.Lookup("utf-8")
	}
	if _, params, err := mime.ParseMediaType(contentType); err == nil {
		if e, name := charset.Lookup(params["charset"]); e != nil {
			return e, name
		}
	}
	if m := xmlEncoding.FindSubmatch(head); m != nil && (strings.HasSuffix(media, "xml")) {
		if e, name := charset.Lookup(string(m[1])); e != nil {
			return e, name
		}
	}
	if kindOf(media) == markup {
		if e, name, sure := charset.DetermineEncoding(head, contentType); sure || name != "windows-1252" { // which is what it says if it knows none
			return e, name
		}
	}
	if utf8.Valid(body) || strings.HasSuffix(media, "xml") {
		return charset.Lookup("utf-8")
	}
	return charset.Lookup("windows-1252")
}

// decode is a body in UTF-8: by its byte order mark, or what the header says, or a
// meta element, or what it looks like. It never grows beyond the body's own bound.
func decode(body []byte, contentType string) (s string, more bool) {
	most := max(len(body), 1)
	if cap := defaults().Body; most < cap {
		most = min(3*most, cap) // a byte of an 8-bit charset is at most three
	}
	coding, name := encodingOf(body, contentType)
	var in io.Reader = bytes.NewReader(body)
	if name != "utf-8" {
		in = transform.NewReader(in, coding.NewDecoder())
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

// unreadable are characters that nobody sees, or that turn what is around them: they
// carry hidden words in plain sight.
func unreadable(r rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return false
	case unicode.IsControl(r), r >= 0xe0000 && r <= 0xe0fff, r == 0xfeff, r >= 0xfff9 && r <= 0xfffb, // tags, marks of order and of notes
		r == 0xad, r == 0x34f, r == 0x61c, r == 0x180e, r == 0x200b, r == 0x200e, r == 0x200f, // hyphens that may be, spaces without width, directions
		r >= 0x202a && r <= 0x202e, r >= 0x2060 && r <= 0x206f,
		r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, r == 0x3164, r == 0xffa0, // fillers
		r >= 0x1bca0 && r <= 0x1bca3, r >= 0x1d173 && r <= 0x1d17a:
		return true
	}
	return false
}

// joins reports whether a character joins others or chooses how the one before it
// looks, which scripts and emoji need.
func joins(r rune) bool {
	return r == 0x200c || r == 0x200d || r >= 0xfe00 && r <= 0xfe0f || r >= 0x180b && r <= 0x180d
}

// legible is s without what nobody sees: bytes that are no characters, controls, and
// characters without a look. Of those that join others, one stands after each that is
// seen.
func legible(s string) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = strings.ToValidUTF8(s, "\ufffd")
	if strings.IndexFunc(s, func(r rune) bool { return unreadable(r) || joins(r) }) < 0 {
		return s
	}
	seen := false // just before, what may be joined
	joiners := 0
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\r':
			r = '\n'
		case unreadable(r):
			return -1
		case joins(r):
			if joiners++; !seen || joiners > 2 { // an emoji's look, and what joins it
				return -1
			}
			return r
		}
		seen, joiners = unicode.IsGraphic(r) && !unicode.IsSpace(r) && r > unicode.MaxASCII || unicode.IsDigit(r) || r == '#' || r == '*', 0
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
