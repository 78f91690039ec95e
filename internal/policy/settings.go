package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/host"
)

// maxResolvers bounds how many name servers may keep a gate waiting in turn.
const maxResolvers = 16

const settingsKind = "settings error"

// LoadSettings reads the machine settings at path, with ~ in them as home, and
// the place of each by its key, like probes.ipv6. A missing file is no settings.
// The file is regular and belongs to uid or root, as does its directory; nobody
// else can write either. Every mistake of the person is in one diag.List.
func LoadSettings(path, home string, uid uint32) (host.Settings, map[string]diag.Pos, error) {
	shown := shorten(path)
	src, err := readSettings(path, uid)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return host.Settings{}, map[string]diag.Pos{}, nil
	case err != nil:
		return host.Settings{}, nil, diag.List{{Pos: diag.Pos{File: shown}, Kind: settingsKind, Message: plainly(err), Hint: hintOf(err)}}
	}
	return ParseSettings(shown, src, home)
}

// ParseSettings decodes machine settings. It sees no file system; how wide and
// where the subnet is, is not judged. The error is a diag.List that names the
// file as file.
func ParseSettings(file string, src []byte, home string) (host.Settings, map[string]diag.Pos, error) {
	d := newDecoder(file, src)
	s := d.settings(src, home)
	for i := range d.errs {
		d.errs[i].Kind = settingsKind
		d.errs[i].Message = settingsWords(d.errs[i].Message)
	}
	if err := d.errs.Err(); err != nil {
		return host.Settings{}, nil, err
	}
	return s, d.origins, nil
}

// readSettings returns the bytes of the file at path. The error is
// fs.ErrNotExist only if nothing stands for it.
func readSettings(path string, uid uint32) ([]byte, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) && exists(filepath.Dir(path)) {
		return nil, errors.New("its directory is a symbolic link to nothing")
	}
	if err != nil {
		return nil, err
	}
	in, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	dirInfo, err := in.Stat()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, filepath.Base(path))
	// No FIFO is waited for, and what is judged is what is read. No link is
	// followed: a sandbox may write what it leads to, but never this directory.
	fd, err := unix.Openat(int(in.Fd()), filepath.Base(path), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if fi, e := os.Lstat(file); e == nil && !fi.Mode().IsRegular() {
			return nil, fmt.Errorf("%s, not a regular file", describeMode(fi.Mode()))
		}
		return nil, err
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s, not a regular file", describeMode(fi.Mode()))
	}
	if err := trusted(file, "settings are the user's own: read it, then copy it", stat(fi), stat(dirInfo), []uint32{uid, 0}); err != nil {
		return nil, err
	}
	if n := stat(fi).Nlink; n > 1 {
		return nil, fmt.Errorf("the file has %d names (hard links): an agent could write it by another one", n)
	}
	// One byte more than is accepted, so that too much is seen as such.
	return io.ReadAll(io.LimitReader(f, maxBytes+1))
}

// settings is what can be read of src; they are settings only if d.errs stays
// empty.
func (d *decoder) settings(src []byte, home string) host.Settings {
	var s host.Settings
	if len(src) <= maxBytes && blank(src) {
		d.legible(src)
		return s
	}
	root := d.document(src)
	if root == nil {
		return s
	}
	d.mapping(root, "",
		key{"subnet", func(n *yaml.Node) { s.Subnet = d.subnet(n, "subnet") }},
		key{"resolvers", func(n *yaml.Node) { s.Resolvers = d.resolvers(n, "resolvers") }},
		key{"ca_bundle", func(n *yaml.Node) {
			if p, ok := d.path(n, "ca_bundle"); ok {
				s.CABundle = expand(p, home)
			}
		}},
		key{"probes", func(n *yaml.Node) {
			var keys []key
			for _, name := range host.ProbeNames {
				keys = append(keys, key{name, func(n *yaml.Node) { *s.Probe(name) = d.probe(n, "probes."+name, name) }})
			}
			d.mapping(n, "probes", keys...)
		}},
		key{"detach_keys", func(n *yaml.Node) {
			v, ok := d.text(n, "detach_keys")
			if !ok {
				return
			}
			if _, err := host.CheckDetachKeys(v); err != nil {
				d.errorf(n, "ctrl-p,ctrl-q are the usual ones", "detach_keys: %v", err)
				return
			}
			s.DetachKeys = v
		}},
	)
	return s
}

// blank reports whether a text has nothing but comments, as one that was put
// there to be filled in.
func blank(src []byte) bool {
	for line := range bytes.Lines(bytes.TrimPrefix(src, []byte("\ufeff"))) {
		if t := bytes.Trim(line, " \t\r\n"); len(t) > 0 && t[0] != '#' {
			return false
		}
	}
	return true
}

func (d *decoder) subnet(n *yaml.Node, path string) netip.Prefix {
	s, ok := d.text(n, path)
	if !ok {
		return netip.Prefix{}
	}
	p := prefixOf(s)
	switch {
	case !p.IsValid():
		d.errorf(n, "write it like 172.30.0.0/16", "%s: %q is not a network", path, s)
	case p != p.Masked() || p.String() != s:
		d.errorf(n, fmt.Sprintf("write %s", p.Masked()), "%s: %s is not in canonical form", path, s)
	default:
		return p
	}
	return netip.Prefix{}
}

func (d *decoder) resolvers(n *yaml.Node, path string) (servers []netip.Addr) {
	d.list(n, path, maxResolvers, func(n *yaml.Node, path string) {
		a := d.address(n, path, "write the address alone, like 192.0.2.53: name servers are asked on port 53")
		if !a.IsValid() {
			return
		}
		if err := host.CheckResolver(a); err != nil {
			d.errorf(n, "", "%s: %v", path, err)
			return
		}
		if slices.Contains(servers, a) {
			d.errorf(n, "keep one of the two", "%s: %v is listed already", path, a)
			return
		}
		servers = append(servers, a)
	})
	if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		d.errorf(n, "name one, or remove the key: then it is this machine's own", "%s is empty", path)
	}
	return servers
}

func (d *decoder) probe(n *yaml.Node, path, name string) netip.Addr {
	a := d.address(n, path, "write the address alone, like 192.0.2.1")
	if !a.IsValid() {
		return netip.Addr{}
	}
	if err := host.CheckProbe(name, a); err != nil {
		d.errorf(n, "", "probes.%v", err)
		return netip.Addr{}
	}
	return a
}

// address is one, the zero value after a complaint.
func (d *decoder) address(n *yaml.Node, path, hint string) netip.Addr {
	s, ok := d.text(n, path)
	if !ok {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		d.errorf(n, hint, "%s: %q is not an address", path, s)
		return netip.Addr{}
	}
	return a
}

// aboutSettings is how the decoder, which speaks of policies, speaks of
// settings.
var aboutSettings = strings.NewReplacer(
	"the policy", "the file",
	"a policy is one", "settings are one",
	"a policy has", "settings have",
	"in a policy", "in settings",
)

// settingsWords is a message of the decoder's in those words. What it quotes is
// the person's and stays.
func settingsWords(message string) string {
	at := strings.LastIndexByte(message, '"') + 1
	return message[:at] + aboutSettings.Replace(message[at:])
}
