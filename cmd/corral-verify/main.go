// Command corral-verify: see internal/verify.
package main

import (
	"os"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/verify"
)

func main() {
	os.Exit(verify.Main(exit.Context("corral-verify", ""), os.Stdin, os.Stdout, os.Stderr, os.Args[1:]))
}
