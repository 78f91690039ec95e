package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// processAttempts reach for what other programs have.
var processAttempts = []attempt{
	{"rights", "effective-root", "a file that belongs to root made us root", func(context.Context, *cell) result {
		if unix.Getuid() != 0 && unix.Geteuid() == 0 {
			return out("the effective user is root")
		}
		return held("the effective user is %d", unix.Geteuid())
	}},
	{"rights", "override-modes", "modes of files do not bind us", func(_ context.Context, c *cell) result {
		p := filepath.Join(c.scratch, "locked")
		if err := os.WriteFile(p, nil, 0); err != nil {
			return judge(reason(err))
		}
		return openFor(p, unix.O_RDWR)
	}},
	{"rights", "file-capabilities", "we may give programs capabilities", func(_ context.Context, c *cell) result {
		p := filepath.Join(c.scratch, "capable")
		if err := os.WriteFile(p, nil, 0o700); err != nil {
			return judge(reason(err))
		}
		b := binary.LittleEndian.AppendUint32(nil, 0x02000001) // VFS_CAP_REVISION_2, effective
		b = binary.LittleEndian.AppendUint32(b, 1<<unix.CAP_NET_RAW)
		return refusal(unix.Setxattr(p, "security.capability", append(b, make([]byte, 12)...), 0))
	}},

	{"namespaces", "others", "we may have a namespace of our own of some kind", func(context.Context, *cell) result {
		return each([]uintptr{unix.CLONE_NEWUTS, unix.CLONE_NEWIPC, unix.CLONE_NEWCGROUP, unix.CLONE_NEWTIME}, func(kind uintptr) result {
			runtime.LockOSThread() // and never unlocked: it ends with what it may have become
			return refusal(call(unix.SYS_UNSHARE, kind))
		})
	}},
	{"namespaces", "newer-call", "the newer call makes namespaces behind the filter", raw(unix.SYS_CLONE3, 0, 0)},
	{"namespaces", "of-init", "we may enter the namespaces of the first process", func(context.Context, *cell) result {
		return each([]string{"net", "mnt", "pid", "user"}, func(kind string) result {
			own, err := os.Readlink("/proc/self/ns/" + kind)
			if err != nil {
				return judge(reason(err))
			}
			first, err := os.Readlink("/proc/1/ns/" + kind)
			if err != nil {
				return judge(reason(err))
			}
			if own == first {
				return held("the first process has our own")
			}
			return openFor("/proc/1/ns/"+kind, unix.O_RDONLY)
		})
	}},

	{"mounts", "newer-steps", "mounts can be made in the newer steps", func(context.Context, *cell) result {
		none := ^uintptr(0)
		path := uintptr(unsafe.Pointer(&nowhere[0]))
		var nothing [4]uint64 // struct mount_attr
		return worst(
			refusal(call(unix.SYS_FSMOUNT, none, 0, 0)),
			refusal(call(unix.SYS_MOVE_MOUNT, none, path, none, path, 0)),
			refusal(call(unix.SYS_FSPICK, none, path, 0)),
			refusal(call(unix.SYS_MOUNT_SETATTR, none, path, 0, uintptr(unsafe.Pointer(&nothing[0])), unsafe.Sizeof(nothing))),
		)
	}},
	{"mounts", "propagation", "we may let mounts of ours out to the host", func(context.Context, *cell) result {
		return refusal(unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""))
	}},
	{"mounts", "shared-with-the-host", "what we mounted would be mounted on the host", func(context.Context, *cell) result {
		return mountsAreOurs()
	}},

	{"processes", "memory-by-call", "another process's memory can be read by a call", func(context.Context, *cell) result {
		return each(foreignProcesses(), func(pid int) result {
			b := [1]byte{}
			local := []unix.Iovec{{Base: &b[0], Len: 1}}
			_, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: 0x400000, Len: 1}}, 0)
			return refusal(err)
		}).orNone()
	}},
	{"processes", "descriptors-by-call", "what another process has open can be taken", func(context.Context, *cell) result {
		return each(append(foreignProcesses(), 1), func(pid int) result {
			process, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return judge(err)
			}
			defer unix.Close(process)
			for fd := range 64 {
				got, err := unix.PidfdGetfd(process, fd, 0)
				if err != nil && !errors.Is(err, unix.EBADF) {
					return judge(err)
				}
				if err != nil {
					continue
				}
				link := fmt.Sprintf("/proc/self/fd/%d", got)
				to, _ := os.Readlink(link)
				r := strayed(fmt.Sprintf("/proc/%d/fd/%d", pid, fd), to)
				unix.Close(got)
				if r.outcome == escaped {
					return r
				}
			}
			return held("nothing there leads anywhere else")
		})
	}},
	{"processes", "inherited", "the engine left something of the host's open for us", func(_ context.Context, c *cell) result {
		return c.inherited
	}},
	{"processes", "terminal", "we may type into the terminal of whoever started us", func(context.Context, *cell) result {
		for fd := range 3 {
			switch terminal, foreign := foreignTerminal(fd); {
			case foreign:
				if r := judge(inject(fd)); r.outcome == escaped {
					return r
				}
			case terminal:
				return held("the terminal is one of our own")
			}
		}
		return absent("no terminal")
	}},
	{"processes", "compare", "we may compare what processes have in the kernel", func(context.Context, *cell) result {
		return each(foreignProcesses(), func(pid int) result {
			return refusal(call(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(pid), 1 /* KCMP_VM */, 0, 0))
		}).orNone()
	}},
	{"processes", "realtime", "we may take the processors for ourselves", func(context.Context, *cell) result {
		priority := int32(1)
		return judge(call(unix.SYS_SCHED_SETSCHEDULER, 0, 1 /* SCHED_FIFO */, uintptr(unsafe.Pointer(&priority))))
	}},
	{"processes", "limits", "we may lift our own limits", func(context.Context, *cell) result {
		var l unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_RTPRIO, &l); err != nil {
			return judge(err)
		}
		return judge(unix.Setrlimit(unix.RLIMIT_RTPRIO, &unix.Rlimit{Cur: l.Max + 1, Max: l.Max + 1}))
	}},

	{"ipc", "system-v", "shared memory, semaphores or messages of others are within reach", func(context.Context, *cell) result {
		for _, kind := range []string{"shm", "sem", "msg"} {
			if n := sysvTable(kind); n > 0 {
				return out("%d of kind %s", n, kind)
			}
		}
		return held("there are none")
	}},
	{"ipc", "queues", "message queues of others are within reach", func(context.Context, *cell) result {
		return nothingIn("/dev/mqueue")
	}},
	{"ipc", "shared-memory", "shared memory files of others are within reach", func(context.Context, *cell) result {
		return nothingIn("/dev/shm")
	}},
}

