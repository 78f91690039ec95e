package verify

import (
	"os"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

// TestEnvShadowed knows every way in which a shadow is none. That a real one holds is
// shown where the engine makes it.
func TestEnvShadowed(t *testing.T) {
	const env = "51 50 8:1 /s/.env /h/.env ro,relatime - ext4 /dev/sda1 rw\n"
	const hooks = "52 50 8:1 /s/hooks /h/hooks ro,relatime - ext4 /dev/sda1 rw\n"
	file, dir := spec.File{Path: "/h/.env", Content: "A=1\n"}, spec.File{Path: "/h/hooks", Dir: true}
	for _, tt := range []struct {
		name, mounts string
		files        []spec.File
		result       spec.Result
		detail       string
	}{
		{"nothing given", env, nil, spec.Untold, "no shadows"},
		{"no mount", hooks, []spec.File{file}, spec.Failed, "/h/.env is not shadowed"},
		{"no mount for a directory", env, []spec.File{dir}, spec.Failed, "/h/hooks is not shadowed"},
		{"mounted writable", "51 50 8:1 /s/.env /h/.env rw - ext4 /dev/sda1 rw\n", []spec.File{file}, spec.Failed, "/h/.env is mounted writable"},
		{"under another mount", env + "53 51 8:1 /x /h/.env rw - ext4 /dev/sda1 rw\n", []spec.File{file}, spec.Failed, "/h/.env is mounted writable"},
		{"said to be one, and renamed all the same", env, []spec.File{file}, spec.Failed, "/h/.env: can be renamed"},
		{"written all the same", hooks, []spec.File{dir}, spec.Failed, "/h/hooks can be written"},
		{"more in it", env, []spec.File{{Path: "/h/.env", Content: "A=1"}}, spec.Failed, "/h/.env holds something else"},
		{"less in it", env, []spec.File{{Path: "/h/.env", Content: "A=1\nB=2\n"}}, spec.Failed, "/h/.env holds something else"},
		{"a directory for a file", hooks, []spec.File{{Path: "/h/hooks"}}, spec.Failed, "/h/hooks holds something else"},
		{"a file for a directory", env, []spec.File{{Path: "/h/.env", Dir: true}}, spec.Failed, "/h/.env holds something else"},
		{"not there", "51 50 8:1 /s/gone /h/gone ro - ext4 /dev/sda1 rw\n", []spec.File{{Path: "/h/gone"}}, spec.Untold, "cannot tell whether it can be renamed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := tree(t, map[string]string{"/proc/self/mountinfo": tt.mounts, "/h/hooks/": "", "/h/.env": "A=1\n"})
			want(t, e, spec.Check{Name: "env-shadowed", Files: tt.files}, tt.result, tt.detail)
			for _, p := range []string{"/h/hooks", "/h/.env"} {
				if _, err := os.Stat(e.path(p)); err != nil {
					t.Errorf("it did not put back what it moved: %v", err)
				}
			}
		})
	}
}

func TestContains(t *testing.T) {
	e := tree(t, map[string]string{"/empty/": "", "/full/x": "", "/file": "text"})
	if err := os.Symlink("file", e.path("/link")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		f    spec.File
		same bool
	}{
		{spec.File{Path: "/empty", Dir: true}, true},
		{spec.File{Path: "/full", Dir: true}, false},
		{spec.File{Path: "/file", Dir: true}, false},
		{spec.File{Path: "/file", Content: "text"}, true},
		{spec.File{Path: "/file", Content: "tex"}, false},
		{spec.File{Path: "/file"}, false},
		{spec.File{Path: "/link", Content: "text"}, false},
		{spec.File{Path: "/empty"}, false},
	} {
		if same, err := contains(e.path(tt.f.Path), tt.f); err != nil || same != tt.same {
			t.Errorf("%+v: %v, %v", tt.f, same, err)
		}
	}
}
