// Command corral: see internal/cli.
package main

import (
	"os"

	"github.com/corral-sandbox/corral/internal/cli"
	"github.com/corral-sandbox/corral/internal/exit"
)

func main() {
	ctx, stop := exit.Context()
	defer stop()
	os.Exit(cli.Main(ctx, os.Stdin, os.Stdout, os.Stderr, os.Args[1:]))
}
