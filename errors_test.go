package corral_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// complaint is one place in the source where a person is told that something is
// wrong, and what to do. What only shows when it is said is a gap.
type complaint struct {
	place        string // file:line
	subject      string
	what, remedy string
}

// gap stands for what is not in the source: a name, a number, another's words.
const gap = "…"

// subjects are what the errors of a package are about.
var subjects = []struct{ dir, title string }{
	{"internal/cli", "Commands"},
	{"internal/policy", "The policy"},
	{"internal/domain", "The policy"},
	{"internal/plan", "The policy"},
	{"internal/secret", "The secrets file"},
	{"internal/host", "Files and settings of this machine"},
	{"internal/engine", "The Docker engine and this machine"},
	{"internal/wayback", "Repositories"},
	{"internal/gate", "The gate"},
	{"internal/relay", "The gate"},
	{"internal/bridge", "The researcher"},
	{"internal/verify", "Proofs"},
	{"internal/fetch", "The fetcher"},
}

// complainers are the functions by which errors are made: which argument is the
// remedy; the message follows it.
var complainers = map[string]int{"Failedf": 0, "Invalidf": 0, "errorf": 1, "fails": 0, "mentions": 0}

// unremedied are errors that come without a remedy, with the reason, which documents
// say in its place. A message of another layer alone brings its own words.
var unremedied = map[string]string{
	"…: not accepted":                                           "whoever was asked said no: nothing is to be done",
	"a second document: a policy is one":                        "remove what follows `---`",
	"… has … keys, at most … are read":                          "the message says the bound",
	"… has … entries, at most … are read":                       "the message says the bound",
	"… has … bytes, at most … are read":                         "the message says the bound",
	"a key must be a word, this is …":                           "the message says it",
	"…: … is too little to start anything: at least 16m":        "the message says the bound",
	"…: … is less than the kernel can share out: at least 0.01": "the message says the bound",
	"…: … is not from … to …":                                   "the message says the bounds",
	"… is not the name of a profile":                            "a profile is a word in small letters, like shell",
	"profile_options.shell without profile: shell":              "remove one of the two",
	"… holds a zero byte, which no argument can":                "remove the byte",
	"… holds a zero byte, which no command can":                 "remove the byte",
	"… is empty: it names the program":                          "name the program",
	"… has no domain":                                           "name it",
	"…: port … is listed twice":                                 "keep one of the two",
	"probes.…":                                                  "what stands after it says it",
	"secrets file …: …":                                         "what stands after it says which line, and why",
	"handover spec: it does not check …":                        "nobody writes one by hand; corral and corral-verify are of different versions: make install puts both in place",
}

// docs/troubleshooting.md has every error that a person can meet, with its remedy.
func TestDocumentedErrors(t *testing.T) {
	all := complaints(t)
	if len(all) < 200 {
		t.Fatalf("%d errors: the search is broken", len(all))
	}
	seen := map[string]bool{}
	tables := map[string][]string{}
	var order []string
	for _, c := range all {
		if strings.Trim(c.what, gap+": ,;()\"'") == "" {
			continue // it passes on what another said
		}
		if c.remedy == "" {
			seen[c.what] = true
			if c.remedy = unremedied[c.what]; c.remedy == "" {
				t.Errorf("%s: %q has no remedy, and no reason in errors_test.go", c.place, c.what)
			}
		}
		c.remedy, _, _ = strings.Cut(c.remedy, "\n")
		if c.remedy == gap {
			c.remedy = "the hint says it, as the case is"
		}
		row := fmt.Sprintf("| %s | %s |", inCell(c.what), inCell(c.remedy))
		if !slices.Contains(order, c.subject) {
			order = append(order, c.subject)
		}
		if !slices.Contains(tables[c.subject], row) {
			tables[c.subject] = append(tables[c.subject], row)
		}
	}
	for what := range unremedied {
		if !seen[what] {
			t.Errorf("nothing says %q without a remedy any more", what)
		}
	}
	var b strings.Builder
	for _, subject := range order {
		slices.SortFunc(tables[subject], func(x, y string) int {
			return cmp.Or(strings.Compare(strings.Trim(strings.ToLower(x), "| `…:\""), strings.Trim(strings.ToLower(y), "| `…:\"")), strings.Compare(x, y))
		})
		fmt.Fprintf(&b, "### %s\n\n| it says | do |\n|---|---|\n%s\n\n", subject, strings.Join(tables[subject], "\n"))
	}
	document(t, "docs/troubleshooting.md", map[string]string{"errors": b.String()})
}

