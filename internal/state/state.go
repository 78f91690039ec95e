// Package state keeps what corral writes on the host, one directory a
// sandbox. Files go in, and come back only if they are what was written.
package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Home is where corral's own data lives: $XDG_DATA_HOME/corral, or
// ~/.local/share/corral.
func Home() (string, error) {
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "corral"), nil
	}
	home := os.Getenv("HOME")
	if !filepath.IsAbs(home) {
		return "", errors.New("neither XDG_DATA_HOME nor HOME is set")
	}
	return filepath.Join(home, ".local", "share", "corral"), nil
}

// Tampered is a build directory that somebody else wrote in.
type Tampered struct {
	Dir   string
	Files []string
}

func (e *Tampered) Error() string {
	return fmt.Sprintf("build directory %s was changed by somebody else: %v", e.Dir, e.Files)
}

const manifest = ".manifest.json"

// WriteBuild replaces dir with files. Contents that are not as the last
// WriteBuild left them are Tampered, and nothing is written.
func WriteBuild(dir string, files map[string][]byte) error {
	if err := checkBuild(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	next, err := os.MkdirTemp(filepath.Dir(dir), ".build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(next)
	sums := map[string]string{}
	for name, b := range files {
		if !filepath.IsLocal(name) {
			return fmt.Errorf("%q is not a name below %s", name, dir)
		}
		path := filepath.Join(next, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return err
		}
		sums[name] = digest(b)
	}
	b, err := json.MarshalIndent(sums, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(next, manifest), b, 0o600); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(next, dir)
}

// checkBuild compares a build directory with its manifest. None is fine.
func checkBuild(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, manifest))
	if errors.Is(err, fs.ErrNotExist) {
		if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
			return &Tampered{dir, []string{manifest}}
		}
		return nil
	}
	if err != nil {
		return err
	}
	sums := map[string]string{}
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&sums); err != nil {
		return &Tampered{dir, []string{manifest}}
	}
	var changed []string
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		if err != nil || d.IsDir() || name == manifest {
			return err
		}
		want, known := sums[name]
		delete(sums, name)
		if !d.Type().IsRegular() || !known {
			changed = append(changed, name)
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil || digest(b) != want {
			changed = append(changed, name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for name := range sums {
		changed = append(changed, name)
	}
	if len(changed) > 0 {
		return &Tampered{dir, changed}
	}
	return nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
