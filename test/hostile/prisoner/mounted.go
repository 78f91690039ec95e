package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mountedAttempts write beside what is mounted for writing, or reach what is not
// mounted at all. Whatever one of them makes, it removes.
var mountedAttempts = []attempt{
	{"files", "outside", "a file of the host's is there that no mount shows", func(_ context.Context, c *cell) result {
		return each(c.Outside, there)
	}},
	{"files", "link-out-of-a-mount", "a link in a mount of ours leads to the host's files", func(_ context.Context, c *cell) result {
		return inMount(c, func(dir string) result {
			return each(c.Outside, func(p string) result {
				up, err := filepath.Rel(dir, p)
				if err != nil {
					return held("%v", err)
				}
				var all []result
				for i, to := range []string{p, up, "/proc/1/root" + p, "/proc/self/root/proc/1/cwd/" + up} {
					link := filepath.Join(dir, fmt.Sprintf("link-%d%s", i, strings.ReplaceAll(p, "/", "-")))
					if err := os.Symlink(to, link); err != nil {
						all = append(all, judge(reason(err)))
						continue
					}
					all = append(all, there(link))
				}
				return worst(all...)
			})
		})
	}},
	{"files", "above-a-mount", "the directories above a mount are the host's", func(_ context.Context, c *cell) result {
		return inMount(c, func(dir string) result {
			fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return judge(err)
			}
			defer unix.Close(fd)
			return each(c.Outside, func(p string) result {
				up, err := filepath.Rel(dir, p)
				if err != nil {
					return held("%v", err)
				}
				got, err := unix.Openat2(fd, up, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC})
				if err != nil {
					return held("%v", err)
				}
				unix.Close(got)
				return out("%s can be opened", up)
			})
		})
	}},
	{"files", "directory-moved-away", "a directory that moves from under us takes `..` with it", movedAway},
	{"files", "hard-link-across", "a second name in a mount of ours makes a read-only file writable", func(_ context.Context, c *cell) result {
		return inMount(c, func(dir string) result {
			return eachFile(append([]string{"/etc"}, c.ReadOnly...), func(p string) result {
				link := filepath.Join(dir, "hard-link-"+filepath.Base(p))
				for _, flags := range []int{0, unix.AT_SYMLINK_FOLLOW} {
					if err := unix.Linkat(unix.AT_FDCWD, p, unix.AT_FDCWD, link, flags); err == nil {
						return openFor(link, unix.O_WRONLY)
					}
				}
				return held("%s: not linked", p)
			})
		})
	}},
	{"files", "rename-across", "a file of ours can be moved to where we may not write", func(_ context.Context, c *cell) result {
		return inMount(c, func(dir string) result {
			file := filepath.Join(dir, "renamed")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				return judge(reason(err))
			}
			return each(elsewhere(c), func(to string) result {
				name := filepath.Join(to, "prisoner-renamed")
				if err := os.Rename(file, name); err != nil {
					return held("%s: %v", to, reason(err))
				}
				os.Remove(name)
				return out("a file is in %s", to)
			})
		})
	}},
	{"files", "exchange-across", "a file of ours can change places with one that is not", func(_ context.Context, c *cell) result {
		return inMount(c, func(dir string) result {
			file := filepath.Join(dir, "exchanged")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				return judge(reason(err))
			}
			return eachFile(append([]string{"/etc/hosts", "/etc/resolv.conf"}, c.ReadOnly...), func(p string) result {
				if err := unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, p, unix.RENAME_EXCHANGE); err != nil {
					return held("%s: %v", p, err)
				}
				_ = unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, p, unix.RENAME_EXCHANGE)
				return out("%s changed places", p)
			})
		})
	}},
	{"files", "nameless-file-across", "a file without a name gets one where we may not write", func(_ context.Context, c *cell) result {
		return inMount(c, func(dir string) result {
			fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
			if err != nil {
				return judge(err)
			}
			defer unix.Close(fd)
			return each(elsewhere(c), func(to string) result {
				name := filepath.Join(to, "prisoner-nameless")
				if err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW); err != nil {
					return held("%s: %v", to, err)
				}
				os.Remove(name)
				return out("a file is in %s", to)
			})
		})
	}},
	{"files", "read-only-mount", "what is mounted for reading can be written", func(ctx context.Context, c *cell) result {
		if len(c.ReadOnly) == 0 {
			return noTarget
		}
		return worst(createIn(c.ReadOnly...)(ctx, c), eachFile(c.ReadOnly, func(p string) result {
			return worst(openFor(p, unix.O_WRONLY), openFor(p, unix.O_RDWR|unix.O_APPEND), changed(p))
		}))
	}},
	{"files", "reopened-for-writing", "what we opened for reading opens again for writing", func(_ context.Context, c *cell) result {
		return eachFile(append([]string{"/etc/hosts", "/etc/resolv.conf", "/opt/corral/bin/corral-verify"}, c.ReadOnly...), func(p string) result {
			return worst(reopened(p, unix.O_RDONLY), reopened(p, unix.O_PATH))
		})
	}},
	{"files", "flags-of-a-file", "a file that we only read takes other flags from us", func(_ context.Context, c *cell) result {
		return eachFile(append([]string{"/etc/hosts"}, c.ReadOnly...), func(p string) result {
			fd, err := unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return judge(err)
			}
			defer unix.Close(fd)
			flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
			if err != nil {
				return judge(err)
			}
			if err := unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags)); err != nil {
				return held("%s: %v", p, err)
			}
			return out("%s takes them", p)
		})
	}},
	{"files", "overlay-layers", "the layers of our root can be opened beside it", func(context.Context, *cell) result {
		b, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return judge(err)
		}
		var dirs []string
		for _, f := range strings.FieldsFunc(string(b), func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }) {
			for _, key := range []string{"upperdir=", "workdir=", "lowerdir="} {
				if list, found := strings.CutPrefix(f, key); found {
					dirs = append(dirs, strings.Split(list, ":")...)
				}
			}
		}
		if len(dirs) == 0 {
			return absent("no overlay")
		}
		return each(dirs, there)
	}},
	{"files", "sources-of-mounts", "the device that a mount comes from can be opened", func(context.Context, *cell) result {
		b, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return judge(err)
		}
		var sources []string
		for line := range strings.Lines(string(b)) {
			_, after, _ := strings.Cut(line, " - ")
			if f := strings.Fields(after); len(f) > 1 && strings.HasPrefix(f[1], "/dev/") {
				sources = append(sources, f[1])
			}
		}
		if len(sources) == 0 {
			return absent("no mount names a device")
		}
		return each(sources, there)
	}},
	{"files", "program-of-init", "a program that root runs for us can be replaced", func(context.Context, *cell) result {
		return each([]string{"/proc/1/exe", "/sbin/docker-init", "/dev/init", "/opt/corral/bin/corral-verify"}, func(p string) result {
			fd, err := unix.Open(p, unix.O_WRONLY|unix.O_CLOEXEC, 0)
			// The kernel looks at what runs before it looks at the mount.
			if err == unix.ETXTBSY && !readOnlyMount(p) {
				return out("%s is only busy", p)
			}
			if err != nil {
				return judge(err)
			}
			unix.Close(fd)
			return out("%s can be opened", p)
		})
	}},
	{"files", "hidden-proc", "what the engine hides of the kernel's tables can be read", func(context.Context, *cell) result {
		return each([]string{"/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats", "/proc/scsi/scsi", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/net/nf_conntrack", "/sys/firmware/acpi/tables/DSDT", "/sys/kernel/security/lsm"}, readFrom)
	}},
}

// readOnlyMount reports whether what a path leads to is mounted for reading.
func readOnlyMount(p string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(p, &fs) == nil && fs.Flags&unix.ST_RDONLY != 0
}

// there opens something that is not to be there.
func there(p string) result {
	fd, err := unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return held("%s: %v", p, err)
	}
	unix.Close(fd)
	return out("%s can be opened", p)
}

