package cli

import (
	"testing"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/state"
)

// Whether a sandbox is to be up is known by its policy file, whatever its name
// was, and says nothing of another file's.
func TestWanted(t *testing.T) {
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	home, err := state.Home()
	if err != nil {
		t.Fatal(err)
	}
	const file, other = "/p/corral.yaml", "/q/corral.yaml"
	are := func(want, wantOther bool) {
		t.Helper()
		for file, want := range map[string]bool{file: want, other: wantOther} {
			if got, err := wanted(file); err != nil || got != want {
				t.Errorf("%s is wanted: %v %v", file, got, err)
			}
		}
	}
	are(false, false)
	for _, name := range []string{"old", "new"} {
		if err := state.SetWanted(home, plan.ID(name, file), true); err != nil {
			t.Fatal(err)
		}
	}
	are(true, false)
	if err := state.SetWanted(home, plan.ID("old", other), true); err != nil {
		t.Fatal(err)
	}
	are(true, true)
	if err := unwanted(file); err != nil {
		t.Fatal(err)
	}
	are(false, true)
}
