package fetch

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
	"github.com/corral-sandbox/corral/test/lab"
)

// to repeats s up to n bytes.
func to(n int, s string) string { return strings.Repeat(s, n/len(s)+1)[:n] }

// numbered is n bytes of words that are all different.
func numbered(n int, word string) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, word, i)
	}
	return b.String()[:n]
}

// hostilePages are made to cost whoever reads them.
func hostilePages() map[string]string {
	const most = 5 << 20
	fonts := ""
	for i := range 400 {
		fonts += fmt.Sprintf("<font size=%d>", i)
	}
	var misnested strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&misnested, "<a href=%d><b><i><p>x<table><tr><td>y", i)
	}
	return map[string]string{
		"paragraphs":                    to(most, "<p>a"),
		"as many nodes as there may be": strings.Repeat("<p>some words here, and there</p>", maxNodes/4-10),
		"links":                         strings.Repeat("<div><a href=x>a</a> b</div>", maxNodes/9),
		"one attribute":                 "<p a=" + to(most-100, "x") + ">b",
		"attributes":                    "<p " + to(most-100, "abc ") + ">b",
		"many with some":                strings.Repeat("<p class=a id=b title=c lang=d>x", maxNodes/8),
		"formatting":                    "<div>" + fonts + "</div>" + to(most-20000, "<p>x</p>"),
		"adoption":                      misnested.String(),
		"deep":                          strings.Repeat("<div>", 500) + to(most-5000, "words, "),
		"deep and many":                 strings.Repeat(strings.Repeat("<div>", 400)+"words, and words"+strings.Repeat("</div>", 400), 100),
		"deeper":                        to(most, "<div>"),
		"tables":                        strings.Repeat("<table><tr><td>", 8000),
		"cells":                         "<table>" + strings.Repeat("<tr><td>a<td>b", maxNodes/9),
		"lists":                         to(most, "<ul><li>"),
		"text":                          to(most, "words and more words, "),
		"one word":                      to(most, "w"),
		"entities":                      to(most, "&amp;&lt;&CounterClockwiseContourIntegral;"),
		"blanks":                        to(most, " "),
		"markdown":                      "<p>" + to(most-10, "*_`[]()#+-!\\|"),
		"comments":                      to(most, "<!---->"),
		"unclosed":                      to(most, "<!"),
		"select":                        "<select>" + to(most-10, "<option>x"),
		"pre":                           "<pre>" + to(most-10, "line\n"),
		"style":                         "<style>" + to(most/2, ".a{display:none}") + "</style><p class=a>x",
		"styles":                        strings.Repeat("<p style='position:absolute;left:-9999px;color:red'>x", maxNodes/5),
		"quotes":                        strings.Repeat("<blockquote>", 400) + to(most-10000, "a<br>"),
		"code":                          to(most, "<code>`"),
		"svg":                           to(most, "<svg><g>"),
		"templates":                     to(most, "<template>"),
		"headings":                      strings.Repeat("<h1>a</h1>", maxNodes/4),
		"images":                        strings.Repeat("<img alt=a src=b>", maxNodes/5),
		"columns":                       "<table><tr><td colspan=99999999>a<td>b<tr><td>c<td>d</table>",
		"rows":                          "<table><tr><td rowspan=99999999>a<td>b<tr><td>c<td>d</table>",
		"spans":                         "<table>" + strings.Repeat("<tr><td colspan=1000 rowspan=60000>a<td colspan=1000>b", maxNodes/20),
		"a wide column":                 "<table><tr><th>a<th>" + to(most/5, "w") + strings.Repeat("<tr><td>a<td>b", 3000),
		"a wide row":                    "<table><tr>" + strings.Repeat("<td>a", 10000) + strings.Repeat("<tr><td>x", 10000),
		"a long base":                   "<base href=http://a/" + to(100_000, "a") + "/>" + strings.Repeat("<a href=b>x</a> ", 10_000),
		"a base":                        "<base href=http://a/" + to(2000, "a") + "/>" + strings.Repeat("<a href=b>x</a> ", 15_000),
		"links to itself":               "<p>" + strings.Repeat("<a href=?>x</a> ", 15_000),
		"escaped links":                 "<p>" + strings.Repeat("<a href='"+strings.Repeat("ü", 1000)+"'>x</a> ", 2000),
		"selectors":                     "<style>" + to(120_000, ".a,") + ".a{" + to(120_000, ";") + "}</style><p>x",
		"rules":                         "<style>" + to(250_000, ".a{color:red}") + "</style>" + strings.Repeat("<p class=b>x", 20_000),
		"selectors of a deep page":      "<style>" + strings.Repeat("b div div div div div div p{display:none}", 2000) + "</style>" + strings.Repeat(strings.Repeat("<div>", 300)+"<p>x"+strings.Repeat("</div>", 300), 50),
		"selectors of siblings":         "<style>" + strings.Repeat("a~p~p~p~p{display:none}", 2000) + "</style>" + strings.Repeat("<p>x", 20_000),
		"selectors of classes":          "<style>" + strings.Repeat(".b.b.b.b.b.b.c{display:none}", 6000) + "</style>" + strings.Repeat("<p class='"+strings.Repeat("b ", 500)+"'>x", 4000),
		"tests":                         "<style>" + strings.Repeat("[a],", 60_000) + "[a]{display:none}" + strings.Repeat("[a]", 10_000) + "{top:0}</style>" + strings.Repeat("<p a>x", 10_000),
		"rules in rules":                "<style>" + strings.Repeat(strings.Repeat(".a,", 30)+".a{", 8) + "top:0" + strings.Repeat("}", 8) + strings.Repeat("a{", 50_000) + "</style><p class=a>x",
		"not not":                       "<style>" + strings.Repeat(":not(", 40_000) + strings.Repeat(")", 40_000) + "{top:0}" + strings.Repeat(":is(", 5_000) + "</style><p>x",
		"strings in sheets":             "<style>" + strings.Repeat("'\n", 80_000) + "</style><style>" + strings.Repeat("((", 50_000) + "</style><p>x",
		"classes":                       strings.Repeat("<p class='"+strings.Repeat("hidden-md md:x ", 5000)+"'>x", 60),
		"brackets":                      "<p>" + to(most/5, "["),
		"images in brackets":            "<p>" + to(most/5, "!["),
		"pieces of text":                "<p>" + strings.Repeat("some forty bytes of words and more words<!---->", maxNodes/3),
		"code in bold":                  "<p>x " + strings.Repeat("<b><code>x</code></b><u></u>", maxNodes/20) + to(most/3, "word "),
		"spans in bold":                 "<p>" + strings.Repeat(strings.Repeat("<span>", 300)+"<b>x</b>"+strings.Repeat("</span>", 300), 100),
		"a title of headings":           "<title>" + to(2_000_000, "word ") + "</title>" + strings.Repeat("<h2>a b</h2>", 3000) + "<p>some words, and more words",
		"a heading of headings":         "<h1>" + to(2_000_000, "word ") + "</h1>" + strings.Repeat("<h2>a b</h2>", 3000) + "<p>some words, and more words",
		"titles of headings":            "<meta property=og:title content='" + to(2_000_000, "word ") + "'><meta name=dc.title content='" + to(2_000_000, "word ") + "'>" + strings.Repeat("<h2>a b</h2>", 3000) + "<p>some words, and more words",
		"a title of many words":         "<title>" + numbered(most-200, "-%x") + "</title><h2>a b</h2><p>some words, and more words",
		"ids and attributes":            "<style>" + strings.Repeat("#a>p,", 3500) + "#a>p{top:0}</style><div" + numbered(30_000, " a%x") + ">" + strings.Repeat("<p>x", 3000) + "</div>",
		"tests and attributes":          "<style>" + strings.Repeat("[z=q] p,", 5000) + "[z=q] p{top:0}</style><div" + numbered(170_000, " a%x") + " z>" + strings.Repeat("<p>x", 3000) + "</div>",
		"long lines in quotes":          strings.Repeat("<blockquote><ul><li>", 100) + "<pre>" + to(most/2, "\n"),
	}
}

