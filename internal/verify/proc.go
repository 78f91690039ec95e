package verify

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
)

// capSets are the five capability sets of /proc/PID/status.
var capSets = [...]string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}

// status is what /proc/PID/status says about rights.
type status struct {
	name       string
	uids, gids [4]uint32 // real, effective, saved, file system
	groups     []uint32
	caps       [len(capSets)]uint64
	noNewPrivs int
	seccomp    int
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
	s := status{name: lines["Name"]}
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
	for key, to := range map[string]*int{"NoNewPrivs": &s.noNewPrivs, "Seccomp": &s.seccomp} {
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

// process is a process visible here.
type process struct {
	pid string
	status
}

func (p process) String() string { return fmt.Sprintf("process %s (%s)", p.pid, p.name) }

func (e *env) process(pid string) (process, error) {
	b, err := os.ReadFile(e.path("/proc/" + pid + "/status"))
	if err != nil {
		return process{}, err
	}
	s, err := parseStatus(b)
	if err != nil {
		return process{}, fmt.Errorf("/proc/%s: %w", pid, err)
	}
	return process{pid: pid, status: s}, nil
}

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
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
		case err != nil:
			return nil, err
		default:
			all = append(all, p)
		}
	}
	return all, nil
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
