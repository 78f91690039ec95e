package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/corral-sandbox/corral/internal/spec"
)

func (a *app) version() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				_, err := a.out.Write(document(thisBuild()))
				return err
			}
			_, err := fmt.Fprintln(a.out, "corral", spec.Release())
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "as JSON, with what it was built from")
	return c
}

// buildReport is what version says.
type buildReport struct {
	Version int    `json:"version"`
	Release string `json:"release"`
	// Commit is what it was built from, where the Go command recorded that, and
	// Changed says that something in it was not committed.
	Commit   string `json:"commit,omitempty"`
	Changed  bool   `json:"changed,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func thisBuild() buildReport {
	info, _ := debug.ReadBuildInfo()
	b := buildReport{Version: spec.Version, Release: spec.Release(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	b.Commit, b.Changed = spec.Commit(info)
	return b
}