// hostileHost serves them, under their names, also compressed and in other charsets.
func hostileHost(t testing.TB, l *lab.Lab) (paths []string) {
	pages := map[string]func(http.ResponseWriter){}
	add := func(name, headers string, body []byte) {
		pages["/"+strings.ReplaceAll(name, " ", "-")] = func(w http.ResponseWriter) {
			for line := range strings.Lines(headers) {
				key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
				w.Header().Set(key, value)
			}
			w.Write(body)
		}
	}
	for name, body := range hostilePages() {
		add(name, "Content-Type: text/html; charset=utf-8", []byte(body))
	}
	add("latin", "Content-Type: text/html; charset=windows-1252", []byte("<p>"+to(5<<20-10, "\x80\x80\x80\x80 ")))
	add("plain", "Content-Type: text/plain", []byte(to(5<<20, "words, ")))
	add("json", "Content-Type: application/json", []byte(to(5<<20, "\"\\u0000<\x01\"")))
	zip := func(b []byte) []byte {
		var out bytes.Buffer
		z, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed)
		z.Write(b)
		z.Close()
		return out.Bytes()
	}
	add("bomb", "Content-Type: text/html\nContent-Encoding: gzip", zip(make([]byte, 256<<20)))
	add("members", "Content-Type: text/html\nContent-Encoding: gzip", bytes.Repeat(zip([]byte("<p>x")), 200_000))
	add("zipped", "Content-Type: text/html\nContent-Encoding: gzip", zip([]byte(to(5<<20, "<p>words, "))))
	pages["/blocks-of-nothing"] = func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Content-Encoding", "gzip")
		w.Write([]byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"))
		for b := bytes.Repeat([]byte("\x02\x08\x20\x80\x00"), 8<<10); ; { // four empty blocks in five bytes
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	}
	pages["/itself?"+to(maxURL-100, "a")] = pages["/links-to-itself"]
	pages["/endless"] = func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/html")
		for b := bytes.Repeat([]byte("<p>words"), 8<<10); ; {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	}
	l.Handle(t, hopHost, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if page := pages[r.URL.RequestURI()]; page != nil {
			page(w)
		}
	}))
	for path := range pages {
		paths = append(paths, path)
	}
	return paths
}

