package fetch

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// treeless makes a page one that no tree is made of.
var treeless = strings.Repeat("<div>", 600)

// passes reports whether the word TEXT of a page is in what is read of it.
func passes(t *testing.T, page string) bool {
	t.Helper()
	fill := strings.Repeat("<p>Ordinary words of a page that is long enough, with commas, and so on and so forth.</p>", 6)
	return strings.Contains(extracted(t, []byte(fill+page+fill), "text/html; charset=utf-8").markdown, "TEXT")
}

// What a page's own sheets hide is not in its text, and what they do not hide is: with a
// tree, and, but for what stands around an element, without one.
func TestSheets(t *testing.T) {
	for _, tt := range []struct {
		page  string
		shown bool
		tree  bool // it takes a tree to tell
	}{
		{page: `<style>.q{display:none}</style><p class=q>TEXT`},
		{page: `<style>#q{display:none}</style><p id=q>TEXT`},
		{page: `<style>x-q{display:none}</style><x-q>TEXT</x-q>`},
		{page: `<style>*{display:none}</style><p>TEXT`},
		{page: `<style>P.Q{DISPLAY:NONE}</style><p class=q>TEXT`},
		{page: `<style>p.q.r{display:none}</style><p class="a r q">TEXT`},
		{page: `<style>p.q.r{display:none}</style><p class=q>TEXT`, shown: true},
		{page: `<style>div.q{display:none}</style><p class=q>TEXT`, shown: true},
		{page: `<style>.q{display:none}</style><p class=qq>TEXT`, shown: true},
		{page: `<style>.\71{display:none}</style><p class=q>TEXT`},
		{page: `<style>.a\:q{display:none}</style><p class="a:q">TEXT`},
		{page: `<style>.a,.q , .b{display:none}</style><p class=q>TEXT`},
		{page: `<style>@charset "utf-8";.q{display:none}</style><p class=q>TEXT`},
		{page: `<style>@import url(x.css;a); .q{display:none}</style><p class=q>TEXT`},
		{page: `<style>@layer a, b; @font-face{src:url(x)} .q{display:none}</style><p class=q>TEXT`},
		{page: `<style><!-- .q{display:none} --></style><p class=q>TEXT`},
		{page: `<style>/* } */.q/**/{/**/display/**/:/**/none/**/}</style><p class=q>TEXT`},
		{page: `<style>/* .q{display:none} */</style><p class=q>TEXT`, shown: true},
		{page: `<style>.a:after{content:"}/*"} .q{display:none}</style><p class=q>TEXT`},
		{page: `<style>.a:after{content:"{"} .q{display:none}</style><p class=q>TEXT`},
		{page: `<style>.a:after{content:"/*"} .q{display:none} .b:after{content:"*/"}</style><p class=q>TEXT`},
		{page: `<style>.a{background:url(data:x;'y)} .q{display:none}</style><p class=q>TEXT`},
		{page: `<style>.a{background:url( 'x)' )} .q{display:none}</style><p class=q>TEXT`},
		{page: "<style>.a{content:\"x\n} .q{display:none}</style><p class=q>TEXT"},
		{page: `<style>@media screen{.q{display:none}}</style><p class=q>TEXT`},
		{page: `<style>@media (min-width:600px) and (hover){@supports (display:grid){.q{display:none}}}</style><p class=q>TEXT`},
		{page: `<style>@media print{.q{display:none}}</style><p class=q>TEXT`, shown: true},
		{page: `<style media=print>.q{display:none}</style><p class=q>TEXT`, shown: true},
		{page: `<style media="screen, print">.q{display:none}</style><p class=q>TEXT`},
		{page: `<style type=text/less>.q{display:none}</style><p class=q>TEXT`, shown: true},
		{page: `<style>@media (max-width:600px){.q{display:none}}</style><p class=q>TEXT`, shown: true},
		{page: `<style>@media (prefers-color-scheme:dark){.q{display:none}}</style><p class=q>TEXT`, shown: true},
		{page: `<style>@media all and (-ms-high-contrast:none),(-ms-high-contrast:active){.q{display:none}}</style><p class=q>TEXT`, shown: true},
		{page: `<style>.q{display:none}@media (-ms-high-contrast:none){.q{display:block}}</style><p class=q>TEXT`},
		{page: `<style>.q{display:none}@supports (-ms-ime-align:auto){.q{display:block}}</style><p class=q>TEXT`},
		{page: `<style>@media (who-knows){.q{display:none}}</style><p class=q>TEXT`},
		{page: `<style>.q{display:none}@media (who-knows){.q{display:block}}</style><p class=q>TEXT`},
		{page: `<style>.q{display:none}@media (min-width:600px){.q{display:block}}</style><p class=q>TEXT`, shown: true},
		{page: `<style>.q{display:none}</style><style media=print>.q{display:block}</style><p class=q>TEXT`},
		{page: `<style>.q{display:none} nope .q{display:block}</style><p class=q>TEXT`},
		{page: `<style>.q{display:none}.q:hover,.q::before,.q:target{display:block}</style><p class=q>TEXT`},
		{page: `<style>.q:hover{display:none}</style><p class=q>TEXT`, shown: true},
		{page: `<style>.q::before{display:none}</style><p class=q>TEXT`, shown: true},
		{page: `<style>.q{display:none}.q.on{display:block}</style><p class="q on">TEXT`, shown: true},
		{page: `<style>.q.on{display:block}.q{display:none}</style><p class="q on">TEXT`, shown: true},
		{page: `<style>#i{display:none}.q{display:block}</style><p id=i class=q>TEXT`},
		{page: `<style>.q{display:none!important}#i{display:block}</style><p id=i class=q>TEXT`},
		{page: `<style>.q{display:none}</style><p class=q style="display:block">TEXT`, shown: true},
		{page: `<style>.q{display:none!important}</style><p class=q style="display:block">TEXT`},
		{page: `<style>.q{position:absolute}.r{left:-9999px}</style><p class="q r">TEXT`},
		{page: `<style>.q:not(.r){display:none}</style><p class=q>TEXT`},
		{page: `<style>.q:not(.r){display:none}</style><p class="q r">TEXT`, shown: true},
		{page: `<style>:is(.a,.q):not(:hover){display:none}</style><p class=q>TEXT`},
		{page: `<style>x-q:not(:defined){display:none}</style><x-q>TEXT</x-q>`, shown: true},
		{page: `<style>[data-q="1"]{display:none}</style><p data-q=1>TEXT`},
		{page: `<style>[v-cloak]{display:none}</style><p v-cloak>TEXT`, shown: true}, // until a script has run
		{page: `<style>.modal{display:flex}</style><p class="modal hidden">TEXT`},
		{page: `<style>.hidden{display:none}</style><p class="hidden md:block">TEXT`, shown: true},
		{page: `<style>.d-none{display:none!important}</style><p class="d-none d-md-block">TEXT`, shown: true},
		{page: `<style>.q{display:none}</style><p class="q md:block">TEXT`},
		{page: `<style>.modal{display:flex}[hidden]{display:none}</style><p class=modal hidden>TEXT`},
		{page: `<style>p.hidden.on{display:flex}</style><p class="hidden on">TEXT`, shown: true},
		{page: `<style>[data-q^=a]{display:none}</style><p data-q=b>TEXT`, shown: true},
		{page: `<style>.q:nth-child(n){display:none}</style><p class=q>TEXT`},
		{page: `<style>p:empty{display:none}</style><p>TEXT`, shown: true},
		{page: `<style>p:first-child{display:none}</style><div><b></b><p>TEXT</div>`, shown: true},
		{page: `<style>p:first-child{display:none}</style><div><p>TEXT</div>`, tree: true},
		{page: `<style>#w .q{display:none}</style><div id=w><p class=q>TEXT</div>`},
		{page: `<style>#w .q{display:none}</style><div><p class=q>TEXT</div>`, shown: true, tree: true},
		{page: `<style>#w>.q{display:none}</style><div id=w><div><p class=q>TEXT</div></div>`, shown: true, tree: true},
		{page: `<style>#w>div .q{display:none}</style><div id=w><div><p class=q>TEXT</div></div>`},
		{page: `<style>b+.q{display:none}</style><div><b></b> <i class=q>TEXT</i></div>`},
		{page: `<style>b~.q{display:none}</style><div><b hidden></b><u></u><i class=q>TEXT</i></div>`},
		{page: `<style>b~.q{display:none}</style><div><i class=q>TEXT</i><b></b></div>`, shown: true, tree: true},
		{page: `<style>input:checked~.q{display:block!important}.q{display:none}</style><div><input type=checkbox checked><i class=q>TEXT</i></div>`, shown: true, tree: true},
		{page: `<style>.w{color:red;.q{display:none}&.r{display:none}}</style><div class=w><p class=q>TEXT</div>`},
		{page: `<style>.w{&.r{display:none}}</style><div class="w r">TEXT</div>`},
		{page: `<style>.w{display:none;@media print{display:block}}</style><div class=w>TEXT</div>`},
		{page: `<style>.w{&.r{display:block}display:none}</style><div class="w r">TEXT</div>`, shown: true},
		{page: `<style>.q{opacity:0;animation:in 1s forwards}@keyframes in{from{opacity:0}to{opacity:1}}</style><p class=q>TEXT`, shown: true},
		{page: `<style>.q{opacity:0;animation:in 1s forwards}@keyframes in{from{opacity:1}to{opacity:0}}</style><p class=q>TEXT`},
		{page: `<style>.w{visibility:hidden}.q{visibility:visible}</style><div class=w>a<p class=q>TEXT</div>`, shown: true, tree: true},
		{page: `<style>.w{visibility:hidden}</style><div class=w>a<p><b>TEXT</b></div>`},
		{page: `<style>.w{font-size:0}.q{font-size:16px}</style><div class=w>a<p class=q>TEXT</div>`, shown: true, tree: true},
		{page: `<style>.w{font-size:0}.q{font-size:2em}</style><div class=w>a<p class=q>TEXT</div>`},
		{page: `<style>.w{color:transparent}.q{color:red}</style><div class=w>a<p class=q>TEXT</div>`, shown: true, tree: true},
		{page: `<style>.q{color:transparent;background:linear-gradient(red,blue);background-clip:text}</style><p class=q>TEXT`, shown: true},
		{page: `<style>body{visibility:hidden}</style><p>TEXT`, shown: true}, // until a script has run
		{page: `<template><style>.q{display:none}</style></template><p class=q>TEXT`, shown: true, tree: true},
		{page: `<script>"<style>"</script><style>.q{display:none}</style><p class=q>TEXT`},
	} {
		if got := passes(t, tt.page); got != tt.shown {
			t.Errorf("%s: %v", tt.page, got)
		}
		if got := passes(t, tt.page+treeless); got != tt.shown && !tt.tree {
			t.Errorf("without a tree: %s: %v", tt.page, got)
		}
	}
}

