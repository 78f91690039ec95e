package spec

import (
	"runtime/debug"
	"testing"
)

// Every way of building says which version it is.
func TestReleaseOf(t *testing.T) {
	const commit = "3b576f5a0c11223344556677889900aabbccddee"
	build := func(version string, settings ...string) *debug.BuildInfo {
		b := &debug.BuildInfo{Main: debug.Module{Version: version}}
		for i := 0; i < len(settings); i += 2 {
			b.Settings = append(b.Settings, debug.BuildSetting{Key: settings[i], Value: settings[i+1]})
		}
		return b
	}
	for _, c := range []struct {
		how    string
		linked string
		info   *debug.BuildInfo
		want   string
	}{
		{"make build", "v1.2.3", build("v1.2.2+dirty", "vcs.revision", commit), "v1.2.3"},
		{"go install MODULE@VERSION", "", build("v1.2.3"), "v1.2.3"},
		{"go install in a clone", "", build("v1.2.4-0.20260102030405-3b576f5a0c11+dirty", "vcs.revision", commit, "vcs.modified", "true"), "v1.2.4-0.20260102030405-3b576f5a0c11+dirty"},
		{"a clone whose commit has no version", "", build("(devel)", "vcs.revision", commit, "vcs.modified", "false"), "3b576f5a0c11"},
		{"the same, changed", "", build("(devel)", "vcs.modified", "true", "vcs.revision", commit), "3b576f5a0c11-dirty"},
		{"a short commit", "", build("", "vcs.revision", "3b5"), "3b5"},
		{"an archive", "", build("(devel)"), "dev"},
		{"nothing recorded", "", nil, "dev"},
	} {
		if got := releaseOf(c.linked, c.info); got != c.want {
			t.Errorf("%s: %q, want %q", c.how, got, c.want)
		}
	}
}
