package cli

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/engine"
	"github.com/corral-sandbox/corral/internal/report"
	"github.com/corral-sandbox/corral/internal/spec"
)

var update = flag.Bool("update", false, "write docs/json.md anew")

// documents are what commands write with --json: the name of a table in
// docs/json.md, and what it is of.
var documents = []struct {
	name string
	of   any
}{
	{"version", buildReport{}}, {"policy-show", policyReport{}}, {"policy-diff", diffReport{}}, {"status", statusReport{}}, {"ps", sandboxList{}},
	{"traffic", trafficReport{}}, {"traffic-event", trafficEvent{}}, {"refresh", spec.Refreshed{}}, {"install", engine.Finding{}}, {"summary", report.Summary{}},
}

// A list that a document promises is one, however little there is to say.
func TestDocumentsHaveLists(t *testing.T) {
	for name, b := range map[string][]byte{
		"status": document(statusReport{Services: []engine.Health{{Gate: &spec.GateStatus{}}}}), "nothing up": document(statusReport{}), "ps": document(sandboxList{}),
		"policy show": document(policyReport{}), "policy diff": document(diffReport{}), "traffic": document(trafficReport{}), "refresh": document(spec.Refreshed{}),
	} {
		if bytes.Contains(b, []byte("null")) || !bytes.Contains(b, []byte("[]")) {
			t.Errorf("%s: %s", name, b)
		}
	}
}

// docs/json.md has a table of every document: its keys, and what their fields say of
// themselves in the source.
func TestDocumentedJSON(t *testing.T) {
	const file = "../../docs/json.md"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text, said := string(b), comments(t)
	for _, d := range documents {
		var rows strings.Builder
		described(&rows, said, "", reflect.TypeOf(d.of))
		begin, end := "<!-- generated: "+d.name+" -->\n", "<!-- end: "+d.name+" -->"
		before, rest, ok := strings.Cut(text, begin)
		_, after, ended := strings.Cut(rest, end)
		if !ok || !ended {
			t.Fatalf("%s has no place for %s", file, d.name)
		}
		text = before + begin + "\n| key | kind | what |\n|---|---|---|\n" + rows.String() + "\n" + end + after
	}
	if text == string(b) {
		return
	}
	if !*update {
		t.Fatalf("%s is not what it is made from (go test ./internal/cli -run TestDocumented -update accepts it)", file)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// ours begins the paths of corral's own packages.
const ours = "github.com/corral-sandbox/corral/"

// described writes a row for each key of a type, what is in it after it.
func described(b *strings.Builder, said map[string]string, at string, of reflect.Type) {
	if of.Kind() != reflect.Struct {
		return
	}
	for i := range of.NumField() {
		f := of.Field(i)
		key, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && key == "":
			described(b, said, at, f.Type)
			continue
		case key == "-" || key == "":
			continue
		}
		inner, kind, suffix := kindOf(f.Type)
		if strings.Contains(options, "omit") {
			kind += ", or absent"
		}
		comment := said[strings.TrimPrefix(of.PkgPath(), ours)+"."+of.Name()+"."+f.Name]
		fmt.Fprintf(b, "| `%s%s` | %s | %s |\n", at, key, kind, strings.NewReplacer("|", "\\|", "\n", " ").Replace(comment))
		if inner != nil {
			described(b, said, at+key+suffix+".", inner)
		}
	}
}

// kindOf is what a type is in JSON, and what is in it, with what is written between
// its key and theirs.
func kindOf(t reflect.Type) (inner reflect.Type, kind, suffix string) {
	switch t.Kind() {
	case reflect.Pointer:
		return kindOf(t.Elem())
	case reflect.Slice, reflect.Array:
		inner, kind, _ := kindOf(t.Elem())
		return inner, "list of " + kind + "s", "[]"
	case reflect.Map:
		inner, kind, _ := kindOf(t.Elem())
		return inner, "map to " + kind + "s", ".*"
	case reflect.Bool:
		return nil, "boolean", ""
	case reflect.String:
		return nil, "string", ""
	case reflect.Struct:
		switch {
		case t.PkgPath() == "time":
			return nil, "time", ""
		case strings.HasPrefix(t.PkgPath(), ours):
			return t, "object", ""
		}
		return nil, "string", "" // an address, a prefix
	}
	if t.PkgPath() == "time" {
		return nil, "number of nanoseconds", ""
	}
	return nil, "number", ""
}

// comments are what the fields of all our structs say of themselves, by package,
// type and field.
func comments(t *testing.T) map[string]string {
	t.Helper()
	said := map[string]string{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg := "internal/" + filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), "../"))
		if filepath.Dir(path) == "../cli" {
			pkg = "internal/cli"
		}
		ast.Inspect(file, func(n ast.Node) bool {
			of, is := n.(*ast.TypeSpec)
			if !is {
				return true
			}
			body, is := of.Type.(*ast.StructType)
			if !is {
				return true
			}
			for _, f := range body.Fields.List {
				text := strings.TrimSpace(f.Doc.Text() + f.Comment.Text())
				for _, name := range f.Names {
					said[pkg+"."+of.Name.Name+"."+name.Name] = text
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(said) == 0 {
		t.Fatal("no field was found")
	}
	return said
}

// A document of each kind is as its table says; the version comes first.
func TestDocumentsAreVersioned(t *testing.T) {
	for _, d := range documents {
		of := reflect.TypeOf(d.of)
		for of.Field(0).Anonymous {
			of = of.Field(0).Type
		}
		if f := of.Field(0); d.name != "refresh" && f.Tag.Get("json") != "version" {
			t.Errorf("%s begins with %s", d.name, strconv.Quote(f.Name))
		}
	}
}
