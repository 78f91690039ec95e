package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// Bounds of the search for secrets. A file above largestSearched is a program
// or an archive; the number of those is told.
const (
	largestSearched = 16 << 20
	mostSearched    = 1 << 30
	mostNames       = 200_000
)

// leakPlaces are where an image, corral and the engine put files.
var leakPlaces = []string{"/etc", "/opt", "/usr/local", "/run", "/var"}

// secretAbsentElsewhere: the values of the environment variables Names are in
// the command line of no process, and below leakPlaces in no file, and no
// file's name, that is not this user's own, Mount aside: what lies there is the
// host's. Values shorter than spec.SecretMin are not looked for; they are named.
// No value is ever shown.
func secretAbsentElsewhere(ctx context.Context, c spec.Check, e *env) finding {
	if len(c.Names) == 0 {
		return untold("no secrets were named")
	}
	s := search{ctx: ctx, e: e}
	for _, m := range c.Mount {
		s.granted = append(s.granted, path.Clean(m.Target))
	}
	var short []string
	for _, name := range c.Names {
		switch value, found := os.LookupEnv(name); {
		case !found:
			return untold("%s is not in the environment", name)
		case len(value) < spec.SecretMin:
			short = append(short, name)
		default:
			s.secrets = append(s.secrets, hidden{name, []byte(value)})
		}
	}
	if len(s.secrets) == 0 {
		return untold("every value is shorter than %d bytes", spec.SecretMin)
	}
	// Of two that hold each other the longer one is hidden first.
	slices.SortStableFunc(s.secrets, func(a, b hidden) int { return len(b.value) - len(a.value) })
	self, err := e.process("self")
	if err != nil {
		return untold("%v", err)
	}
	s.uid = self.uids[1]
	if err := s.commandLines(); err != nil {
		return untold("%s", s.hide(err.Error()))
	}
	if err := s.files(); err != nil && len(s.found) == 0 {
		return untold("%s", s.hide(err.Error()))
	}
	if len(s.found) > 0 {
		slices.Sort(s.found)
		return failed("%s", list(s.found))
	}
	f := ok()
	if len(short) > 0 {
		f.detail = fmt.Sprintf("not looked for, being shorter than %d bytes: %s", spec.SecretMin, strings.Join(short, ", "))
	}
	if s.large > 0 {
		f.detail = strings.TrimPrefix(fmt.Sprintf("%s; %d files larger than %d MiB were not looked into", f.detail, s.large, largestSearched>>20), "; ")
	}
	return f
}

// hidden is a secret; its value is never shown.
type hidden struct {
	name  string
	value []byte
}

// search looks for secrets.
type search struct {
	ctx     context.Context
	e       *env
	uid     uint32
	secrets []hidden
	granted []string

	read  atomic.Int64
	large int

	mu    sync.Mutex
	found []string
	err   error
}

func (s *search) tell(h hidden, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found = append(s.found, fmt.Sprintf("the value of %s is in %s", h.name, s.hide(fmt.Sprintf(format, args...))))
}

func (s *search) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.Join(s.err, err)
}

// hide replaces every secret in a text.
func (s *search) hide(text string) string {
	for _, h := range s.secrets {
		text = strings.ReplaceAll(text, string(h.value), "("+h.name+")")
	}
	return text
}

// commandLines looks at what every process was started with.
func (s *search) commandLines() error {
	processes, err := s.e.processes()
	if err != nil {
		return err
	}
	for _, p := range processes {
		b, err := os.ReadFile(s.e.path("/proc/" + p.pid + "/cmdline"))
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH): // it has ended
			continue
		case err != nil:
			return err
		}
		for _, h := range s.secrets {
			if bytes.Contains(b, h.value) {
				s.tell(h, "the command line of %v", p)
			}
		}
	}
	return nil
}

// files looks below every place, at names and contents.
func (s *search) files() error {
	const readers = 4
	names := make(chan string, readers)
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			buf := make([]byte, searchBlock+len(s.secrets[0].value))
			for name := range names {
				s.file(name, buf)
			}
		})
	}
	left := mostNames
	for _, place := range leakPlaces {
		real, err := filepath.EvalSymlinks(s.e.path(place))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = filepath.WalkDir(real, func(p string, d fs.DirEntry, err error) error {
				if left--; left < 0 || s.read.Load() > mostSearched || s.ctx.Err() != nil {
					return errTooMuch
				}
				return s.entry(p, d, err, names)
			})
		}
		if err != nil {
			s.fail(err)
			break
		}
	}
	close(names)
	wg.Wait()
	return s.err
}

var errTooMuch = errors.New("there is too much to look through in time")

// entry judges a name and passes on what is to be read.
func (s *search) entry(p string, d fs.DirEntry, err error, names chan<- string) error {
	inside := "/" + strings.TrimLeft(strings.TrimPrefix(p, s.e.root), "/")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, fs.ErrPermission):
		if access(p, unix.X_OK) == nil {
			return fmt.Errorf("%s may be entered and not listed", inside)
		}
		return nil // nothing in it can be seen
	case err != nil:
		return err
	case slices.Contains(s.granted, inside):
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	fi, err := d.Info()
	if err != nil {
		return nil // gone
	}
	if st, known := fi.Sys().(*syscall.Stat_t); !known || st.Uid == s.uid {
		return nil
	}
	text := d.Name()
	if fi.Mode()&fs.ModeSymlink != 0 {
		target, _ := os.Readlink(p)
		text += "\x00" + target
	}
	for _, h := range s.secrets {
		if strings.Contains(text, string(h.value)) {
			s.tell(h, "the name or the target of %s", inside)
		}
	}
	switch {
	case !fi.Mode().IsRegular():
	case fi.Size() > largestSearched:
		s.large++
	default:
		select {
		case names <- p:
		case <-s.ctx.Done():
			return errTooMuch
		}
	}
	return nil
}

// file looks for the secrets in one file. What this user may not read, it
// cannot learn from.
func (s *search) file(p string, buf []byte) {
	fd, err := unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		if !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ELOOP) {
			s.fail(&fs.PathError{Op: "open", Path: strings.TrimPrefix(p, s.e.root), Err: err})
		}
		return
	}
	f := os.NewFile(uintptr(fd), p)
	defer f.Close()
	n, held, err := s.scan(f, buf)
	for _, h := range held {
		s.tell(h, "%s", strings.TrimPrefix(p, s.e.root))
	}
	if err != nil {
		s.fail(err)
	}
	s.read.Add(n)
}

// searchBlock is how much of a file is looked at in one piece.
const searchBlock = 256 << 10

// scan returns which of the secrets r holds, and how much was read. buf is
// longer than the longest of them; what one piece ends with, the next begins
// with.
func (s *search) scan(r io.Reader, buf []byte) (read int64, held []hidden, err error) {
	longest := len(s.secrets[0].value)
	looked := map[string]bool{}
	kept := 0
	for {
		if s.ctx.Err() != nil {
			return read, held, errTooMuch
		}
		n, err := io.ReadFull(r, buf[kept:])
		read += int64(n)
		piece := buf[:kept+n]
		for _, h := range s.secrets {
			if !looked[h.name] && bytes.Contains(piece, h.value) {
				looked[h.name] = true
				held = append(held, h)
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return read, held, nil
		}
		if err != nil {
			return read, held, err
		}
		kept = copy(buf, piece[len(piece)-(longest-1):])
	}
}
