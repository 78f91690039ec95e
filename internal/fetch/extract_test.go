package fetch

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

var update = flag.Bool("update", false, "write the Markdown of the pages anew")

// charsets are what servers say of pages that do not say it themselves.
var charsets = map[string]string{"russian": "text/html; charset=koi8-r", "japanese": "text/html", "windows1252": "text/html"}

// TestPages extracts pages like those that people meet. Words in them say what must
// become of what they stand in: kept-, unseen- for what no reader of the page sees,
// chrome- for what is around its text.
func TestPages(t *testing.T) {
	pages, err := filepath.Glob("testdata/pages/*.html")
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	marks := regexp.MustCompile(`(kept|unseen|chrome)-[a-z0-9-]+`)
	for _, file := range pages {
		name := strings.TrimSuffix(filepath.Base(file), ".html")
		t.Run(name, func(t *testing.T) {
			body, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			contentType := charsets[name]
			if contentType == "" {
				contentType = "text/html; charset=utf-8"
			}
			source := string(body)
			got := extracted(t, body, contentType)
			text := "# " + got.title + "\n\n" + got.markdown
			golden := strings.TrimSuffix(file, ".html") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || text != string(want) {
				t.Errorf("%v\n%s", err, text)
			}
			n := 0
			for _, mark := range marks.FindAllString(source, -1) {
				if strings.HasPrefix(mark, "kept-") {
					n++
				}
				if strings.Contains(text, mark) != strings.HasPrefix(mark, "kept-") {
					t.Errorf("%s: in the text: %v", mark, strings.Contains(text, mark))
				}
			}
			if n == 0 {
				t.Error("nothing in it says that it must be kept")
			}
			if strings.Contains(text, "�") || strings.Contains(text, "<script") {
				t.Error("characters were lost, or markup was kept")
			}
		})
	}
}

