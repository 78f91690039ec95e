package profile

import (
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
