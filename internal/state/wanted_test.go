package state

import "testing"

func TestWanted(t *testing.T) {
	home := t.TempDir()
	for i, want := range []bool{false, true, true, false, false, true} {
		if err := SetWanted(home, "a-1", want); err != nil {
			t.Fatal(err)
		}
		for sandbox, want := range map[string]bool{"a-1": want, "a-2": false} {
			if got, err := Wanted(home, sandbox); err != nil || got != want {
				t.Errorf("step %d: %s is wanted: %v %v", i, sandbox, got, err)
			}
		}
	}
}