func extracted(t testing.TB, body []byte, contentType string) text {
	t.Helper()
	at, err := parse("https://pages.example.org/a/page.html", webPorts)
	if err != nil {
		t.Fatal(err)
	}
	got, err := extract(context.Background(), &page{target: at, contentType: contentType, body: body}, defaults().Text)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// A page that no tree is made of says the same, and hides the same.
func TestWords(t *testing.T) {
	for _, name := range []string{"hidden", "forum", "old", "broken", "recipe"} {
		body, err := os.ReadFile("testdata/pages/" + name + ".html")
		if err != nil {
			t.Fatal(err)
		}
		title, text, _ := words(context.Background(), string(body), 1<<20)
		if title == "" {
			t.Errorf("%s: no title", name)
		}
		for _, mark := range regexp.MustCompile(`(kept|unseen)-[a-z0-9-]+`).FindAllString(string(body), -1) {
			if strings.Contains(text, mark) != strings.HasPrefix(mark, "kept-") {
				t.Errorf("%s: %s: in the text: %v", name, mark, strings.Contains(text, mark))
			}
		}
	}
}

// A title is what readers see of it, and not what machines are told. The library compares
// headings with its beginning alone.
func TestTitles(t *testing.T) {
	for _, tt := range []struct{ page, want string }{
		{"<title> A  title </title><h1>B</h1><p>c", "A title"},
		{"<title>A title | A site</title><h1>A title</h1><p>c", "A title | A site"},
		{"<title> </title><h1>A heading</h1><p>c", "A heading"},
		{"<meta property=og:title content=O><meta name=twitter:title content=T><meta name=dc.title content=D><title>A title</title><h1>B</h1><p>c", "A title"},
		{"<meta property=og:title content=O><h1>A heading</h1><p>c", "A heading"},
		{"<meta property=og:title content=O><p>c", ""},
		{"<title>" + strings.Repeat("w ", 2_000_000) + "</title><p>c", strings.Repeat("w ", maxField/2-1) + "w "},
	} {
		if got := extracted(t, []byte(tt.page), "text/html; charset=utf-8").title; got != tt.want {
			t.Errorf("%.200s: %q", tt.page, got)
		}
	}
	doc, err := html.Parse(strings.NewReader("<meta property=og:title content=O><title>" + strings.Repeat("w", maxField) + "</title><title>B</title>"))
	if err != nil {
		t.Fatal(err)
	}
	entitle(doc, titleOf(doc))
	said := 0
	walk(doc, func(n *html.Node) bool {
		said += len(n.Data) + len(attr(n, "content"))
		return true
	})
	if said > maxCompared+100 {
		t.Errorf("%d bytes are left to compare", said)
	}
}

// Text is as it was in what is not HTML.
func TestPlain(t *testing.T) {
	for _, tt := range []struct{ contentType, body, want string }{
		{"text/plain", "a <b> c\r\nd\n", "a <b> c\nd\n"},
		{"text/plain; charset=iso-8859-1", "gr\xfcn", "grün"},
		{"text/markdown", "# A\n\n*b*\n", "# A\n\n*b*\n"},
		{"application/json", `{"a": "<p>ü"}`, `{"a": "<p>ü"}`},
		{"application/problem+json; charset=utf-8", `{}`, `{}`},
		{"application/xml", `<?xml version="1.0"?><a>b</a>`, `<?xml version="1.0"?><a>b</a>`},
		{"application/rss+xml", `<rss/>`, `<rss/>`},
		{"text/plain; charset=utf-16", "\xff\xfea\x00b\x00", "ab"},
		{"application/json", `{"a":"<meta charset=utf-16be>` + strings.Repeat("x", 1100) + `ü"}`, `{"a":"<meta charset=utf-16be>` + strings.Repeat("x", 1100) + `ü"}`},
		{"application/json; charset=iso-8859-1", `"ü"`, `"ü"`},
		{"text/plain", "👩\ufe0f\u200d\ufe01\ufe02👩", "👩\ufe0f\u200d👩"},
		{"application/xml", `<?xml version="1.0" encoding="iso-8859-2"?><a>` + "\xb1", `<?xml version="1.0" encoding="iso-8859-2"?><a>ą`},
		{"text/plain", strings.Repeat("x", 1100) + "ü", strings.Repeat("x", 1100) + "ü"},
		{"text/plain", "a\u200b\u202e\u2066\u00ad\u3164b \ufe00\ufe01\ufe0fc", "ab c"},
		{"text/plain", "می\u200cخواهم ❤\ufe0f 👩\u200d👩", "می\u200cخواهم ❤\ufe0f 👩\u200d👩"},
		{"text/plain", "a\u180f\ufff0\ufff8\ufffe\uffff\ufdd0\U0001fffe\U0001d159\U00016fe4\ue000\U000f0000\u2065\U0001d173\u17b4b", "ab"},
		{"text/plain", "é\ufe00 ü\ufe0f д\ufe05 葛\ufe00\ufe01 က\ufe00 ꡀ\ufe00 ∩\ufe00 a\u180b ᠠ\u180b 1\ufe0f\ufe0f⃣ ☎\ufe0e葛\U000e0100", "é ü д 葛\ufe00 က\ufe00 ꡀ\ufe00 ∩\ufe00 a ᠠ\u180b 1\ufe0f⃣ ☎\ufe0e葛"},
		{"text/plain", "\u0600\u0661 ⠀ ก\u200d\u200c\u200d", "\u0600\u0661 ⠀ ก\u200d"},
		{"text/plain", "a\x00b\x1b[31mc\u009b\U000e0041d", "ab[31mcd"},
	} {
		if got := extracted(t, []byte(tt.body), tt.contentType); got.markdown != tt.want {
			t.Errorf("%s %q: %q", tt.contentType, tt.body, got.markdown)
		}
	}
	for contentType, want := range map[string]kind{"text/html": markup, "application/xhtml+xml": markup, "text/css": unsupported, "image/svg+xml": unsupported, "image/png": unsupported, "application/pdf": unsupported,
		"application/octet-stream": unsupported, "video/mp4": unsupported, "text/csv": plain, "text/tab-separated-values": plain, "text/calendar": plain, "text/x-python": plain, "text/x-rst": plain, "text/yaml": plain, "application/yaml": plain, "application/x-ndjson": plain, "+json": unsupported, "": unsupported} {
		if got := kindOf(contentType); got != want {
			t.Errorf("%s: %v", contentType, got)
		}
	}
	for header, want := range map[string]string{"Text/HTML; Charset=x": "text/html", "text/html;": "text/html", "text/html charset=utf-8": "text/html", "text/html, text/html": "text/html", "text/html; charset=\"": "text/html", " text/plain ": "text/plain", "": ""} {
		if got := mediaType(header); got != want {
			t.Errorf("%q: %q", header, got)
		}
	}
}

// Quotes and lists in each other are written only so deep: each is a mark before every
// line of what it holds.
func TestFlatten(t *testing.T) {
	got := extracted(t, []byte(strings.Repeat("<blockquote>", 300)+"a<br>b"+strings.Repeat("<ul><li>", 100)+"c"), "text/html")
	if n := strings.Count(got.markdown, ">"); n > 500 || !strings.Contains(got.markdown, "c") {
		t.Errorf("%d marks: %.300s", n, got.markdown)
	}
}

// What is counted before a tree is made is no less than what is in it.
func TestEstimate(t *testing.T) {
	for name, page := range hostilePages() {
		page = cut(page, 256<<10)
		guess, ok := estimate(page)
		if !ok {
			continue // nothing is made of it
		}
		doc, err := html.Parse(strings.NewReader(page))
		if err != nil {
			continue
		}
		nodes := 0
		walk(doc, func(n *html.Node) bool { nodes++; return true })
		if nodes > guess || nodes > maxNodes {
			t.Errorf("%s: %d nodes, estimated %d", name, nodes, guess)
		}
	}
	// What a converter would carry through hundreds of elements has none.
	for _, name := range []string{"deep", "formatting", "adoption", "paragraphs"} {
		if n, ok := estimate(hostilePages()[name]); ok {
			t.Errorf("%s is estimated at %d nodes", name, n)
		}
	}
	// An ordinary page of some length has a tree.
	var b strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&b, `<div class="row"><h2 id="h%d">Heading</h2><p>Words, <a href="/x">a link</a> and <b>more</b> words.</p></div>`, i)
	}
	if n, ok := estimate(b.String()); !ok {
		t.Errorf("an ordinary page is estimated at %d nodes", n)
	}
}

