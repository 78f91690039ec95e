package verify

import (
	"bytes"
	"cmp"
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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// The search for secrets looks into small files first, all of them: what a
// build, corral or the engine writes a value into is a text. Then into larger
// ones, by size, as far as there is time. One above largestSearched is a program
// or an archive.
const (
	smallSearched   = 64 << 10
	largestSearched = 16 << 20
	// searchers is how many directories and files are looked at side by side.
	searchers = 4
	// tellWithin is left of the check's time to say what was found.
	tellWithin = 250 * time.Millisecond
)

// leakPlaces are where an image, corral and the engine put files.
var leakPlaces = []string{"/etc", "/opt", "/usr/local", "/run", "/var"}

// secretAbsentElsewhere: the values of the environment variables Names are in
// the command line of no process, and below leakPlaces in no file, and no
// file's name, that is not this user's own, Mount aside: what lies there is the
// host's. Values that are spec.TooPlain are not looked for; they are named. No value
// is ever shown.
//
// It cannot tell unless every name was seen and every file of up to
// smallSearched was looked into. What else was left out is told: larger files,
// by number; directories of somebody else's that this user may enter and not
// list, so that it can read there only what it knows already; and directories
// of its own for which there was no time, since they come last and what is in
// them it can find, or has put there, itself.
func secretAbsentElsewhere(ctx context.Context, c spec.Check, e *env) finding {
	if len(c.Names) == 0 {
		return untold("no secrets were named")
	}
	s := newSearch(ctx, e)
	defer s.end()
	for _, m := range c.Mount {
		s.granted = append(s.granted, path.Clean(m.Target))
	}
	var short, plain []string
	for _, name := range c.Names {
		value, found := os.LookupEnv(name)
		if !found {
			return untold("%s is not in the environment", name)
		}
		switch why := spec.TooPlain(value); {
		case len(value) < spec.SecretMin:
			short = append(short, name)
		case why != "":
			plain = append(plain, name+" ("+why+")")
		default:
			s.secrets = append(s.secrets, hidden{name, []byte(value)})
		}
	}
	switch {
	case len(s.secrets) > 0:
	case len(plain) == 0:
		return untold("every value is shorter than %d bytes", spec.SecretMin)
	default:
		return untold("every value is too plain to be looked for, or shorter than %d bytes", spec.SecretMin)
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
	s.places()
	s.owned()
	s.rest()
	return s.outcome(short, plain)
}

// outcome is what a search that has ended proves.
func (s *search) outcome(short, plain []string) finding {
	switch {
	case len(s.found) > 0:
		slices.Sort(s.found)
		return failed("%s", list(s.found))
	case s.err != nil:
		return untold("%s", s.hide(s.err.Error()))
	case s.late:
		return untold("there is too much to look through in time: not every file of up to %d KiB was looked into", smallSearched>>10)
	}
	var left []string
	if len(short) > 0 {
		left = append(left, fmt.Sprintf("not looked for, being shorter than %d bytes: %s", spec.SecretMin, strings.Join(short, ", ")))
	}
	if len(plain) > 0 {
		left = append(left, "too plain to be looked for: "+strings.Join(plain, ", "))
	}
	if len(s.missed) > 0 {
		left = append(left, fmt.Sprintf("%d files of %d KiB and more were not looked into, for want of time", len(s.missed), slices.Min(s.missed)>>10))
	}
	if s.large > 0 {
		left = append(left, fmt.Sprintf("%d files larger than %d MiB were not looked into", s.large, largestSearched>>20))
	}
	if len(s.closed) > 0 {
		slices.Sort(s.closed)
		left = append(left, "not looked into, since they may be entered and not listed: "+s.hide(list(s.closed)))
	}
	if s.deep {
		left = append(left, "not looked into, being this user's own: directories deeper than a path can name")
	}
	if len(s.own) > 0 {
		left = append(left, fmt.Sprintf("%d directories of this user's own were not looked into, for want of time", len(s.own)))
	}
	f := ok()
	f.detail = strings.Join(left, "; ")
	return f
}

// hidden is a secret; its value is never shown.
type hidden struct {
	name  string
	value []byte
}

// search looks for secrets.
type search struct {
	ctx     context.Context // ends a moment before the check's time
	end     context.CancelFunc
	e       *env
	uid     uint32
	secrets []hidden
	granted []string

	slots   chan struct{} // what runs beside the search itself
	group   sync.WaitGroup
	buffers sync.Pool

	mu     sync.Mutex
	found  []string
	err    error
	late   bool        // there was no time for all names and small files
	own    []string    // directories of this user's own, to be looked at last
	deep   bool        // directories of this user's own lie deeper than a path can name
	closed []string    // may be entered and not listed
	medium []candidate // to be looked into by size
	missed []int64     // sizes of those for which there was no time
	large  int
}

// candidate is a file that may be looked into.
type candidate struct {
	path string
	size int64
}

func newSearch(ctx context.Context, e *env) *search {
	s := &search{e: e, slots: make(chan struct{}, searchers-1)}
	if until, limited := ctx.Deadline(); limited {
		s.ctx, s.end = context.WithDeadline(ctx, until.Add(-tellWithin))
	} else {
		s.ctx, s.end = context.WithCancel(ctx)
	}
	s.buffers.New = func() any {
		b := make([]byte, searchBlock+len(s.secrets[0].value))
		return &b
	}
	return s
}

// spawn has something done beside the search, or at once if enough is.
func (s *search) spawn(f func()) {
	select {
	case s.slots <- struct{}{}:
		s.group.Go(func() {
			defer func() { <-s.slots }()
			f()
		})
	default:
		f()
	}
}

func (s *search) over() bool { return s.ctx.Err() != nil }

// locked does something that others may be doing.
func (s *search) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *search) tell(h hidden, format string, args ...any) {
	text := fmt.Sprintf("the value of %s is in %s", h.name, s.hide(fmt.Sprintf(format, args...)))
	s.locked(func() { s.found = append(s.found, text) })
}

func (s *search) fail(err error) { s.locked(func() { s.err = errors.Join(s.err, err) }) }

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
		b, err := os.ReadFile(s.e.path(p.dir() + "/cmdline"))
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

// places looks below every place, at all names and into small files, but for
// directories of this user's own.
func (s *search) places() {
	for _, place := range leakPlaces {
		real, err := filepath.EvalSymlinks(s.e.path(place))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			s.fail(err)
		case !slices.Contains(s.granted, s.inside(real)):
			s.directory(real)
		}
	}
	s.group.Wait()
}

