package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked is a sandbox that another corral is busy with.
var ErrLocked = errors.New("another corral is bringing it up, or looks after it")

// Lock keeps other processes from bringing up the same sandbox, or from doing what is
// named below it (SANDBOX/WORK), until the result is called or this process ends. It
// does not wait.
func Lock(home, sandbox string) (unlock func(), err error) {
	for {
		f, err := openLock(home, sandbox, "lock")
		if err != nil {
			return nil, err
		}
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case errors.Is(err, unix.EWOULDBLOCK):
			f.Close()
			return nil, fmt.Errorf("%s: %w", sandbox, ErrLocked)
		case err != nil:
			f.Close()
			return nil, &os.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
		if inPlace(f) { // else somebody forgot the sandbox meanwhile, and another one may hold the lock there is now
			unwritten(filepath.Dir(f.Name()))
			return func() { f.Close() }, nil
		}
		f.Close()
	}
}

// inPlace reports whether a file that is open is the one that its name leads to.
func inPlace(f *os.File) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(opened, named)
}

// attached is locked together by those who sit at a sandbox.
const attached = "attached"

// Attach says that somebody sits at a sandbox, beside any number of others, until the
// result is called or this process ends.
func Attach(home, sandbox string) (leave func(), err error) {
	f, err := openLock(home, sandbox, attached)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil { // Attached holds it for a moment
		f.Close()
		return nil, &os.PathError{Op: "flock", Path: f.Name(), Err: err}
	}
	return func() { f.Close() }, nil
}

// unwritten removes what somebody who was killed meant to put in place of a record. Only
// who has the lock writes those.
func unwritten(dir string) {
	entries, _ := os.ReadDir(dir) // what cannot be read now is harmless
	for _, e := range entries {
		for _, record := range []string{wanted, baseline, heals} {
			if strings.HasPrefix(e.Name(), temporary(record)) {
				_ = os.Remove(filepath.Join(dir, e.Name()))
			}
		}
	}
}

// Attached reports whether somebody sits at a sandbox.
func Attached(home, sandbox string) (bool, error) {
	f, err := openLock(home, sandbox, attached)
	if err != nil {
		return false, err
	}
	defer f.Close()
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return true, nil
	case err != nil:
		return false, &os.PathError{Op: "flock", Path: f.Name(), Err: err}
	}
	return false, nil
}

// openLock opens a file of a sandbox that is there to be locked.
func openLock(home, sandbox, name string) (*os.File, error) {
	dir, err := made(home, sandbox)
	if err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
}

// lockLook is how often Wait looks whether a lock was given back.
const lockLook = 100 * time.Millisecond

// Wait is Lock that waits for who holds it, as long as ctx lasts; waiting is
// called once if it has to. Its error is then ErrLocked, and why ctx ended.
func Wait(ctx context.Context, home, sandbox string, waiting func()) (unlock func(), err error) {
	for told := false; ; told = true {
		unlock, err := Lock(home, sandbox)
		if !errors.Is(err, ErrLocked) {
			return unlock, err
		}
		if !told {
			waiting()
		}
		select {
		case <-time.After(lockLook):
		case <-ctx.Done():
			return nil, errors.Join(err, context.Cause(ctx))
		}
	}
}
