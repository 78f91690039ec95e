package gate

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestStoppedIn(t *testing.T) {
	dir, id := t.TempDir(), strings.Repeat("ab", 32)
	in := "12:pids:/docker/" + id + "\n0::/\n"
	for pid, of := range map[string][2]string{
		"10": {"10 (runc:[2:INIT]) T 1 1", in},
		"11": {"11 (corral-verify) T 1 1", in},
		"12": {"12 (corral-verify) S 1 1", in},
		"13": {"13 (runc:[2:INIT]) T 1 1", "12:pids:/docker/" + strings.Repeat("cd", 32) + "\n"},
		"14": {"14 (sleep) T 1 1", in},
		"15": {"15 (a) T (runc:[2:INIT]) S 1 1", in},
		"16": {"16 (x) ) T 1 1", in},
	} {
		if err := os.Mkdir(filepath.Join(dir, pid), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"stat": of[0], "cgroup": of[1]} {
			if err := os.WriteFile(filepath.Join(dir, pid, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "17"), 0o755); err != nil { // it has ended
		t.Fatal(err)
	}
	got, err := stoppedIn(dir, id)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, []int{10, 11}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, args := range [][]string{nil, {"a"}, {id, id}, {strings.ToUpper(id)}} {
		if err := unblock(t.Context(), nil, args); err == nil {
			t.Errorf("%q was taken", args)
		}
	}
}
