// Command corral-bridge: see internal/bridge.
package main

import (
	"os"

	"github.com/corral-sandbox/corral/internal/bridge"
	"github.com/corral-sandbox/corral/internal/exit"
)

func main() {
	os.Exit(bridge.Main(exit.Context("corral-bridge", ""), os.Stdout, os.Stderr, os.Args[1:]))
}
