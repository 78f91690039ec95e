// Command corral-fetch: see internal/fetch.
package main

import (
	"os"

	"github.com/corral-sandbox/corral/internal/exit"
	"github.com/corral-sandbox/corral/internal/fetch"
)

func main() {
	os.Exit(fetch.Main(exit.Context("corral-fetch", ""), os.Stdin, os.Stdout, os.Stderr, os.Args[1:]))
}
