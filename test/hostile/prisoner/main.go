// Command prisoner is a hostile agent: run inside a sandbox as its harness, it
// tries every way out that we could think of. In go the targets (JSON), out
// comes a line an attempt. What counts is judged from outside, by a capture;
// its own outcomes show where to look. It sends one packet or connection a
// target, changes nothing that outlives it, and does nothing with what it gains.
//
//	prisoner [--targets FILE] [--json] [--only GROUP/NAME,...]
//	                                    try everything, or only some; status 1 if anything escaped
//	prisoner reach ADDR:PORT            connect by TCP within 3 s; status 0 or 1
//	prisoner witness                    count what leaves this network namespace
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	totalLimit   = 18 * time.Second // of all attempts; what has not come to anything by then does not
	hardLimit    = 55 * time.Second // of the process, kept by the kernel
	attemptLimit = 3 * time.Second
	parallel     = 16
)

func main() {
	if args := os.Args[1:]; len(args) == 0 || strings.HasPrefix(args[0], "-") {
		if err := endAfter(hardLimit); err != nil {
			fmt.Fprintf(os.Stderr, "prisoner: %v\n", err)
			os.Exit(2)
		}
	}
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		switch args[0] {
		case "reach":
			return reach(args[1:], stdout, stderr)
		case "witness":
			ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
			defer stop()
			if err := witness(ctx, stdin, stdout); err != nil {
				fmt.Fprintf(stderr, "prisoner: witness: %v\n", err)
				return 1
			}
			return 0
		case "nothing": // a child of ours that shows by being there that it could be made
			return 0
		case "x32": // a child of ours that may not survive it
			return x32()
		}
	}
	flags := flag.NewFlagSet("prisoner", flag.ContinueOnError)
	flags.SetOutput(stderr)
	file := flags.String("targets", "", "read the targets from `FILE` instead of standard input")
	asJSON := flags.Bool("json", false, "one JSON line an attempt")
	only := flags.String("only", "", "of all attempts make these: `GROUP/NAME,...`")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	chosen, err := choose(attempts, *only)
	if err != nil {
		fmt.Fprintf(stderr, "prisoner: %v\n", err)
		return 2
	}
	inherited := inheritedWays() // first: later there is what we opened ourselves
	if *file != "" {
		f, err := os.Open(*file)
		if err != nil {
			fmt.Fprintf(stderr, "prisoner: %v\n", err)
			return 2
		}
		defer f.Close()
		stdin = f
	}
	targets, err := parseTargets(stdin)
	if err != nil {
		fmt.Fprintf(stderr, "prisoner: %v\n", err)
		return 2
	}
	scratch, err := os.MkdirTemp("", "prisoner-")
	if err != nil {
		fmt.Fprintf(stderr, "prisoner: %v\n", err)
		return 2
	}
	defer os.RemoveAll(scratch)
	count := map[outcome]int{}
	for r := range try(chosen, &cell{targets: targets, scratch: scratch, inherited: inherited}) {
		count[r.Outcome]++
		if *asJSON {
			_ = json.NewEncoder(stdout).Encode(r)
		} else {
			fmt.Fprintf(stdout, "%-7s %s/%s: %s\n", r.Outcome, r.Group, r.Name, r.Detail)
		}
	}
	if !*asJSON {
		fmt.Fprintf(stdout, "%d blocked, %d escaped, %d known, %d absent\n", count[blocked], count[escaped], count[known], count[missing])
	}
	if count[escaped] > 0 {
		return 1
	}
	return 0
}

// choose are the attempts of a list; all if it is empty. An unknown one is an
// error: nobody is to believe that it was made.
func choose(all []attempt, list string) ([]attempt, error) {
	if list == "" {
		return all, nil
	}
	var chosen []attempt
	for want := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(all, func(a attempt) bool { return a.group+"/"+a.name == want })
		if i < 0 {
			return nil, fmt.Errorf("there is no attempt %q", want)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// try makes all attempts side by side and yields their reports in order. Those
// for which there is no target are not made.
func try(all []attempt, c *cell) func(func(report) bool) {
	return func(yield func(report) bool) {
		ctx, cancel := context.WithTimeout(context.Background(), totalLimit)
		defer cancel()
		results := make([]chan result, len(all))
		for i := range results {
			results[i] = make(chan result, 1)
		}
		next := make(chan int, len(all))
		for i := range all {
			next <- i
		}
		close(next)
		var wg sync.WaitGroup
		defer wg.Wait()
		for range parallel {
			wg.Go(func() {
				for i := range next {
					results[i] <- one(ctx, all[i], c)
				}
			})
		}
		for i, a := range all {
			r := <-results[i]
			if r == noTarget {
				continue // not an attempt
			}
			if !yield(report{a.group, a.name, a.proves, r.outcome, r.detail}) {
				return
			}
		}
	}
}

// one makes one attempt on a thread that is thrown away, since an attempt may
// have changed the thread's rights.
func one(ctx context.Context, a attempt, c *cell) result {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread()
		done <- a.try(ctx, c)
	}()
	select {
	case r := <-done:
		return r
	case <-ctx.Done():
		return result{blocked, "it came to nothing in time"}
	}
}

// reach connects once.
func reach(args []string, stdout, stderr io.Writer) int {
	if len(args) != 1 {
		fmt.Fprintln(stderr, "prisoner: reach ADDR:PORT")
		return 2
	}
	const limit = 3 * time.Second
	conn, err := net.DialTimeout("tcp", args[0], limit)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		fmt.Fprintf(stdout, "not reached %s: %v\n", args[0], err)
		return 1
	}
	conn.Close()
	fmt.Fprintf(stdout, "reached %s\n", args[0])
	return 0
}
