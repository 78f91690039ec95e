package wayback

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// version is of the form of a Snapshot. Another one is not compared with.
const version = 2

// Raw is a string from a sandbox, of any bytes. Where text is written it has
// \xNN for what is no UTF-8 and \\ for a backslash, so that it comes back as it
// was; a terminal needs package printable besides.
type Raw string

// MarshalText never fails.
func (r Raw) MarshalText() ([]byte, error) {
	b := make([]byte, 0, len(r))
	for s := string(r); s != ""; {
		c, size := utf8.DecodeRuneInString(s)
		switch {
		case c == utf8.RuneError && size == 1:
			b = fmt.Appendf(b, `\x%02x`, s[0])
		case c == '\\':
			b = append(b, `\\`...)
		default:
			b = append(b, s[:size]...)
		}
		s = s[size:]
	}
	return b, nil
}

// UnmarshalText takes what MarshalText writes and nothing else.
func (r *Raw) UnmarshalText(text []byte) error {
	out := make([]byte, 0, len(text))
	for s := text; len(s) > 0; {
		var c byte
		switch {
		case s[0] != '\\':
			out, s = append(out, s[0]), s[1:]
			continue
		case len(s) >= 2 && s[1] == '\\':
			out, s = append(out, '\\'), s[2:]
			continue
		case len(s) >= 4 && s[1] == 'x':
			if _, err := fmt.Sscanf(string(s[2:4]), "%02x", &c); err == nil {
				out, s = append(out, c), s[4:]
				continue
			}
		}
		return fmt.Errorf("%q is no name", text)
	}
	if again, _ := Raw(out).MarshalText(); !bytes.Equal(again, text) {
		return fmt.Errorf("%q is no name", text)
	}
	*r = Raw(out)
	return nil
}

// Snapshot is what the host would execute below some directories at one time.
type Snapshot struct {
	Version int    `json:"version"`
	Roots   []Raw  `json:"roots"`
	Home    Raw    `json:"home,omitempty"`
	Also    []Raw  `json:"also,omitempty"`
	Files   []File `json:"files"` // sorted by path, each path once
	// Incomplete is what was not looked at.
	Incomplete []Gap `json:"incomplete,omitempty"`
}

// Scope is what to look at to compare with s.
func (s Snapshot) Scope() Scope {
	out := Scope{Home: string(s.Home)}
	for _, r := range s.Roots {
		out.Roots = append(out.Roots, string(r))
	}
	for _, p := range s.Also {
		out.Also = append(out.Also, string(p))
	}
	return out
}

// File is something at a path that the table names.
type File struct {
	Path    Raw    `json:"path"`    // absolute
	Pattern string `json:"pattern"` // of the table
	Kind    string `json:"kind"`
	Mode    uint32 `json:"mode,omitempty"` // permissions
	Size    int64  `json:"size,omitempty"` // bytes
	Changed int64  `json:"changed,omitempty"`
	Sum     string `json:"sha256,omitempty"`
	Why     string `json:"why,omitempty"`    // why there is no sum, or no settings
	Target  Raw    `json:"target,omitempty"` // of a symbolic link
	// Keys are the executing settings of a git configuration in their order,
	// or the drivers that attributes name.
	Keys []Key `json:"keys,omitempty"`
}

// Key is one executing setting.
type Key struct {
	Name  Raw  `json:"name"`
	Value Raw  `json:"value,omitempty"`
	Bare  bool `json:"bare,omitempty"` // without a value, which git reads as true
}

// Gap is a place that was not looked at.
type Gap struct {
	Path Raw    `json:"path"`
	Why  string `json:"why"`
	// Below is where everything may be missing: Path, or a directory that holds
	// it when the look ended at Path.
	Below Raw `json:"below"`
}