// inMount hands over a directory of ours in the mount that we may write.
func inMount(c *cell, try func(dir string) result) result {
	if c.ReadWrite == "" {
		return noTarget
	}
	dir, err := os.MkdirTemp(c.ReadWrite, ".prisoner-")
	if err != nil {
		return judge(reason(err))
	}
	defer os.RemoveAll(dir)
	return try(dir)
}

// elsewhere are directories that are not ours to write.
func elsewhere(c *cell) []string {
	all := append([]string{"/", "/etc", "/opt/corral", "/usr/local/bin"}, c.ReadOnly...)
	if c.ReadWrite != "" {
		all = append(all, filepath.Dir(filepath.Clean(c.ReadWrite)))
	}
	return all
}

// eachFile tries some files of each directory, and what is no directory itself.
func eachFile(paths []string, try func(string) result) result {
	const most = 8 // of a directory
	var files []string
	for _, p := range paths {
		entries, err := os.ReadDir(p)
		if err != nil {
			files = append(files, p)
			continue
		}
		n := 0
		for _, e := range entries {
			if e.Type().IsRegular() && n < most {
				files = append(files, filepath.Join(p, e.Name()))
				n++
			}
		}
	}
	return each(files, try)
}

// changed alters what is known of a file to what it is already.
func changed(p string) result {
	var st unix.Stat_t
	if err := unix.Stat(p, &st); err != nil {
		return judge(err)
	}
	for what, err := range map[string]error{
		"mode":      unix.Chmod(p, st.Mode&0o7777),
		"owner":     unix.Chown(p, int(st.Uid), int(st.Gid)),
		"times":     unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, st.Mtim}, 0),
		"length":    unix.Truncate(p, st.Size),
		"attribute": unix.Setxattr(p, "user.prisoner", nil, unix.XATTR_REPLACE),
	} {
		if err == nil {
			return out("%s: its %s can be changed", p, what)
		}
	}
	return held("%s: nothing can be changed", p)
}

