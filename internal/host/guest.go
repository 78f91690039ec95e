package host

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/corral-sandbox/corral/internal/spec"
)

// GuestNames are the binaries that run inside containers, built together with
// corral.
var GuestNames = []string{"corral-gate", "corral-verify"}

// Guests maps a guest binary's name to its contents.
type Guests map[string][]byte

// FindGuests reads the guest binaries from beside corral itself or from
// ../libexec/corral. They must be static and of corral's own version.
func FindGuests() (Guests, error) {
	path, err := Companion(GuestNames[0])
	if err != nil {
		return nil, err
	}
	return guestsAt(filepath.Dir(path))
}

// Companion finds a binary that was installed together with corral.
func Companion(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	bin := filepath.Dir(self)
	dirs := []string{bin, filepath.Join(bin, "..", "libexec", "corral")}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is neither in %s nor in %s: install it together with corral (make install)", name, dirs[0], filepath.Clean(dirs[1]))
}

// Guest reads one binary that runs inside, one of those that few services need.
func Guest(name string) ([]byte, error) {
	path, err := Companion(name)
	if err != nil {
		return nil, err
	}
	return guestAt(filepath.Dir(path), name)
}

func guestsAt(dir string) (Guests, error) {
	guests := Guests{}
	for _, name := range GuestNames {
		b, err := guestAt(dir, name)
		if err != nil {
			return nil, err
		}
		guests[name] = b
	}
	return guests, nil
}

// guestAt reads a static binary of corral's own version.
func guestAt(dir, name string) ([]byte, error) {
	path := filepath.Join(dir, name)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s is not beside corral (%w): install them together (make install)", name, err)
	}
	if err := static(path); err != nil {
		return nil, fmt.Errorf("%s is not a static Linux program (%w): build it with CGO_ENABLED=0", path, err)
	}
	out, err := exec.Command(path, "version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s version: %w", path, err)
	}
	if got := strings.TrimSpace(string(out)); got != name+" "+spec.Release() {
		return nil, fmt.Errorf("%s says %q, this is corral %s: install both from one build", path, got, spec.Release())
	}
	return b, nil
}

func static(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("it asks for a dynamic loader")
		}
	}
	return nil
}
