// Package render turns a Plan into the files that containers are made of,
// byte for byte the same for the same plan. It touches no disk.
package render

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Tree maps slash-separated paths to contents.
type Tree map[string][]byte

// Render writes out a whole plan.
func Render(p *plan.Plan) (Tree, error) {
	t := Tree{}
	profile, err := Seccomp()
	if err != nil {
		return nil, err
	}
	t["seccomp.json"] = profile
	for _, g := range p.Gates {
		t[GateSpec(g.Name)] = spec.Encode(g.Spec)
	}
	for _, s := range p.Services {
		dir := Image(s.Name)
		t[path.Join(dir, "Dockerfile")] = s.Dockerfile
		t[path.Join(dir, "corral", "README")] = s.Readme
		t[path.Join(dir, "gitconfig")] = s.GitConfig
		for name, b := range s.Context {
			t[path.Join(dir, name)] = b
		}
		t[path.Join(s.Name, "handover.json")] = spec.Encode(spec.Handover{Version: spec.Version, Service: s.Name, Checks: s.Handover})
		t[path.Join(s.Name, "verify.json")] = spec.Encode(spec.Verify{Version: spec.Version, Service: s.Name, Checks: s.Verify})
	}
	if t[ComposeFile], err = Compose(p); err != nil {
		return nil, err
	}
	return t, nil
}

// GateSpec is where a gate's document is in the tree.
func GateSpec(gate string) string { return path.Join(gate, "gate.json") }

// Image is the folder with a service's build context.
func Image(service string) string { return path.Join(service, "image") }

// Sub returns the files below dir, named from there.
func (t Tree) Sub(dir string) Tree {
	out := Tree{}
	for name, b := range t {
		if rest, ok := strings.CutPrefix(name, dir+"/"); ok {
			out[rest] = b
		}
	}
	return out
}

// With returns the tree with one more file.
func (t Tree) With(name string, b []byte) Tree {
	out := maps.Clone(t)
	out[name] = b
	return out
}

// Digest is equal for equal trees.
func (t Tree) Digest() string {
	h := sha256.New()
	for _, name := range t.Names() {
		fmt.Fprintf(h, "%q %d\n", name, len(t[name]))
		h.Write(t[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Names lists the files in order.
func (t Tree) Names() []string { return slices.Sorted(maps.Keys(t)) }

// Tar writes the tree as a build context or a copy into a container: owned by
// root, times fixed. Programs of a bin folder can be run by anybody and read
// by root alone, so that nobody can look into one that runs as themselves.
func (t Tree) Tar() io.Reader {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	made := map[string]bool{}
	for _, name := range t.Names() {
		for _, dir := range parents(name) {
			if !made[dir] {
				made[dir] = true
				write(w, &tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}, nil)
			}
		}
		mode := int64(0o644)
		if strings.HasSuffix(path.Dir(name), "bin") {
			mode = 0o711
		}
		write(w, &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(t[name]))}, t[name])
	}
	if err := w.Close(); err != nil {
		panic(err) // a buffer does not fail
	}
	return &b
}

func write(w *tar.Writer, h *tar.Header, b []byte) {
	h.ModTime = time.Unix(0, 0)
	if err := w.WriteHeader(h); err != nil {
		panic(err) // names and sizes are ours, a buffer does not fail
	}
	if _, err := w.Write(b); err != nil {
		panic(err)
	}
}

func parents(name string) []string {
	var out []string
	for d := path.Dir(name); d != "." && d != "/"; d = path.Dir(d) {
		out = append([]string{d}, out...)
	}
	return out
}
