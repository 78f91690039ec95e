// Command corral-gate: see internal/gate.
package main

import (
	"os"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/gate"
)

func main() {
	os.Exit(gate.Main(exit.Context("corral-gate", ""), os.Stdin, os.Stdout, os.Stderr, os.Args[1:]))
}