// Names that hide, and take it back where there is room.
func TestNames(t *testing.T) {
	for attrs, want := range map[string]bool{
		`class="hidden"`: false, `class="d-none"`: false, `class="a is-hidden b"`: false, `class="sr-only"`: false, `class="visually-hidden-focusable"`: false, `class="sr-only focus:not-sr-only"`: false,
		`class="hidden md:block"`: true, `class="d-none d-md-block"`: true, `class="hidden lg:inline-flex"`: true, `class="hidden min-[40rem]:block"`: true, `class="hidden [&>p]:block"`: false, `class="sr-only sm:not-sr-only"`: true, `class="d-none d-xl-table-cell"`: true,
		`class="hidden md:hidden"`: false, `class="d-none d-print-block"`: false, `class="hidden print:block"`: false, `class="hidden dark:block"`: false, `class="hidden hover:block"`: false,
		`class="hidden" style="display:flex"`: true, `class="d-none" style="display:flex"`: false, `class="d-none" style="display:flex!important"`: true, `hidden`: false, `hidden=until-found`: false, `hidden style="display:block"`: true, `popover`: false, `popover=manual`: false, `aria-hidden=" TRUE "`: false, `aria-hidden=false`: true,
	} {
		for _, end := range []string{"", treeless} {
			if got := passes(t, "<div "+attrs+">TEXT</div>"+end); got != want {
				t.Errorf("%s: %v", attrs, got)
			}
		}
	}
	for page, want := range map[string]bool{
		"<ruby>x<rp>TEXT</rp></ruby>": false, "<math><semantics><mi>x</mi><annotation-xml encoding=text/html><p>TEXT</p></annotation-xml></semantics></math>": false,
		"<img width=1 height=1 src=a alt=TEXT>": false, "<img width=10 height=10 src=a alt=TEXT>": true, "<img width=500 height=0 src=a alt=TEXT>": true, "<dialog>TEXT</dialog>": false, "<dialog open>TEXT</dialog>": true,
	} {
		if got := passes(t, page); got != want {
			t.Errorf("%s: %v", page, got)
		}
	}
	if got := extracted(t, []byte("<body><ruby>a<rp>(</rp><rt>b</rt><rp>)</rp></ruby>"), "text/html").markdown; got != "a(b)\n" {
		t.Errorf("%q", got)
	}
}

