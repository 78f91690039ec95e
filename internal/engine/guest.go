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

// guestVolume makes sure that the volume with the guest binaries exists and
// returns its name, which holds their version and digest. The caller holds the
// machine-wide lock.
//
// The engine copies the image's files into a new volume when a container is
// created on it, and never again. So the filling container stays until what
// arrived was compared: if it is still there, the last filling was cut short.
func (e *Engine) guestVolume(ctx context.Context, image string, guests host.Guests) (string, error) {
	tree := render.Tree{}
	for name, b := range guests {
		tree["bin/"+name] = b
	}
	name := fmt.Sprintf("corral-guest-%s-%s", volumeName(spec.Release()), tree.Digest()[:8])
	filler := name + "-fill"
	_, unfinished := e.api.ContainerInspect(ctx, filler)
	_, missing := e.api.VolumeInspect(ctx, name)
	if missing == nil && errdefs.IsNotFound(unfinished) {
		return name, nil
	}
	if err := e.remove(ctx, filler); err != nil {
		return "", fmt.Errorf("guest volume: %w", err)
	}
	if err := e.api.VolumeRemove(ctx, name, true); err != nil && !errdefs.IsNotFound(err) {
		return "", fmt.Errorf("guest volume left half filled: %w", err)
	}
	e.Progress("filling the volume of guest binaries")
	created, err := e.api.ContainerCreate(ctx, &container.Config{
		Image:  image,
		Labels: map[string]string{labelRole: RoleTool},
	}, &container.HostConfig{
		NetworkMode: "none",
		Mounts: []mount.Mount{{Type: mount.TypeVolume, Source: name, Target: spec.GuestDir,
			VolumeOptions: &mount.VolumeOptions{Labels: map[string]string{labelRole: "guest"}}}},
	}, nil, nil, filler)
	if err != nil {
		return "", fmt.Errorf("guest volume: %w", err)
	}
	got, _, err := e.api.CopyFromContainer(ctx, created.ID, spec.GuestDir+"/.")
	if err != nil {
		return "", fmt.Errorf("guest volume: %w", err)
	}
	defer got.Close()
	if err := sameFiles(tree, got); err != nil {
		return "", errors.Join(fmt.Errorf("guest volume %s: %w", name, err), e.remove(ctx, created.ID), e.api.VolumeRemove(ctx, name, true))
	}
	if err := e.remove(ctx, created.ID); err != nil {
		return "", fmt.Errorf("guest volume: %w", err)
	}
	e.pruneGuests(ctx, name)
	return name, nil
}

// pruneGuests drops the guest volumes of other builds that nothing uses.
func (e *Engine) pruneGuests(ctx context.Context, keep string) {
	list, err := e.api.VolumeList(ctx, volume.ListOptions{})
	if err != nil {
		return
	}
	for _, v := range list.Volumes {
		if v.Labels[labelRole] == "guest" && v.Name != keep {
			_ = e.api.VolumeRemove(ctx, v.Name, false) // one in use stays
		}
	}
}

// sameFiles compares an archive with a tree: the same files, byte for byte,
// root's, writable by nobody else.
func sameFiles(want render.Tree, archive io.Reader) error {
	seen := 0
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if h.Uid != 0 || h.Gid != 0 || h.Mode&0o022 != 0 {
			return fmt.Errorf("%s belongs to %d:%d with mode %o", h.Name, h.Uid, h.Gid, h.Mode)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		file, ok := want[strings.TrimPrefix(h.Name, "./")]
		if h.Typeflag != tar.TypeReg || !ok || !bytes.Equal(b, file) {
			return fmt.Errorf("%s is not what was built", h.Name)
		}
		seen++
	}
	if seen != len(want) {
		return fmt.Errorf("%d files arrived, not %d", seen, len(want))
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
