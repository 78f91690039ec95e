package main

import (
	"context"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

var rightsAttempts = []attempt{
	{"rights", "setuid-root", "we may become root", raw(unix.SYS_SETUID, 0)},
	{"rights", "setgid-root", "we may join root's group", raw(unix.SYS_SETGID, 0)},
	{"rights", "become-worker", "we may become the gate's worker, whose lookups leave", raw(unix.SYS_SETUID, 64999)},
	{"rights", "setgroups", "we may join any group", func(context.Context, *cell) result {
		gid := uint32(0)
		return refusal(call(unix.SYS_SETGROUPS, 1, uintptr(unsafe.Pointer(&gid))))
	}},
	{"rights", "capset", "we may take capabilities", func(context.Context, *cell) result {
		h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		d := [2]unix.CapUserData{{Effective: 1 << unix.CAP_NET_ADMIN, Permitted: 1 << unix.CAP_NET_ADMIN}}
		return judge(unix.Capset(&h, &d[0]))
	}},
	{"rights", "ambient", "we may hand capabilities to children", raw(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_NET_RAW)},
	{"rights", "new-privileges", "the promise of no new privileges can be taken back", raw(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 0)},
	{"rights", "seccomp-off", "the filter of system calls can be taken off", raw(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, 0)},
	{"rights", "set-user-id", "a program makes us root", setUserID},

	{"namespaces", "user", "we may be root of a namespace of our own and reach more of the kernel", spawn(unix.CLONE_NEWUSER)},
	{"namespaces", "network", "we may leave the gate's network namespace", spawn(unix.CLONE_NEWNET)},
	{"namespaces", "mount", "we may rearrange the file system", spawn(unix.CLONE_NEWNS)},
	{"namespaces", "pid", "we may hide processes", spawn(unix.CLONE_NEWPID)},
	{"namespaces", "unshare", "we may leave the gate's network namespace by unshare", raw(unix.SYS_UNSHARE, unix.CLONE_NEWNET)},
	{"namespaces", "join", "we may enter other namespaces", func(context.Context, *cell) result {
		fd, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return judge(err)
		}
		defer unix.Close(fd)
		return refusal(unix.Setns(fd, unix.CLONE_NEWNET))
	}},

	{"mounts", "tmpfs", "we may mount", func(_ context.Context, c *cell) result {
		err := unix.Mount("prisoner", c.scratch, "tmpfs", 0, "size=4k")
		if err == nil {
			_ = unix.Unmount(c.scratch, unix.MNT_DETACH)
		}
		return refusal(err)
	}},
	{"mounts", "bind", "we may show a directory elsewhere", func(_ context.Context, c *cell) result {
		err := unix.Mount("/", c.scratch, "", unix.MS_BIND, "")
		if err == nil {
			_ = unix.Unmount(c.scratch, unix.MNT_DETACH)
		}
		return refusal(err)
	}},
	{"mounts", "remount", "we may make read-only writable", func(_ context.Context, c *cell) result {
		return refusal(unix.Mount("", c.scratch, "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	}},
	{"mounts", "unmount", "we may uncover what is covered", func(_ context.Context, c *cell) result {
		return refusal(unix.Unmount(c.scratch, 0))
	}},
	{"mounts", "fsopen", "we may mount by the newer calls", func(context.Context, *cell) result {
		fd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
		if err == nil {
			unix.Close(fd)
		}
		return judge(err)
	}},
	{"mounts", "open-tree", "we may copy a tree of mounts", func(context.Context, *cell) result {
		fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err == nil {
			unix.Close(fd)
		}
		return judge(err)
	}},
	{"mounts", "pivot-root", "we may change the root", func(_ context.Context, c *cell) result {
		return refusal(unix.PivotRoot(c.scratch, c.scratch))
	}},
	{"mounts", "chroot", "we may change our root", func(context.Context, *cell) result { return refusal(unix.Chroot("/")) }},

	{"processes", "ptrace", "we may take over somebody else's process", func(context.Context, *cell) result {
		return each(foreignProcesses(), func(pid int) result {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			r := judge(unix.PtraceSeize(pid))
			_ = unix.PtraceDetach(pid)
			return r
		}).orNone()
	}},
	{"processes", "signal", "we may end somebody else's process", func(context.Context, *cell) result {
		return each(foreignProcesses(), func(pid int) result { return judge(unix.Kill(pid, 0)) }).orNone()
	}},
	{"processes", "priority", "we may starve the machine", func(context.Context, *cell) result {
		return judge(unix.Setpriority(unix.PRIO_PROCESS, 0, -20))
	}},

	{"kernel", "keyrings", "keys of the host's user can be used", raw(unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, keyring(unix.KEY_SPEC_USER_KEYRING), 0)},
	{"kernel", "add-key", "the kernel keeps keys for us beyond the sandbox", func(context.Context, *cell) result {
		id, err := unix.AddKey("user", "prisoner", []byte("x"), unix.KEY_SPEC_THREAD_KEYRING)
		if err == nil {
			_, _ = unix.KeyctlInt(unix.KEYCTL_REVOKE, id, 0, 0, 0)
		}
		return judge(err)
	}},
	{"kernel", "io-uring", "system calls can be made behind the filter", func(context.Context, *cell) result {
		var params [120]byte // struct io_uring_params
		return closing(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)))
	}},
	{"kernel", "bpf", "we may load programs into the kernel", func(context.Context, *cell) result {
		attr := [18]uint32{1, 4, 4, 1} // BPF_MAP_CREATE of a hash map
		return closing(unix.SYS_BPF, 0, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	}},
	{"kernel", "perf", "we may watch the kernel", func(context.Context, *cell) result {
		attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{}))}
		fd, err := unix.PerfEventOpen(&attr, -1, 0, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err == nil {
			unix.Close(fd)
		}
		return judge(err)
	}},
	{"kernel", "modules", "we may load a module", raw(unix.SYS_INIT_MODULE, 0, 0, uintptr(unsafe.Pointer(&nowhere[len(nowhere)-1])))},
	{"kernel", "modules-by-file", "we may load a module from a file", raw(unix.SYS_FINIT_MODULE, ^uintptr(0), uintptr(unsafe.Pointer(&nowhere[len(nowhere)-1])), 0)},
	{"kernel", "kexec", "we may boot another kernel", raw(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0xffff0000 /* no such flags */)},
	{"kernel", "reboot", "we may reboot the machine", raw(unix.SYS_REBOOT, 0 /* a wrong magic number */, 0, 0)},
	{"kernel", "hostname", "we may rename the machine", func(context.Context, *cell) result { return refusal(unix.Sethostname([]byte(ownName()))) }},
	{"kernel", "clock", "we may set the clock", raw(unix.SYS_SETTIMEOFDAY, 0, 0)},
	{"kernel", "swap", "we may add swap", raw(unix.SYS_SWAPON, uintptr(unsafe.Pointer(&nowhere[0])), 0)},
	{"kernel", "accounting", "we may log every process", raw(unix.SYS_ACCT, uintptr(unsafe.Pointer(&nowhere[0])))},
	{"kernel", "log", "the kernel's log can be read", raw(unix.SYS_SYSLOG, 10 /* SYSLOG_ACTION_SIZE_BUFFER */, 0, 0)},
	{"kernel", "quota", "we may change quotas", raw(unix.SYS_QUOTACTL, 0x80000200 /* Q_QUOTAON */, 0, 0, 0)},
}

// nowhere is a path for calls that look at rights before paths; its end is an
// empty string.
var nowhere = []byte("/nonexistent\x00")

// call makes a system call on this thread only.
func call(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, errno := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

// raw is an attempt that is one system call, harmless where it succeeds.
func raw(nr uintptr, args ...uintptr) func(context.Context, *cell) result {
	return func(context.Context, *cell) result {
		err := call(nr, args...)
		if nr == unix.SYS_PRCTL || nr == unix.SYS_KEYCTL || nr == unix.SYS_QUOTACTL {
			return judge(err) // these look at their arguments first
		}
		return refusal(err)
	}
}

// closing is a call that returns a descriptor.
func closing(nr uintptr, args ...uintptr) result {
	var a [3]uintptr
	copy(a[:], args)
	fd, _, errno := unix.Syscall(nr, a[0], a[1], a[2])
	if errno != 0 {
		return judge(errno)
	}
	unix.Close(int(fd))
	return out("it worked")
}

func keyring(id int) uintptr { return uintptr(id) }

// spawn starts a child of ours in new namespaces.
func spawn(flags uintptr) func(context.Context, *cell) result {
	return func(ctx context.Context, _ *cell) result {
		cmd := exec.CommandContext(ctx, "/proc/self/exe", "nothing")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		if err := cmd.Start(); err != nil {
			return judge(reason(err))
		}
		_ = cmd.Wait()
		return out("a child lives in it")
	}
}

// setUserID runs what usually makes people root.
func setUserID(ctx context.Context, _ *cell) result {
	return each([]string{"sudo -n id -u", "su -c id\x00-u", "doas -n id -u", "pkexec id -u"}, func(line string) result {
		args := strings.Fields(line)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "\x00", " ")
		}
		file, err := exec.LookPath(args[0])
		if err != nil {
			return absent("%s is not there", args[0])
		}
		b, err := exec.CommandContext(ctx, file, args[1:]...).Output()
		if err == nil && strings.TrimSpace(string(b)) == "0" {
			return out("%s makes us root", file)
		}
		return held("%s: %v", file, err)
	})
}
