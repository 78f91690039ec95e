package spec

import "runtime/debug"

// release is set by the linker.
var release string

// Release is the version that all binaries of one build share: what the linker
// was given (make build), else the module's version (go install MODULE@VERSION, or
// the commit of a clone), else the commit alone, else dev.
func Release() string {
	info, _ := debug.ReadBuildInfo()
	return releaseOf(release, info)
}

// releaseOf is Release of a build that the Go command recorded as info, nil if it
// did not.
func releaseOf(linked string, info *debug.BuildInfo) string {
	if linked != "" {
		return linked
	}
	if info != nil && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	if commit, dirty := Commit(info); commit != "" {
		commit = commit[:min(len(commit), shortCommit)]
		if dirty {
			commit += "-dirty"
		}
		return commit
	}
	return "dev"
}

// shortCommit is as much of a commit as people write.
const shortCommit = 12

// Commit is what a build was made from, empty if the Go command recorded none,
// and whether something in it was changed and not committed.
func Commit(info *debug.BuildInfo) (commit string, dirty bool) {
	if info == nil {
		return "", false
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	return commit, dirty
}
