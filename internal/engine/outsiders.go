package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"golang.org/x/sync/errgroup"

	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

// resident is a container of the engine's, whoever made it.
type resident struct {
	id, name string
	runs     bool // or is paused, or about to be started again
	shares   []share
	volumes  []string // their names
	ours     bool     // corral made it, for any sandbox: all have one volume of programs
}

// share is something of another container's that one was made with.
type share struct {
	what string // in words
	of   string // the other, as the engine was told: an identity, the beginning of one, or a name
}

// residentOf is a container as the engine tells of it.
func residentOf(got container.InspectResponse) resident {
	r := resident{id: got.ID, name: strings.TrimPrefix(got.Name, "/")}
	if s := got.State; s != nil {
		r.runs = s.Running || s.Paused || s.Restarting
	}
	for _, m := range got.Mounts {
		if m.Type == mount.TypeVolume && m.Name != "" {
			r.volumes = append(r.volumes, m.Name)
		}
	}
	r.ours = got.Config != nil && got.Config.Labels[labelRole] != "" && strings.HasPrefix(r.name, mark)
	h := got.HostConfig
	if h == nil {
		return r
	}
	for _, m := range []struct{ what, mode string }{{"the network", string(h.NetworkMode)}, {"the processes", string(h.PidMode)}, {"the memory", string(h.IpcMode)}} {
		if of, is := strings.CutPrefix(m.mode, "container:"); is {
			r.shares = append(r.shares, share{m.what, of})
		}
	}
	for _, v := range h.VolumesFrom {
		of, _, _ := strings.Cut(v, ":")
		r.shares = append(r.shares, share{"the volumes", of})
	}
	return r
}

// called is the container that the engine takes a reference for, nil if it is none
// of all.
func called(all []resident, ref string) *resident {
	ref = strings.TrimPrefix(ref, "/")
	for _, is := range []func(resident) bool{
		func(r resident) bool { return r.id == ref },
		func(r resident) bool { return r.name == ref },
		func(r resident) bool { return ref != "" && strings.HasPrefix(r.id, ref) },
	} {
		if i := slices.IndexFunc(all, is); i >= 0 {
			return &all[i]
		}
	}
	return nil
}

// sharesVolume says which volume of one of those whose identities are in of somebody
// else's container has, and whose it is; empty if it has none.
func (r resident) sharesVolume(all []resident, of []string) string {
	if r.ours {
		return ""
	}
	for _, other := range all {
		if !slices.Contains(of, other.id) {
			continue
		}
		for _, v := range r.volumes {
			if slices.Contains(other.volumes, v) {
				return fmt.Sprintf("the volume %s of %s", v, other.name)
			}
		}
	}
	return ""
}

// outsiders are the containers that run and share something with one of those whose
// identities are in of, or with one that does, and are not of the sandbox, which own
// has whole. Of each it says what it is and what it shares.
func outsiders(all []resident, own []string, of ...string) []string {
	within := slices.Clone(of)
	said := map[string]string{}
	for grown := true; grown; {
		grown = false
		for _, r := range all {
			if slices.Contains(within, r.id) {
				continue
			}
			has := r.sharesVolume(all, of)
			for _, s := range r.shares {
				if other := called(all, s.of); other != nil && slices.Contains(within, other.id) {
					has = s.what + " of " + other.name
					break
				}
			}
			if has == "" {
				continue
			}
			within, grown = append(within, r.id), true
			if r.runs && !slices.Contains(own, r.id) {
				said[r.id] = fmt.Sprintf("the container %s (%s) has %s", r.name, shortID(r.id), has)
			}
		}
	}
	var words []string
	for _, id := range sortedNames(said) {
		words = append(words, Plain(printable.Escape(said[id])))
	}
	return words
}

// mostAsked is how many containers the engine is asked about at once.
const mostAsked = 8

