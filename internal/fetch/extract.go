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
	case r == '\n' || r == '\t' || joins(r):
		return false
	case r <= unicode.MaxASCII:
		return unicode.IsControl(r)
	case r&0xfffe == 0xfffe, r >= 0xfdd0 && r <= 0xfdef, r >= 0xfff0 && r <= 0xfff8, r >= 0xe0000 && r <= 0xe0fff: // no characters, and tags
		return true
	case r == 0x180e, r == 0x180f, r == 0x16fe4, r == 0x1d159, r >= 0x1bca0 && r <= 0x1bca3: // without a look
		return true
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) && !unicode.Is(unicode.Prepended_Concatenation_Mark, r)
}

// joins reports whether a character joins others or chooses how the one before it
// looks, which scripts and emoji need.
func joins(r rune) bool {
	return r == 0x200c || r == 0x200d || chooses(r)
}

func chooses(r rune) bool { return r >= 0xfe00 && r <= 0xfe0f || r >= 0x180b && r <= 0x180d }

// chosen reports whether a character has the looks that another one chooses from.
func chosen(r, by rune) bool {
	switch {
	case by == 0xfe0e || by == 0xfe0f:
		return unicode.IsDigit(r) || r == '#' || r == '*' || r > unicode.MaxASCII && unicode.Is(unicode.S, r) || r == 0x203c || r == 0x2049 || r == 0x2139 || r == 0x3030 || r == 0x303d
	case by >= 0x180b && by <= 0x180d:
		return unicode.Is(unicode.Mongolian, r)
	}
	return unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Bopomofo, unicode.Myanmar, unicode.Phags_Pa) || r > unicode.MaxASCII && unicode.Is(unicode.Sm, r) || r >= 0x3000 && r <= 0x303f || r >= 0xff00 && r <= 0xffef
}

// legible is s without what nobody sees: bytes that are no characters, controls, and
// characters without a look. What chooses a look stands once, behind what has several;
// what joins others stands once behind what is seen.
func legible(s string) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = strings.ToValidUTF8(s, "\ufffd")
	if strings.IndexFunc(s, func(r rune) bool { return unreadable(r) || joins(r) }) < 0 {
		return s
	}
	var last rune // that is seen
	looks, joined := false, false
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\r':
			r = '\n'
		case unreadable(r):
			return -1
		case chooses(r):
			if looks || joined || !chosen(last, r) {
				return -1
			}
			looks = true
			return r
		case joins(r):
			if joined || !unicode.IsGraphic(last) || unicode.IsSpace(last) || last <= unicode.MaxASCII {
				return -1
			}
			joined = true
			return r
		}
		last, looks, joined = r, false, false
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
