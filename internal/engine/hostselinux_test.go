package engine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/testenv"
)

// R101: what corral keeps for a sandbox has the type of the person's data until
// somebody gives the whole of it to containers, and the hint is how.
func TestRelabel(t *testing.T) {
	const home = "/home/u"
	for _, tt := range []struct {
		data, path, want string
	}{
		{"", home + "/.local/share/corral/x-1/state/main/data", "chcon -R -t container_file_t /home/u/.local/share/corral"},
		{"", home + "/.local/share/corral", "chcon -R -t container_file_t /home/u/.local/share/corral"},
		{"", home + "/.local/share/corral2/x", "chcon -R -t container_file_t /home/u/.local/share/corral2/x"},
		{"", home + "/.config/opencode", "chcon -R -t container_file_t /home/u/.config/opencode"},
		{"", home + "/it's", `chcon -R -t container_file_t '/home/u/it'\''s'`},
		{"/srv/my data", "/srv/my data/corral/x-1/state", "chcon -R -t container_file_t '/srv/my data/corral'"},
		{"/srv/my data", home + "/.local/share/corral/x", "chcon -R -t container_file_t /home/u/.local/share/corral/x"},
		{"", home, "mount a directory below it"},
		{"", "/home", "mount a directory below it"},
		{"", "/", "mount a directory below it"},
	} {
		t.Setenv("HOME", home)
		t.Setenv("XDG_DATA_HOME", tt.data)
		got := relabel(tt.path, []string{home})
		if got != tt.want && (!strings.Contains(tt.want, "below it") || !strings.HasPrefix(got, tt.want) || strings.Contains(got, "chcon")) {
			t.Errorf("%s: %q, want %q", tt.path, got, tt.want)
		}
	}
}

func TestLabelledState(t *testing.T) {
	testenv.Require(t, "netns") // root: labels are not for others to write
	data := t.TempDir()
	t.Setenv("XDG_DATA_HOME", data)
	dir := filepath.Join(data, "corral", "x-1", "state", "main", "opencode")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Lsetxattr(dir, "security.selinux", []byte("unconfined_u:object_r:data_home_t:s0\x00"), 0); err != nil {
		t.Fatal(err)
	}
	var refused *Unmountable
	err := labelled([]plan.Mount{{Path: dir, Inside: plan.Home + "/.local/share/opencode"}}, []string{"/home/u"})
	if !errors.As(err, &refused) || !strings.Contains(refused.Reason, "SELinux denies "+dir+" (data_home_t)") || refused.Hint != "chcon -R -t container_file_t "+quote(filepath.Join(data, "corral")) {
		t.Errorf("%+v", err)
	}
}
