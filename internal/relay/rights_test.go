package relay

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const bare = `Name:	corral-gate
State:	S (sleeping)
Uid:	64998	64998	64998	64998
Gid:	64998	64998	64998	64998
Groups:	 
CapInh:	0000000000000000
CapPrm:	0000000000000000
CapEff:	0000000000000000
CapBnd:	00000000000004c0
CapAmb:	0000000000000000
NoNewPrivs:	1
`

func TestHasNoRights(t *testing.T) {
	for _, tt := range []struct {
		old, new, want string
	}{
		{"", "", ""},
		{"Groups:\t ", "Groups:\t64998 ", ""},
		{"Groups:\t ", "Groups:\t0 ", "groups"},
		{"Groups:\t ", "Groups:\t64998 27 ", "groups"},
		{"Groups:", "Gruppen:", "groups"},
		{"Uid:\t64998", "Uid:\t0", "uid"},
		{"Uid:\t64998\t64998\t64998\t64998", "Uid:\t64998\t64998\t0\t64998", "uid"},
		{"Uid:\t64998\t64998\t64998\t64998", "Uid:\t64998\t64998\t64998\t0", "uid"},
		{"Uid:\t64998\t64998\t64998\t64998", "Uid:\t64999\t64999\t64999\t64999", "uid"},
		{"Uid:\t64998\t64998\t64998\t64998", "Uid:", "uid"},
		{"Gid:\t64998\t64998", "Gid:\t64998\t0", "gid"},
		{"CapInh:\t0000000000000000", "CapInh:\t0000000000000400", "CapInh"},
		{"CapPrm:\t0000000000000000", "CapPrm:\t0000000000000400", "CapPrm"},
		{"CapEff:\t0000000000000000", "CapEff:\t8000000000000000", "CapEff"},
		{"CapAmb:\t0000000000000000", "CapAmb:\t0000000000000001", "CapAmb"},
		{"CapAmb:\t0000000000000000\n", "", "CapAmb"},
		{"NoNewPrivs:\t1", "NoNewPrivs:\t0", "NoNewPrivs"},
		{"NoNewPrivs:\t1\n", "", "NoNewPrivs"},
	} {
		status := strings.Replace(bare, tt.old, tt.new, 1)
		err := hasNoRights([]byte(status))
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%q for %q: %v, want %q", tt.new, tt.old, err, tt.want)
		}
	}
	if hasNoRights(nil) == nil {
		t.Error("an empty status proves something")
	}
}

// Every thread counts, and at least one has to be seen.
func TestHaveNoRights(t *testing.T) {
	dir := t.TempDir()
	if haveNoRights(dir) == nil {
		t.Error("no thread proves something")
	}
	add := func(thread, status string) {
		if err := os.Mkdir(filepath.Join(dir, thread), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, thread, "status"), []byte(status), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	add("1", bare)
	if err := os.Mkdir(filepath.Join(dir, "2"), 0o700); err != nil { // it has just ended
		t.Fatal(err)
	}
	if err := haveNoRights(dir); err != nil {
		t.Error(err)
	}
	add("3", strings.Replace(bare, "CapEff:\t0", "CapEff:\t1", 1))
	if haveNoRights(dir) == nil {
		t.Error("a thread with capabilities goes unnoticed")
	}
	if haveNoRights(filepath.Join(dir, "none")) == nil {
		t.Error("what cannot be read proves something")
	}
}
