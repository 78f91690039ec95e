package engine

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/corral-sandbox/corral/internal/testenv"
)

// errand is work that agents do all day, with the tool that does it.
type errand struct{ name, script, want string }

// allTools names an environment variable: all errands, not only those whose tools are
// installed soon.
const allTools = "CORRAL_TEST_TOOLS"

// filterInForce is the control: what is refused to all of them.
const filterInForce = "the filter is in force"

// Each starts in an empty directory of its own in the project, and ends at the first
// command that fails. Nothing is fetched: who tries to is refused, and that takes time.
var errands = []errand{
	{"git", `
git init --quiet --initial-branch main one
git -C one config user.name agent
git -C one config user.email agent@example.test
for n in 1 2 3; do echo $n > one/$n; git -C one add $n; git -C one commit --quiet --message "number $n"; done
git clone --quiet one linked
git clone --quiet "file://$PWD/one" packed
git -C packed -c user.name=a -c user.email=a@example.test commit --quiet --allow-empty --message more
git -C packed push --quiet origin HEAD:refs/heads/more
git -C one gc --quiet --prune=now
git -C one fsck --full --strict
git -C one log --format=%s more
`, `^more\nnumber 3\nnumber 2\nnumber 1\n$`},

	{"npm", `
mkdir -p leaf app
echo '{"name":"leaf","version":"1.0.0","bin":{"leaf":"leaf.js"},"scripts":{"postinstall":"node leaf.js installed > made"}}' > leaf/package.json
printf '#!/usr/bin/env node\nconsole.log("leaf is " + process.argv[2])\n' > leaf/leaf.js
(cd leaf && npm pack --silent > /dev/null)
cd app
echo '{"name":"app","version":"1.0.0","scripts":{"try":"leaf tried"}}' > package.json
npm install --silent --offline --no-audit --no-fund ../leaf/leaf-1.0.0.tgz
cat node_modules/leaf/made
npm run --silent try
`, `^leaf is installed\nleaf is tried\n$`},

	{"pip", `
mkdir -p src/grain
echo 'from setuptools import setup; setup(name="grain", version="1.0", packages=["grain"], entry_points={"console_scripts": ["grain=grain:main"]})' > src/setup.py
echo 'def main(): print("grain", __file__.split("/")[-3])' > src/grain/__init__.py
python3 -m venv venv
venv/bin/pip --quiet --disable-pip-version-check install --no-index --no-build-isolation ./src 2> said || { cat said; exit 1; }
venv/bin/grain
`, `^grain site-packages\n$`},

	// Its listener asks for Multipath TCP first. The standard library is compiled, which
	// takes longest: without what takes time and makes no other calls.
	{"go", `
export PATH=$GO_TREE/bin:$PATH GOROOT=$GO_TREE GOPROXY=off GOTOOLCHAIN=local GOTELEMETRY=off CGO_ENABLED=0
export GOFLAGS='-vet=off -gcflags=all=-N'
printf 'module small.test/small\n\ngo 1.24\n' > go.mod
cat > main.go <<'GO'
package main

import "net"

func main() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			panic(err)
		}
		c.Write([]byte("hello"))
		c.Close()
	}()
	c, err := l.Accept()
	if err != nil {
		panic(err)
	}
	var b [8]byte
	n, err := c.Read(b[:])
	if err != nil {
		panic(err)
	}
	println(double(string(b[:n])))
}

func double(s string) string { return s + s }
GO
cat > main_test.go <<'GO'
package main

import "testing"

func TestDouble(t *testing.T) {
	if double("x") != "xx" {
		t.Error(double("x"))
	}
}
GO
go build -o small .
./small 2>&1
go test . | cut -f 1,2
`, `^hellohello\nok  \tsmall\.test/small\n$`},

	{"cargo", `
mkdir src
printf '[package]\nname = "small"\nversion = "1.0.0"\nedition = "2021"\n' > Cargo.toml
cat > src/main.rs <<'RS'
fn double(s: &str) -> String {
    s.repeat(2)
}

fn main() {
    let t = std::thread::spawn(|| double("rust"));
    println!("{}", t.join().unwrap());
}
RS
cargo build --quiet --offline
cargo run --quiet --offline
`, `^rustrust\n$`},

	{"strace", `
strace -f -o traced sh -c 'cat /etc/hostname > /dev/null; exit 7' || [ $? = 7 ]
grep -o 'execve("/[a-z/]*cat"' traced
grep -o 'openat(AT_FDCWD, "/etc/hostname", O_RDONLY) = 3' traced
grep -o 'exited with 7' traced
`, `^execve\("/[a-z/]*cat"\nopenat\(AT_FDCWD, "/etc/hostname", O_RDONLY\) = 3\nexited with 7\n$`},

	// An engine's own filter lets a netlink socket that hears of devices be opened.
	{filterInForce, `
grep -E '^Seccomp:' /proc/self/status
python3 - <<'PY'
import ctypes, errno, socket
def tried(what, call):
    try:
        call()
    except OSError as e:
        print(what, errno.errorcode[e.errno])
    else:
        print(what, "done")
tried("uevent", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 15))
tried("vsock", lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM))
tried("tcp", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
PY
unshare --user true 2>&1 || echo "unshare $?"
`, `^Seccomp:\t2\nuevent EPERM\nvsock EPERM\ntcp done\nunshare: unshare failed: Operation not permitted\nunshare 1\n$`},
}