// owned does the same in directories of this user's own. However much it fills
// them with, the other places have been looked at by then.
func (s *search) owned() {
	for len(s.own) > 0 && !s.over() {
		dir := s.own[0]
		s.own = s.own[1:]
		s.directory(dir)
		s.group.Wait()
		if s.late {
			s.late, s.own = false, append(s.own, dir)
		}
	}
}

// rest looks into larger files, the smallest first.
func (s *search) rest() {
	slices.SortFunc(s.medium, func(a, b candidate) int { return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.path, b.path)) })
	for _, c := range s.medium {
		s.spawn(func() {
			if !s.file(c.path) {
				s.locked(func() { s.missed = append(s.missed, c.size) })
			}
		})
	}
	s.group.Wait()
}

// inside is a path as this user knows it.
func (s *search) inside(p string) string {
	return "/" + strings.TrimLeft(strings.TrimPrefix(p, s.e.root), "/")
}

// directory looks at what is in a directory, and below it.
func (s *search) directory(dir string) {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrPermission):
		s.shut(dir)
		return
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR): // it has gone
		return
	case errors.Is(err, unix.ENAMETOOLONG) && buried(dir, err):
		s.locked(func() { s.deep = true })
		return
	case err != nil:
		s.fail(err)
		return
	}
	for _, d := range entries {
		if s.over() {
			s.locked(func() { s.late = true })
			return
		}
		s.entry(filepath.Join(dir, d.Name()), d)
	}
}

// shut judges a directory that may not be listed. Who owns it can open it again.
func (s *search) shut(dir string) {
	var st unix.Stat_t
	switch err := unix.Lstat(dir, &st); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		s.fail(&fs.PathError{Op: "lstat", Path: s.inside(dir), Err: err})
	case st.Uid == s.uid:
		s.fail(fmt.Errorf("%s is closed, and this user, whose it is, may open it: chmod u+rx, or a new sandbox", short(s.hide(s.inside(dir)))))
	case access(dir, unix.X_OK) == nil:
		s.locked(func() { s.closed = append(s.closed, s.inside(dir)) })
	}
}

// entry judges a name, and looks into a small file.
func (s *search) entry(p string, d fs.DirEntry) {
	inside := s.inside(p)
	if slices.Contains(s.granted, inside) {
		return
	}
	fi, err := d.Info()
	switch {
	case errors.Is(err, fs.ErrNotExist): // it has gone
		return
	case errors.Is(err, unix.ENAMETOOLONG) && buried(p, err):
		s.locked(func() { s.deep = true })
		return
	case errors.Is(err, fs.ErrPermission): // of its directory only the names can be seen
		s.named(d.Name(), inside)
		return
	case err != nil:
		s.fail(err)
		return
	}
	st, known := fi.Sys().(*syscall.Stat_t)
	if !known {
		s.fail(fmt.Errorf("%s: nobody says whose it is", inside))
		return
	}
	if st.Uid == s.uid {
		if fi.IsDir() {
			s.locked(func() { s.own = append(s.own, p) })
		}
		return
	}
	text := d.Name()
	if fi.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(p)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EINVAL) { // it has gone, or is no link any more
			s.fail(err)
			return
		}
		text += "\x00" + target
	}
	s.named(text, inside)
	switch {
	case fi.IsDir():
		s.spawn(func() { s.directory(p) })
	case !fi.Mode().IsRegular():
	case fi.Size() > largestSearched:
		s.locked(func() { s.large++ })
	case fi.Size() > smallSearched:
		s.locked(func() { s.medium = append(s.medium, candidate{p, fi.Size()}) })
	case !s.file(p):
		s.locked(func() { s.late = true })
	}
}

// named looks for the secrets in what a path is called.
func (s *search) named(text, inside string) {
	for _, h := range s.secrets {
		if strings.Contains(text, string(h.value)) {
			s.tell(h, "the name or the target of %s", inside)
		}
	}
}

// file looks for the secrets in one file; false if there was no time for all of
// it. What this user may not read, it cannot learn from.
func (s *search) file(p string) bool {
	if s.over() {
		return false
	}
	fd, err := unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		if !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ELOOP) {
			s.fail(&fs.PathError{Op: "open", Path: s.inside(p), Err: err})
		}
		return true
	}
	f := os.NewFile(uintptr(fd), p)
	defer f.Close()
	buf := s.buffers.Get().(*[]byte)
	defer s.buffers.Put(buf)
	_, held, err := s.scan(f, *buf)
	for _, h := range held {
		s.tell(h, "%s", s.inside(p))
	}
	if errors.Is(err, errLate) {
		return false
	}
	if err != nil {
		s.fail(err)
	}
	return true
}

var errLate = errors.New("there is no time left")

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
		if s.over() {
			return read, held, errLate
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