// Where no tree is made of a page, what is hidden ends where it ends in browsers, or
// later, and its text reads as it is.
func TestUnclosed(t *testing.T) {
	for page, want := range map[string]bool{
		"<p hidden>a</p>TEXT": true, "<p hidden>a<p>TEXT": true, "<p hidden>a<div>TEXT": true, "<div hidden>a<p>b</div>TEXT": true, "<div><p hidden>a</div>TEXT": true,
		"<ul><li hidden>a<li>TEXT</ul>": true, "<ul><li hidden>a</ul>TEXT": true, "<table><tr><td hidden>a<td>TEXT</table>": true, "<table><tr hidden><td>a<tr><td>TEXT</table>": true, "<dl><dt hidden>a<dd>TEXT</dl>": true,
		"<ul><li hidden>a<ul><li>TEXT</ul></ul>": false, "<table><tr><td hidden>a<table><tr><td>TEXT</table></table>": false, "<div hidden>a<table><tr><td></div>TEXT</table>": false,
		"<dl><dt hidden>a<dl><dd>TEXT</dl></dl>": false, "<div hidden><div></div>TEXT</div>": false, "<div hidden></p></span>TEXT</div>": false, "<span hidden></div>TEXT</span>": false,
		"<div><table><tr><td hidden>a</div>TEXT</table>": false, "<b hidden>a<p>TEXT</b>": false, "<p><b hidden>a</p><p>TEXT</b>": false,
		"<svg/>TEXT": true, "<math/>TEXT": true, "<svg><g/></svg>TEXT": true, "<svg><g>TEXT</g></svg>": false, "<div hidden/>TEXT": false, "<br hidden>TEXT": true, "<img hidden>TEXT": true,
		"<ruby>x<rp>TEXT</rp></ruby>": false, "<div hidden>" + treeless + "</div>TEXT": false, "<textarea hidden><p></textarea>TEXT": true,
	} {
		for _, doctype := range []string{"", "<!doctype html>"} {
			_, text, _ := words(t.Context(), doctype+page, 1000)
			if got := strings.Contains(text, "TEXT"); got != want {
				t.Errorf("%s: %v", page, got)
			}
		}
	}
	u := &unclosed{sheet: newSheet(), outside: map[string]int{}}
	for i := range 2 * maxOutside {
		u.start(&html.Node{Type: html.ElementNode, Data: fmt.Sprintf("x-%d", i)}, false)
	}
	for range 2 * maxHidden {
		u.start(&html.Node{Type: html.ElementNode, DataAtom: atom.Div, Data: "div", Attr: []html.Attribute{{Key: "hidden"}}}, false)
	}
	if len(u.hidden) > maxHidden || len(u.outside) > maxOutside {
		t.Errorf("%d and %d elements are remembered", len(u.hidden), len(u.outside))
	}
	table := "<p hidden>a<table><tr><td></p>TEXT"
	if _, text, _ := words(t.Context(), table, 1000); strings.Contains(text, "TEXT") {
		t.Error("a table ends no paragraph without a doctype")
	}
	if _, text, _ := words(t.Context(), "<!doctype html>"+table, 1000); !strings.Contains(text, "TEXT") {
		t.Error("a table ends a paragraph")
	}
	if _, text, _ := words(t.Context(), "&lt;b> <p># a<p>[x](javascript:y) ```", 1000); text != "&lt;b&gt;\n\\# a\n\\[x](javascript:y) \\`\\`\\`\n" {
		t.Errorf("%q", text)
	}
}

