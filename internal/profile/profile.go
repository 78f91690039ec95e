// Package profile reads what a harness is from its folder under profiles: how
// it is installed and run and what it cannot work without. A name goes in, a
// Profile comes out; nothing happens on the machine.
package profile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/corral-sandbox/corral/profiles"
)

// Profile is one harness.
type Profile struct {
	Name    string   `yaml:"-"`
	Summary string   `yaml:"summary"`
	Version string   `yaml:"version"` // of the harness, where the profile pins one
	Command []string `yaml:"command"`
	// Arguments says what becomes of those on the command line.
	Arguments Arguments `yaml:"arguments"`
	// Egress are names that the harness needs, TCP 443 and 80. They are soft.
	Egress      []string          `yaml:"egress"`
	Environment map[string]string `yaml:"environment"`
	// Mounts are directories of the person's that the harness may read.
	Mounts []Mount `yaml:"mounts"`
	// State are directories of the agent's, as ~/…, that outlive a run.
	State []string `yaml:"state"`
	// Seed are files of the person's, as ~/…, that a new state begins with.
	Seed []string `yaml:"seed"`
	// Tools are Debian packages that the harness calls.
	Tools []string `yaml:"tools"`
	// RootOwned are paths that the agent must not be able to change.
	RootOwned []string `yaml:"root_owned"`
	// Build are files of the profile's folder that only the build of the image reads.
	Build []string `yaml:"build"`

	// Files are baked into the image, by their path from /.
	Files map[string][]byte `yaml:"-"`

	inputs     map[string][]byte // of Build
	dockerfile *template.Template
	sidecars   map[string]sidecar
}

// sidecar is a further service of a harness: a folder of the profile's with a
// Dockerfile of its own.
type sidecar struct {
	files      map[string][]byte // beside it, by their path in the folder
	dockerfile *template.Template
}

// Mount is a directory of the person's, if it is there, read-only at the same
// path below the agent's home.
type Mount struct {
	Path string `yaml:"path"` // ~/…
	// Ensure are files that the harness needs there, with what to make them of.
	Ensure map[string]string `yaml:"ensure"`
}

// Arguments is what becomes of the arguments of corral run.
type Arguments string

const (
	// Replace puts them in place of the command.
	Replace Arguments = ""
	// Append gives them to the command.
	Append Arguments = "append"
)

// Line is what runs for the arguments of a command line; none if there are none.
func (p *Profile) Line(args []string) []string {
	if len(args) == 0 || p.Arguments == Replace {
		return args
	}
	return slices.Concat(p.Command, args)
}

// Image is what a Dockerfile template may ask for.
type Image struct {
	Base     string // an image reference
	UID, GID uint32
	Packages []string // Debian's names, each perhaps with =VERSION
	Run      []string // shell commands, as root, at build time
	// Certificates says that the build context has the folder ca, with
	// certificates to trust.
	Certificates bool
}

// Fields of a template that are not the policy's.
func (p *Profile) fields(img Image) any {
	return struct {
		Image
		Version        string
		Tools          []string
		Directories    []string
		TrustVariables []string
	}{img, p.Version, p.Tools, p.directories(), trustVariables}
}

// trustVariables point programs that have roots of their own, or look for them
// elsewhere, to the system's store: OpenSSL and what is built on it, Python's
// requests and pip, curl, git, Node, cargo, AWS.
var trustVariables = []string{
	"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
	"NODE_EXTRA_CA_CERTS", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE",
}

// directories are those of the agent's home that mounts need, from the home,
// what holds others first. A directory that only the person's own would cover
// is not the agent's.
func (p *Profile) directories() []string {
	var out []string
	add := func(rel string) {
		var below []string
		for d := rel; d != "."; d = path.Dir(d) {
			below = append([]string{d}, below...)
		}
		for _, d := range below {
			if !slices.Contains(out, d) {
				out = append(out, d)
			}
		}
	}
	for _, m := range p.Mounts {
		add(path.Dir(below(m.Path)))
	}
	for _, s := range p.State {
		add(below(s))
	}
	return out
}

// below is a path of a home from there.
func below(home string) string { return strings.TrimPrefix(home, "~/") }

