package verify

import (
	"os"
	"testing"

	"github.com/corral-sandbox/corral/internal/spec"
)

// TestGitShielded knows every way in which a shield is none. That a real one
// holds is shown where the engine makes it.
func TestGitShielded(t *testing.T) {
	const rw = "50 40 8:1 /p/.git /p/.git rw,relatime - ext4 /dev/sda1 rw\n"
	const ro = "51 50 8:1 /p/.git/hooks /p/.git/hooks ro,relatime - ext4 /dev/sda1 rw\n"
	files := func(mounts string) map[string]string {
		return map[string]string{"/proc/self/mountinfo": mounts, "/p/.git/hooks/": "", "/p/.git/config": "x"}
	}
	git, hooks := spec.Mount{Target: "/p/.git"}, spec.Mount{Target: "/p/.git/hooks", ReadOnly: true}
	for _, tt := range []struct {
		name, mounts string
		shields      []spec.Mount
		result       spec.Result
		detail       string
	}{
		{"nothing given", rw + ro, nil, spec.Untold, "no shields"},
		{"no mount", ro, []spec.Mount{git}, spec.Failed, "/p/.git is not shielded"},
		{"said to be one, and renamed all the same", rw, []spec.Mount{git}, spec.Failed, "/p/.git: can be renamed"},
		{"mounted writable", rw + "51 50 8:1 /p/.git/hooks /p/.git/hooks rw - ext4 /dev/sda1 rw\n", []spec.Mount{hooks}, spec.Failed, "is mounted writable"},
		{"written all the same", rw + ro, []spec.Mount{hooks}, spec.Failed, "/p/.git/hooks can be written"},
		{"not there", rw + "52 50 8:1 /x /p/gone rw - ext4 /dev/sda1 rw\n", []spec.Mount{{Target: "/p/gone"}}, spec.Untold, "cannot tell whether it can be renamed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := tree(t, files(tt.mounts))
			want(t, e, spec.Check{Name: "git-shielded", Mount: tt.shields}, tt.result, tt.detail)
			for _, p := range []string{"/p/.git/hooks", "/p/.git/config"} {
				if _, err := os.Stat(e.path(p)); err != nil {
					t.Errorf("it did not put back what it moved: %v", err)
				}
			}
		})
	}
}