// Six hostile pages at a time, of as many kinds, and of the heaviest ones six of a
// kind (in make long, of every one): each ends in a page or in a clear error, and the process never grows beyond 128 MiB.
func TestHostilePages(t *testing.T) {
	l := lab.Use(t)
	l.Reset()
	l.DNS.Set(hopHost, lab.A(hopAddr))
	paths := hostileHost(t, l)
	bin := filepath.Join(t.TempDir(), "corral-fetch")
	build := exec.Command("go", "build", "-trimpath", "-o", bin, "../../cmd/corral-fetch")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), bin, "serve", "--listen", freePort(t), "--resolvers", lab.NameServer.String())
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr lines
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(stdout)
	said, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	go out.WriteTo(new(lines))
	a := &asker{t: t, at: "http://" + listensAt(t, said), lab: l, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	var worst int
	var rounds [][]string
	for six := range slices.Chunk(slices.Sorted(slices.Values(paths)), 6) {
		rounds = append(rounds, six)
	}
	for _, path := range paths {
		if slices.Contains([]string{"/one-word", "/as-many-nodes-as-there-may-be", "/pieces-of-text", "/spans", "/a-title-of-many-words"}, path) || os.Getenv("CORRAL_TEST_SWEEPS") == "all" {
			rounds = append(rounds, slices.Repeat([]string{path}, 6))
		}
	}
	for _, six := range rounds {
		var wg sync.WaitGroup
		for _, p := range six {
			wg.Go(func() {
				s, err := a.try(context.Background(), `{"url": "http://`+hopHost+p+`"}`)
				if err != nil || s.code != 200 && s.reason() != spec.FetchTooLarge && s.reason() != spec.FetchContentEncoding && s.reason() != spec.FetchTimeout {
					t.Errorf("%s: %v, %v", p, s, err)
				}
			})
		}
		wg.Wait()
		peak := highWater(t, cmd.Process.Pid)
		if peak > worst {
			t.Logf("%v: %d MiB", six, peak>>20)
			worst = peak
		}
	}
	if worst > 128<<20 {
		t.Errorf("%d MiB resident", worst>>20)
	}
	if s := stderr.String(); s != "" {
		t.Errorf("it printed %q", s)
	}
}

// highWater is the most that a process has had resident, in bytes.
func highWater(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "VmHWM:" {
			n, err := strconv.Atoi(words[1])
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}