// inCell is a text in a table.
func inCell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;", "*", "\\*", "_", "\\_").Replace(s)
}

// complaints reads them out of the source, in the order of subjects.
func complaints(t *testing.T) (all []complaint) {
	t.Helper()
	for _, s := range subjects {
		files, err := filepath.Glob(s.dir + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", s.dir, err)
		}
		set := token.NewFileSet()
		var parsed []*ast.File
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, f)
		}
		pkg := words{}
		for _, f := range parsed {
			for _, d := range f.Decls {
				if _, is := d.(*ast.FuncDecl); !is {
					pkg.learn(d)
				}
			}
		}
		for _, f := range parsed {
			for _, d := range f.Decls {
				local := words{}
				local.learn(d)
				ast.Inspect(d, func(n ast.Node) bool {
					hint, format := made(n)
					if format == nil {
						return true
					}
					c := complaint{place: set.Position(n.Pos()).String(), subject: s.title, what: verbs.Replace(said(format, local, pkg)), remedy: verbs.Replace(said(hint, local, pkg))}
					if inner, is := d.(*ast.FuncDecl); !is || !passesOn(inner, format) {
						all = append(all, c)
					}
					return true
				})
			}
		}
	}
	return all
}

// made are the remedy and the message of a node that makes an error of one.
func made(n ast.Node) (hint, format ast.Expr) {
	switch n := n.(type) {
	case *ast.CallExpr:
		name := ""
		switch f := n.Fun.(type) {
		case *ast.Ident:
			name = f.Name
		case *ast.SelectorExpr:
			name = f.Sel.Name
		}
		at, is := complainers[name]
		if !is || len(n.Args) < at+2 {
			return nil, nil
		}
		return n.Args[at], n.Args[at+1]
	case *ast.CompositeLit: // &NotUsable{Reason: …, Hint: …}
		for _, e := range n.Elts {
			if kv, is := e.(*ast.KeyValueExpr); is {
				switch key, _ := kv.Key.(*ast.Ident); {
				case key == nil:
				case key.Name == "Hint":
					hint = kv.Value
				case key.Name == "Reason":
					format = kv.Value
				}
			}
		}
		if hint == nil {
			return nil, nil
		}
	}
	return hint, format
}

// passesOn reports whether a message is a parameter of the function that it is in,
// whose callers say it.
func passesOn(f *ast.FuncDecl, format ast.Expr) bool {
	id, is := format.(*ast.Ident)
	return is && slices.ContainsFunc(f.Type.Params.List, func(p *ast.Field) bool {
		return slices.ContainsFunc(p.Names, func(n *ast.Ident) bool { return n.Name == id.Name })
	})
}

// words are what names stand for, each of possibly several.
type words map[string][]ast.Expr

func (w words) learn(n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, name := range n.Names {
				if i < len(n.Values) {
					w[name.Name] = append(w[name.Name], n.Values[i])
				}
			}
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				if id, is := to.(*ast.Ident); is && len(n.Lhs) == len(n.Rhs) {
					w[id.Name] = append(w[id.Name], n.Rhs[i])
				}
			}
		}
		return true
	})
}

