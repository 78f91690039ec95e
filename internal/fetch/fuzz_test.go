package fetch

import (
	"context"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/net/html"

	"github.com/corral-sandbox/corral/internal/domain"
)

var webPorts = []uint16{80, 443}

// sound fails the test unless a target is one that every program reads alike.
func sound(t *testing.T, what string, to target) {
	t.Helper()
	u, err := url.Parse(to.url.String())
	if err != nil {
		t.Fatalf("%q became %q: %v", what, to.url, err)
	}
	if u.User != nil || u.Opaque != "" || u.Fragment != "" || u.Scheme != "http" && u.Scheme != "https" || u.Host != to.url.Host || len(u.Host) == 0 {
		t.Fatalf("%q became %q", what, to.url)
	}
	if !slices.Contains(webPorts, to.port) || to.addr.IsValid() == (to.name != "") {
		t.Fatalf("%q became %+v", what, to)
	}
	host := u.Hostname()
	if a, err := netip.ParseAddr(host); to.addr.IsValid() != (err == nil) || err == nil && (a != to.addr || a.Zone() != "") {
		t.Fatalf("%q became %q, address %v", what, to.url, to.addr)
	}
	if to.name != "" {
		if again, err := domain.Parse(host); err != nil || again != to.name || host != to.name || domain.NotPublic(host) != "" || strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
			t.Fatalf("%q became %q, %q, %v", what, host, again, err)
		}
	}
	again, err := parse(to.url.String(), webPorts)
	if err != nil && len(to.url.String()) <= maxURL || err == nil && again.url.String() != to.url.String() {
		t.Fatalf("%q became %q, which is %+v, %v", what, to.url, again, err)
	}
}

func FuzzTarget(f *testing.F) {
	for _, v := range vectors(f, urlClasses...) {
		f.Add(v.url(f))
	}
	for _, s := range []string{"https://example.com", "http://Example.COM.:80/a b?q#f", "http://bücher.example.org/ü?ü", "http://[2001:4860:4860::8888]:443/%2e%2e/", "http://a.b/%zz", "http://a_b.example.com/100%", "http://a.com?x", "http://a.com#x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		to, err := parse(s, webPorts)
		if err != nil {
			if _, known := err.(*failure); !known || to.url != nil {
				t.Fatalf("%q: %+v, %v", s, to, err)
			}
			return
		}
		sound(t, s, to)
	})
}

func FuzzRedirect(f *testing.F) {
	for _, v := range vectors(f, "url-syntax", "scheme", "ipv4-form") {
		f.Add("https://example.com/a/b?c", v.url(f))
	}
	for _, s := range []string{"", "/", "x y", "../..", "?q", "#f", "//other.org", "///x", `\\x`, ":80", "a:b", "http:x", "./http://x/"} {
		f.Add("http://example.com/a/b?c", s)
	}
	f.Fuzz(func(t *testing.T, from, location string) {
		at, err := parse(from, webPorts)
		if err != nil {
			return
		}
		to, err := at.next(location, webPorts)
		if err != nil {
			if _, known := err.(*failure); !known || to.url != nil {
				t.Fatalf("%q: %+v, %v", location, to, err)
			}
			return
		}
		sound(t, location, to)
		if at.url.Scheme == "https" && to.url.Scheme != "https" {
			t.Fatalf("%q leads from %q to %q", location, from, to.url)
		}
	})
}

func FuzzExtract(f *testing.F) {
	for _, page := range hostilePages() {
		f.Add([]byte(cut(page, 300)), "text/html; charset=utf-8")
	}
	f.Add([]byte("<base href='http://a'><p hidden>x<a href=javascript:x>y</a><style>.a{display:none"), "text/html; charset=shift_jis")
	f.Add([]byte("\xff\xfe<\x00p\x00"), "application/xhtml+xml")
	f.Add([]byte("{}\x00"), "application/json")
	at, err := parse("https://example.com/a/", webPorts)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte, contentType string) {
		if len(body) > 32<<10 {
			return
		}
		const most = 10_000
		got, err := extract(context.Background(), &page{target: at, contentType: contentType, body: body}, most)
		if err != nil {
			if _, known := err.(*failure); !known {
				t.Fatalf("%q as %q: %v", body, contentType, err)
			}
			return
		}
		for _, s := range []string{got.title, got.markdown} {
			if !utf8.ValidString(s) || strings.ContainsAny(s, "\x00\x1b\u009b\ufeff\U000e0041") {
				t.Fatalf("%q as %q: %q", body, contentType, s)
			}
		}
		if len(got.markdown) > most || len(got.title) > maxField {
			t.Fatalf("%d, %d bytes", len(got.markdown), len(got.title))
		}
	})
}

// FuzzEstimate holds the count of nodes against the parser's own.
func FuzzEstimate(f *testing.F) {
	for _, page := range hostilePages() {
		f.Add(cut(page, 300))
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 8<<10 {
			return
		}
		guess, ok := estimate(s)
		if !ok {
			return
		}
		doc, err := html.Parse(strings.NewReader(s))
		if err != nil {
			return
		}
		nodes := 0
		walk(doc, func(*html.Node) bool { nodes++; return true })
		if nodes > guess {
			t.Fatalf("%d nodes, estimated %d: %q", nodes, guess, s)
		}
	})
}

// FuzzSheet reads any sheet, and ends.
func FuzzSheet(f *testing.F) {
	for _, css := range []string{"@charset 'x';<!--.a{display:none}-->", ".a:not(.b,#c)>d~e[f^='g' i]{all:unset;margin:1px 2px}", "@media (min-width:1px){.a{&.b{opacity:0}}}", "@keyframes x{to{opacity:1}}.a{animation:x both", `.\\61 \\`, ".a{color:rgb(0 0 0/0);background:url('x", "/*", ".a{\"", "a+b>c d{inset:1px}"} {
		f.Add(css, "color:#fff;background:white")
	}
	f.Fuzz(func(t *testing.T, css, inline string) {
		if len(css)+len(inline) > 8<<10 {
			return
		}
		doc, err := html.Parse(strings.NewReader("<div id=c class='a b'><p class=b>x<b>y</b></p><e f=g>z</div>"))
		if err != nil {
			t.Fatal(err)
		}
		for _, treeless := range []bool{false, true} {
			s := newSheet()
			s.treeless = treeless
			if n := s.add(css, "", ""); n != len(css) || len(s.rules) > maxRules {
				t.Fatalf("%d bytes, %d rules", n, len(s.rules))
			}
			walk(doc, func(n *html.Node) bool {
				if n.Type == html.ElementNode {
					n.Attr = append(n.Attr, html.Attribute{Key: "style", Val: inline})
					s.look(n, veil{})
				}
				return true
			})
			if s.steps > maxSteps+1<<16 {
				t.Fatalf("%d steps", s.steps)
			}
		}
	})
}
