package fetch

import (
	"context"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"codeberg.org/readeck/go-readability/v2"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// enough is how much of a page's prose its main text must have: with less, what was
// found is one part of several, as a post of a forum is, and the whole is taken.
const enough = 0.7

// markdown is the title and the main text of an HTML page. A page that is too large
// or too deep for a tree is read as it comes, without structure.
// Of more than about so many bytes of text it gives the beginning, and says so.
func markdown(ctx context.Context, content string, at *url.URL, most int) (title, text string, more bool, err error) {
	if !affordable(content) {
		title, text, more = words(ctx, content, most)
		return title, text, more, ended(ctx, nil)
	}
	var note string
	tree := func() (*html.Node, error) {
		doc, err := html.Parse(stoppable{ctx, strings.NewReader(content)})
		if err == nil {
			clean(ctx, doc, at)
			note = refreshOf(doc, at)
			dropBoilerplate(doc)
		}
		return doc, err
	}
	doc, err := tree()
	if err != nil { // deeper than the parser goes, or out of time
		title, text, more = words(ctx, content, most)
		return title, text, more, ended(ctx, nil)
	}
	title = titleOf(doc)
	entitle(doc, title)
	all := prose(mainPart(doc))
	parser := readability.NewParser()
	parser.DisableJSONLD = true
	parser.KeepClasses = true // they tell the language of code
	article, err := parser.ParseAndMutate(doc, at)
	found := article.Node
	if err != nil || found == nil || float64(prose(found)) < enough*float64(all) {
		if doc, err = tree(); err != nil {
			return "", "", false, ended(ctx, err)
		}
		found = mainPart(doc)
	}
	if err := ended(ctx, nil); err != nil {
		return "", "", false, err
	}
	out, more, err := written(ctx, found, most)
	if err != nil {
		return "", "", false, err
	}
	return title, note + strings.TrimSpace(out) + "\n", more, nil
}

// walk visits n and what is below it, until visit says not to go deeper.
func walk(n *html.Node, visit func(*html.Node) (deeper bool)) {
	if !visit(n) {
		return
	}
	for c := n.FirstChild; c != nil; {
		next := c.NextSibling // visit may take c away
		walk(c, visit)
		c = next
	}
}

func first(n *html.Node, tag atom.Atom) (found *html.Node) {
	walk(n, func(n *html.Node) bool {
		if found == nil && n.DataAtom == tag {
			found = n
		}
		return found == nil
	})
	return found
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name && a.Namespace == "" {
			return a.Val
		}
	}
	return ""
}

func has(n *html.Node, name string) bool {
	for _, a := range n.Attr {
		if a.Key == name {
			return true
		}
	}
	return false
}

func textOf(n *html.Node) string {
	var b strings.Builder
	walk(n, func(n *html.Node) bool {
		if n.Type == html.TextNode {
			b.WriteString(n.Data)
		}
		return true
	})
	return b.String()
}

// titleOf is the page's title, or else its first heading.
func titleOf(doc *html.Node) string {
	for _, tag := range []atom.Atom{atom.Title, atom.H1} {
		if n := first(doc, tag); n != nil {
			if t := strings.TrimSpace(textOf(n)); t != "" {
				return cut(t, 4*maxField) // white space is taken out of it yet
			}
		}
	}
	return ""
}

// maxCompared is how much of a title is compared with headings, in bytes: the library
// reads it again for each of them.
const maxCompared = 256

// entitle leaves a page one title, which no machine alone reads, for the library to
// compare headings with.
func entitle(doc *html.Node, title string) {
	walk(doc, func(n *html.Node) bool {
		told := strings.ToLower(attr(n, "name") + " " + attr(n, "property"))
		if n.DataAtom == atom.Title || n.DataAtom == atom.Meta && strings.Contains(told, "title") {
			n.Parent.RemoveChild(n)
			return false
		}
		return true
	})
	if head := first(doc, atom.Head); head != nil && title != "" {
		head.AppendChild(&html.Node{Type: html.ElementNode, DataAtom: atom.Meta, Data: "meta",
			Attr: []html.Attribute{{Key: "property", Val: "og:title"}, {Key: "content", Val: cut(title, maxCompared)}}})
	}
}

// maxRefresh is the longest URL that a sentence of the fetcher's own holds, in bytes.
const maxRefresh = 200

// refreshOf says where a page would move a browser by itself. Nothing follows it.
func refreshOf(doc *html.Node, at *url.URL) (note string) {
	walk(doc, func(n *html.Node) bool {
		if n.DataAtom != atom.Meta || !strings.EqualFold(attr(n, "http-equiv"), "refresh") || note != "" {
			return true
		}
		_, to, _ := strings.Cut(attr(n, "content"), "=")
		if u := destination(absolute(at, strings.Trim(to, ` '"`))); u != "" && len(u) <= maxRefresh {
			note = "This page moves browsers on to <" + u + ">, which was not followed.\n\n"
		}
		return true
	})
	return note
}

// Bounds on links, in bytes: what all links of a page have together, each put together
// with the page's own URL, and the URL that they are told to begin with.
const (
	maxLinks = 512 << 10
	maxBase  = 2 << 10
)