// DecodeSnapshot reads what json.Marshal writes of a Snapshot that Take made,
// and refuses everything else.
func DecodeSnapshot(b []byte) (Snapshot, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	var s Snapshot
	if err := dec.Decode(&s); err != nil {
		return Snapshot{}, fmt.Errorf("snapshot: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return Snapshot{}, errors.New("snapshot: something follows it")
	}
	if err := s.valid(); err != nil {
		return Snapshot{}, fmt.Errorf("snapshot: %w", err)
	}
	return s, nil
}

var sum = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (s *Snapshot) valid() error {
	if s.Version != version {
		return fmt.Errorf("version %d, not %d", s.Version, version)
	}
	if len(s.Roots) == 0 {
		return errors.New("no directory")
	}
	for _, r := range s.Roots {
		if !clean(r) {
			return fmt.Errorf("%q is not an absolute path", string(r))
		}
	}
	if s.Home != "" && !clean(s.Home) {
		return fmt.Errorf("%q is not an absolute path", string(s.Home))
	}
	for _, p := range s.Also {
		if !clean(p) {
			return fmt.Errorf("%q is not an absolute path", string(p))
		}
	}
	for i, f := range s.Files {
		switch {
		case !clean(f.Path):
			return fmt.Errorf("%q is not an absolute path", string(f.Path))
		case i > 0 && s.Files[i-1].Path >= f.Path:
			return fmt.Errorf("%q is out of order", string(f.Path))
		case !slices.ContainsFunc(s.Roots, func(r Raw) bool { return within(f.Path, r) }):
			return fmt.Errorf("%q is below none of its directories", string(f.Path))
		case f.Pattern == "":
			return fmt.Errorf("%q has no pattern", string(f.Path))
		case !slices.Contains(kinds, f.Kind):
			return fmt.Errorf("%q is %q", string(f.Path), f.Kind)
		case f.Sum != "" && !sum.MatchString(f.Sum):
			return fmt.Errorf("%q has the sum %q", string(f.Path), f.Sum)
		case f.Kind == regular && f.Sum == "" && f.Why == "":
			return fmt.Errorf("%q has neither a sum nor a reason for none", string(f.Path))
		case f.Kind != regular && f.Sum != "":
			return fmt.Errorf("%q is %s and has a sum", string(f.Path), f.Kind)
		case f.Size < 0:
			return fmt.Errorf("%q has %d bytes", string(f.Path), f.Size)
		}
	}
	for _, g := range s.Incomplete {
		if !clean(g.Path) || !clean(g.Below) || !within(g.Path, g.Below) || g.Why == "" {
			return fmt.Errorf("%q is no place that was left out", string(g.Path))
		}
	}
	return nil
}

var kinds = []string{regular, folder, symlink, fifo, socket, device, unknown}

func clean(p Raw) bool {
	return strings.HasPrefix(string(p), "/") && path.Clean(string(p)) == string(p)
}

func within(p, dir Raw) bool {
	_, ok := rel(string(dir), string(p))
	return ok
}

// look describes what is at name in d. The contents of a regular file that was
// read come with it. Nothing there is false.
func look(d *directory, name, pattern string) (File, []byte, bool) {
	f := File{Path: Raw(d.join(name)), Pattern: pattern, Kind: unknown}
	st, err := d.stat(name)
	if missing(err) || err == unix.ENOTDIR {
		return f, nil, false
	}
	if err != nil {
		f.Why = unlookable(err)
		return f, nil, true
	}
	f.describe(st)
	switch f.Kind {
	case symlink:
		to, err := d.link(name)
		if err != nil {
			f.Why = unlookable(err)
		}
		f.Target = Raw(to)
	case regular:
		b, st, err := d.read(name)
		if missing(err) {
			return f, nil, false
		}
		if err != nil {
			f.Why = unlookable(err)
			return f, nil, true
		}
		f.describe(st)
		f.Sum = digest(b)
		return f, b, true
	}
	return f, nil, true
}

func (f *File) describe(st unix.Stat_t) {
	f.Kind = kindOf(st)
	if f.Kind == regular {
		f.Mode = st.Mode & 0o7777
		f.Size = st.Size
		f.Changed = st.Ctim.Nano()
	}
}

func unlookable(err error) string {
	var large tooLarge
	switch {
	case errors.As(err, &large), errors.Is(err, errSwapped):
		return err.Error()
	case err == unix.ELOOP:
		return "reached through a symbolic link"
	}
	return "unreadable: " + err.Error()
}

// Since is s where an older snapshot did not look, and that where it did: the two
// are one to compare with what comes later.
func (s Snapshot) Since(older Snapshot) Snapshot {
	if len(older.Roots) == 0 {
		return s
	}
	out := Snapshot{Version: version, Home: cmp.Or(s.Home, older.Home)}
	out.Roots, out.Also = slices.Clone(older.Roots), slices.Clone(older.Also)
	for _, r := range s.Roots {
		if !slices.Contains(out.Roots, r) {
			out.Roots = append(out.Roots, r)
		}
	}
	for _, p := range s.Also {
		if !slices.Contains(out.Also, p) {
			out.Also = append(out.Also, p)
		}
	}
	old := func(p Raw) bool { return slices.ContainsFunc(older.Roots, func(r Raw) bool { return within(p, r) }) }
	out.Files = append(slices.Clone(older.Files), slices.DeleteFunc(slices.Clone(s.Files), func(f File) bool { return old(f.Path) })...)
	slices.SortFunc(out.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	out.Incomplete = append(slices.Clone(older.Incomplete), slices.DeleteFunc(slices.Clone(s.Incomplete), func(g Gap) bool { return old(g.Below) })...)
	return out
}
