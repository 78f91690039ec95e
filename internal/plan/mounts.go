package plan

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/corral-sandbox/corral/internal/policy"
)

// ErrPolicyBelow is a policy that an agent could replace by renaming a
// directory that it may write.
type ErrPolicyBelow struct{ File, Mount string }

func (e ErrPolicyBelow) Error() string {
	return fmt.Sprintf("the policy %s lies in a subdirectory of %s, which the agent may write: it could put another one in its place", e.File, e.Mount)
}

// mounts are what the profile brings, the project directory, read-write in run
// mode, what the policy lists, the shields of repositories in them, and over all of it the policy
// file itself, read-only: what the agent writes there would be obeyed by the
// next start.
func mounts(p *policy.Policy, h Host) ([]Mount, error) {
	out := slices.Clone(h.Furniture)
	inside := false
	for _, m := range append([]policy.Mount{p.Project}, p.Mounts...) {
		if m.Path == "" {
			continue
		}
		if h.Submounts != nil {
			m.Submounts = h.Submounts[m.Path]
		}
		out = append(out, mount(m))
		switch {
		case p.File == m.Path || !strings.HasPrefix(p.File, m.Path+"/"):
		case !m.ReadOnly && filepath.Dir(p.File) != m.Path:
			return nil, ErrPolicyBelow{p.File, m.Path}
		default:
			inside = true
		}
	}
	out = append(out, h.Shields...)
	if inside {
		out = append(out, mount(p.Self))
	}
	return out, nil
}

func mount(m policy.Mount) Mount {
	return Mount{Path: m.Path, ReadOnly: m.ReadOnly, Dev: m.Dev, Ino: m.Ino, Submounts: m.Submounts}
}

// workDir is the project's directory where mounts bring it, or the way to
// something in it, inside. Elsewhere it is the agent's home: the engine would make
// the directory, as root, where only what is declared may be.
func workDir(project string, mounts []Mount) string {
	if slices.ContainsFunc(mounts, func(m Mount) bool { return within(project, m.Target()) || within(m.Target(), project) }) {
		return project
	}
	return Home
}

// within reports whether a clean path is dir, or lies below it.
func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// shield reports whether a mount is there to cover a part of a repository.
func (s Service) shield(m Mount) bool {
	return slices.ContainsFunc(s.Shields, func(o Mount) bool { return o.Path == m.Path })
}

// shadows reports whether a mount is one of the shadows of a policy's profile.
func shadows(p *policy.Policy, m Mount) bool {
	return slices.ContainsFunc(Shadows(p), func(s Shadow) bool { return s.Inside() == m.Inside })
}

// gitConfig makes git work in what is mounted, whoever owns parts of it, and
// nowhere else, and tells it who commits.
func gitConfig(p *policy.Policy, h Host) []byte {
	var b bytes.Buffer
	b.WriteString("[safe]\n")
	for _, m := range append([]policy.Mount{p.Project}, p.Mounts...) {
		if m.Path != "" {
			fmt.Fprintf(&b, "\tdirectory = %s\n", gitQuote(m.Path))
		}
	}
	if h.GitName != "" || h.GitEmail != "" {
		b.WriteString("[user]\n")
	}
	if h.GitName != "" {
		fmt.Fprintf(&b, "\tname = %s\n", gitQuote(h.GitName))
	}
	if h.GitEmail != "" {
		fmt.Fprintf(&b, "\temail = %s\n", gitQuote(h.GitEmail))
	}
	return b.Bytes()
}

// gitQuote writes a value as git-config(1) reads it back.
func gitQuote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(s) + `"`
}