// residents are all containers of the engine. One that is gone before it can be
// looked at is none.
func (e *Engine) residents(ctx context.Context) ([]resident, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	list, err := e.api.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return nil, fmt.Errorf("which other containers there are: %w", err)
	}
	all := make([]resident, len(list))
	asked, asking := errgroup.WithContext(ctx)
	asked.SetLimit(mostAsked)
	for i, c := range list {
		asked.Go(func() error {
			got, err := e.api.ContainerInspect(asking, c.ID)
			switch {
			case errdefs.IsNotFound(err):
				return nil
			case err != nil:
				return &notTelling{c.ID, calledBy(c), err}
			case got.ContainerJSONBase == nil || got.ID == "" || got.HostConfig == nil || got.State == nil:
				return fmt.Errorf("the engine does not say how the container %s is made", calledBy(c))
			}
			all[i] = residentOf(got)
			return nil
		})
	}
	if err := asked.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(r resident) bool { return r.id == "" }), nil
}

// notTelling is an engine that does not say how a container is made.
type notTelling struct {
	id, name string
	err      error
}

func (e *notTelling) Error() string {
	return fmt.Sprintf("the engine does not answer how the container %s is made (docker inspect %[1]s shows whether it does): %v", e.name, e.err)
}

func (e *notTelling) Unwrap() error { return e.err }

// neighbours are the residents, also where the agent of another sandbox has made the
// engine deaf to its container: no agent has a say in what is proven of others.
func (e *Engine) neighbours(ctx context.Context) ([]resident, error) {
	all, err := e.residents(ctx)
	if deaf := (*notTelling)(nil); errors.As(err, &deaf) && ctx.Err() == nil && e.unblock(ctx, deaf.id) == nil {
		return e.residents(ctx)
	}
	return all, err
}

// calledBy is what a person calls a container.
func calledBy(c container.Summary) string {
	if len(c.Names) > 0 {
		return strings.TrimPrefix(c.Names[0], "/")
	}
	return shortID(c.ID)
}

// company is what the sections of a proof ask about together, once: who else uses the
// engine, beside the containers of one sandbox, and how its gates are.
type company struct {
	own []string // their identities
	all func() ([]resident, error)
	// choices are the engine's, nil if it does not say.
	choices func() *choices
	// status is a gate's, by its identity.
	status func(gate string) (spec.GateStatus, error)
}

// statuses asks each gate how it is when somebody wants to know for the first time.
func (e *Engine) statuses(ctx context.Context) func(gate string) (spec.GateStatus, error) {
	var mu sync.Mutex
	asked := map[string]func() (spec.GateStatus, error){}
	return func(gate string) (spec.GateStatus, error) {
		mu.Lock()
		if asked[gate] == nil {
			asked[gate] = sync.OnceValues(func() (spec.GateStatus, error) { return e.GateStatus(ctx, gate) })
		}
		answer := asked[gate]
		mu.Unlock()
		return answer()
	}
}

// beside asks once, when somebody wants to know, and again while there is somebody
// who may be on the way out.
func (e *Engine) beside(ctx context.Context, own ...string) *company {
	return &company{own: own, status: e.statuses(ctx), choices: sync.OnceValue(func() *choices { return e.choices(ctx) }), all: sync.OnceValues(func() ([]resident, error) {
		all, err := e.neighbours(ctx)
		for since := time.Now(); err == nil && len(outsiders(all, own, own...)) > 0 && time.Since(since) < passWithin; {
			if err = pause(ctx); err != nil {
				break
			}
			var now []resident
			if now, err = e.residents(ctx); err == nil {
				all = slices.DeleteFunc(all, func(r resident) bool {
					return !slices.ContainsFunc(now, func(n resident) bool { return n.id == r.id && n.runs == r.runs })
				})
			}
		}
		return all, err
	})}
}

// findings are what somebody says who looked for what must not be there. The zero
// value is that nobody looked.
type findings struct {
	looked bool
	words  []string
	err    error
}

func foundBy(words []string, err error) findings {
	return findings{looked: err == nil, words: words, err: err}
}

// around are the containers that share anything with some of the sandbox's, and are
// somebody else's.
func (c *company) around(of ...string) findings {
	if c == nil {
		return findings{}
	}
	all, err := c.all()
	if err != nil {
		return findings{err: err}
	}
	for _, id := range of {
		if called(all, id) == nil {
			return findings{err: errors.New("the engine does not list the sandbox's own containers")}
		}
	}
	return foundBy(outsiders(all, c.own, of...), nil)
}

