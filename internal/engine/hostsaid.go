package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/api/types/versions"
	"golang.org/x/sys/unix"
)

// said is what an engine says of itself, and what of this machine it is
// compared with.
type said struct {
	api     string // the version that is spoken with it
	info    system.Info
	command string // the path of the docker command
	kernel  string // this machine's own release
}

// said asks the engine once.
func (e *Engine) said(ctx context.Context, command string) (said, error) {
	s := said{api: e.api.ClientVersion(), command: command}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var err error
	if s.info, err = e.api.Info(ctx); err != nil {
		return s, fmt.Errorf("docker info: %w", err)
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return s, fmt.Errorf("this machine's kernel: %w", err)
	}
	s.kernel = unix.ByteSliceToString(name.Release[:])
	return s, nil
}

// has reports whether a security option is in force: rootless, userns,
// seccomp, selinux, apparmor.
func (s said) has(option string) bool {
	return slices.ContainsFunc(s.info.SecurityOptions, func(o string) bool {
		for _, word := range strings.Split(o, ",") {
			if word == "name="+option {
				return true
			}
		}
		return false
	})
}

// oldestAPI is that of Docker 20.10, the oldest that a fence was proven on.
const oldestAPI = "1.41"

// usableEngine are the conditions that everything asked of the engine stands
// on.
var usableEngine = []string{"engine-answers", "engine-version", "linux-containers", "engine-root", "engine-users", "engine-machine", "engine-package"}

const useLocal = "use the Docker Engine of this machine: sudo apt-get install docker.io, then unset DOCKER_HOST and docker context use default"

// saidConditions are judged by the engine's own words. Every command asks
// those that refuse: together they are one question.
var saidConditions = []Condition{
	{Name: "engine-version", Proves: "the engine speaks API " + oldestAPI + " (Docker 20.10) or newer", After: []string{"engine-answers"}, by: func(s said) Finding {
		if versions.LessThan(s.api, oldestAPI) {
			return fails("install Docker 20.10 or newer: sudo apt-get install docker.io, or https://docs.docker.com/engine/install/",
				"the Docker engine (%s) speaks API %s, and corral needs %s", s.info.ServerVersion, s.api, oldestAPI)
		}
		return holds("")
	}},
	{Name: "linux-containers", Proves: "the engine runs Linux containers", After: []string{"engine-answers"}, by: func(s said) Finding {
		if s.info.OSType != "linux" {
			return fails(useLocal, "the Docker engine runs %s containers, and a fence is made of Linux ones", s.info.OSType)
		}
		return holds("")
	}},
	{Name: "engine-root", Proves: "the engine is root's: in a rootless one uids and addresses inside are not this machine's", After: []string{"engine-answers"}, by: func(s said) Finding {
		if s.has("rootless") {
			return fails("use the system's engine: sudo apt-get install docker.io, sudo systemctl enable --now docker, docker context use default (and unset DOCKER_HOST)",
				"the Docker engine is rootless: what an agent writes would belong to nobody of this machine, and the gateway's address is not its own")
		}
		return holds("")
	}},
	{Name: "engine-users", Proves: "uids inside are uids outside (no userns-remap)", After: []string{"engine-answers"}, by: func(s said) Finding {
		if s.has("userns") {
			return fails(`take "userns-remap" out of /etc/docker/daemon.json, then sudo systemctl restart docker`,
				"the Docker engine remaps users (userns-remap): what an agent writes would belong to nobody of this machine")
		}
		return holds("")
	}},
	{Name: "engine-machine", Proves: "the engine runs on this machine's kernel, not in a virtual machine such as Docker Desktop's", After: []string{"engine-answers"}, by: func(s said) Finding {
		switch {
		case strings.Contains(s.info.OperatingSystem, "Docker Desktop"):
			return fails(useLocal, "the Docker engine is Docker Desktop's, which runs in a virtual machine: its network and its files are not this machine's")
		case s.info.KernelVersion != s.kernel:
			return fails(useLocal, "the Docker engine runs on another kernel (%s, on %s; this machine has %s), in a virtual machine or elsewhere: its network and its files are not this machine's",
				s.info.KernelVersion, s.info.Name, s.kernel)
		}
		return holds("")
	}},
	{Name: "engine-package", Proves: "neither the engine nor the docker command is a snap, which cannot read hidden directories", After: []string{"engine-answers"}, by: func(s said) Finding {
		for _, path := range []string{s.command, s.info.DockerRootDir} {
			if slices.ContainsFunc([]string{"/snap/", "/var/snap/", "/var/lib/snapd/"}, func(tree string) bool { return strings.HasPrefix(path, tree) }) {
				return fails("install another in its place: sudo snap remove docker, sudo apt-get install docker.io",
					"Docker is from a snap (%s), which cannot read ~/.local, where corral keeps what it mounts", path)
			}
		}
		return holds("")
	}},
	{Name: "seccomp", Proves: "the engine filters system calls", After: []string{"engine-answers"}, by: func(s said) Finding {
		if !s.has("seccomp") {
			return fails("use a kernel with CONFIG_SECCOMP_FILTER and an engine built with seccomp (docker info lists it under Security Options)",
				"the Docker engine does not filter system calls (no seccomp)")
		}
		return holds("")
	}},
	{Name: "process-limit", Proves: "the engine bounds how many processes a container has", After: []string{"engine-answers"}, by: func(s said) Finding {
		if !s.info.PidsLimit {
			return fails("use a kernel with CONFIG_CGROUP_PIDS, and do not boot with cgroup_disable=pids",
				"the Docker engine cannot limit processes (no pids cgroup): one agent could stop this machine")
		}
		return holds("")
	}},
	{Name: "memory-limit", Proves: "the engine bounds the memory of a container", After: []string{"engine-answers"}, Unmet: Mentions, by: func(s said) Finding {
		if !s.info.MemoryLimit {
			return mentions(`add cgroup_enable=memory to GRUB_CMDLINE_LINUX in /etc/default/grub (or to /boot/cmdline.txt), sudo update-grub, and restart the machine`,
				"the Docker engine cannot limit memory (no memory cgroup): resources.memory of a policy does not hold")
		}
		return holds("")
	}},
	{Name: "selinux", Proves: "SELinux does not keep containers from what is mounted", After: []string{"engine-answers"}, Unmet: Mentions, by: func(s said) Finding {
		if s.has("selinux") && enforcing(root) {
			return mentions("for each project: chcon -R -t container_file_t PATH (never for a home directory)",
				"SELinux is enforcing, and the engine labels containers: they read only what has the type %s", writableTypes[0])
		}
		return holds("")
	}},
	{Name: "storage-driver", Proves: "the engine does not copy whole images for each container", After: []string{"engine-answers"}, Unmet: Mentions, by: func(s said) Finding {
		if s.info.Driver == "vfs" {
			return mentions(`set "storage-driver": "overlay2" in /etc/docker/daemon.json, then sudo systemctl restart docker`,
				"the engine's storage driver is vfs, which copies the whole image for each container: slow, and it fills the disk")
		}
		return holds("")
	}},
}
