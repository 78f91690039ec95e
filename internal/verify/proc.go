package verify

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// capSets are the five capability sets of /proc/PID/status.
var capSets = [...]string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}

// status is what /proc/PID/status says about rights, or that of one of its threads: each
// has rights of its own.
type status struct {
	name       string
	uids, gids [4]uint32 // real, effective, saved, file system
	groups     []uint32
	caps       [len(capSets)]uint64
	noNewPrivs int
	seccomp    int
	threads    int
	ended      bool // nobody has waited for it yet, or for the others of its threads
}

// parseStatus reads a /proc/PID/status. Every line that is used must be there.
func parseStatus(b []byte) (status, error) {
	lines := map[string]string{}
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		if k, v, found := strings.Cut(sc.Text(), ":"); found {
			lines[k] = strings.TrimSpace(v)
		}
	}
	if err := sc.Err(); err != nil {
		return status{}, fmt.Errorf("status: %w", err)
	}
	s := status{name: lines["Name"], ended: strings.HasPrefix(lines["State"], "Z") || strings.HasPrefix(lines["State"], "X")}
	for key, to := range map[string]*[4]uint32{"Uid": &s.uids, "Gid": &s.gids} {
		ids, err := parseIDs(lines[key])
		if err != nil || len(ids) != len(to) {
			return status{}, fmt.Errorf("status: %s is %q", key, lines[key])
		}
		copy(to[:], ids)
	}
	groups, found := lines["Groups"]
	if !found {
		return status{}, errors.New("status: no Groups")
	}
	var err error
	if s.groups, err = parseIDs(groups); err != nil {
		return status{}, fmt.Errorf("status: Groups is %q", groups)
	}
	for i, set := range capSets {
		if s.caps[i], err = strconv.ParseUint(lines[set], 16, 64); err != nil {
			return status{}, fmt.Errorf("status: %s is %q", set, lines[set])
		}
	}
	for key, to := range map[string]*int{"NoNewPrivs": &s.noNewPrivs, "Seccomp": &s.seccomp, "Threads": &s.threads} {
		if *to, err = strconv.Atoi(lines[key]); err != nil {
			return status{}, fmt.Errorf("status: %s is %q", key, lines[key])
		}
	}
	return s, nil
}

func parseIDs(s string) ([]uint32, error) {
	var ids []uint32
	for _, f := range strings.Fields(s) {
		n, err := strconv.ParseUint(f, 10, 32)
		if err != nil {
			return nil, err
		}
		ids = append(ids, uint32(n))
	}
	return ids, nil
}

// process is a process visible here, as one of its threads has it.
type process struct {
	pid string
	tid string // the thread, if it is not the first
	status
}

func (p process) String() string {
	switch {
	case p.pid == "self":
		return fmt.Sprintf("this process (%s)", p.name)
	case p.tid != "":
		return fmt.Sprintf("thread %s of process %s (%s)", p.tid, p.pid, p.name)
	}
	return fmt.Sprintf("process %s (%s)", p.pid, p.name)
}

// dir is where the kernel tells of it.
func (p process) dir() string {
	if p.tid != "" {
		return "/proc/" + p.pid + "/task/" + p.tid
	}
	return "/proc/" + p.pid
}

func (e *env) read(p process) (process, error) {
	b, err := os.ReadFile(e.path(p.dir() + "/status"))
	if err != nil {
		return process{}, err
	}
	if p.status, err = parseStatus(b); err != nil {
		return process{}, fmt.Errorf("%s: %w", p.dir(), err)
	}
	return p, nil
}

// process is as its first thread is or, if that has ended before the others, as one
// that runs on: the kernel says no more of an ended one than that.
func (e *env) process(pid string) (process, error) {
	p, err := e.read(process{pid: pid})
	if err != nil || !p.ended {
		return p, err
	}
	running, err := e.running(p)
	if err != nil || len(running) == 0 {
		return p, err
	}
	return running[0], nil
}