// mostTold is how many of several findings a line has.
const mostTold = 3

// some are the first of several findings, and how many more there are.
func some(words []string) string {
	more := len(words) - mostTold
	if more <= 0 {
		return strings.Join(words, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(words[:mostTold], "; "), more)
}

func (f findings) judge() (spec.Result, string) {
	switch {
	case f.err != nil:
		return untold("%s", Plain(printable.Escape(f.err.Error())))
	case !f.looked:
		return untold("nobody looked")
	case len(f.words) > 0:
		return failed("%s", some(f.words))
	}
	return ok()
}

// What comes and goes is gone within passWithin: a command of corral's own that asks a
// gate, one that is about to be what it will be, a tool that reads rules. It is longer
// than any of them takes on a machine that is busy.
const passWithin = 5 * time.Second

// pause waits until there is something new to see.
func pause(ctx context.Context) error {
	select {
	case <-time.After(lookEvery):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// oddity is a process that is not as those of a service are.
type oddity struct {
	key   string // the same at each look, and of no other process
	words string
}

// persistent are the oddities that stay: whoever is on the way to become a process of
// the service's is one for a moment.
func persistent(ctx context.Context, look func() ([]oddity, error)) ([]string, error) {
	stay, err := look()
	for since := time.Now(); err == nil && len(stay) > 0 && time.Since(since) < passWithin; {
		if err = pause(ctx); err != nil {
			break
		}
		var now []oddity
		if now, err = look(); err == nil {
			stay = slices.DeleteFunc(stay, func(o oddity) bool {
				return !slices.ContainsFunc(now, func(n oddity) bool { return n.key == o.key })
			})
		}
	}
	if err != nil {
		return nil, err
	}
	words := []string{}
	for _, o := range stay {
		words = append(words, Plain(printable.Escape(shorten(o.words))))
	}
	return words, nil
}

// listedOddly are the processes of a service, by the engine's list, that are not its user's.
func (e *Engine) listedOddly(ctx context.Context, id string, uid, gid uint32) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return persistent(ctx, func() ([]oddity, error) {
		all, err := e.tasks(ctx, id)
		if err == nil && len(all) == 0 {
			err = errors.New("the list of processes is empty")
		}
		var odd []oddity
		for _, p := range all {
			if p.uid != uid || p.gid != gid {
				odd = append(odd, oddity{fmt.Sprint(p.pid), p.ofOther(uid, gid)})
			}
		}
		return odd, err
	})
}

// ofOther says whose a process is that should be another's. What runs inside counts
// processes otherwise.
func (p task) ofOther(uid, gid uint32) string {
	return fmt.Sprintf("process %d (as the engine's machine counts) of %d:%d, not %d:%d: %s", p.pid, p.uid, p.gid, uid, gid, p.args)
}

// tasks are a container's processes, as the engine lists them.
func (e *Engine) tasks(ctx context.Context, id string) ([]task, error) {
	top, err := e.api.ContainerTop(ctx, id, []string{"-eo", "pid,ppid,uid,gid,stat,args"})
	if err != nil {
		return nil, listless(err)
	}
	return processesOf(top)
}

// listless says what an engine needs that cannot list processes. It runs the ps of
// its machine.
func listless(err error) error {
	for _, sign := range []string{"busybox", "unrecognized option", "invalid option", "bad -o argument", `"ps": executable file not found`} {
		if strings.Contains(strings.ToLower(err.Error()), sign) {
			return fmt.Errorf("the engine lists processes by the ps of its machine, which must be that of procps (BusyBox's names no users by number): %w", err)
		}
	}
	return fmt.Errorf("the engine does not list the processes: %w", err)
}

// namespaces are those that a process of somebody else's has no business in.
var namespaces = []string{"net", "pid", "ipc", "mnt"}

// seenOddly are the processes of this machine, below proc, that are in a service and
// are not confined as it is, or that are in a namespace of the service's and in no
// container of the sandbox. first is the service's first process, id its container and
// own all of the sandbox's. Namespaces that may not be looked at are not compared.
func seenOddly(ctx context.Context, proc string, first int, id string, own []string, uid, gid uint32) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return persistent(ctx, func() ([]oddity, error) {
		list, err := os.ReadDir(proc)
		if err != nil {
			return nil, err
		}
		inodes := map[string]string{}
		for _, ns := range namespaces {
			if link, err := os.Readlink(path.Join(proc, strconv.Itoa(first), "ns", ns)); err == nil {
				inodes[ns] = link
			}
		}
		var odd []oddity
		inside := 0
		for _, entry := range list {
			pid, err := strconv.Atoi(entry.Name())
			if err != nil {
				continue
			}
			o, within := oddly(path.Join(proc, entry.Name()), pid, inodes, id, own, uid, gid)
			if o.words != "" {
				odd = append(odd, o)
			}
			if within {
				inside++
			}
		}
		if inside == 0 {
			return nil, errors.New("none of its processes is to be seen on this machine")
		}
		return odd, nil
	})
}

// oddly is what is wrong with one process, and whether it is in the service. Of one
// that has ended nothing is.
func oddly(dir string, pid int, inodes map[string]string, id string, own []string, uid, gid uint32) (o oddity, inside bool) {
	at, err := os.OpenRoot(dir)
	if err != nil {
		return o, false
	}
	defer at.Close()
	b, err := at.ReadFile("cgroup")
	if err != nil {
		return o, false
	}
	groups := string(b)
	if b, err = at.ReadFile("stat"); err != nil {
		return o, false
	}
	name, started, dead := parseStat(string(b))
	if dead {
		return o, false
	}
	o.key = fmt.Sprintf("%d %s", pid, started)
	said := func(format string, args ...any) {
		o.words = fmt.Sprintf("process %d of this machine (%s) ", pid, name) + fmt.Sprintf(format, args...)
	}
	if !strings.Contains(groups, id) {
		for _, ns := range namespaces {
			if link, err := at.Readlink("ns/" + ns); err != nil || link != inodes[ns] {
				continue
			}
			if ns != "net" || !slices.ContainsFunc(own, func(id string) bool { return id != "" && strings.Contains(groups, id) }) {
				said("is in its %s namespace and in no container of the sandbox", ns)
			}
		}
		return o, false
	}
	b, err = at.ReadFile("status")
	if err != nil {
		return o, false
	}
	p, err := parseStatus(string(b))
	if err != nil {
		said("cannot be judged: %v", err)
		return o, true
	}
	c := spec.Check{UID: uid, GID: gid}
	wrong := sameUser(p, c)
	if wrong == "" {
		wrong = withoutCapabilities(p, c)
	}
	switch {
	case wrong != "":
		said("%s", wrong)
	case !p.noNewPrivs:
		said("may gain privileges")
	case !p.filtered:
		said("runs without a filter of system calls")
	}
	return o, true
}

// parseStat is what a proc_pid_stat(5) says of a process's name, when it was started,
// and whether it has ended.
func parseStat(text string) (name, started string, dead bool) {
	const state, start = 0, 19 // behind the name, which may have anything in it
	from, to := strings.Index(text, "("), strings.LastIndex(text, ")")
	if from < 0 || to < from {
		return "", "", true
	}
	f := strings.Fields(text[to+1:])
	if len(f) <= start {
		return "", "", true
	}
	return text[from+1 : to], f[start], slices.Contains([]string{"Z", "X", "x"}, f[state])
}

// noStrangers: nobody else's container is in the namespaces of the service or of its
// gate, or has their volumes.
func noStrangers(seen evidence) (spec.Result, string) { return seen.strangers.judge() }

// processesConfined is the engine, of the processes of a service: each is its user's.
func processesConfined(seen evidence) (spec.Result, string) { return seen.listed.judge() }

// confinedToo is the kernel, of the same, of what they may do, and of whoever else is
// in the namespaces.
func confinedToo(_ spec.Check, _ spec.Event, seen evidence) (spec.Result, string) {
	if result, words := seen.shown(); result != spec.OK {
		return result, words
	}
	return seen.lodgers.judge()
}
