package bridge

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/exit"
)

// scratch are the places that a researcher can write: the folder of the calls and
// the rest.
type scratch struct {
	calls  string
	others []string

	mu    sync.Mutex
	inUse map[string]bool
}

// openScratch takes over places, which must be memory and are emptied.
func openScratch(calls string, others []string) (*scratch, error) {
	s := &scratch{calls: calls, others: others, inUse: map[string]bool{}}
	if err := os.MkdirAll(calls, 0o700); err != nil {
		return nil, err
	}
	for _, dir := range append([]string{calls}, others...) {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		if st.Type != unix.TMPFS_MAGIC {
			return nil, exit.Failedf("mount a tmpfs there", "%s is no tmpfs: what a researcher leaves would outlive it", dir)
		}
	}
	return s, s.empty()
}

// take makes a call's folder.
func (s *scratch) take() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, err := os.MkdirTemp(s.calls, "")
	if err == nil {
		s.inUse[dir] = true
	}
	return dir, err
}

// giveBack removes a call's folder and what else was left.
func (s *scratch) giveBack(dir string) error {
	s.mu.Lock()
	delete(s.inUse, dir)
	s.mu.Unlock()
	return s.empty()
}

// empty removes all but the folders in use.
func (s *scratch) empty() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, dir := range append([]string{s.calls}, s.others...) {
		entries, err := os.ReadDir(dir)
		errs = append(errs, err)
		for _, e := range entries {
			name := filepath.Join(dir, e.Name())
			if !s.inUse[name] && name != s.calls {
				errs = append(errs, remove(name))
			}
		}
	}
	return errors.Join(errs...)
}

// remove is os.RemoveAll that a folder's mode does not stop. Nobody else is there
// any more who could change what is below.
func remove(name string) error {
	err := os.RemoveAll(name)
	if err == nil {
		return nil
	}
	open := func(dir string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(dir, 0o700)
		}
		return nil
	}
	// A folder is opened before it is read, so that those in it are found too.
	_ = filepath.WalkDir(name, open)
	return os.RemoveAll(name)
}
