// Package mountinfo reads the kernel's account of what is mounted in a process's view,
// and tells what an engine mounts in every container from what a plan asked for. In
// goes the text of a mountinfo, out come mounts and what is wrong with them. It opens
// no file: whose account it is, and whether it can be believed, its callers know.
package mountinfo

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Mount is one line.
type Mount struct {
	ID, Parent int    // numbers of it and of what it is mounted in
	Device     string // major:minor
	Root       string // what of the file system is mounted
	Target     string // where
	Options    []string
	FSType     string
}

// Has says whether it is mounted with an option, such as "ro".
func (m Mount) Has(option string) bool { return slices.Contains(m.Options, option) }

// Parse reads a mountinfo, in which a later line may cover an earlier one; see
// proc_pid_mountinfo(5). A text without any line is an error: no process sees nothing.
func Parse(text string) ([]Mount, error) {
	var all []Mount
	for line := range strings.Lines(text) {
		m, err := parse(strings.Split(strings.TrimSuffix(line, "\n"), " ")) // other blanks are part of a name
		if err != nil {
			return nil, fmt.Errorf("mountinfo: %w: %q", err, line)
		}
		all = append(all, m)
	}
	if len(all) == 0 {
		return nil, errors.New("mountinfo: it is empty")
	}
	return all, nil
}

// parse takes id, parent, device, root, target, options, any number of tags, "-",
// type, source, and the file system's options.
func parse(fields []string) (Mount, error) {
	const tags = 6
	if len(fields) < tags {
		return Mount{}, errors.New("too few fields")
	}
	dash := slices.Index(fields[tags:], "-") + tags
	if dash < tags || len(fields) < dash+2 {
		return Mount{}, errors.New("no type")
	}
	id, err := strconv.Atoi(fields[0])
	parent, err2 := strconv.Atoi(fields[1])
	if err := errors.Join(err, err2); err != nil {
		return Mount{}, errors.New("no number")
	}
	return Mount{
		ID: id, Parent: parent, Device: fields[2], Root: unescape(fields[3]), Target: unescape(fields[4]),
		Options: strings.Split(fields[5], ","), FSType: fields[dash+1],
	}, nil
}

// unescape undoes the kernel's \ooo.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Within says whether a clean path is dir or lies below it.
func Within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// At is the mount that is to be seen at a target: of several on each other the one
// mounted last.
func At(all []Mount, target string) (m Mount, there bool) {
	for _, m := range slices.Backward(all) {
		if m.Target == target {
			return m, true
		}
	}
	return Mount{}, false
}
