package engine

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/render"
)

// What a failed build said last is shown plain: without the builder's colours,
// and with whatever else a terminal would obey made visible.
func TestLastWords(t *testing.T) {
	said := strings.Repeat("worked\n", 40) + "\x1b[91mE: \x1b[0m\x1b[1;31mUnable to locate package treee\x1b[0m\r\n\x1b]0;title\x07done\n"
	got := lastWords(said)
	lines := strings.Split(got, "\n")
	if len(lines) != mostLines {
		t.Errorf("%d lines, want %d", len(lines), mostLines)
	}
	if want := "  E: Unable to locate package treee"; lines[len(lines)-2] != want {
		t.Errorf("%q, want %q", lines[len(lines)-2], want)
	}
	if strings.ContainsAny(got, "\x1b\x07\r") {
		t.Errorf("%q", got)
	}
	npm := "npm ERR! request failed: ECONNREFUSED\n" + strings.Repeat("npm ERR!     at someplace (net.js:1:1)\n", 15)
	if got := lastWords(npm + "Removing intermediate container 0123456789ab\n"); !strings.Contains(got, "request failed") {
		t.Errorf("without why: %q", got)
	}
}

// A build that stood on a layer of another sandbox's image while that was removed
// is done once more, and nobody is told; whatever else fails has failed.
func TestVanishedLayer(t *testing.T) {
	const sum = "sha256:aaf5f769a2494e0d4cccccb05ff51ed14ad76bdc308fa9c4087addb285c26cff"
	for _, c := range []struct {
		name   string
		fails  string // what docker says last
		times  int    // that it says so
		builds int
		ok     bool
	}{
		{"nothing", "", 0, 1, true},
		{"the image for a step", "No such image: " + sum, 1, 2, true},
		{"behind the engine's words", "Error response from daemon: no such image: " + sum, 1, 2, true},
		{"the parent", "failed to export image: failed to set parent " + sum + ": unknown parent image ID " + sum, 1, 2, true},
		{"the image of a copy", "failed to get destination image \"" + sum + "\": No such image: " + sum, 1, 2, true},
		{"the cache's own", "unable to find image \"" + sum + "\"", 1, 2, true},
		{"its file", "failed to get digest " + sum + ": open /var/lib/docker/image: no such file or directory", 1, 2, true},
		{"the layer", "failed to get layer for image " + sum + ": layer does not exist", 1, 2, true},
		{"again", "layer does not exist", 2, 2, false},
		{"a base that nobody has", "No such image: debian:none", 1, 1, false},
		{"a command", "The command '/bin/sh -c false' returned a non-zero code: 1", 1, 1, false},
		{"silence", "", 1, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			script := fmt.Sprintf(`#!/bin/sh
cd %s
echo build >>builds
cat >context.$(wc -l <builds)
test $(wc -l <builds) -gt %d && exit
echo '%s' >&2
exit 1
`, dir, c.times, c.fails)
			if err := os.WriteFile(filepath.Join(dir, "docker"), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
				w.Header().Set("Content-Type", "application/json")
				if path == "/images/base/json" {
					fmt.Fprintf(w, `{"Id": %q}`, sum)
					return
				}
				w.WriteHeader(http.StatusNotFound)
				fmt.Fprint(w, `{"message": "No such image"}`)
			})
			var told []string
			e.Progress = func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
			_, err := e.build(t.Context(), "corral-test", "base", render.Tree{"Dockerfile": []byte("FROM base\n")}, "it", nil)
			var failed *BuildFailed
			if (err == nil) != c.ok || err != nil && !errors.As(err, &failed) {
				t.Errorf("%v", err)
			}
			if len(told) != 1 || told[0] != "building it" {
				t.Errorf("told %q", told)
			}
			builds, err := filepath.Glob(filepath.Join(dir, "context.*"))
			if err != nil || len(builds) != c.builds {
				t.Fatalf("%d builds, want %d (%v)", len(builds), c.builds, err)
			}
			first, err := os.ReadFile(builds[0])
			if err != nil || len(first) == 0 {
				t.Fatalf("the build got nothing (%v)", err)
			}
			for _, b := range builds[1:] {
				if next, err := os.ReadFile(b); err != nil || string(next) != string(first) {
					t.Errorf("%s: %d bytes, the first time %d (%v)", filepath.Base(b), len(next), len(first), err)
				}
			}
		})
	}
}

// What takes everything away names what is made here.
func TestInstallDocumentNamesWhatIsThere(t *testing.T) {
	b, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, chapter, _ := strings.Cut(string(b), "\n## Taking it all away\n")
	for _, line := range []string{
		"docker network rm " + plan.NetworkName,
		"docker volume ls --quiet --filter label=" + labelRole + "=" + roleGuest + " | xargs --no-run-if-empty docker volume rm",
		"docker image ls --format '{{.Repository}}:{{.Tag}}' " + gateRepo + " | xargs --no-run-if-empty docker image rm",
	} {
		if !strings.Contains(chapter, "\n    "+line+"\n") {
			t.Errorf("docs/install.md does not say: %s", line)
		}
	}
}

// However much an engine says, and whatever is said beside that: no more of it is shown than a
// person reads, and all of the rest is.
func TestPlainBounds(t *testing.T) {
	long := strings.Repeat("ü word ", 100_000)
	got := Plain("before: " + fromDaemon + long + "\nafter\n" + fromDaemon + "short\n" + fromDaemon + long)
	lines := strings.Split(got, "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "before: "+fromDaemon+"ü word ü") || lines[1] != "after" || lines[2] != fromDaemon+"short" {
		t.Fatalf("%d lines, %.1000q", len(lines), got)
	}
	for _, line := range []string{lines[0], lines[3]} {
		if n := len([]rune(line)); n > mostSaid+len("before: ")+len(fromDaemon)+1 || !strings.HasSuffix(line, "…") || !utf8.ValidString(line) {
			t.Errorf("%d runes: %q", n, line)
		}
	}
	if again := Plain(got); again != got {
		t.Errorf("%q", again)
	}
	if own := strings.Repeat("corral's own ", 1000); Plain(own) != own {
		t.Error("corral's own words are cut")
	}
}
