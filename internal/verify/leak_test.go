package verify

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

const (
	leakToken = "s3cr\xffet-value"
	leakOther = "another\x1bsecret"
)

func TestSecretAbsentElsewhere(t *testing.T) {
	t.Setenv("TOKEN", leakToken)
	t.Setenv("OTHER", leakOther)
	t.Setenv("LONGER", "prefix-"+leakOther)
	t.Setenv("SEVEN", "1234567")
	t.Setenv("EIGHT", "12345678")
	t.Setenv("EMPTY", "")
	token := []string{"TOKEN"}
	big := strings.Repeat("x", largestSearched-len(leakToken))
	for _, tt := range []struct {
		name   string
		names  []string
		files  map[string]string
		result spec.Result
		detail string
	}{
		{"nowhere", []string{"TOKEN", "OTHER"}, map[string]string{"/etc/passwd": "root"}, spec.OK, ""},
		{"in a file", token, map[string]string{"/etc/leak": "a\x00b" + leakToken + "c"}, spec.Failed, "the value of TOKEN is in /etc/leak"},
		{"deep below", token, map[string]string{"/usr/local/a/b/c": leakToken}, spec.Failed, "/usr/local/a/b/c"},
		{"in /opt", token, map[string]string{"/opt/x": leakToken}, spec.Failed, "/opt/x"},
		{"in /run", token, map[string]string{"/run/x": leakToken}, spec.Failed, "/run/x"},
		{"in /var", token, map[string]string{"/var/x": leakToken}, spec.Failed, "/var/x"},
		{"elsewhere", token, map[string]string{"/srv/x": leakToken, "/home/agent/x": leakToken}, spec.OK, ""},
		{"all but its last byte", token, map[string]string{"/etc/x": leakToken[:len(leakToken)-1]}, spec.OK, ""},
		{"across two pieces", token, map[string]string{"/etc/x": strings.Repeat("x", searchBlock+len(leakToken)-3) + leakToken}, spec.Failed, "/etc/x"},
		{"the largest file that is read", token, map[string]string{"/etc/x": big + leakToken}, spec.Failed, "/etc/x"},
		{"a larger one", token, map[string]string{"/etc/x": big + "1" + leakToken}, spec.OK, "1 files larger than 16 MiB were not looked into"},
		{"in a mount", token, map[string]string{"/opt/project/.env": leakToken}, spec.OK, ""},
		{"beside a mount", token, map[string]string{"/opt/project2/.env": leakToken}, spec.Failed, "/opt/project2/.env"},
		{"the name of a file", token, map[string]string{"/etc/x-" + leakToken: ""}, spec.Failed, "the value of TOKEN is in the name or the target of /etc/x-(TOKEN)"},
		{"the name of a directory", token, map[string]string{"/var/" + leakToken + "/": ""}, spec.Failed, "/var/(TOKEN)"},
		{"a command line", token, map[string]string{"/proc/7/cmdline": "curl\x00--token=" + leakToken}, spec.Failed, "the value of TOKEN is in the command line of process 7 (agent)"},
		{"one in the other", []string{"OTHER", "LONGER"}, map[string]string{"/etc/prefix-" + leakOther: ""}, spec.Failed, "/etc/(LONGER)"},
		{"both", []string{"TOKEN", "OTHER"}, map[string]string{"/etc/a": leakOther + leakToken}, spec.Failed, "the value of OTHER is in /etc/a, the value of TOKEN is in /etc/a"},
		{"one is short", []string{"SEVEN", "EIGHT", "EMPTY"}, map[string]string{"/etc/a": "1234567"}, spec.OK, "not looked for, being shorter than 8 bytes: SEVEN, EMPTY"},
		{"just long enough", []string{"EIGHT"}, map[string]string{"/etc/a": "123456789"}, spec.Failed, "EIGHT"},
		{"all are short", []string{"SEVEN"}, nil, spec.Untold, "every value is shorter than 8 bytes"},
		{"one that is not there", []string{"TOKEN", "NONE_OF_THESE"}, nil, spec.Untold, "NONE_OF_THESE is not in the environment"},
		{"none", nil, nil, spec.Untold, "no secrets were named"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := map[string]string{"/proc/self/status": someoneElse(), "/proc/7/status": someoneElse(), "/proc/7/cmdline": "sh"}
			for name, content := range tt.files {
				files[name] = content
			}
			e := tree(t, files)
			c := spec.Check{Name: "secret-absent-elsewhere", Names: tt.names, Mount: []spec.Mount{{Target: "/opt/project"}}}
			want(t, e, c, tt.result, tt.detail)
			if got := examine(t.Context(), c, e); strings.Contains(got.detail, leakToken) || strings.Contains(got.detail, leakOther) {
				t.Errorf("it tells a secret: %q", got.detail)
			}
		})
	}
}

// What the agent itself wrote, it put there.
func TestSecretInOwnFile(t *testing.T) {
	t.Setenv("TOKEN", leakToken)
	e := tree(t, map[string]string{"/proc/self/status": statusFile(os.Getuid(), os.Getgid(), "", noCaps, 1, 2), "/var/tmp/" + leakToken: leakToken})
	want(t, e, spec.Check{Name: "secret-absent-elsewhere", Names: []string{"TOKEN"}}, spec.OK, "")
}

func TestSecretInLinkTarget(t *testing.T) {
	t.Setenv("TOKEN", leakToken)
	e := tree(t, map[string]string{"/proc/self/status": someoneElse(), "/etc/": ""})
	if err := os.Symlink("/x/"+leakToken, e.path("/etc/link")); err != nil {
		t.Fatal(err)
	}
	want(t, e, spec.Check{Name: "secret-absent-elsewhere", Names: []string{"TOKEN"}}, spec.Failed, "the target of /etc/link")
}

// However a text is cut into pieces, a secret in it is found.
func FuzzScan(f *testing.F) {
	f.Add([]byte("aaab"), []byte("aab"), uint8(0))
	f.Add([]byte("\x00\xff\x00\xff"), []byte("\xff\x00\xff"), uint8(1))
	f.Fuzz(func(t *testing.T, text, secret []byte, more uint8) {
		if len(secret) == 0 {
			return
		}
		s := search{ctx: t.Context(), secrets: []hidden{{"A", secret}}}
		n, held, err := s.scan(bytes.NewReader(text), make([]byte, len(secret)+int(more)))
		if err != nil || n != int64(len(text)) || (len(held) == 1) != bytes.Contains(text, secret) {
			t.Errorf("%d bytes, %v, %v", n, held, err)
		}
	})
}