func TestHides(t *testing.T) {
	for style, want := range map[string]bool{
		"display:none": true, "DISPLAY : NONE !important": true, "visibility:hidden": true, "opacity:0": true, "opacity:.05": true, "font-size:0px": true, "color:red;background-color:red": true,
		"position:absolute;left:-9999px": true, "text-indent:-999em": true, "overflow:hidden;max-height:0": true, "clip-path:inset(50%)": true, "transform:scale(0)": true, "color:transparent": true,
		strings.Repeat("x:1;", 70) + "display:none": true, "display:none;display:bogus": true, "font-size:0;font-size:bogus": true, "opacity:0;opacity:bogus": true, "visibility:hidden;visibility:bogus": true, "color:transparent;color:1": true, "overflow:hidden;overflow:bogus;height:0": true, "clip-path:inset(50%);clip-path:bogus": true, "position:fixed;left:-999px;left:1bogus": true, "display:none!important;display:block": true, "display:none ! IMPORTANT; display:block": true, `d\69splay:none`: true, `display:n\6f ne`: true,
		"color:rgba(0,0,0,0)": true, "color:rgb(0 0 0 / 0%)": true, "color:#ffffff00": true, "color:#fff0": true, "color:#ffffffff;background:rgb(255 255 255/1)": true, "color:#fff8;background:#fff8": true, "color:#FFF;background:white": true, "color:white;background-color:rgb(255, 255, 255)": true, "-webkit-text-fill-color:transparent": true,
		"font-size:1px": true, "font-size:.001px": true, "font-size:0.05em": true, "font:0/0 a": true, "font: bold 1px/1 x": true, "transform:translateX(-9999px)": true, "transform:scale(0,0)": true, "transform:rotateY(90deg)": true, "transform:matrix(0,0,0,0,0,0)": true, "scale:0": true, "translate:-9999px": true,
		"margin-left:-9999px": true, "margin:0 0 0 -9999px": true, "position:absolute;bottom:-9999px": true, "position:absolute;left:9999px": true, "position:absolute;inset:-9999px": true, "position:relative;left:-9999px": true, "position:fixed;left:-100%": true,
		"filter:blur(1px) opacity(0)": true, "opacity:calc(0)": true, "opacity:0e3": true, "opacity:0%": true, "content-visibility:hidden": true, "clip-path:polygon(0 0, 0 0, 0 0, 0 0)": true, "clip: rect(1px, 1px, 1px, 1px)": true, "overflow:hidden;text-indent:100%": true, "overflow-y:hidden;height:0": true, `content:";display:block";display:none`: true,
		"display:none!important;display:block!important": false, "color:rgba(0,0,0,.8)": false, "color:rgba(0,0,0,.8);background:rgba(0,0,0,.5)": false, "color:#fff8;background:#fff": false, "color:#fff;background:#000": false, "color:#fff;background:url(x) #fff": false, "font:12px/1 a": false, "font-size:90%": false, "font-size:.9em": false, "font-size:calc(1vw + 1px)": false, "transform:translate(-50%,-50%)": false, "transform:scale(1.1)": false,
		"margin-left:-100%": false, "margin:0": false, "position:static;left:-9999px": false, "opacity:50%": false, "opacity:var(--x)": false, "filter:opacity(.5)": false, "height:0": false, "overflow:hidden;height:auto": false, "scale:1": false, "left:-9999px;position:bogus": false, `content:"x;display:none;y"`: false, `content:"\";display:none;"`: false, "background:url(x;display:none;y)": false, "/*display:none*/": false,
		"color:transparent;background-image:linear-gradient(red,blue);-webkit-background-clip:text": false,
		"position:absolute;top:-9999px": true, "position:fixed;top:9999px": true, "position:relative;top:-900px": true, "text-indent:-300px;padding-left:20px": true, "text-indent:-9999px;margin-left:120px": true,
		"position:absolute;top:2400px;left:20px": false, "position:relative;left:-100px": false, "position:relative;top:-120px": false, "text-indent:-100px;padding-left:120px": false, "text-indent:-120px;margin:0 0 0 120px": false, "text-indent:-100px;padding:0 0 0 100px": false,
		"": false, "display:block": false, "opacity:1": false, "opacity:0.9": false, "font-size:10px": false, "color:#000;background:#fff": false, "left:-9999px": false, "text-indent:-1em": false,
		"max-height:0": false, "position:absolute;left:-10px": false, "display:none;display:block": false, "overflow:hidden;height:100px": false, ";;:": false,
	} {
		if got := hides(declarations(style)); got != want {
			t.Errorf("%q: %v", style, got)
		}
	}
	shown := &html.Node{Type: html.ElementNode, DataAtom: atom.P, Data: "p", Attr: []html.Attribute{{Key: "class", Val: "not-hidden text"}}}
	if unseen(shown) {
		t.Error("a class that only sounds like it")
	}
}

