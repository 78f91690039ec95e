package gate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/exit"
)

// startedThere are the processes that the engine starts in a container for us: a
// program of ours, and what runc has of one before it has become it, with the rights
// of its user already. A process of that user may stop either, and while the second is
// stopped the engine answers nothing about the container: it cannot even be ended.
// Another one that is called so is its user's own doing.
var startedThere = []string{"runc:[2:INIT]", "corral-verify"}

// How often somebody who goes on stopping them is answered.
const (
	unblockTries = 10
	unblockEvery = 100 * time.Millisecond
)

var containerID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// unblock kills what the engine started in a container and a process there stopped. It
// is run where the host's processes are seen.
func unblock(ctx context.Context, stdout io.Writer, args []string) error {
	if len(args) != 1 || !containerID.MatchString(args[0]) {
		return exit.Invalidf(howTo, "unblock takes the 64 digits of a container")
	}
	for range unblockTries {
		stopped, err := stoppedIn("/proc", args[0])
		if err != nil {
			return err
		}
		for _, pid := range stopped {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("process %d: %w", pid, err)
			}
			if _, err := fmt.Fprintf(stdout, "ended %d\n", pid); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(unblockEvery):
		}
	}
	return nil
}

// stoppedIn are the processes of a container's control groups that are stopped and
// called as those that the engine starts. One that ends meanwhile is none.
func stoppedIn(proc, container string) (pids []int, err error) {
	all, err := filepath.Glob(proc + "/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, dir := range all {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		stat, err1 := os.ReadFile(dir + "/stat")
		groups, err2 := os.ReadFile(dir + "/cgroup")
		if err := errors.Join(err1, err2); errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		} else if err != nil {
			return nil, err
		}
		if name, state := nameAndState(string(stat)); state == "T" && slices.Contains(startedThere, name) && strings.Contains(string(groups), container) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// nameAndState are two fields of /proc/PID/stat; the first may hold anything.
func nameAndState(stat string) (name, state string) {
	first, last := strings.IndexByte(stat, '('), strings.LastIndex(stat, ") ")
	if first < 0 || last < first {
		return "", ""
	}
	name = stat[first+1 : last]
	state, _, _ = strings.Cut(stat[last+2:], " ")
	return name, state
}