// Under the filter of system calls ordinary tools do ordinary work, with packages as
// a policy asks for them, Go from a tree that is mounted, and no network.
func TestTools(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, packages string, names ...string) {
		t.Parallel()
		var chosen []errand
		for _, e := range errands {
			if slices.Contains(names, e.name) {
				chosen = append(chosen, e)
			}
		}
		runErrands(t, packages, chosen)
	}
	// Images of their own: what has to be unpacked for one is as much as for all others.
	// CI has no time for what takes minutes to install; make long has.
	if os.Getenv(allTools) != "" {
		t.Run("node", func(t *testing.T) { run(t, "npm", "npm") })
		t.Run("rust", func(t *testing.T) { run(t, "cargo", "cargo") })
	}
	t.Run("small", func(t *testing.T) { run(t, "git, python3-venv, strace", "git", "pip", "go", "strace", filterInForce) })
}

func runErrands(t *testing.T, packages string, all []errand) {
	testenv.Require(t, "harness")
	policy := fmt.Sprintf("profile: shell\nname: tools\nimage:\n  packages: [%s]\n", packages)
	s := cloned(t, 0, policy)
	s.env = append(s.env, "CORRAL_CA_BUNDLE="+machineRoots)
	tree := filepath.Join(filepath.Dir(s.dir), "go")
	if slices.ContainsFunc(all, func(e errand) bool { return e.name == "go" }) {
		goTree(t, tree)
		s.write("corral.yaml", policy+fmt.Sprintf("mounts:\n  ro: [%s]\n", tree))
	}
	began := time.Now()
	if r := s.build(); r.code != 0 {
		t.Fatal(r)
	}
	t.Logf("built in %.1f s", time.Since(began).Seconds())

	var script strings.Builder
	for i, e := range all {
		s.write(fmt.Sprint(i, ".sh"), "set -e\n"+e.script)
		fmt.Fprintf(&script, `mkdir %[1]d.d; (cd %[1]d.d; GO_TREE=%[2]s bash ../%[1]d.sh > ../%[1]d.out 2> ../%[1]d.err; echo "%[1]d $? $SECONDS"); `, i, tree)
	}
	r := s.sh(script.String())
	if r.code != 0 || strings.Contains(r.err, "denied:") {
		t.Fatal(r)
	}
	for i, e := range all {
		m := regexp.MustCompile(fmt.Sprintf(`(?m)^%d (\d+) (\d+)$`, i)).FindStringSubmatch(r.out)
		if m == nil {
			t.Fatal(r)
		}
		read := func(what string) string {
			b, err := os.ReadFile(filepath.Join(s.dir, fmt.Sprint(i, what)))
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		out, errs := read(".out"), read(".err")
		if m[1] != "0" || !regexp.MustCompile(e.want).MatchString(out) {
			t.Errorf("%s: status %s, want %s in\n%s\nstderr: %s", e.name, m[1], e.want, out, errs)
		}
		t.Logf("%s: done after %s s", e.name, m[2])
	}
}

// goTree copies what of this machine's Go builds and tests a program: the system's
// own directories are in no mount.
func goTree(t *testing.T, to string) {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	root := strings.TrimSpace(string(out))
	from := os.DirFS(root)
	for _, part := range []string{"VERSION", "go.env", "bin/go", "pkg/include", "pkg/tool", "src"} {
		err := fs.WalkDir(from, part, func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "testdata" || name == "src/cmd"):
				return fs.SkipDir
			case d.IsDir():
				return os.MkdirAll(filepath.Join(to, name), 0o755)
			case strings.HasSuffix(name, "_test.go"):
				return nil
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			b, err := fs.ReadFile(from, name)
			if err != nil {
				return err
			}
			path := filepath.Join(to, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			return os.WriteFile(path, b, info.Mode().Perm())
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
