package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/diag"
	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/policy"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/profile"
	"github.com/corral-sandbox/corral/internal/spelling"
)

func (a *app) init() *cobra.Command {
	var name, dir string
	c := &cobra.Command{
		Use:   "init",
		Short: "Write a starter policy for this directory, and accept it",
		Long: `Writes a commented corral.yaml that allows nothing but what the profile needs.
An existing one is never touched. What was written counts as accepted, but in a
directory that holds several repositories: there corral run asks first.`,
		Example: "  corral init --profile shell",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if name == "" {
				return exit.Invalidf("there is "+strings.Join(profile.Names(), ", "), "name a profile: corral init --profile NAME")
			}
			starter, err := profile.Starter(name)
			if err != nil {
				hint := "there is " + strings.Join(profile.Names(), ", ")
				if near := spelling.Nearest(name, profile.Names()); near != "" {
					hint = fmt.Sprintf("did you mean %s?", near)
				}
				return exit.Invalidf(hint, "there is no profile %q", name)
			}
			file, err := writePolicy(dir, starter)
			if err != nil {
				return err
			}
			return a.initialised(c, file, starter)
		},
	}
	c.Flags().StringVar(&name, "profile", "", "what runs: "+strings.Join(profile.Names(), ", "))
	c.Flags().StringVar(&dir, "project", ".", "the directory to write it in")
	return c
}

// writePolicy puts a new policy into a directory, as a file of the person
// whose project it is.
func writePolicy(dir string, content []byte) (string, error) {
	if err := isThere(dir); err != nil {
		return "", err
	}
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return "", exit.Invalidf("--project names the directory to write the policy in", "project directory: %w", err)
	}
	person, err := who(dir)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, policy.FileName)
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return "", exit.Invalidf("corral policy show says what it amounts to", "there is a %s in %s already: it was not touched", policy.FileName, dir)
	}
	if err != nil {
		return "", exit.Invalidf("", "%w", err)
	}
	_, err = f.Write(content)
	if os.Geteuid() == 0 {
		err = errors.Join(err, f.Chown(int(person.UID), int(person.GID)))
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file))
	}
	return file, nil
}

// notWritten is why a policy that corral wrote itself cannot be. It has no place in a file: there
// is none any more.
func notWritten(err error) error {
	var mistakes diag.List
	if !errors.As(err, &mistakes) {
		return err
	}
	var why []string
	for _, m := range mistakes {
		why = append(why, m.Message)
	}
	return exit.Invalidf(mistakes[0].Hint, "no policy was written: %s", strings.Join(why, "; "))
}

// initialised accepts a policy that was just written, where it is what one
// would think it is.
func (a *app) initialised(c *cobra.Command, file string, starter []byte) error {
	p, err := (&app{in: a.in, out: a.out, err: a.err, policy: file, project: filepath.Dir(file), quiet: true}).load()
	if err != nil {
		return errors.Join(notWritten(err), os.Remove(file)) // ours, made a moment ago
	}
	if p.policy.Digest != policy.Digest(starter) { // somebody was quicker than we could read
		return exit.Failedf("look at it: it is not what corral wrote", "%s was replaced while it was written: nothing was accepted", file)
	}
	fmt.Fprintln(a.out, file)
	if n := repositories(c.Context(), p.policy.Dir); n != "" {
		fmt.Fprintf(a.err, "corral: %s holds %s repositories, and the agent could change them all: corral run will ask first\n", printable.Escape(p.policy.Dir), n)
		return nil
	}
	if err := a.record(p); err != nil {
		return err
	}
	if above, err := policy.Find(filepath.Dir(p.policy.Dir), host.Homes(uint32(os.Getuid()))...); err == nil {
		fmt.Fprintf(a.err, "corral: it governs this directory from now on, in place of %s\n", printable.Escape(above))
	}
	fmt.Fprintln(a.err, "corral: accepted; edit it to allow more, then: corral run (mode: daemon: corral up)")
	return nil
}
