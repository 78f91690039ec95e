package engine

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/test/lab"
)

// R130: a company's CA, given once, is trusted by builds and by what runs
// inside, also where a program is started with another environment.
func TestCompanyCA(t *testing.T) {
	t.Parallel()
	const host = "api.allowed.test"
	plain := "profile: shell\nname: nothing\negress:\n  allow: [" + host + "]\n"
	s := cloned(t, 0, plain)
	s.lab.DNS.Set(host, lab.A("44.10.0.10"))
	get := filepath.Join(s.dir, "get")
	build := exec.Command("go", "build", "-trimpath", "-o", get, "./testdata/get")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	java, err := os.ReadFile("testdata/Get.java")
	if err != nil {
		t.Fatal(err)
	}
	s.write("Get.java", string(java))

	s.accept()
	if r := s.sh("./get https://" + host + "/"); r.code != 1 || !strings.Contains(r.err, "certificate signed by unknown authority") {
		t.Fatalf("the control: without the CA: %v", r)
	}

	s.env = append(s.env, "CORRAL_CA_BUNDLE="+s.private("company.pem", string(s.lab.CA), 0o644))
	s.write("corral.yaml", plain+"image:\n  packages: [curl, git, nodejs, python3, openjdk-17-jdk-headless]\n  run: [\"test -n \\\"$SSL_CERT_FILE\\\" && ls /usr/local/share/ca-certificates/corral/\"]\n")
	if r := s.build(); r.code != 0 {
		t.Fatal(r)
	}
	clients := map[string]string{
		"go":     "./get https://$1/",
		"curl":   "curl -sS https://$1/",
		"python": `python3 -c "import urllib.request as u, sys; sys.stdout.write(u.urlopen('https://$1/').read().decode())"`,
		"node":   `node -e "fetch('https://$1/').then(r => r.text()).then(s => process.stdout.write(s)).catch(e => { console.error(e.cause); process.exit(1) })"`,
		"java":   "java Get.java https://$1/",
		// It is no repository: what counts is that the origin was heard.
		"git": `out=$(git ls-remote https://$1/ 2>&1) || true; case $out in *"not valid"*|*"not found"*) echo "origin was heard";; *) echo "$out" >&2; false;; esac`,
	}
	var script strings.Builder
	fmt.Fprintf(&script, "set -- %s\nsay() { if out=$(\"${@:2}\" 2>&1); then case $out in *origin*) echo \"$1: ok\";; *) echo \"$1: $out\";; esac; else echo \"$1: $out\"; fi; }\n", host)
	for name, line := range clients {
		fmt.Fprintf(&script, "cat > /tmp/%s <<'EOF'\n%s\nEOF\nsay %s bash /tmp/%s %s\nsay '%s, bare' env -i PATH=$PATH bash /tmp/%s %s\n", name, line, name, name, host, name, name, host)
	}
	r := s.sh(script.String())
	for name := range clients {
		for _, want := range []string{name + ": ok\n", name + ", bare: ok\n"} {
			if !strings.Contains(r.out, want) {
				t.Errorf("no %q in %v", want, r)
			}
		}
	}
	if r := s.corral("verify"); r.code != 0 {
		t.Error(r)
	}
}
