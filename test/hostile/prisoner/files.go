package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

var fileAttempts = []attempt{
	{"files", "hosts", "we may pin names ourselves", writeTo("/etc/hosts")},
	{"files", "resolv-conf", "we may choose who is asked for names", writeTo("/etc/resolv.conf")},
	{"files", "accounts", "we may make ourselves somebody", writeTo("/etc/passwd", "/etc/shadow", "/etc/group", "/etc/sudoers")},
	{"files", "preload", "we may run code in every program", createIn("/etc", "/lib", "/usr/lib", "/usr/bin", "/usr/local/bin")},
	{"files", "guest-binaries", "we may replace the checker", func(ctx context.Context, c *cell) result {
		return worst(writeTo("/opt/corral/bin/corral-verify", "/opt/corral/bin/corral-gate")(ctx, c), createIn("/opt/corral", "/opt/corral/bin")(ctx, c))
	}},
	{"files", "corral-settings", "we may change what corral told us", func(ctx context.Context, c *cell) result {
		return worst(createIn("/etc/corral")(ctx, c), writeTo("/etc/corral/gate.json", "/etc/corral/README")(ctx, c))
	}},
	{"files", "symlink", "a link leads our write to a file of root's", func(_ context.Context, c *cell) result {
		link := filepath.Join(c.scratch, "symlink")
		if err := os.Symlink("/etc/hosts", link); err != nil {
			return judge(reason(err))
		}
		return openFor(link, unix.O_WRONLY)
	}},
	{"files", "hard-link", "a second name makes a file of root's ours", func(_ context.Context, c *cell) result {
		return each([]string{"/etc/hosts", "/etc/passwd", "/usr/bin/env", "/opt/corral/bin/corral-verify"}, func(p string) result {
			link := filepath.Join(c.scratch, filepath.Base(p))
			if err := os.Link(p, link); err != nil {
				return judge(reason(err))
			}
			return openFor(link, unix.O_WRONLY)
		})
	}},
	{"files", "rename-mount", "a mount can be moved out of the way", func(context.Context, *cell) result {
		return judge(reason(os.Rename("/etc/hosts", "/etc/hosts.prisoner")))
	}},
	{"files", "root-of-others", "another process's root leads out", func(context.Context, *cell) result {
		return each(foreignProcesses(), func(pid int) result { return openFor(fmt.Sprintf("/proc/%d/root/", pid), unix.O_RDONLY) }).orNone()
	}},
	{"files", "memory-of-others", "another process's memory and secrets can be read", func(context.Context, *cell) result {
		return each(foreignProcesses(), func(pid int) result {
			return worst(openFor(fmt.Sprintf("/proc/%d/mem", pid), unix.O_RDONLY), readFrom(fmt.Sprintf("/proc/%d/environ", pid)))
		}).orNone()
	}},
	{"files", "sysctl", "we may change kernel settings", writeTo("/proc/sys/kernel/core_pattern", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/disable_ipv6", "/proc/sys/net/ipv4/conf/all/route_localnet", "/proc/sys/kernel/modprobe", "/proc/sys/fs/binfmt_misc/register")},
	{"files", "proc-switches", "we may reach the kernel through its switches", func(ctx context.Context, c *cell) result {
		return worst(writeTo("/proc/sysrq-trigger", "/proc/acpi/wakeup", "/proc/irq/default_smp_affinity")(ctx, c),
			readFrom("/proc/kcore"), readFrom("/proc/kpagecount"), readFrom("/proc/1/stack"))
	}},
	{"files", "sysfs", "we may change devices", writeTo("/sys/kernel/uevent_helper", "/sys/kernel/mm/ksm/run", "/sys/power/state", "/sys/class/net/lo/mtu", "/sys/kernel/debug/x", "/sys/firmware/efi/vars/x")},
	{"files", "cgroups", "we may lift our limits or run code on the host", func(ctx context.Context, c *cell) result {
		agents, _ := filepath.Glob("/sys/fs/cgroup/*/release_agent")
		limits, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
		all := append(agents, limits...)
		return worst(writeTo(append(all, "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/pids.max")...)(ctx, c), createIn("/sys/fs/cgroup")(ctx, c))
	}},
	{"files", "device-nodes", "we may make a device and so read the disk", func(_ context.Context, c *cell) result {
		p := filepath.Join(c.scratch, "device")
		return worst(
			refusal(unix.Mknod(p+"-mem", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1)))),
			refusal(unix.Mknod(p+"-disk", unix.S_IFBLK|0o600, int(unix.Mkdev(254, 0)))),
		)
	}},
	{"files", "devices", "a device of the host's is open to us", func(context.Context, *cell) result {
		return each([]string{"/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/fuse", "/dev/kvm", "/dev/vhost-vsock", "/dev/vhost-net", "/dev/vsock", "/dev/loop-control", "/dev/uinput", "/dev/dri/card0", "/dev/tty0", "/dev/tty1", "/dev/vcs", "/dev/hpet", "/dev/btrfs-control", "/dev/mapper/control", "/dev/userfaultfd"}, func(p string) result {
			return openFor(p, unix.O_RDWR)
		})
	}},
	{"files", "file-handle", "a guessed handle opens the host's root", fileHandle},
}

// orNone reads an empty list of processes as what it is.
func (r result) orNone() result {
	if r == noTarget {
		return held("no process of anybody else is visible")
	}
	return r
}

// openFor opens and closes again.
func openFor(p string, flags int) result {
	fd, err := unix.Open(p, flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		r := judge(err)
		r.detail = p + ": " + r.detail
		return r
	}
	unix.Close(fd)
	return out("%s can be opened", p)
}

// readFrom counts only content: the engine covers files with empty ones.
func readFrom(p string) result {
	fd, err := unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return judge(err)
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, make([]byte, 8))
	if err != nil {
		return judge(err)
	}
	if n == 0 {
		return held("%s is empty", p)
	}
	return out("%s can be read", p)
}

// writeTo opens files for writing and writes nothing.
func writeTo(paths ...string) func(context.Context, *cell) result {
	return func(context.Context, *cell) result {
		return each(paths, func(p string) result {
			var st unix.Stat_t
			if unix.Stat(p, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3) {
				return held("%s is the null device", p)
			}
			return openFor(p, unix.O_WRONLY)
		})
	}
}

// createIn makes a file without a name, or one that goes at once.
func createIn(dirs ...string) func(context.Context, *cell) result {
	return func(context.Context, *cell) result {
		return each(dirs, func(dir string) result {
			f, err := os.CreateTemp(dir, "prisoner-")
			if err != nil {
				return judge(reason(err))
			}
			f.Close()
			os.Remove(f.Name())
			return out("a file in %s", dir)
		})
	}
}

// fileHandle opens the root of the file system that /etc/hosts comes from by
// its well-known inode number, 2, as "shocker" did.
func fileHandle(context.Context, *cell) result {
	mount, err := unix.Open("/etc/hosts", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return judge(err)
	}
	defer unix.Close(mount)
	const fileidIno32Gen = 1
	handle := unix.NewFileHandle(fileidIno32Gen, binary.NativeEndian.AppendUint64(nil, 2))
	fd, err := unix.OpenByHandleAt(mount, handle, unix.O_RDONLY)
	if err == nil {
		unix.Close(fd)
	}
	return refusal(err)
}
