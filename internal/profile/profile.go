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
	Command []string `yaml:"command"`
	// Egress are names that the harness needs, TCP 443 and 80. They are soft.
	Egress []string `yaml:"egress"`

	dockerfile *template.Template
}

// Image is what a Dockerfile template may ask for.
type Image struct {
	Base     string // an image reference
	UID, GID uint32
	Packages []string // Debian's names, each perhaps with =VERSION
	Run      []string // shell commands, as root, at build time
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
	if len(p.Command) == 0 {
		return nil, fmt.Errorf("profile %s: no command", name)
	}
	b, err = fs.ReadFile(files, path.Join(name, "Dockerfile.tmpl"))
	if err != nil {
		return nil, err
	}
	p.dockerfile, err = template.New(name).Funcs(template.FuncMap{"shell": shell}).Option("missingkey=error").Parse(string(b))
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", name, err)
	}
	return p, nil
}

// Dockerfile fills the profile's template in. Its build context has the file
// gitconfig and the folder corral. Any builder can read it.
func (p *Profile) Dockerfile(img Image) ([]byte, error) {
	if err := img.check(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := p.dockerfile.Execute(&b, img); err != nil {
		return nil, fmt.Errorf("profile %s: %w", p.Name, err)
	}
	return b.Bytes(), nil
}
