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

// Who makes a sandbox says so, and that it is done, whatever else is kept of it.
func TestMaking(t *testing.T) {
	home := t.TempDir()
	for _, is := range []bool{false, true, true, false, false} {
		if err := SetMaking(home, "a-1", is); err != nil {
			t.Fatal(err)
		}
		got, err := Making(home, "a-1")
		wanted, errWanted := Wanted(home, "a-1")
		if got != is || err != nil || wanted || errWanted != nil {
			t.Errorf("%t: %t, %v; wanted %t, %v", is, got, err, wanted, errWanted)
		}
	}
}
