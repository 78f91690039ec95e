package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/versions"

	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Unmountable is a mount that this engine cannot make as the policy means it.
type Unmountable struct{ Reason, Hint string }

func (e *Unmountable) Error() string { return e.Reason }

// recursiveSince is the API version from which a read-only bind can be asked
// to hold for what is mounted below it (Docker 25).
const recursiveSince = "1.44"

func (e *Engine) recursive() bool {
	return !versions.LessThan(e.api.ClientVersion(), recursiveSince)
}

// mountable refuses a read-only mount with others below it where the engine
// would leave those writable.
func mountable(mounts []plan.Mount, recursive bool) error {
	if recursive {
		return nil
	}
	for _, m := range mounts {
		if m.ReadOnly && len(m.Submounts) > 0 {
			return &Unmountable{
				Reason: fmt.Sprintf("%s cannot be mounted read-only: %s is mounted in it, and this engine would leave that writable", m.Path, m.Submounts[0]),
				Hint:   "list directories without mounts in them, or use Docker 25 or newer",
			}
		}
	}
	return nil
}

// unmoved compares what is about to be bound with what was judged: each must
// still be that very file.
func unmoved(mounts []plan.Mount) error {
	for _, m := range mounts {
		fi, err := os.Lstat(m.Path)
		if err != nil {
			return &Unmountable{Reason: fmt.Sprintf("%s was there when the policy was read, and is not now: %v", m.Path, err), Hint: "start again"}
		}
		if st := fi.Sys().(*syscall.Stat_t); st.Dev != m.Dev || st.Ino != m.Ino || fi.Mode()&os.ModeSymlink != 0 {
			return &Unmountable{Reason: fmt.Sprintf("%s was replaced since the policy was read", m.Path), Hint: "start again"}
		}
	}
	return nil
}

// binds are the guest binaries and what the plan mounts, at identical paths.
// A source that is missing is the engine's error: it makes none.
func binds(g *Gate, s plan.Service, recursive bool) []mount.Mount {
	out := []mount.Mount{{Type: mount.TypeVolume, Source: g.Guests, Target: spec.GuestDir, ReadOnly: true,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true}}}
	for _, m := range s.Mounts {
		out = append(out, mount.Mount{Type: mount.TypeBind, Source: m.Path, Target: m.Target(), ReadOnly: m.ReadOnly,
			BindOptions: &mount.BindOptions{
				Propagation:            mount.PropagationRPrivate,
				ReadOnlyForceRecursive: m.ReadOnly && recursive,
			}})
	}
	return out
}

// below are the mount points below what of a service's mounts is at its own path, by
// that. What is mounted on the host later does not come inside.
func below(mounts []plan.Mount) map[string][]string {
	all := map[string][]string{}
	for _, m := range mounts {
		if m.Inside == "" && len(m.Submounts) > 0 {
			all[m.Path] = m.Submounts
		}
	}
	return all
}

// submountsLabel is below as it is kept for as long as the container is there.
func submountsLabel(mounts []plan.Mount) string {
	b, err := json.Marshal(below(mounts))
	if err != nil {
		panic(err) // strings
	}
	return string(b)
}

// parseSubmounts reads what submountsLabel wrote, which is never null.
func parseSubmounts(label string) (map[string][]string, error) {
	all := map[string][]string{}
	return all, spec.Decode(strings.NewReader(label), &all)
}

// parseMounts reads what render.MountsLabel wrote.
func parseMounts(label string) ([]plan.Mount, error) {
	var out []plan.Mount
	if err := spec.Decode(strings.NewReader(label), &out); err != nil {
		return nil, err
	}
	return out, nil
}