// absolute is a link as it has to be written elsewhere; empty if it leads to no page.
// A user name in it is nobody's business.
func absolute(at *url.URL, ref string) string {
	u, err := at.Parse(percented(strings.TrimSpace(ref)))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "mailto" || len(ref) > maxURL {
		return ""
	}
	u.User = nil
	s := u.String()
	if len(s) > maxURL {
		return ""
	}
	return s
}

// maxLink is the longest text of a link, in bytes: beyond, it is a paragraph in a link
// that nobody ended.
const maxLink = 200

// prose is how much text there is that is not a link, in bytes without white space.
func prose(n *html.Node) (size int) {
	walk(n, func(n *html.Node) bool {
		if n.DataAtom == atom.Head || n.DataAtom == atom.A && len(textOf(n)) <= maxLink {
			return false
		}
		if n.Type == html.TextNode {
			for _, w := range strings.Fields(n.Data) {
				size += len(w)
			}
		}
		return true
	})
	return size
}

// mainPart is the element that says of itself that it is the main one, or the body.
func mainPart(doc *html.Node) (found *html.Node) {
	n := 0
	walk(doc, func(e *html.Node) bool {
		if e.DataAtom == atom.Main || e.Type == html.ElementNode && strings.EqualFold(attr(e, "role"), "main") {
			found = e
			n++
			return false
		}
		return true
	})
	if n == 1 {
		return found
	}
	if body := first(doc, atom.Body); body != nil {
		return body
	}
	return doc
}

var (
	asideRoles = regexp.MustCompile(`(?i)^(navigation|banner|contentinfo|complementary|search|menu|menubar|dialog|alertdialog|toolbar)$`)
	asideNames = regexp.MustCompile(`(?i)(^|[\s_-])(cookies?|consent|gdpr|newsletter|subscribe|breadcrumbs?|share|sharing|social|sidebar|related|sponsored|advert(isement)?s?|ads?|promo|popup|modal)([\s_-]|$)`)
)

// boilerplate reports whether an element is around the text of a page and not of it:
// by what it is, or, where it is no more than a third of the page, by what it is
// called.
func boilerplate(n *html.Node, whole int) bool {
	switch n.DataAtom {
	case atom.Nav, atom.Footer, atom.Button, atom.Select, atom.Input, atom.Textarea, atom.Menu:
		return true
	case atom.Aside:
		return !inside(n, atom.Main, atom.Article) || asideNames.MatchString(attr(n, "class"))
	case atom.Header:
		return n.Parent != nil && n.Parent.DataAtom == atom.Body && first(n, atom.H1) == nil
	case atom.Html, atom.Body, atom.Main, atom.Article, atom.H1:
		return false
	}
	if !asideRoles.MatchString(attr(n, "role")) && !asideNames.MatchString(attr(n, "class")) && !asideNames.MatchString(attr(n, "id")) {
		return false
	}
	return first(n, atom.H1) == nil && first(n, atom.Main) == nil && first(n, atom.Article) == nil && prose(n) <= whole/3
}

func inside(n *html.Node, tags ...atom.Atom) bool {
	for p := n.Parent; p != nil; p = p.Parent {
		if slices.Contains(tags, p.DataAtom) {
			return true
		}
	}
	return false
}

func dropBoilerplate(doc *html.Node) {
	whole := prose(doc)
	walk(doc, func(n *html.Node) bool {
		if n.Type == html.ElementNode && n.Parent != nil && boilerplate(n, whole) {
			n.Parent.RemoveChild(n)
			return false
		}
		return true
	})
}

// clean takes away what a reader of the page would not see, makes links absolute,
// and leaves of attributes only those that tell what a thing is.
func clean(ctx context.Context, doc *html.Node, at *url.URL) {
	if b := first(doc, atom.Base); b != nil {
		if u, err := at.Parse(cut(attr(b, "href"), maxBase)); err == nil && len(attr(b, "href")) <= maxBase && (u.Scheme == "http" || u.Scheme == "https") {
			at = u
		}
	}
	dropUnseen(ctx, doc)
	links := maxLinks
	walk(doc, func(n *html.Node) bool {
		if n.Type != html.ElementNode {
			return true
		}
		kept := n.Attr[:0]
		for _, a := range n.Attr {
			switch a.Key {
			case "href", "src":
				if n.DataAtom != atom.A && n.DataAtom != atom.Img {
					continue
				}
				if links <= 0 {
					continue
				}
				a.Val = absolute(at, a.Val)
				links -= max(len(a.Val), len(at.Path))
				if a.Val == "" || n.DataAtom == atom.Img && strings.TrimSpace(attr(n, "alt")) == "" {
					continue
				}
			case "alt", "class", "id", "role", "rel", "itemprop", "property", "name", "content", "datetime", "lang", "dir", "colspan", "rowspan", "start", "http-equiv", "charset", "type":
			default:
				continue
			}
			kept = append(kept, a)
		}
		n.Attr = kept
		if n.DataAtom == atom.Img && attr(n, "src") == "" {
			n.Parent.RemoveChild(n)
			return false
		}
		return true
	})
}
