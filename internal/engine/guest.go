package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/volume"

	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/spec"
)

// guestName is the volume of guest binaries: their version and digest.
func guestName(guests host.Guests) string {
	return fmt.Sprintf("%s%s-%s", guestVolumes, volumeName(spec.Release()), guestTree(guests).Digest()[:8])
}

// guestVolumes begins the names of all volumes of guest binaries.
const guestVolumes = "corral-guest-"

// roleGuest is what such a volume is labelled with.
const roleGuest = "guest"

func guestTree(guests host.Guests) render.Tree {
	tree := render.Tree{}
	for name, b := range guests {
		tree["bin/"+name] = b
	}
	return tree
}

// fillGuests makes the volume of guest binaries anew, if no container uses it.
// The engine copies the image's files into a new volume when a container is
// created on it, and never again. The caller holds the machine-wide lock.
func (e *Engine) fillGuests(ctx context.Context, image, name string) error {
	if err := e.api.VolumeRemove(ctx, name, true); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("guest volume %s holds something else: %w", name, err)
	}
	defer e.working("filling the volume of guest binaries")()
	filler, err := e.create(ctx, request{
		config: &container.Config{Image: image, Labels: map[string]string{labelRole: RoleTool}},
		host: &container.HostConfig{
			NetworkMode: "none",
			Mounts: []mount.Mount{{Type: mount.TypeVolume, Source: name, Target: spec.GuestDir,
				VolumeOptions: &mount.VolumeOptions{Labels: map[string]string{labelRole: roleGuest}}}},
		},
	})
	if err != nil {
		return fmt.Errorf("guest volume: %w", err)
	}
	return e.remove(ctx, filler)
}

// checkGuests compares what a gate holds of the guest binaries with what was
// built: the engine makes an empty volume where one is missing.
func (e *Engine) checkGuests(ctx context.Context, gate string, guests host.Guests) error {
	got, _, err := e.api.CopyFromContainer(ctx, gate, render.GateGuestDir+"/.")
	if err != nil {
		return fmt.Errorf("guest volume: %w", err)
	}
	defer got.Close()
	return sameFiles(guestTree(guests), got)
}

// pruneGuests drops the guest volumes of other builds that nothing uses.
func (e *Engine) pruneGuests(ctx context.Context, keep string) {
	list, err := e.api.VolumeList(ctx, volume.ListOptions{})
	if err != nil {
		return
	}
	for _, v := range list.Volumes {
		if v.Labels[labelRole] == roleGuest && v.Name != keep {
			_ = e.api.VolumeRemove(ctx, v.Name, false) // one in use stays
		}
	}
}

// otherFiles is an archive that is not what was built.
type otherFiles struct{ what string }

func (e *otherFiles) Error() string {
	return "the guest binaries inside are not what was built: " + e.what
}

// sameFiles compares an archive with a tree: the same files, byte for byte,
// root's, writable by nobody else. What differs is otherFiles; any other error
// is the archive's.
func sameFiles(want render.Tree, archive io.Reader) error {
	seen := map[string]bool{}
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if h.Uid != 0 || h.Gid != 0 || h.Mode&0o022 != 0 {
			return &otherFiles{fmt.Sprintf("%s belongs to %d:%d with mode %o", h.Name, h.Uid, h.Gid, h.Mode)}
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(h.Name, "./")
		file, ok := want[name]
		if h.Typeflag != tar.TypeReg || !ok || seen[name] || !bytes.Equal(b, file) {
			return &otherFiles{h.Name}
		}
		seen[name] = true
	}
	if len(seen) != len(want) {
		return &otherFiles{fmt.Sprintf("%d files, not %d", len(seen), len(want))}
	}
	return nil
}

// volumeName keeps what the engine allows in the name of a volume.
func volumeName(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-', r == '_':
			return r
		}
		return '_'
	}, s)
}