// Whoever gets the beginning of a page is told that there was more, however it was
// read.
func TestTruncated(t *testing.T) {
	at, err := parse("https://pages.example.org/", webPorts)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		what, contentType, body string
		cut                     bool
	}{
		{"a page", "text/html", "<p>" + to(900, "words "), false},
		{"a longer one", "text/html", "<p>" + to(1100, "words "), true},
		{"one of several paragraphs", "text/html", strings.Repeat("<p>"+to(300, "words ")+"</p>", 4), true},
		{"a deep one", "text/html", strings.Repeat("<div>", 600) + to(900, "words "), false},
		{"a longer deep one", "text/html", strings.Repeat("<div>", 600) + strings.Repeat("words     \n", 200), true},
		{"text", "text/plain", to(1000, "words "), false},
		{"longer text", "text/plain", to(1001, "words "), true},
		{"characters of several bytes", "text/plain; charset=utf-8", strings.Repeat("€", 334), true},
	} {
		got, err := extract(context.Background(), &page{target: at, contentType: tt.contentType, body: []byte(tt.body)}, 1000)
		if err != nil || got.cut != tt.cut || len(got.markdown) > 1000 || len(got.markdown) < 600 && !strings.Contains(tt.what, "deep") || strings.Contains(got.markdown, "\ufffd") {
			t.Errorf("%s: %d bytes, cut %v, %v", tt.what, len(got.markdown), got.cut, err)
		}
	}
}

