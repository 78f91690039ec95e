package state

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const heals = "heals.json"

// Heals are how often an always-on sandbox was mended since all of it was up first.
type Heals struct {
	// MadeAnew is how often its service got another container, alone or with its gate.
	MadeAnew int `json:"made_anew"`
	// StartedAgain is how often its service was started in the container that it had.
	StartedAgain int `json:"started_again"`
	// Last is when that was last.
	Last time.Time `json:"last"`
	// Why says what for.
	Why string `json:"why"`
}

// Healed is what was recorded of a sandbox, nil if nothing was: it is not up, or was not
// yet.
func Healed(home, sandbox string) (*Heals, error) {
	dir, err := place(home, sandbox)
	if err != nil {
		return new(Heals), err
	}
	b, err := os.ReadFile(filepath.Join(dir, heals))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	h := new(Heals)
	if err == nil {
		err = json.Unmarshal(b, h)
	}
	return h, err
}

// SetHealed records it; nil forgets it. The caller holds the sandbox's lock.
func SetHealed(home, sandbox string, h *Heals) error {
	dir, err := place(home, sandbox)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, heals)
	if h == nil {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	b, err := json.Marshal(h)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err != nil {
		return err
	}
	return Replace(path, b)
}
