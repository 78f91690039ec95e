package state

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestHealed(t *testing.T) {
	home := t.TempDir()
	none := func(sandbox string) {
		t.Helper()
		if h, err := Healed(home, sandbox); h != nil || err != nil {
			t.Fatal(h, err)
		}
	}
	none("a-1")
	for _, want := range []Heals{{}, {MadeAnew: 2, StartedAgain: 1, Last: time.Unix(1000, 0).UTC(), Why: "it is gone"}} {
		if err := SetHealed(home, "a-1", &want); err != nil {
			t.Fatal(err)
		}
		if h, err := Healed(home, "a-1"); err != nil || *h != want {
			t.Errorf("%v %v", h, err)
		}
	}
	none("a-2")
	for range 2 {
		if err := SetHealed(home, "a-1", nil); err != nil {
			t.Fatal(err)
		}
		none("a-1")
	}
	if err := os.WriteFile(filepath.Join(home, "a-1", heals), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Healed(home, "a-1"); err == nil {
		t.Error("half a record was read")
	}
}