// However a page is made, its conversion writes no more than it may, and ends when its
// time is over.
func TestWritten(t *testing.T) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for name, page := range hostilePages() {
		if !affordable(page) {
			continue
		}
		doc, err := html.Parse(strings.NewReader(page))
		if err != nil {
			continue
		}
		const most = 100_000
		text, more, err := written(context.Background(), doc, most)
		if err != nil || len(text) > most || more && len(text) < most-4 {
			t.Errorf("%s: %d bytes, more %v, %v", name, len(text), more, err)
		}
		nodes := 0
		walk(doc, func(*html.Node) bool { nodes++; return true })
		if _, _, err := written(over, doc, 100<<20); nodes > 100 && err == nil {
			t.Errorf("%s: it does not end", name)
		}
	}
}

// However a page writes its links, together they stay within their bound, and so does
// what they are told to begin with.
func TestLinks(t *testing.T) {
	at, err := parse("https://pages.example.org/a/page.html?"+strings.Repeat("q", maxURL-100), webPorts)
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{
		strings.Repeat("<a href=?>x</a>", 20_000), strings.Repeat("<a href='"+strings.Repeat("ü", 1000)+"'>x</a>", 2000), strings.Repeat("<img alt=a src=''>", 20_000),
		"<base href=http://a/" + to(2000, "a") + "/>" + strings.Repeat("<a href=b>x</a>", 20_000), "<base href=http://a/" + to(100_000, "a") + "/>" + strings.Repeat("<a href=b>x</a>", 20_000),
	} {
		doc, err := html.Parse(strings.NewReader(page))
		if err != nil {
			t.Fatal(err)
		}
		clean(t.Context(), doc, at.url)
		size, longest := 0, 0
		walk(doc, func(n *html.Node) bool {
			if n.Type == html.ElementNode {
				n := len(attr(n, "href")) + len(attr(n, "src"))
				size, longest = size+n, max(longest, n)
			}
			return true
		})
		if strings.Contains(page, to(maxBase, "a")) && !strings.HasPrefix(attr(first(doc, atom.A), "href"), "https://pages.example.org/") {
			t.Error("a base that is too long holds")
		}
		if size == 0 || size > maxLinks+maxURL || longest > maxURL {
			t.Errorf("%.60s: links of %d bytes, the longest of %d", page, size, longest)
		}
	}
	for ref, want := range map[string]string{"http://u:p@b.example/": "http://b.example/", "javascript:x": "", "data:x": "", "/100%": "https://pages.example.org/100%25", "http://[": "", strings.Repeat("a", maxURL+1): "", strings.Repeat("ü", maxURL/4): ""} {
		if got := absolute(at.url, ref); got != want {
			t.Errorf("%.60q: %q", ref, got)
		}
	}
}

