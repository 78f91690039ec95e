package state

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const accepted = "accepted.json"

// ErrNotYours is a record that is somebody else's.
var ErrNotYours = errors.New("it is not a file that only you can write")

// Accepted is what was accepted of a sandbox's policy, nil if nothing was. A
// record that somebody else could have written is an error.
func Accepted(home, sandbox string) ([]byte, error) {
	dir, err := place(home, sandbox)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, accepted)
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch st := fi.Sys().(*syscall.Stat_t); {
	case !fi.Mode().IsRegular() || fi.Mode().Perm()&0o022 != 0:
		return nil, fmt.Errorf("%s: it is not a file that only you can write", path)
	case int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s: %w", path, ErrNotYours)
	}
	return io.ReadAll(f)
}

// Accept records what a person accepted, whole or not at all.
func Accept(home, sandbox string, b []byte) error {
	dir, err := made(home, sandbox)
	if err != nil {
		return err
	}
	return Replace(filepath.Join(dir, accepted), b)
}

// temporary begins the names of files that are to be called name.
func temporary(name string) string { return "." + name + "-" }

// Replace writes a file in place of another, to the disk before it counts.
func Replace(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), temporary(filepath.Base(path))) // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already if all went well
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Sandboxes lists those with a directory of their own.
func Sandboxes(home string) ([]string, error) {
	entries, err := os.ReadDir(home)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range entries {
		// One that is a link is refused, not passed over.
		if (e.IsDir() || e.Type()&fs.ModeSymlink != 0) && !isForgotten(e.Name()) {
			out = append(out, e.Name())
		}
	}
	return out, err
}

const baseline = "wayback.json"

// Baseline is what a running sandbox's mounts held when it was brought up, nil
// if that was not recorded.
func Baseline(home, sandbox string) ([]byte, error) {
	dir, err := place(home, sandbox)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, baseline))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// SetBaseline records it; nil forgets it.
func SetBaseline(home, sandbox string, b []byte) error {
	dir, err := place(home, sandbox)
	if err != nil {
		return err
	}
	if b == nil {
		err := os.Remove(filepath.Join(dir, baseline))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return Replace(filepath.Join(dir, baseline), b)
}

// KeepReport keeps a text for the person and says where. It replaces the one
// before.
func KeepReport(home, sandbox string, text []byte) (string, error) {
	dir, err := made(home, sandbox)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "wayback.txt")
	return path, Replace(path, text)
}
