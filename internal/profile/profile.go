// Package profile reads what a harness is from its folder under profiles: how
// it is installed and run and what it cannot work without. A name goes in, a
// Profile comes out; nothing happens on the machine.
package profile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"text/template"

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
	Base     string
	UID, GID uint32
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
	p.dockerfile, err = template.New(name).Option("missingkey=error").Parse(string(b))
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", name, err)
	}
	return p, nil
}

// Dockerfile fills the profile's template in.
func (p *Profile) Dockerfile(img Image) ([]byte, error) {
	if img.Base == "" || img.UID == 0 {
		return nil, errors.New("an image needs a base and an unprivileged user")
	}
	var b bytes.Buffer
	if err := p.dockerfile.Execute(&b, img); err != nil {
		return nil, fmt.Errorf("profile %s: %w", p.Name, err)
	}
	return b.Bytes(), nil
}
