// Command corral-gate: see internal/gate.
package main

import (
	"os"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/gate"
)

func main() {
	ctx, stop := exit.Context()
	defer stop()
	os.Exit(gate.Main(ctx, os.Stdin, os.Stdout, os.Stderr, os.Args[1:]))
}