// said is the text of an expression as far as the source has it.
func said(e ast.Expr, scopes ...words) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return s
		}
	case *ast.ParenExpr:
		return said(e.X, scopes...)
	case *ast.BinaryExpr:
		return said(e.X, scopes...) + said(e.Y, scopes...)
	case *ast.CallExpr:
		if f, is := e.Fun.(*ast.SelectorExpr); is && (f.Sel.Name == "Sprintf" || f.Sel.Name == "Errorf") && len(e.Args) > 0 {
			return said(e.Args[0], scopes...)
		}
	case *ast.Ident:
		for i, scope := range scopes {
			var each []string
			for _, v := range scope[e.Name] {
				inner := scopes[i+1:]
				if id, is := v.(*ast.Ident); !is || id.Name != e.Name {
					if s := said(v, inner...); s != "" && !slices.Contains(each, s) {
						each = append(each, s)
					}
				}
			}
			if len(each) > 0 {
				return strings.Join(each, "; or: ")
			}
		}
	}
	return gap
}

// verbs are what stands in a format for what is not known here.
var verbs = replacer{regexp.MustCompile(`%[-+# 0-9.\[\]]*[a-zA-Z]`)}

type replacer struct{ of *regexp.Regexp }

func (r replacer) Replace(s string) string {
	s = strings.ReplaceAll(s, "%%", "\x00")
	s = r.of.ReplaceAllString(s, gap)
	return strings.ReplaceAll(s, "\x00", "%")
}

// The search finds what it should.
func TestComplaintsAreFound(t *testing.T) {
	if _, err := os.Stat("docs/troubleshooting.md"); err != nil {
		t.Fatal(err)
	}
	all := complaints(t)
	for what, remedy := range map[string]string{
		"secrets file …: there is no such file":    "make it, with chmod 600, or name another one",
		"there is no docker command":               "corral builds images and attaches terminals with it: sudo apt-get install docker.io (or docker-cli)",
		"there is no profile …":                    "there is …; or: did you mean …?",
		"… was replaced since the policy was read": "start again",
		"the agent's arguments go after --":        "write corral run -- …",
		"… is taken by %":                          "",
	} {
		i := slices.IndexFunc(all, func(c complaint) bool { return c.what == what })
		if (i < 0) != (remedy == "") {
			t.Errorf("%q is not found", what)
			continue
		}
		if i >= 0 && all[i].remedy != remedy {
			t.Errorf("%q: remedy %q", what, all[i].remedy)
		}
	}
}

// What people are said to see, in the head of docs/troubleshooting.md, is said
// somewhere in the source. What is seen inside is not corral's.
func TestTroublesAreSaid(t *testing.T) {
	b, err := os.ReadFile("docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(b), "## All errors")
	var literals []string
	for _, all := range stringsOf(t) {
		literals = append(literals, all...)
	}
	quoted, n := regexp.MustCompile("`([^`]+)`"), 0
	for _, m := range regexp.MustCompile(`(?m)^\| (.+?) \| .+? \| .+ \|$`).FindAllStringSubmatch(head, -1) {
		if strings.HasPrefix(m[1], "inside:") {
			continue
		}
		for _, q := range quoted.FindAllStringSubmatch(m[1], -1) {
			n++
			parts := strings.Split(q[1], gap)
			if !slices.ContainsFunc(literals, func(s string) bool {
				for _, p := range parts {
					_, rest, is := strings.Cut(s, strings.TrimSpace(p))
					if !is {
						return false
					}
					s = rest
				}
				return true
			}) && !strings.HasPrefix(q[1], "corral") {
				t.Errorf("docs/troubleshooting.md: nothing says %q", q[1])
			}
		}
	}
	if n < 15 {
		t.Errorf("%d quotations: the search is broken", n)
	}
}

// stringsOf are all strings in the source of what people run, by its files.
func stringsOf(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, name := range tracked(t) {
		if !strings.HasPrefix(name, "internal/") || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if lit, is := n.(*ast.BasicLit); is && lit.Kind == token.STRING {
				if s, err := strconv.Unquote(lit.Value); err == nil {
					all[name] = append(all[name], s)
				}
			}
			return true
		})
	}
	return all
}
