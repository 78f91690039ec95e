package profile

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestEveryProfileLoads(t *testing.T) {
	if len(Names()) == 0 {
		t.Fatal("no profile is embedded")
	}
	for _, name := range Names() {
		p, err := Load(name)
		if err != nil {
			t.Fatal(err)
		}
		b, err := p.Dockerfile(Image{Base: "debian:bookworm-slim", UID: 1234, GID: 4321})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"FROM debian:bookworm-slim", "1234", "4321"} {
			if !strings.Contains(string(b), want) {
				t.Errorf("%s: the Dockerfile lacks %q", name, want)
			}
		}
		// Of a step that fails, all that a person has is what it said.
		if silent := regexp.MustCompile(`--silent|--quiet|2>`).FindString(string(b)); silent != "" {
			t.Errorf("%s: a step says no errors: %s", name, silent)
		}
		if _, err := p.Dockerfile(Image{Base: "debian", UID: 0}); err == nil {
			t.Errorf("%s: an image for uid 0 was rendered", name)
		}
	}
}

func TestStrict(t *testing.T) {
	for name, yaml := range map[string]string{
		"unknown key": "summary: x\ncommand: [a]\negres: []\n",
		"no command":  "summary: x\n",
		"wrong kind":  "summary: x\ncommand: {a: b}\n",
	} {
		files := fstest.MapFS{
			"p/profile.yaml":    {Data: []byte(yaml)},
			"p/Dockerfile.tmpl": {Data: []byte("FROM {{.Base}}\n")},
		}
		if _, err := read(files, "p"); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := Load("../shell"); err == nil {
		t.Error("a path was accepted as a profile's name")
	}
}

// shellImage is the Dockerfile of profile shell.
func shellImage(t *testing.T, img Image) (string, error) {
	t.Helper()
	p, err := Load("shell")
	if err != nil {
		t.Fatal(err)
	}
	img.UID, img.GID = 1000, 1000
	b, err := p.Dockerfile(img)
	return string(b), err
}

// instructions are the first words of a Dockerfile's lines, as a builder joins
// them.
func instructions(dockerfile string) []string {
	joined := strings.ReplaceAll(dockerfile, "\\\n", " ")
	var out []string
	for line := range strings.Lines(joined) {
		if word := strings.Fields(line); len(word) > 0 && !strings.HasPrefix(word[0], "#") {
			out = append(out, word[0])
		}
	}
	return out
}

func TestDockerfile(t *testing.T) {
	for _, c := range []struct {
		img  Image
		want string
	}{
		{Image{}, "FROM USER RUN COPY COPY"},
		{Image{Packages: []string{"git", "ripgrep=13.0.0-4+b2", "g++"}}, "FROM USER RUN RUN COPY COPY"},
		{Image{Run: []string{"one", "two"}}, "FROM USER RUN RUN RUN COPY COPY"},
		{Image{Packages: []string{"git"}, Run: []string{"one"}}, "FROM USER RUN RUN RUN COPY COPY"},
	} {
		c.img.Base = "debian:bookworm-slim"
		got, err := shellImage(t, c.img)
		if err != nil {
			t.Fatal(err)
		}
		if words := strings.Join(instructions(got), " "); words != c.want {
			t.Errorf("%v has %s, want %s", c.img, words, c.want)
		}
		install := " install --yes --no-install-recommends " + strings.Join(c.img.Packages, " ") + " \\\n && rm -rf /var/lib/apt/lists/*\n"
		if strings.Contains(got, "apt-get") != (len(c.img.Packages) > 0) || len(c.img.Packages) > 0 && !strings.Contains(got, install) {
			t.Errorf("%v installs:\n%s", c.img, got)
		}
		// Nothing that was installed or run comes after what takes rights away.
		fence := strings.Index(got, "rm -f /usr/bin/sudo")
		if fence < 0 || strings.LastIndex(got, `RUN ["`) > fence || strings.LastIndex(got, "apt-get") > fence || strings.LastIndex(got, "RUN") > fence {
			t.Errorf("%v: the fence is not last:\n%s", c.img, got)
		}
		for _, line := range []string{"\nCOPY gitconfig /etc/gitconfig\n", "\nCOPY corral/ /etc/corral/\n"} {
			if !strings.Contains(got, line) {
				t.Errorf("%v lacks %q", c.img, line)
			}
		}
		if !strings.HasPrefix(got, "FROM debian:bookworm-slim\nUSER 0:0\n") {
			t.Errorf("%v begins otherwise:\n%s", c.img, got)
		}
		// What needs BuildKit.
		if bad := regexp.MustCompile(`--chmod|--mount|--link|<<|# *syntax`).FindString(got); bad != "" {
			t.Errorf("%v has %q", c.img, bad)
		}
	}
}

// hostileLines would be more than a command to a builder that read them.
var hostileLines = []string{
	"echo one\necho two",
	"cat <<EOF > /x\nUSER 0\nEOF",
	"echo a \\",
	"echo a \\\n  b",
	"# syntax=docker/dockerfile:1",
	"# escape=`\necho `",
	"x\nFROM scratch\nCOPY / /",
	`echo "it's" 'so' ]`,
	`"], "x", ["`,
	"echo $HOME ${PATH} $$ $(id) {{.Base}}",
	"echo naïve 日本 \u2028 \ufeff",
	"a && b || c; d & e > f < g",
	"tab\there \r\n  blank at the end ",
	"",
	"\x01\x1b[0m\x7f",
	"ONBUILD RUN --mount=type=bind,target=/x id",
}

func TestRunLinesAreData(t *testing.T) {
	plain, err := shellImage(t, Image{Base: "debian", Run: slices.Repeat([]string{"x"}, len(hostileLines))})
	if err != nil {
		t.Fatal(err)
	}
	got, err := shellImage(t, Image{Base: "debian", Run: hostileLines})
	if err != nil {
		t.Fatal(err)
	}
	want := instructions(plain)
	if words := instructions(got); !slices.Equal(words, want) {
		t.Errorf("the commands changed the instructions to %v", words)
	}
	var found []string
	for line := range strings.Lines(got) {
		rest, is := strings.CutPrefix(line, "RUN [")
		if !is {
			continue
		}
		var argv []string
		if err := json.Unmarshal([]byte("["+rest), &argv); err != nil || len(argv) != 3 || argv[0] != "/bin/sh" || argv[1] != "-c" {
			t.Errorf("%s: %v, %q", line, err, argv)
			continue
		}
		found = append(found, argv[2])
	}
	if !slices.Equal(found, hostileLines) {
		t.Errorf("the commands became %q", found)
	}
}

func TestNothingIsInjected(t *testing.T) {
	for _, base := range []string{"", "a b", "a\nRUN id", "a\tb", "a\\", "-a", "--platform=x", "#a", "$A", "${A}", "a\u00a0b", "a\u2028b", "a\rb", "a\"", "a\x00", "ä"} {
		if got, err := shellImage(t, Image{Base: base}); err == nil {
			t.Errorf("base %q: %s", base, got)
		}
	}
	for _, base := range []string{"a", "debian:bookworm-slim", "ubuntu:24.04", "reg.example:5000/a/b_c:V1.0-x", "a@sha256:" + strings.Repeat("0", 64), "[::1]:5000/a"} {
		if _, err := shellImage(t, Image{Base: base}); err != nil {
			t.Errorf("base %q: %v", base, err)
		}
	}
	for _, p := range []string{"", "a", "-y", "a b", "git;id", "git\nid", "git-", "git=", "git=1-", "git=$(id)", "Git", "git/stable", "git\\", "./x.deb", "git&&id", "gìt", "git*"} {
		if got, err := shellImage(t, Image{Base: "debian", Packages: []string{"curl", p}}); err == nil {
			t.Errorf("package %q: %s", p, got)
		}
	}
	for _, p := range []string{"git", "g++", "libc6.1", "0ad", "git=1:2.39.5-0+deb12u2", "python3.11", "vim=2:9~rc1", "xz=1", "r1"} {
		if _, err := shellImage(t, Image{Base: "debian", Packages: []string{p}}); err != nil {
			t.Errorf("package %q: %v", p, err)
		}
	}
	for _, run := range []string{"a\xff", "a\x00b"} {
		if got, err := shellImage(t, Image{Base: "debian", Run: []string{run}}); err == nil {
			t.Errorf("command %q: %s", run, got)
		}
	}
}