// callAttempts ask for what reaches deep into the kernel. Each call is made so
// that it changes nothing where it is allowed.
var callAttempts = []attempt{
	{"kernel", "userfaultfd", "we may stop the kernel in the middle of its work", func(context.Context, *cell) result {
		return worst(closing(unix.SYS_USERFAULTFD, unix.O_CLOEXEC), closing(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|1 /* UFFD_USER_MODE_ONLY */))
	}},
	{"kernel", "fanotify", "we may watch or hold every access to a file system", func(context.Context, *cell) result {
		return closing(unix.SYS_FANOTIFY_INIT, unix.FAN_CLASS_PRE_CONTENT|unix.FAN_CLOEXEC, 0)
	}},
	{"kernel", "ports", "we may talk to the hardware", func(context.Context, *cell) result {
		if runtime.GOARCH != "amd64" {
			return absent("this processor has no ports")
		}
		return worst(refusal(call(unix.SYS_IOPL, 3)), refusal(call(unix.SYS_IOPERM, 0x80, 1, 1)))
	}},
	{"kernel", "clock-adjust", "we may steer the clock", func(context.Context, *cell) result {
		_, err := unix.Adjtimex(&unix.Timex{Modes: 0x4000 /* ADJ_TICK, to nothing sensible */})
		return refusal(err)
	}},
	{"kernel", "domain-name", "we may rename the machine's domain", func(context.Context, *cell) result {
		var u unix.Utsname
		if err := unix.Uname(&u); err != nil {
			return judge(err)
		}
		return refusal(unix.Setdomainname(u.Domainname[:len(unix.ByteSliceToString(u.Domainname[:]))]))
	}},
	{"kernel", "swap-off", "we may take swap away", raw(unix.SYS_SWAPOFF, uintptr(unsafe.Pointer(&nowhere[0])))},
	{"kernel", "remove-module", "we may unload a module", raw(unix.SYS_DELETE_MODULE, uintptr(unsafe.Pointer(&nowhere[0])), unix.O_NONBLOCK)},
	{"kernel", "kexec-by-file", "we may boot another kernel from a file", raw(unix.SYS_KEXEC_FILE_LOAD, ^uintptr(0), ^uintptr(0), 0, 0, 0xffff0000 /* no such flags */)},
	{"kernel", "hang-up", "we may hang up a terminal", raw(unix.SYS_VHANGUP)},
	{"kernel", "move-pages", "we may move the memory of others", func(context.Context, *cell) result {
		return each(foreignProcesses(), func(pid int) result { return refusal(call(unix.SYS_MOVE_PAGES, uintptr(pid), 0, 0, 0, 0, 0)) }).orNone()
	}},
	{"kernel", "persistent-keys", "keys of the host's user outlive us", raw(unix.SYS_KEYCTL, 22 /* KEYCTL_GET_PERSISTENT */, ^uintptr(0), keyring(unix.KEY_SPEC_THREAD_KEYRING))},
	{"kernel", "request-key", "the kernel asks programs of the host's for keys on our behalf", func(context.Context, *cell) result {
		// Without a word for them, so that none is run.
		user, name := []byte("user\x00"), []byte("prisoner\x00")
		err := call(unix.SYS_REQUEST_KEY, uintptr(unsafe.Pointer(&user[0])), uintptr(unsafe.Pointer(&name[0])), 0, 0)
		if errors.Is(err, unix.ENOKEY) {
			return out("keys are looked for")
		}
		return judge(err)
	}},
	{"kernel", "x32-calls", "calls numbered otherwise pass the filter", func(ctx context.Context, _ *cell) result {
		if runtime.GOARCH != "amd64" {
			return absent("this processor has no such calls")
		}
		// In a child: the filter may end the thread that makes one, and Go does
		// not get over that.
		ctx, cancel := context.WithTimeout(ctx, connectLimit)
		defer cancel()
		err := exec.CommandContext(ctx, "/proc/self/exe", "x32").Run()
		exited := (*exec.ExitError)(nil)
		switch {
		case err == nil:
			return out("it worked")
		case errors.As(err, &exited) && exited.ExitCode() == noSuchCall:
			return absent("this kernel has no such calls")
		}
		return held("%v", err)
	}},
	{"kernel", "32-bit-calls", "a 32-bit program's calls pass the filter", thirtyTwoBit},
}

