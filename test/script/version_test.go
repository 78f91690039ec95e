package script

import (
	"archive/zip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// module is corral's own.
const module = "github.com/corral-sandbox/corral"

// go install of a version, without a clone: what a proxy has of the module is
// enough, and says which version it is. The proxy is a directory; what else it takes
// this machine has had already.
func TestGoInstallOfAVersion(t *testing.T) {
	t.Parallel()
	const version = "v1.98.7"
	proxy := t.TempDir()
	dir := filepath.Join(proxy, module, "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	put := func(name string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	put("list", []byte(version+"\n"))
	put(version+".info", []byte(`{"Version":"`+version+`","Time":"2026-01-02T03:04:05Z"}`))
	put(version+".mod", mod)
	archive, err := os.Create(filepath.Join(dir, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(archive)
	for _, name := range tracked(t) {
		b, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			continue // deleted but not yet committed
		}
		w, err := z.Create(module + "@" + version + "/" + name)
		if err == nil {
			_, err = w.Write(b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	bin, home := t.TempDir(), t.TempDir()
	c := exec.Command("go", "install", module+"/cmd/...@"+version)
	c.Dir = home
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+bin, "GOMODCACHE="+filepath.Join(home, "modules"), "GOFLAGS=-modcacherw -trimpath",
		"GOPROXY=file://"+proxy+",file://"+strings.TrimSpace(string(cache))+"/cache/download", "GOSUMDB=off", "GONOPROXY=", "GOPRIVATE=", "GOWORK=off")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"corral", "corral-gate", "corral-verify", "corral-fetch", "corral-bridge"} {
		if said := asked(t, home, filepath.Join(bin, name), "version"); said != name+" "+version+"\n" {
			t.Errorf("%s version: %q", name, said)
		}
	}
}

// tracked lists what a version of the module would be made of.
func tracked(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("git", "-C", "../..", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}