// homePath is a plain path below a home.
var homePath = regexp.MustCompile(`^~(/[A-Za-z0-9._-]*[A-Za-z0-9][A-Za-z0-9._-]*)+$`)

// check refuses what a reader of ours would have to guess about.
func (p *Profile) check() error {
	if len(p.Command) == 0 {
		return errors.New("no command")
	}
	for _, t := range p.Tools {
		if !packageForm.MatchString(t) {
			return fmt.Errorf("%q is no package", t)
		}
	}
	if p.Arguments != Replace && p.Arguments != Append {
		return fmt.Errorf("arguments: %q", p.Arguments)
	}
	paths := slices.Concat(p.State, p.Seed)
	for _, m := range p.Mounts {
		paths = append(paths, m.Path)
		for name := range m.Ensure {
			if path.Base(name) != name || name == "." || name == ".." {
				return fmt.Errorf("%s: %q is no name of a file", m.Path, name)
			}
		}
	}
	for _, s := range paths {
		if !homePath.MatchString(s) || path.Clean(s) != s {
			return fmt.Errorf("%q is no path below a home", s)
		}
	}
	for _, s := range p.Seed {
		if !slices.ContainsFunc(p.State, func(dir string) bool { return strings.HasPrefix(s, dir+"/") }) {
			return fmt.Errorf("%s is in no state", s)
		}
	}
	for _, name := range p.Build {
		if path.Base(name) != name || name == "." || name == ".." {
			return fmt.Errorf("build: %q is no name of a file", name)
		}
	}
	for _, s := range p.RootOwned {
		if !path.IsAbs(s) || path.Clean(s) != s {
			return fmt.Errorf("%q is no absolute path", s)
		}
	}
	return nil
}

