package policy

import (
	"regexp"
	"strings"
	"unicode"

	"github.com/distribution/reference"
	"go.yaml.in/yaml/v4"

	"github.com/corral-sandbox/corral/internal/diag"
)

// imageBase is a reference in the grammar of registries.
func (d *decoder) imageBase(n *yaml.Node, path string) string {
	s, ok := d.text(n, path)
	if !ok {
		return ""
	}
	if s == "" {
		d.errorf(n, "write it like "+DefaultBase, "%s is empty", path)
		return ""
	}
	_, err := reference.ParseNormalizedNamed(s)
	hint, wrong := "write it like "+DefaultBase, ""
	switch address, isURL := afterScheme(s); {
	case strings.ContainsFunc(s, unicode.IsSpace):
		wrong = "holds white space"
	case s[0] == '-':
		wrong = "starts with -, which programs take for an option"
	case isURL:
		wrong = "is a URL, not an image reference"
		if _, err := reference.ParseNormalizedNamed(address); err == nil {
			hint = "write " + address
		}
	case s == "scratch":
		wrong = "is no image: services need the programs of Debian or Ubuntu"
	case err != nil:
		wrong = "is not an image reference"
		if lower := strings.ToLower(s); lower != s {
			if _, err := reference.ParseNormalizedNamed(lower); err == nil {
				wrong, hint = "is not in lower case, as the name of an image is", "write "+lower
			}
		}
	default:
		return s
	}
	d.errorf(n, hint, "%s: %q %s", path, s, wrong)
	return ""
}

func afterScheme(s string) (address string, isURL bool) {
	_, address, isURL = strings.Cut(s, "://")
	return address, isURL
}

var (
	// Debian Policy 5.6.1 and 5.6.12.
	packageName    = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
	packageVersion = regexp.MustCompile(`^[0-9][A-Za-z0-9+.:~-]*$`)
)

func (d *decoder) packages(n *yaml.Node, path string) (lines []Line) {
	first := map[string]diag.Pos{}
	d.list(n, path, maxEntries, func(n *yaml.Node, path string) {
		s, ok := d.text(n, path)
		if !ok {
			return
		}
		if s == "" {
			d.errorf(n, "name a package, or remove it", "%s is empty", path)
			return
		}
		name, version, versioned := strings.Cut(s, "=")
		f, twice := first[name]
		hint, wrong := "", ""
		switch {
		case s[0] == '-':
			hint, wrong = "name packages only", "starts with -: apt would take it for an option"
		case strings.ContainsFunc(s, unicode.IsSpace):
			hint, wrong = "make each package an entry of its own", "holds white space"
		case strings.HasSuffix(s, "-") || strings.HasSuffix(name, "-"):
			hint, wrong = "name what is to be installed only", "ends in -: apt would remove the package"
		case !packageName.MatchString(name):
			if lower := strings.ToLower(name); packageName.MatchString(lower) {
				hint = "write " + lower
			}
			wrong = "is not a Debian package: two or more of a-z, 0-9, +, . and -, starting with a letter or digit"
		case versioned && !packageVersion.MatchString(version):
			hint, wrong = "write it like git=1:2.39.5-0+deb12u2, or leave the version out", "has no Debian version after ="
		case twice:
			d.errorf(n, "keep one of the two", "%s: package %s is listed already, at %s", path, name, f)
			return
		default:
			first[name] = d.pos(n)
			lines = append(lines, Line{Text: s, Pos: d.pos(n)})
			return
		}
		d.errorf(n, hint, "%s: %q %s", path, s, wrong)
	})
	return lines
}