// Every element is written in its own way, wherever it stands, and text reads as text.
func TestMarkdown(t *testing.T) {
	for _, tt := range []struct{ page, want string }{
		{"a <b>b <i>c</i> </b>d", "a **b *c*** d"},
		{"<b>a<br>b</b>", "**a**  \n**b**"},
		{"<b><p>a<p>b</b>", "**a**\n\n**b**"},
		{"<b> </b>a<b></b>", "a"},
		{"<s>a</s> <del>b</del>", "~~a~~ ~~b~~"},
		{"<a href=x>a<div>b</div></a>", "[a b](https://pages.example.org/a/x)"},
		{"<a href=x><h2>a</h2></a>b", "## [a](https://pages.example.org/a/x)\n\nb"},
		{"<a href=x></a>a", "a"},
		{"<a href='?a) [b](c'>a] b</a>", `[a\] b](https://pages.example.org/a/page.html?a%29%20%5Bb%5D%28c)`},
		{"<h2>a<br>b #</h2><h3></h3>c", "## a b \\#\n\nc"},
		{"<ul><li>a<ul><li>b</ul><li>c</ul>", "- a\n  - b\n- c"},
		{"<ol start=9><li>a<li>b</ol>", "9. a\n10. b"},
		{"<blockquote><p>a<p>b</blockquote>c", "> a\n>\n> b\n\nc"},
		{"<ul><li><p>a<pre>b\nc</pre></ul>", "- a\n\n  ```\n  b\n  c\n  ```"},
		{"<pre class=language-go>a``` `</pre>", "````go\na``` `\n````"},
		{"<code>a `b</code> <code> </code>c", "``a `b`` c"},
		{"<table><tr><th>a<th>b<tr><td>c|<td><code>|</code></table>", "| a | b |\n|---|---|\n| c\\| | `\\|` |"},
		{"<table><tr><td>a<td>b<tr><td>c<td>d</table>", "|  |  |\n|---|---|\n| a | b |\n| c | d |"},
		{"<table><tr><th rowspan=2>a<th colspan=2>b<tr><th>c<th>d<tr><td>e</table>", "| a | b |  |\n|---|---|---|\n|  | c | d |\n| e |"},
		{"<table><tr><th colspan=99999999>a<th>b<tr><td>c</table>", "| a |" + strings.Repeat("  |", 31) + " b |\n|" + strings.Repeat("---|", 33) + "\n| c |"},
		{"<table><tr><td>a<p>b<p>c<td>d<tr><td>e</table>", "a\n\nb\n\nc\n\nd\n\ne"},
		{"a<hr>b", "a\n\n* * *\n\nb"},
		{"# a", `\# a`}, {"- a", `\- a`}, {"1. a", `1\. a`}, {"+ a", `\+ a`}, {"* a", `\* a`}, {"a * b", "a * b"}, {"---", `\---`}, {"~~~ a", `\~\~\~ a`},
		{"|a|b|<br>|-|-|", "\\|a|b|  \n\\|-|-|"}, {"a<br>===", "a  \n\\==="}, {"&lt;b> &gt; ``` [a](b) a_b_ \\", "&lt;b&gt; &gt; \\`\\`\\` \\[a](b) a\\_b\\_ \\\\"},
	} {
		if got := strings.TrimSpace(extracted(t, []byte("<body>"+tt.page), "text/html; charset=utf-8").markdown); got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.page, got, tt.want)
		}
	}
}

// Pieces of text make nothing together that they are not: no mark, no entity, no list.
func TestPieces(t *testing.T) {
	for page, want := range map[string]string{
		`<p>a ~b~ ~<span>~c~</span>~`:                     `a \~b\~ \~\~c\~\~`,
		`<p>yes!<a href=http://a.example.org/>b</a>`:      `yes\![b](http://a.example.org/)`,
		`<p>yes! <a href=http://a.example.org/>b</a>`:     `yes! [b](http://a.example.org/)`,
		`<p>&amp;lt;b&amp;gt; &amp;#60; a&amp;b &amp;x;`:  `&amp;lt;b&amp;gt; &amp;#60; a&b &x;`,
		`<p>&amp;<span>lt;</span> &amp;l<b></b>t<i></i>;`: `&amp;lt; &amp;lt;`,
		`<p>&amp;<span>amp;lt;`:                           `&amp;amp;lt;`,
		`<p>1<span>.</span> a`:                            `1\. a`,
		`<p>1<span>2)</span> a<br>3<b></b>.`:              "12\\) a  \n3\\.",
		`<p>in 1<span>.</span> a`:                         `in 1. a`,
		`<p><code>a</code><code>b</code>`:                 "`a` `b`",
		`<p><code>a</code><b><code>b</code></b>`:          "`a`**`b`**",
		`<p>*<span>*</span>x*<span>*</span> 2 * 3`:        `\*\*x\*\* 2 * 3`,
	} {
		if got := strings.TrimSpace(extracted(t, []byte(page), "text/html; charset=utf-8").markdown); got != want {
			t.Errorf("%s: %q, not %q", page, got, want)
		}
	}
}

// What a page would have browsers do is told in a sentence that the page cannot end.
func TestRefresh(t *testing.T) {
	for _, to := range []string{"http://a/?> SECRET <", "http://a/?)SECRET[", "http://a/?" + strings.Repeat("a", 300) + "SECRET"} {
		got := extracted(t, []byte("<meta http-equiv=refresh content='9;url="+to+"'><p>words"), "text/html").markdown
		if strings.Contains(got, "> SECRET") || strings.Contains(got, ")SECRET") || len(got) > 300 {
			t.Errorf("%q", got)
		}
	}
}