var (
	// baseForm and packageForm hold nothing that a Dockerfile or a shell reads in
	// another way; what a reference or a package is, the policy has said.
	baseForm    = regexp.MustCompile(`^[A-Za-z0-9\[][A-Za-z0-9._:/@\[\]-]*$`)
	packageForm = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]*[a-z0-9+.](=[0-9]([A-Za-z0-9+.:~-]*[A-Za-z0-9+.:~])?)?$`)
)

// check refuses what could be more in a Dockerfile than it is here.
func (img Image) check() error {
	if img.Base == "" || img.UID == 0 {
		return errors.New("an image needs a base and an unprivileged user")
	}
	if !baseForm.MatchString(img.Base) {
		return fmt.Errorf("%q cannot be the base of an image", img.Base)
	}
	for _, p := range img.Packages {
		if !packageForm.MatchString(p) {
			return fmt.Errorf("%q cannot be a package of an image", p)
		}
	}
	for _, r := range img.Run {
		if !utf8.ValidString(r) || strings.Contains(r, "\x00") {
			return fmt.Errorf("%q cannot be a command of an image: no shell can be given it", r)
		}
	}
	return nil
}

// shell writes a command as the one line of an instruction: inside the JSON,
// nothing is an end of line, a here-document or a continuation.
func shell(command string) (string, error) {
	b, err := json.Marshal([]string{"/bin/sh", "-c", command})
	return string(b), err
}

// Names lists the profiles there are.
func Names() []string {
	found, err := fs.Glob(profiles.Files, "*/profile.yaml")
	if err != nil {
		panic(err) // the pattern is ours
	}
	for i, f := range found {
		found[i] = path.Dir(f)
	}
	slices.Sort(found)
	return found
}

// Load reads the profile of that name.
func Load(name string) (*Profile, error) {
	if !slices.Contains(Names(), name) {
		return nil, fmt.Errorf("there is no profile %q (there is: %v)", name, Names())
	}
	return read(profiles.Files, name)
}

func read(files fs.FS, name string) (*Profile, error) {
	b, err := fs.ReadFile(files, path.Join(name, "profile.yaml"))
	if err != nil {
		return nil, err
	}
	p := &Profile{Name: name}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(p); err != nil {
		return nil, fmt.Errorf("profile %s: %w", name, err)
	}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("profile %s: %w", name, err)
	}
	if p.dockerfile, err = parsed(files, name, ""); err != nil {
		return nil, fmt.Errorf("profile %s: %w", name, err)
	}
	if p.sidecars, err = sidecars(files, name); err != nil {
		return nil, fmt.Errorf("profile %s: %w", name, err)
	}
	p.inputs = map[string][]byte{}
	for _, file := range p.Build {
		if p.inputs[file], err = fs.ReadFile(files, path.Join(name, file)); err != nil {
			return nil, fmt.Errorf("profile %s: %w", name, err)
		}
	}
	p.Files, err = baked(files, path.Join(name, "files"))
	return p, err
}

const dockerfile = "Dockerfile.tmpl"

// parsed is the Dockerfile of a folder of a profile's, with what all profiles have in
// common and what those of this one have.
func parsed(files fs.FS, profile, folder string) (*template.Template, error) {
	names := []string{"image.tmpl", path.Join(profile, folder, dockerfile)}
	shared, err := fs.Glob(files, path.Join(profile, "*.tmpl"))
	if err != nil {
		return nil, err
	}
	for _, name := range shared {
		if path.Base(name) != dockerfile {
			names = append(names, name)
		}
	}
	t, err := template.New(profile).Funcs(template.FuncMap{"shell": shell}).Option("missingkey=error").ParseFS(files, names...)
	if err != nil {
		return nil, err
	}
	return t.Lookup(dockerfile), nil
}

// sidecars are the folders of a profile that have a Dockerfile.
func sidecars(files fs.FS, profile string) (map[string]sidecar, error) {
	found, err := fs.Glob(files, path.Join(profile, "*", dockerfile))
	out := map[string]sidecar{}
	for _, file := range found {
		folder := path.Base(path.Dir(file))
		t, err := parsed(files, profile, folder)
		if err != nil {
			return nil, err
		}
		beside, err := baked(files, path.Dir(file))
		if err != nil {
			return nil, err
		}
		delete(beside, dockerfile)
		out[folder] = sidecar{beside, t}
	}
	return out, err
}

// baked are the files below a folder, by their path from there; none if it is
// not there.
func baked(files fs.FS, dir string) (map[string][]byte, error) {
	out := map[string][]byte{}
	err := fs.WalkDir(files, dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(files, name)
		out[strings.TrimPrefix(name, dir+"/")] = b
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return out, err
}

// Context is the part of the build context that is the profile's: the folder
// files, and in build what only the build reads. What the harness needs in a directory
// of the person's is there too, for who has none.
func (p *Profile) Context(home string) map[string][]byte {
	out := p.Inputs()
	for name, b := range p.Files {
		out[path.Join("files", name)] = b
	}
	for _, m := range p.Mounts {
		for name, content := range m.Ensure {
			out[path.Join("files", home, below(m.Path), name)] = []byte(content)
		}
	}
	return out
}

// Dockerfile fills the profile's template in. Its build context has the file
// gitconfig and the folder corral, those of Context, and where Certificates says
// so the folder ca. Any builder can read it.
func (p *Profile) Dockerfile(img Image) ([]byte, error) { return p.filled(p.dockerfile, img) }

// Sidecar is the Dockerfile of a further service of the harness, and the files of the
// profile's folder for it, by their path from there. Its build context has what that of
// Dockerfile has, but for the folder files.
func (p *Profile) Sidecar(name string, img Image) (dockerfile []byte, files map[string][]byte, err error) {
	s, found := p.sidecars[name]
	if !found {
		return nil, nil, fmt.Errorf("profile %s: there is no %s", p.Name, name)
	}
	dockerfile, err = p.filled(s.dockerfile, img)
	return dockerfile, s.files, err
}

// Inputs are the files of the profile's folder that only builds read, by their path in
// a build context.
func (p *Profile) Inputs() map[string][]byte {
	out := map[string][]byte{}
	for name, b := range p.inputs {
		out[path.Join("build", name)] = b
	}
	return out
}

func (p *Profile) filled(t *template.Template, img Image) ([]byte, error) {
	if err := img.check(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, p.fields(img)); err != nil {
		return nil, fmt.Errorf("profile %s: %w", p.Name, err)
	}
	return b.Bytes(), nil
}
