package fetch

import (
	"context"
	"net/url"
	"regexp"
	"strings"

	"codeberg.org/readeck/go-readability/v2"
	"github.com/JohannesKaufmann/html-to-markdown/v2/converter"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/base"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/commonmark"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/strikethrough"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/table"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// enough is how much of a page's prose its main text must have: with less, what was
// found is one part of several, as a post of a forum is, and the whole is taken.
const enough = 0.5

// markdown is the title and the main text of an HTML page. A page that is too large
// or too deep for a tree is read as it comes, without structure.
func markdown(ctx context.Context, content string, at *url.URL) (title, text string, err error) {
	if !affordable(content) {
		title, text = words(content, defaults().Text)
		return title, text, ended(ctx, nil)
	}
	tree := func() (*html.Node, error) {
		doc, err := html.Parse(stoppable{ctx, strings.NewReader(content)})
		if err == nil {
			clean(doc, at)
		}
		return doc, err
	}
	doc, err := tree()
	if err != nil { // deeper than the parser goes, or out of time
		title, text = words(content, defaults().Text)
		return title, text, ended(ctx, nil)
	}
	title = titleOf(doc)
	note := refreshOf(doc, at)
	all := prose(mainPart(doc))
	parser := readability.NewParser()
	parser.DisableJSONLD = true
	article, err := parser.ParseAndMutate(doc, at)
	found := article.Node
	if err != nil || found == nil || float64(prose(found)) < enough*float64(all) {
		if doc, err = tree(); err != nil {
			return "", "", ended(ctx, err)
		}
		found = mainPart(doc)
		dropBoilerplate(found)
	} else if t := article.Title(); t != "" {
		title = t
	}
	if err := ended(ctx, nil); err != nil {
		return "", "", err
	}
	out, err := toMarkdown.ConvertNode(found, converter.WithContext(ctx))
	if err != nil {
		return "", "", err
	}
	return title, note + strings.TrimSpace(string(out)) + "\n", nil
}

var toMarkdown = converter.NewConverter(converter.WithPlugins(
	base.NewBasePlugin(), commonmark.NewCommonmarkPlugin(), table.NewTablePlugin(), strikethrough.NewStrikethroughPlugin(),
))

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
				return t
			}
		}
	}
	return ""
}

// refreshOf says where a page would move a browser by itself. Nothing follows it.
func refreshOf(doc *html.Node, at *url.URL) (note string) {
	walk(doc, func(n *html.Node) bool {
		if n.DataAtom != atom.Meta || !strings.EqualFold(attr(n, "http-equiv"), "refresh") || note != "" {
			return true
		}
		_, to, _ := strings.Cut(attr(n, "content"), "=")
		if u := absolute(at, strings.Trim(to, ` '"`)); u != "" {
			note = "This page moves browsers on to <" + u + ">, which was not followed.\n\n"
		}
		return true
	})
	return note
}

// absolute is a link as it has to be written elsewhere; empty if it leads to no page.
func absolute(at *url.URL, ref string) string {
	u, err := at.Parse(strings.TrimSpace(ref))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "mailto" || len(ref) > maxURL {
		return ""
	}
	return u.String()
}

// prose is how much text there is that is not a link, in bytes without white space.
func prose(n *html.Node) (size int) {
	walk(n, func(n *html.Node) bool {
		if n.DataAtom == atom.A || n.Type == html.ElementNode && boilerplate(n) {
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

// boilerplate reports whether an element is around the text of a page and not of it.
func boilerplate(n *html.Node) bool {
	switch n.DataAtom {
	case atom.Nav, atom.Footer, atom.Aside, atom.Button, atom.Select, atom.Input, atom.Textarea, atom.Menu:
		return true
	case atom.Header:
		return n.Parent != nil && n.Parent.DataAtom == atom.Body
	case atom.Html, atom.Body, atom.Main, atom.Article:
		return false
	}
	return asideRoles.MatchString(attr(n, "role")) || asideNames.MatchString(attr(n, "class")) || asideNames.MatchString(attr(n, "id"))
}

func dropBoilerplate(root *html.Node) {
	walk(root, func(n *html.Node) bool {
		if n != root && n.Type == html.ElementNode && boilerplate(n) {
			n.Parent.RemoveChild(n)
			return false
		}
		return true
	})
}

// clean takes away what a reader of the page would not see, makes links absolute,
// and leaves of attributes only those that tell what a thing is.
func clean(doc *html.Node, at *url.URL) {
	if b := first(doc, atom.Base); b != nil {
		if u, err := at.Parse(attr(b, "href")); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
			at = u
		}
	}
	sheet := hiddenBy(doc)
	walk(doc, func(n *html.Node) bool {
		switch n.Type {
		case html.CommentNode, html.DoctypeNode:
			n.Parent.RemoveChild(n)
			return false
		case html.ElementNode:
		default:
			return true
		}
		if unseen(n) || sheet.hides(n) {
			n.Parent.RemoveChild(n)
			return false
		}
		kept := n.Attr[:0]
		for _, a := range n.Attr {
			switch a.Key {
			case "href", "src":
				if n.DataAtom != atom.A && n.DataAtom != atom.Img {
					continue
				}
				if a.Val = absolute(at, a.Val); a.Val == "" || n.DataAtom == atom.Img && strings.TrimSpace(attr(n, "alt")) == "" {
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
