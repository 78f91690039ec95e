package state

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestLock(t *testing.T) {
	home := t.TempDir()
	unlock, err := Lock(home, "a-1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(home, "a-1"); !errors.Is(err, ErrLocked) {
		t.Errorf("locked twice: %v", err)
	}
	other, err := Lock(home, "a-2")
	if err != nil {
		t.Errorf("another sandbox: %v", err)
	} else {
		other()
	}
	unlock()
	again, err := Lock(home, "a-1")
	if err != nil {
		t.Fatalf("after it was given back: %v", err)
	}
	again()
}

// Any number may sit at a sandbox; it is free again when the last of them has left,
// and no lock of the other kind says anything of it.
func TestAttach(t *testing.T) {
	home := t.TempDir()
	sits := func(sandbox string) bool {
		t.Helper()
		is, err := Attached(home, sandbox)
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	unlock, err := Lock(home, "a-1")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if sits("a-1") {
		t.Error("nobody came")
	}
	var leave []func()
	for range 2 {
		l, err := Attach(home, "a-1")
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, l)
	}
	if sits("a-2") {
		t.Error("they sit at another one")
	}
	for _, l := range leave {
		if !sits("a-1") {
			t.Error("one is there")
		}
		l()
	}
	if sits("a-1") {
		t.Error("both have left")
	}
}

// Who waits for a lock gets it when it is given back, says once that it waits,
// and gives up when nobody waits for it any more.
func TestWait(t *testing.T) {
	home := t.TempDir()
	unlock, err := Lock(home, "a-1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Wait(ctx, home, "a-1", cancel); !errors.Is(err, ErrLocked) || !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	told := 0
	again, err := Wait(t.Context(), home, "a-1", func() { told++; unlock() })
	if err != nil || told != 1 {
		t.Fatalf("told %d times: %v", told, err)
	}
	again()
	if again, err = Wait(t.Context(), home, "a-1", func() { t.Error("nobody holds it") }); err != nil {
		t.Fatal(err)
	}
	again()
}

// What somebody was killed over goes with the next lock, and nothing else does.
func TestLockRemovesTheUnwritten(t *testing.T) {
	home := t.TempDir()
	unlock, err := Lock(home, "a")
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	kept := []string{"accepted.json", ".accepted.json-1", "wanted", "wayback.json", ".other"}
	for _, name := range append([]string{".wanted-1", ".wayback.json-22", ".heals.json-3"}, kept...) {
		if err := os.WriteFile(filepath.Join(home, "a", name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if unlock, err = Lock(home, "a"); err != nil {
		t.Fatal(err)
	}
	defer unlock()
	entries, err := os.ReadDir(filepath.Join(home, "a"))
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := append(kept, "lock"); !slices.Equal(slices.Sorted(slices.Values(left)), slices.Sorted(slices.Values(want))) {
		t.Errorf("left %v, want %v", left, want)
	}
}