// Media are those of an ordinary window.
func TestOnScreen(t *testing.T) {
	for list, want := range map[string]verdict{
		"": yes, "all": yes, "screen": yes, "only screen": yes, "print": no, "not print": yes, "not screen": no, "print, screen": yes, "speech": no, "tv": no,
		"(min-width: 40em)": yes, "(max-width: 40em)": no, "screen and (min-width:600px) and (max-width:900px)": no, "(width >= 600px)": yes, "(width<600px)": no, "(min-width: calc(1px + 1em))": perhaps,
		"(orientation:landscape)": yes, "(orientation: portrait)": no, "(hover)": yes, "(hover: none)": no, "(prefers-reduced-motion)": no, "(prefers-reduced-motion: reduce)": no, "(prefers-contrast: no-preference)": yes,
		"(forced-colors: active)": no, "(color)": yes, "(who-knows)": perhaps, "not (who-knows)": perhaps, "screen and (who-knows)": perhaps, "print and (who-knows)": no,
	} {
		if got := onScreen(list); got != want {
			t.Errorf("%q: %v", list, got)
		}
	}
}

// Whoever makes it too hard to tell what a sheet hides has all of it hidden.
func TestSteps(t *testing.T) {
	page := "<style>" + strings.Repeat("a~p~p~p~.q{display:none}", 500) + "</style><div>" + strings.Repeat("<p class=q>x", 3000) + "<p class=q>TEXT</div><p>after"
	got := extracted(t, []byte(page), "text/html").markdown
	if strings.Contains(got, "TEXT") || !strings.Contains(got, "after") {
		t.Errorf("%.300q", got)
	}
}

// Every attribute that is looked at is a step, and nothing is looked at for longer than
// there is time.
func TestStepsOfAttributes(t *testing.T) {
	rules := strings.Repeat("#a>p,", 3000) + strings.Repeat("[z=q]>p,", 3000) + "#a>p{display:none}"
	for name, at := range map[string]string{"one": "", "many": numbered(20_000, " a%x")} {
		doc, err := html.Parse(strings.NewReader("<style>" + rules + "</style><div" + at + ">" + strings.Repeat("<p>x", 100) + "</div>"))
		if err != nil {
			t.Fatal(err)
		}
		s := sheetOf(doc)
		walk(doc, func(n *html.Node) bool {
			s.look(n, veil{})
			return true
		})
		if got := s.steps > maxSteps; got != (name == "many") {
			t.Errorf("%s: %d steps", name, s.steps)
		}
	}
	doc, err := html.Parse(strings.NewReader("<p>x"))
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	dropUnseen(over, doc)
	if said := textOf(doc); said != "" {
		t.Errorf("without time left it shows %q", said)
	}
}
