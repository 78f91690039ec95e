package render

import (
	"archive/tar"
	"io"
	"slices"
	"testing"
)

func TestTreeIsStable(t *testing.T) {
	tree := Tree{"a/bin/x": []byte("1"), "a/b": []byte("2"), "c": []byte("3")}
	if got := tree.Names(); !slices.Equal(got, []string{"a/b", "a/bin/x", "c"}) {
		t.Errorf("names %v", got)
	}
	if got := tree.Sub("a").Names(); !slices.Equal(got, []string{"b", "bin/x"}) {
		t.Errorf("sub %v", got)
	}
	one, _ := io.ReadAll(tree.Tar())
	two, _ := io.ReadAll(tree.Tar())
	if !slices.Equal(one, two) {
		t.Error("the same tree gave two archives")
	}
	if (Tree{"ab": []byte("c")}).Digest() == (Tree{"a": []byte("bc")}).Digest() {
		t.Error("two trees share a digest")
	}
}

func TestTarModes(t *testing.T) {
	r := tar.NewReader(Tree{"a/bin/x": nil, "a/y": nil}.Tar())
	modes := map[string]int64{}
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s belongs to %d:%d", h.Name, h.Uid, h.Gid)
		}
		modes[h.Name] = h.Mode
	}
	if modes["a/bin/x"] != 0o711 || modes["a/y"] != 0o644 || modes["a/"] != 0o755 {
		t.Errorf("modes %v", modes)
	}
}