// reopened opens by a descriptor what a path gave.
func reopened(p string, flags int) result {
	fd, err := unix.Open(p, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return judge(err)
	}
	defer unix.Close(fd)
	return openFor(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY)
}

// movedAway holds a directory while its parent's name changes, as who races a
// path does, and goes up from it as far as it goes.
func movedAway(_ context.Context, c *cell) result {
	return inMount(c, func(dir string) result {
		inner := filepath.Join(dir, "a", "b")
		if err := os.MkdirAll(inner, 0o700); err != nil {
			return judge(reason(err))
		}
		fd, err := unix.Open(inner, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return judge(err)
		}
		defer unix.Close(fd)
		if err := os.Rename(inner, filepath.Join(c.scratch, "b")); err == nil {
			return out("a directory left its mount")
		}
		if err := os.Rename(inner, filepath.Join(dir, "b")); err != nil {
			return judge(reason(err))
		}
		return each(c.Outside, func(p string) result {
			got, err := unix.Openat(fd, strings.Repeat("../", 64)+strings.TrimPrefix(p, "/"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return held("%v", err)
			}
			unix.Close(got)
			return out("%s can be opened", p)
		})
	})
}

// inheritedWays looks at what is open in us and in whoever started us: a
// directory that no path of ours leads to is the runtime's, and a way to the
// host's files; so is a working directory of that kind.
func inheritedWays() result {
	n := 0
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range dirs {
		links, _ := filepath.Glob(process + "/fd/*")
		for _, link := range append(links, process+"/cwd") {
			to, err := os.Readlink(link)
			if err != nil {
				continue // another user's
			}
			n++
			if r := strayed(link, to); r.outcome == escaped {
				return r
			}
		}
	}
	if n == 0 {
		return absent("no descriptor can be looked at")
	}
	return held("%d descriptors, none leads anywhere else", n)
}

// strayed judges one descriptor by what its own name leads to.
func strayed(link, to string) result {
	var got, named unix.Stat_t
	if unix.Stat(link, &got) != nil {
		return held("it is closed")
	}
	switch got.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		return out("%s is a block device", link)
	case unix.S_IFDIR:
		if strings.HasPrefix(to, "/proc/") {
			return held("it is a process's") // which may be gone meanwhile
		}
		if unix.Stat(to, &named) != nil || named.Dev != got.Dev || named.Ino != got.Ino {
			return out("%s is a directory that is not ours: %s", link, to)
		}
	case unix.S_IFSOCK:
		if fd := filepath.Base(link); fd != "0" && fd != "1" && fd != "2" {
			return out("%s is a socket that we did not open", link)
		}
	}
	return held("it is ours")
}

// sysvTable are the lines of a table of System V IPC.
func sysvTable(kind string) int {
	b, _ := os.ReadFile("/proc/sysvipc/" + kind)
	return max(0, strings.Count(string(b), "\n")-1)
}

// foreignTerminal reports whether a descriptor is a terminal that none of our paths
// leads to, and so somebody else's.
func foreignTerminal(fd int) (terminal, foreign bool) {
	if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err != nil {
		return false, false
	}
	to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	var got, named unix.Stat_t
	if err != nil || unix.Fstat(fd, &got) != nil || unix.Stat(to, &named) != nil {
		return true, true
	}
	return true, got.Dev != named.Dev || got.Ino != named.Ino
}

// inject puts a character into a terminal's input as if it had been typed.
func inject(fd int) error {
	c := byte(0)
	return call(unix.SYS_IOCTL, uintptr(fd), unix.TIOCSTI, uintptr(unsafe.Pointer(&c)))
}

// sharedMounts counts mounts and names one whose mounts go to peers: what only
// takes mounts from the host lets nothing out.
func sharedMounts(mountinfo string) (n int, path string) {
	for line := range strings.Lines(mountinfo) {
		before, _, _ := strings.Cut(line, " - ")
		f := strings.Fields(before)
		if len(f) < 6 {
			continue
		}
		n++
		for _, option := range f[6:] {
			if strings.HasPrefix(option, "shared:") {
				path = f[4]
			}
		}
	}
	return n, path
}