// running are the threads of a process that have not ended.
func (e *env) running(p process) ([]process, error) {
	if p.threads < 2 {
		if p.ended {
			return nil, nil
		}
		return []process{p}, nil
	}
	entries, err := os.ReadDir(e.path("/proc/" + p.pid + "/task"))
	if err != nil && !gone(err) {
		return nil, err
	}
	var all []process
	for _, entry := range entries {
		t := process{pid: p.pid, tid: entry.Name()}
		if t.tid == t.pid {
			t.tid = ""
		}
		switch t, err = e.read(t); {
		case err != nil && !gone(err):
			return nil, err
		case err == nil && !t.ended:
			all = append(all, t)
		}
	}
	return all, nil
}

// gone says whether it is no error but the end of a process.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// selfAndFirst are this process and PID 1, the one that the engine started.
func (e *env) selfAndFirst() (self, first process, err error) {
	if self, err = e.process("self"); err != nil {
		return
	}
	first, err = e.process("1")
	return
}

// processes lists every visible process. One that ends meanwhile is left out.
func (e *env) processes() ([]process, error) {
	entries, err := os.ReadDir(e.path("/proc"))
	if err != nil {
		return nil, err
	}
	var all []process
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		p, err := e.process(entry.Name())
		switch {
		case err != nil && gone(err):
		case err != nil:
			return nil, err
		default:
			all = append(all, p)
		}
	}
	return all, nil
}

// threads lists those of every visible process that run.
func (e *env) threads(ctx context.Context) ([]process, error) {
	processes, err := e.processes()
	if err != nil {
		return nil, err
	}
	var all []process
	for _, p := range processes {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("too many threads to look at in time: %w", context.Cause(ctx))
		}
		running, err := e.running(p)
		if err != nil {
			return nil, err
		}
		all = append(all, running...)
	}
	return all, nil
}

// everyProcess asks about this process, the first and, for the host, every thread of
// every other that is visible, whoever's it is: complaint is what is wrong with one, empty
// if nothing is.
func (e *env) everyProcess(ctx context.Context, complaint func(process) string) finding {
	self, first, err := e.selfAndFirst()
	if err != nil {
		return untold("%v", err)
	}
	for _, p := range []process{self, first} {
		if words := complaint(p); words != "" {
			return failed("%v %s", p, words)
		}
	}
	if e.aside || e.handover {
		return ok() // who else is there the stack's own file says; and nobody is, at a start
	}
	return e.lasting(ctx, func() (map[string]finding, error) {
		all, err := e.threads(ctx)
		if err != nil {
			return nil, err
		}
		wrong := map[string]finding{}
		for _, p := range all {
			if words := complaint(p); words != "" {
				wrong[p.dir()] = failed("%v %s", p, words)
			}
		}
		return wrong, nil
	})
}

// A look at what comes and goes is repeated so often, until what is wrong was so for
// e.settle, or for as many times that nothing stays.
const (
	lookEvery = 10 // looks while one thing settles
	lookTimes = 3
)

// lasting looks until nothing is wrong, or something has been for e.settle, by what it
// is called: a program that the engine starts is root's for a moment, and a socket may
// be opened between two tables.
func (e *env) lasting(ctx context.Context, look func() (map[string]finding, error)) finding {
	since := map[string]int{}
	for n := range lookEvery*lookTimes + 1 {
		wrong, err := look()
		if err != nil {
			return untold("%v", err)
		}
		if len(wrong) == 0 {
			return ok()
		}
		for name := range since {
			if _, still := wrong[name]; !still {
				delete(since, name)
			}
		}
		names := slices.Sorted(maps.Keys(wrong))
		for _, name := range names {
			if first, known := since[name]; !known {
				since[name] = n
			} else if n-first >= lookEvery {
				return wrong[name]
			}
		}
		if n == lookEvery*lookTimes {
			return untold("it changes too fast to be told: %s", wrong[names[0]].detail)
		}
		select {
		case <-ctx.Done():
			return untold("%v", context.Cause(ctx))
		case <-time.After(e.settle / lookEvery):
		}
	}
	return finding{}
}

// cgroupPath finds a controller's group in /proc/self/cgroup; "" is version 2.
func cgroupPath(b []byte, controller string) (string, bool) {
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		for c := range strings.SplitSeq(f[1], ",") {
			if c == controller {
				return path.Clean("/" + f[2]), true
			}
		}
	}
	return "", false
}
