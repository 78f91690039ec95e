package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
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

	"github.com/corral-sandbox/corral/internal/mountinfo"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/spec"
)

// resident is a container of the engine's, whoever made it.
type resident struct {
	id, name string
	runs     bool // or is paused, or about to be started again
	shares   []share
	volumes  []volumeOf
	binds    []string // directories and files of the host's, and of its other volumes
	ours     bool     // corral made it, for any sandbox: all have one volume of programs
}

// volumeOf is a volume of the engine's that a container was made with.
type volumeOf struct {
	name string
	dir  string // of this machine, empty if the engine does not say
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
		switch {
		case m.Type == mount.TypeVolume && m.Name != "":
			r.volumes = append(r.volumes, volumeOf{m.Name, strings.TrimSuffix(m.Source, "/"+volumeData)})
		case m.Type == mount.TypeBind && m.Source != "":
			r.binds = append(r.binds, m.Source)
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
// else's container has, and whose it is; empty if it has none. To have its directory, or
// what is in it, by a path of the host's is as good. Who has all of the engine's
// directories, as what watches a machine does, has those of every sandbox.
func (r resident) sharesVolume(all []resident, of []string) string {
	if r.ours {
		return ""
	}
	for _, other := range all {
		if !slices.Contains(of, other.id) {
			continue
		}
		for _, v := range r.volumes {
			if slices.ContainsFunc(other.volumes, func(o volumeOf) bool { return o.name == v.name }) {
				return fmt.Sprintf("the volume %s of %s", v.name, other.name)
			}
		}
		for _, v := range other.volumes {
			if i := slices.IndexFunc(r.binds, func(b string) bool { return v.dir != "" && mountinfo.Within(path.Clean(b), path.Clean(v.dir)) }); i >= 0 {
				return fmt.Sprintf("the volume %s of %s, as %s of this machine", v.name, other.name, r.binds[i])
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
var namespaces = []string{"net", "pid", "ipc", "mnt", "user"}

// sharedNamespaces are those of them that the containers of a sandbox may share.
var sharedNamespaces = []string{"net", "user"}

// errNamespaces is that no namespace of a container's may be looked at.
var errNamespaces = errors.New("its namespaces may not be looked at")

// abode is a container whose processes, and whoever else is in its namespaces, are to be
// seen on this machine.
type abode struct {
	id     string
	own    []string          // all containers of the sandbox
	inodes map[string]string // its namespaces, those that may be looked at
	// confined is what is wrong with a process in the container, nil if somebody else
	// judges those.
	confined func(*process) string
}

// namespacesOf are those of a container's first process, below proc, but for those of
// the program that started it, and of this one: the engine's, or the machine's.
func namespacesOf(proc string, first int) map[string]string {
	parent := "self"
	if b, err := os.ReadFile(path.Join(proc, strconv.Itoa(first), "stat")); err == nil {
		parent = strconv.Itoa(parseStat(string(b)).parent)
	}
	inodes := map[string]string{}
	for _, ns := range namespaces {
		link, err := os.Readlink(path.Join(proc, strconv.Itoa(first), "ns", ns))
		if err != nil {
			continue
		}
		inodes[ns] = link
		for _, other := range []string{parent, "self"} {
			if its, err := os.Readlink(path.Join(proc, other, "ns", ns)); err == nil && its == link {
				delete(inodes, ns)
			}
		}
	}
	return inodes
}

// confinedAs is what is wrong with a process that should be a user's and as confined as
// those of services are.
func confinedAs(uid, gid uint32) func(*process) string {
	c := spec.Check{UID: uid, GID: gid}
	return func(p *process) string {
		if wrong := cmp.Or(sameUser(p, c), withoutCapabilities(p, c)); wrong != "" {
			return wrong
		}
		switch {
		case !p.noNewPrivs:
			return "may gain privileges"
		case !p.filtered:
			return "runs without a filter of system calls"
		}
		return ""
	}
}

// seenOddly are the processes of this machine, below proc, that are in a container and
// are not confined as they should be, or that are in a namespace of its and in no
// container of the sandbox. first is its first process, id its own and own all
// containers of the sandbox. Namespaces that may not be looked at are not compared;
// without confined, that is all there is to see.
func seenOddly(ctx context.Context, proc string, first int, id string, own []string, confined func(*process) string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return persistent(ctx, func() ([]oddity, error) {
		list, err := os.ReadDir(proc)
		if err != nil {
			return nil, err
		}
		in := abode{id, own, namespacesOf(proc, first), confined}
		if len(in.inodes) == 0 && confined == nil {
			return nil, errNamespaces
		}
		var odd []oddity
		inside := 0
		for _, entry := range list {
			pid, err := strconv.Atoi(entry.Name())
			if err != nil {
				continue
			}
			if ctx.Err() != nil {
				return nil, fmt.Errorf("this machine has too many processes and threads to look at in time: %w", context.Cause(ctx))
			}
			wrong, within := in.oddly(path.Join(proc, entry.Name()), pid)
			odd = append(odd, wrong...)
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

// oddly is what is wrong with one process, and whether it is in the container. Of one
// that has ended nothing is; but any thread of its may run on without the first, has
// rights of its own, and may be in namespaces of its own.
func (in abode) oddly(dir string, pid int) (odd []oddity, inside bool) {
	at, err := os.OpenRoot(dir)
	if err != nil {
		return nil, false
	}
	defer at.Close()
	b, err := at.ReadFile("stat")
	if err != nil {
		return nil, false
	}
	s := parseStat(string(b))
	key, name := fmt.Sprintf("%d %s", pid, s.started), fmt.Sprintf("process %d of this machine (%s)", pid, s.name)
	if !s.dead {
		words, within := in.wrong(at, ".")
		if inside = within; words != "" {
			return []oddity{{key, name + " " + words}}, inside
		}
	}
	if s.threads < 2 {
		return nil, inside
	}
	threads, err := fs.ReadDir(at.FS(), "task")
	if err != nil {
		return nil, inside
	}
	for _, t := range threads {
		if t.Name() == strconv.Itoa(pid) {
			continue
		}
		words, within := in.wrong(at, "task/"+t.Name())
		inside = inside || within
		if words != "" {
			odd = append(odd, oddity{key + " " + t.Name(), fmt.Sprintf("thread %s of %s %s", t.Name(), name, words)})
		}
	}
	return odd, inside
}

// wrong is what is wrong with a thread, by a directory of a process's in /proc, and
// whether it is in the container.
func (in abode) wrong(at *os.Root, dir string) (words string, inside bool) {
	b, err := at.ReadFile(dir + "/cgroup")
	if err != nil {
		return "", false
	}
	groups := string(b)
	if !strings.Contains(groups, in.id) {
		return in.lodges(at, dir, groups), false
	}
	if in.confined == nil {
		return "", true
	}
	if b, err = at.ReadFile(dir + "/status"); err != nil {
		return "", false
	}
	p, err := parseStatus(string(b))
	if err != nil {
		return fmt.Sprintf("cannot be judged: %v", err), true
	}
	return in.confined(p), true
}

// lodges says in which of the namespaces a thread is that is not in the container, by
// its control groups; empty if in none, or if the sandbox's may be.
func (in abode) lodges(at *os.Root, dir, groups string) string {
	its, err := at.OpenRoot(dir + "/ns")
	if err != nil {
		return ""
	}
	defer its.Close()
	sandboxs := slices.ContainsFunc(in.own, func(id string) bool { return id != "" && strings.Contains(groups, id) })
	for _, ns := range namespaces {
		if sandboxs && slices.Contains(sharedNamespaces, ns) || in.inodes[ns] == "" {
			continue
		}
		if link, err := its.Readlink(ns); err == nil && link == in.inodes[ns] {
			return fmt.Sprintf("is in its %s namespace and in no container of the sandbox", ns)
		}
	}
	return ""
}

// stat is what is needed of a proc_pid_stat(5).
type stat struct {
	name    string
	parent  int
	threads int
	started string
	dead    bool // its first thread has ended
}

// parseStat reads one. What is none is of nobody who runs.
func parseStat(text string) stat {
	const state, parent, threads, start = 0, 1, 17, 19 // behind the name, which may have anything in it
	from, to := strings.Index(text, "("), strings.LastIndex(text, ")")
	if from < 0 || to < from {
		return stat{dead: true}
	}
	f := strings.Fields(text[to+1:])
	if len(f) <= start {
		return stat{dead: true}
	}
	s := stat{name: text[from+1 : to], started: f[start], dead: slices.Contains([]string{"Z", "X", "x"}, f[state])}
	s.parent, _ = strconv.Atoi(f[parent]) // the kernel writes numbers there
	s.threads, _ = strconv.Atoi(f[threads])
	return s
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
