package engine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What make install puts below a prefix is all it takes: somebody with another
// home runs it from a path that is not its own, by way of a link.
func TestInstalledBelowAPrefix(t *testing.T) {
	t.Parallel()
	s := project(t, nothing)
	root := filepath.Dir(s.dir)
	prefix := filepath.Join(root, "prefix")
	if out, err := exec.Command("make", "-C", "../..", "install", "BIN="+s.bin, "PREFIX="+prefix).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	o := *s
	o.bin = filepath.Join(root, "links")
	home := filepath.Join(root, "another")
	o.own(o.bin, home)
	if err := os.Symlink(filepath.Join(prefix, "bin/corral"), filepath.Join(o.bin, "corral")); err != nil {
		t.Fatal(err)
	}
	o.env = append(append([]string{}, s.env...), "HOME="+home)
	if r := o.corral("version"); r.code != 0 || r.out != s.corral("version").out || !strings.HasPrefix(r.out, "corral ") {
		t.Error(r)
	}
	if r := o.corral("run", "--accept", "--", "sh", "-c", "echo inside; exit 3"); r.code != 3 || r.out != "inside\n" {
		t.Error(r)
	}
}
