package engine

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/testenv"
)

// What a survey that was killed left in the home directory goes at the next
// one; nothing else does, whatever it is called.
func TestScratchIsSwept(t *testing.T) {
	old, new := time.Now().Add(-scratchAbandoned-time.Second), time.Now().Add(-scratchAbandoned+time.Minute)
	for _, tt := range []struct {
		name, dir string
		files     []string
		made      time.Time
		swept     bool
	}{
		{"left with its nonce", ".corral-check-123", []string{"nonce"}, old, true},
		{"left before it had one", ".corral-check-0", nil, old, true},
		{"one that may be in use", ".corral-check-124", []string{"nonce"}, new, false},
		{"with something else", ".corral-check-125", []string{"nonce", "mine"}, old, false},
		{"with another thing", ".corral-check-126", []string{"mine"}, old, false},
		{"with a directory of that name", ".corral-check-127", []string{"nonce/"}, old, false},
		{"another name", ".corral-check-", nil, old, false},
		{"no number", ".corral-check-12a", nil, old, false},
		{"a sign", ".corral-check--1", nil, old, false},
		{"another beginning", "corral-check-128", nil, old, false},
		{"longer beginning", "x.corral-check-128", nil, old, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			home := t.TempDir()
			t.Setenv("HOME", home)
			dir := filepath.Join(home, tt.dir)
			err := os.Mkdir(dir, 0o755)
			for _, f := range tt.files {
				if name, isDir := filepath.Split(f); isDir == "" {
					err = errors.Join(err, os.Mkdir(filepath.Join(dir, name), 0o755))
				} else {
					err = errors.Join(err, os.WriteFile(filepath.Join(dir, f), nil, 0o644))
				}
			}
			if err := errors.Join(err, os.Chtimes(dir, tt.made, tt.made)); err != nil {
				t.Fatal(err)
			}
			var c scratch
			if err := c.make(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) != tt.swept {
				t.Errorf("swept is not %v: %v", tt.swept, err)
			}
			if b, err := os.ReadFile(filepath.Join(c.dir, nonceFile)); err != nil || string(b) != c.nonce || filepath.Dir(c.dir) != home {
				t.Errorf("the new one: %+v, %v", c, err)
			}
		})
	}
}

// Links are neither followed nor removed, files neither.
func TestScratchSweepFollowsNothing(t *testing.T) {
	home, away := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	old := time.Now().Add(-24 * time.Hour)
	if err := errors.Join(
		os.WriteFile(filepath.Join(away, nonceFile), nil, 0o644),
		os.Chtimes(away, old, old),
		os.Symlink(away, filepath.Join(home, ".corral-check-1")),
		os.WriteFile(filepath.Join(home, ".corral-check-2"), nil, 0o644),
		unix.Mkfifo(filepath.Join(home, ".corral-check-3"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	var c scratch
	if err := c.make(); err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, err := os.ReadDir(home)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != filepath.Base(c.dir) {
			left = append(left, e.Name())
		}
	}
	if want := []string{".corral-check-1", ".corral-check-2", ".corral-check-3"}; !slices.Equal(left, want) {
		t.Errorf("left %q", left)
	}
	if _, err := os.Stat(filepath.Join(away, nonceFile)); err != nil {
		t.Error(err)
	}
}

// Somebody else's is theirs, also for root, and also where everybody may write.
func TestScratchOfOthersStays(t *testing.T) {
	testenv.Require(t, "netns") // root: nobody else can give directories away
	temp := t.TempDir()
	t.Setenv("HOME", "")
	t.Setenv("TMPDIR", temp)
	old := time.Now().Add(-24 * time.Hour)
	for name, uid := range map[string]int{"corral-check-1": 4711, "corral-check-2": os.Geteuid()} {
		dir := filepath.Join(temp, name)
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, uid, -1), os.Chtimes(dir, old, old)); err != nil {
			t.Fatal(err)
		}
	}
	var c scratch
	if err := c.make(); err != nil {
		t.Fatal(err)
	}
	_, others := os.Lstat(filepath.Join(temp, "corral-check-1"))
	_, own := os.Lstat(filepath.Join(temp, "corral-check-2"))
	if others != nil || own == nil || filepath.Dir(c.dir) != temp {
		t.Errorf("another's: %v, own: %v, made %s", others, own, c.dir)
	}
}