// noSuchCall is the status of a child to whom the kernel said so.
const noSuchCall = 3

// x32 makes one call by its other number.
func x32() int {
	switch err := call(0x40000000 | unix.SYS_GETPID); {
	case err == nil:
		return 0
	case errors.Is(err, unix.ENOSYS):
		return noSuchCall
	}
	return 1
}

// endAfter has the kernel end this process after a while, whatever has become
// of its threads.
func endAfter(d time.Duration) error {
	event := struct {
		value  uint64
		signo  int32
		notify int32
		pad    [12]uint32
	}{signo: int32(unix.SIGKILL)} // struct sigevent; to notify by a signal is 0
	var timer int32
	if err := call(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&timer))); err != nil {
		return err
	}
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	return call(unix.SYS_TIMER_SETTIME, uintptr(timer), 0, uintptr(unsafe.Pointer(&at)), 0)
}

// mountsAreOurs finds a mount that shares what is mounted with a peer.
func mountsAreOurs() result {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return judge(err)
	}
	n, path := sharedMounts(string(b))
	if path != "" {
		return out("%s is shared", path)
	}
	return held("%d mounts, none shared", n)
}

// nothingIn finds files of others in a directory of the kernel's.
func nothingIn(dir string) result {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return judge(reason(err))
	}
	for _, e := range entries {
		var st unix.Stat_t
		if p := filepath.Join(dir, e.Name()); unix.Lstat(p, &st) == nil && int(st.Uid) != unix.Getuid() {
			return out("%s is user %d's", p, st.Uid)
		}
	}
	return held("there are none")
}

// thirtyTwoBit runs a program of 32 bits that leaves with status 42 by the old
// way into the kernel. The filter ends it if it does not know that way.
func thirtyTwoBit(ctx context.Context, c *cell) result {
	if runtime.GOARCH != "amd64" {
		return absent("this processor has no such programs")
	}
	fd, err := unix.MemfdCreate("prisoner", 0)
	if err != nil {
		return judge(err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, elf32()); err != nil {
		return judge(err)
	}
	cmd := exec.CommandContext(ctx, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd))
	err = cmd.Run()
	exited := (*exec.ExitError)(nil)
	if errors.As(err, &exited) {
		status := exited.Sys().(syscall.WaitStatus)
		if status.ExitStatus() == 42 {
			return out("it ran")
		}
		return held("it was ended: %v", exited)
	}
	if errors.Is(err, unix.ENOEXEC) {
		return absent("this kernel runs no such programs")
	}
	return held("%v", reason(err))
}

// elf32 is the smallest program that there is for that.
func elf32() []byte {
	const base, header = 0x08048000, 52 + 32
	code := []byte{0xb8, 1, 0, 0, 0, 0xbb, 42, 0, 0, 0, 0xcd, 0x80} // exit(42) by int 0x80
	b := append([]byte("\x7fELF\x01\x01\x01"), make([]byte, 9)...)
	for _, v := range []any{uint16(2), uint16(3), uint32(1), uint32(base + header), uint32(52), uint32(0), uint32(0),
		uint16(52), uint16(32), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(1), uint32(0), uint32(base), uint32(base), uint32(header + len(code)), uint32(header + len(code)), uint32(5), uint32(0x1000)} {
		b, _ = binary.Append(b, binary.LittleEndian, v)
	}
	return append(b, code...)
}
