// Command corral-verify: see internal/verify.
package main

import (
	"os"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/verify"
)

func main() {
	ctx, stop := exit.Context()
	defer stop()
	os.Exit(verify.Main(ctx, os.Stdin, os.Stdout, os.Stderr, os.Args[1:]))
}
