// Command corral: see internal/cli.
package main

import (
	"os"

	"github.com/corral-sandbox/corral/internal/cli"
	"github.com/corral-sandbox/corral/internal/exit"
)

func main() {
	os.Exit(cli.Main(exit.Context("corral", "corral down ends what is left of a sandbox"), os.Stdin, os.Stdout, os.Stderr, os.Args[1:]))
}
