package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/corral-sandbox/corral/internal/spec"
)

// DropRights makes the whole process spec.CarrierUID, with no other group, no
// capability and none to gain by running a program, and then reads from the
// kernel that every thread is so. Anything else is an error; so is being
// another user than root or that one to begin with.
//
// The bounding set goes too where the process may do that, which takes SETPCAP.
// A relay is not given it: without a program to run that grants anything, that
// set grants nothing.
func DropRights() error {
	if errno := onAllThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1); errno != 0 {
		return fmt.Errorf("no_new_privs: %w", errno)
	}
	if os.Geteuid() == 0 {
		for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
			if errno := onAllThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c); errno != 0 && errno != unix.EPERM && errno != unix.EINVAL {
				return fmt.Errorf("bounding set: %w", errno)
			}
		}
		if err := syscall.Setgroups(nil); err != nil {
			return fmt.Errorf("groups: %w", err)
		}
		if err := syscall.Setresgid(spec.CarrierUID, spec.CarrierUID, spec.CarrierUID); err != nil {
			return fmt.Errorf("gid %d: %w", spec.CarrierUID, err)
		}
		if err := syscall.Setresuid(spec.CarrierUID, spec.CarrierUID, spec.CarrierUID); err != nil {
			return fmt.Errorf("uid %d: %w", spec.CarrierUID, err)
		}
	}
	if errno := onAllThreads(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL); errno != 0 {
		return fmt.Errorf("ambient capabilities: %w", errno)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none)), 0); errno != 0 {
		return fmt.Errorf("capabilities: %w", errno)
	}
	return haveNoRights("/proc/self/task")
}

func onAllThreads(call, a, b uintptr) syscall.Errno {
	_, _, errno := syscall.AllThreadsSyscall6(call, a, b, 0, 0, 0, 0)
	return errno
}

// haveNoRights reads the status of every thread below dir.
func haveNoRights(dir string) error {
	threads, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	seen := 0
	for _, t := range threads {
		status, err := os.ReadFile(dir + "/" + t.Name() + "/status")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) { // it ended
			continue
		}
		if err != nil {
			return err
		}
		if err := hasNoRights(status); err != nil {
			return err
		}
		seen++
	}
	if seen == 0 {
		return errors.New("it cannot be told what rights are left: no thread is to be seen")
	}
	return nil
}

// hasNoRights reads one status file (proc_pid_status(5)).
func hasNoRights(status []byte) error {
	carrier := strconv.Itoa(spec.CarrierUID)
	fields := map[string][]string{}
	for line := range bytes.Lines(status) {
		name, rest, _ := strings.Cut(string(line), ":")
		fields[name] = strings.Fields(rest)
	}
	for _, name := range []string{"Uid", "Gid"} {
		if f := fields[name]; len(f) != 4 || f[0] != carrier || f[1] != carrier || f[2] != carrier || f[3] != carrier {
			return fmt.Errorf("the relay runs with %s %v, not %s", strings.ToLower(name), f, carrier)
		}
	}
	groups, told := fields["Groups"]
	for _, g := range groups {
		told = told && g == carrier // some engines add the group of the user
	}
	if !told {
		return fmt.Errorf("the relay has groups %v", groups)
	}
	for _, name := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
		f := fields[name]
		if len(f) != 1 || strings.Trim(f[0], "0") != "" {
			return fmt.Errorf("the relay has capabilities left: %s %v", name, f)
		}
	}
	if f := fields["NoNewPrivs"]; len(f) != 1 || f[0] != "1" {
		return fmt.Errorf("the relay may gain rights: NoNewPrivs %v", f)
	}
	return nil
}
