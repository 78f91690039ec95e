package state

import (
	"errors"
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
