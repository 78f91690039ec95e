package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/corral-sandbox/corral/internal/spec"
)

// vols are volumes of those names, where engines keep them.
func vols(names ...string) (all []volumeOf) {
	for _, n := range names {
		all = append(all, volumeOf{n, "/var/lib/docker/volumes/" + n})
	}
	return all
}

// Whoever runs and was made with something of the gate's or the service's, by
// identity, its beginning, or name, directly or by way of another, is named.
func TestOutsiders(t *testing.T) {
	const gate, service, other = "aaaa", "bbbb", "cccc"
	sandbox := []resident{
		{id: gate, name: "corral-gate", runs: true, volumes: vols("guest"), ours: true},
		{id: service, name: "corral-main", runs: true, shares: []share{{"the network", gate}}, volumes: vols("guest", "more"), ours: true},
	}
	of := func(refs ...string) (all []share) {
		for _, r := range refs {
			all = append(all, share{"the network", r})
		}
		return all
	}
	for _, tt := range []struct {
		name string
		more []resident
		want string // what is said holds it; nothing is said if empty
	}{
		{"nobody", nil, ""},
		{"somebody alone", []resident{{id: other, name: "x", runs: true}}, ""},
		{"by identity", []resident{{id: other, name: "x", runs: true, shares: of(gate)}}, "the container x (cccc) has the network of corral-gate"},
		{"by its beginning", []resident{{id: other, name: "x", runs: true, shares: of("aa")}}, "corral-gate"},
		{"by name", []resident{{id: other, name: "x", runs: true, shares: of("corral-main")}}, "corral-main"},
		{"by the name's long form", []resident{{id: other, name: "x", runs: true, shares: of("/corral-main")}}, "corral-main"},
		{"somebody's that is called like an identity's beginning", []resident{{id: other, name: "aa", runs: true}, {id: "dddd", name: "x", runs: true, shares: of("aa")}}, ""},
		{"one that is over", []resident{{id: other, name: "x", shares: of(gate)}}, ""},
		{"by way of one that is over", []resident{{id: "dddd", name: "y", runs: true, shares: of("x")}, {id: other, name: "x", shares: of(gate)}}, "the container y (dddd) has the network of x"},
		{"as corral's own by its name", []resident{{id: other, name: "corral-main-2", runs: true, shares: of(gate)}}, "corral-main-2"},
		{"what nobody has", []resident{{id: other, name: "x", runs: true, shares: of("eeee", "")}}, ""},
		{"its volume", []resident{{id: other, name: "x", runs: true, volumes: vols("z", "guest")}}, "the container x (cccc) has the volume guest of corral-gate"},
		{"the service's volume", []resident{{id: other, name: "x", runs: true, volumes: vols("more")}}, "has the volume more of corral-main"},
		{"its volume, in one that is over", []resident{{id: other, name: "x", volumes: vols("guest")}}, ""},
		{"another volume", []resident{{id: other, name: "x", runs: true, volumes: vols("guest-2")}}, ""},
		{"its volume, in another sandbox", []resident{{id: other, name: "corral-b-main", runs: true, volumes: vols("guest"), ours: true}}, ""},
		{"its network and volume, as another sandbox", []resident{{id: other, name: "corral-b-main", runs: true, shares: of(gate), volumes: vols("guest"), ours: true}}, "the network of corral-gate"},
		{"what one that has its volume has", []resident{{id: other, name: "x", runs: true, volumes: vols("guest", "z")}, {id: "dddd", name: "y", runs: true, volumes: vols("z")}}, "the container x (cccc) has the volume guest"},
		{"its volume's directory", []resident{{id: other, name: "x", runs: true, binds: []string{"/etc", "/var/lib/docker/volumes/guest"}}}, "the container x (cccc) has the volume guest of corral-gate, as /var/lib/docker/volumes/guest of this machine"},
		{"what is in its volume", []resident{{id: other, name: "x", runs: true, binds: []string{"/var/lib/docker/volumes/more/_data/bin/"}}}, "the volume more of corral-main"},
		{"another's directory", []resident{{id: other, name: "x", runs: true, binds: []string{"/var/lib/docker/volumes/guest-2/_data"}}}, ""},
		{"all of the engine's, as what watches a machine", []resident{{id: other, name: "x", runs: true, binds: []string{"/", "/var/lib/docker", "/var/lib/docker/volumes"}}}, ""},
		{"a name with an escape", []resident{{id: other, name: "x\x1b[2J", runs: true, shares: of(gate)}}, `x\x1b[2J`},
	} {
		got := strings.Join(outsiders(slices.Concat(tt.more, sandbox), []string{gate, service}, gate, service), "; ")
		if (got != "") != (tt.want != "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
}

// What a container shares is read from each field that can say it.
func TestResidentOf(t *testing.T) {
	for _, tt := range []struct{ host, want string }{
		{`{"NetworkMode":"container:x"}`, "[{the network x}]"},
		{`{"PidMode":"container:x"}`, "[{the processes x}]"},
		{`{"IpcMode":"container:x"}`, "[{the memory x}]"},
		{`{"VolumesFrom":["x:ro","y"]}`, "[{the volumes x} {the volumes y}]"},
		{`{"NetworkMode":"host","PidMode":"host","IpcMode":"shareable"}`, "[]"},
	} {
		got := residentOf(*inspected(t, `{"Id":"i","Name":"/n","State":{"Paused":true},"HostConfig":`+tt.host+`}`))
		if fmt.Sprint(got.shares) != tt.want || !got.runs || got.name != "n" {
			t.Errorf("%s: %+v", tt.host, got)
		}
	}
	for _, tt := range []struct {
		more    string
		volumes string
		ours    bool
	}{
		{`"Mounts":[{"Type":"volume","Name":"v","Source":"/v/_data","RW":false},{"Type":"volume","Name":"w","RW":true},{"Type":"bind","Name":"b"},{"Type":"bind","Source":"/b"},{"Type":"volume"}]`, "[{v /v} {w }] [/b]", false},
		{`"Config":{"Labels":{"` + labelRole + `":"service"}}`, "[] []", true},
		{`"Config":{"Labels":{"` + labelRole + `":""}}`, "[] []", false},
		{`"Config":{}`, "[] []", false},
	} {
		got := residentOf(*inspected(t, `{"Id":"i","Name":"/corral-n","HostConfig":{},`+tt.more+`}`))
		if fmt.Sprint(got.volumes, got.binds) != tt.volumes || got.ours != tt.ours {
			t.Errorf("%s: %+v", tt.more, got)
		}
	}
	if got := residentOf(*inspected(t, `{"Id":"i","Name":"/n","HostConfig":{},"Config":{"Labels":{"`+labelRole+`":"service"}}}`)); got.ours {
		t.Error("labels alone make it corral's own")
	}
}

// One engine, asked which containers there are: somebody who goes is nobody, somebody
// who stays is told, and what it does not say cannot be.
func TestBeside(t *testing.T) {
	const list, own = `[{"Id":"aaaa"},{"Id":"cccc"}]`, `{"Id":"aaaa","Name":"/gate","State":{"Running":true},"HostConfig":{}}`
	const stranger = `{"Id":"cccc","Name":"/x","State":{"Running":true},"HostConfig":{"PidMode":"container:aaaa"}}`
	for _, tt := range []struct {
		name, list, stranger, then string // what is said of the stranger at first, and after that
		want                       spec.Result
	}{
		{"stays", list, stranger, stranger, spec.Failed},
		{"goes", list, stranger, "", spec.OK},
		{"ends", list, stranger, strings.Replace(stranger, "true", "false", 1), spec.OK},
		{"is not told", list, `{}`, `{}`, spec.Untold},
		{"no settings", list, `{"Id":"cccc","State":{}}`, "", spec.Untold},
		{"nothing of its own", `[]`, "", "", spec.Untold},
		{"no list", `{`, "", "", spec.Untold},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			times := make(chan bool, 1000)
			e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
				switch {
				case strings.HasSuffix(path, "/containers/json"):
					fmt.Fprint(w, tt.list)
				case strings.Contains(path, "aaaa"):
					fmt.Fprint(w, own)
				default:
					times <- true
					now := tt.stranger
					if len(times) > 1 {
						now = tt.then
					}
					if now == "" {
						http.Error(w, `{"message":"no such container"}`, http.StatusNotFound)
						return
					}
					fmt.Fprint(w, now)
				}
			})
			beside := e.beside(t.Context(), "aaaa")
			result, words := beside.around("aaaa").judge()
			if result != tt.want || (words == "") != (result == spec.OK) {
				t.Errorf("%q %q", result, words)
			}
		})
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {})
	if result, words := e.beside(over, "aaaa").around("aaaa").judge(); result != spec.Untold || words == "" {
		t.Errorf("after the end: %q %q", result, words)
	}
}

// confinedStatus is a status of a process of 1000:1001 as those of services are.
const confinedStatus = "Uid:\t1000\t1000\t1000\t1000\nGid:\t1001\t1001\t1001\t1001\nGroups:\t1001 \nCapInh:\t0\nCapPrm:\t0\nCapEff:\t0\nCapBnd:\t0\nCapAmb:\t0\nNoNewPrivs:\t1\nSeccomp:\t2\n"

// statOf is a proc_pid_stat(5) of process 7 that was started at 4711.
func statOf(state string, threads int) string {
	return fmt.Sprintf("7 (a ) b) %s%s %d 0 4711 0 0\n", state, strings.Repeat(" 1", 16), threads)
}

// A process is told from those of a service by its user, its rights and what it may
// come to; one that is in no container of the sandbox by its namespaces.
func TestOddly(t *testing.T) {
	const id, gate = "bbbbbbbbbbbb", "aaaaaaaaaaaa"
	const well = confinedStatus
	stat := func(state string) string { return statOf(state, 1) }
	in := abode{id, []string{gate, "", id}, map[string]string{"net": "net:[7]", "mnt": "mnt:[8]", "user": "user:[9]"}, confinedAs(1000, 1001)}
	for _, tt := range []struct {
		name, cgroup, stat, status string
		ns                         map[string]string
		want                       string // nothing is said if empty
		inside                     bool
	}{
		{"well", "0::/docker/" + id, stat("S"), well, nil, "", true},
		{"root", id, stat("S"), strings.Replace(well, "1000\t1000", "0\t0", 1), nil, "process 7 of this machine (a ) b) has uids", true},
		{"another group", id, stat("S"), strings.Replace(well, "1001\t1001", "1001\t0", 1), nil, "has gids", true},
		{"one group more", id, stat("S"), strings.Replace(well, "1001 ", "1001 0 ", 1), nil, "is in group 0", true},
		{"a capability", id, stat("S"), strings.Replace(well, "CapEff:\t0", "CapEff:\t2000", 1), nil, "CapEff 2000", true},
		{"one it may come to", id, stat("S"), strings.Replace(well, "CapBnd:\t0", "CapBnd:\t1", 1), nil, "CapBnd 1", true},
		{"new privileges", id, stat("S"), strings.Replace(well, "NoNewPrivs:\t1", "NoNewPrivs:\t0", 1), nil, "may gain privileges", true},
		{"no filter", id, stat("S"), strings.Replace(well, "Seccomp:\t2", "Seccomp:\t0", 1), nil, "without a filter", true},
		{"strict", id, stat("S"), strings.Replace(well, "Seccomp:\t2", "Seccomp:\t1", 1), nil, "without a filter", true},
		{"an odd status", id, stat("S"), "Uid: x", nil, "cannot be judged", true},
		{"has ended", id, stat("Z"), strings.Replace(well, "1000", "0", 1), nil, "", false},
		{"is going", id, "", well, nil, "", false},
		{"elsewhere", "0::/user.slice", stat("S"), well, map[string]string{"net": "net:[1]", "mnt": "mnt:[2]"}, "", false},
		{"elsewhere, not to be looked at", "0::/", stat("S"), well, nil, "", false},
		{"in its network", "0::/user.slice", stat("S"), well, map[string]string{"net": "net:[7]"}, "is in its net namespace", false},
		{"its gate", "0::/docker/" + gate, stat("S"), well, map[string]string{"net": "net:[7]"}, "", false},
		{"its gate, both of one mapping of users", "0::/docker/" + gate, stat("S"), well, map[string]string{"net": "net:[7]", "user": "user:[9]"}, "", false},
		{"in its mapping of users", "0::/user.slice", stat("S"), well, map[string]string{"user": "user:[9]"}, "is in its user namespace", false},
		{"its gate in its files", "0::/docker/" + gate, stat("S"), well, map[string]string{"net": "net:[7]", "mnt": "mnt:[8]"}, "is in its mnt namespace", false},
	} {
		dir := t.TempDir()
		told(t, dir, tt.stat, tt.cgroup, tt.status, tt.ns)
		got, inside := in.oddly(dir, 7)
		if (len(got) > 0) != (tt.want != "") || len(got) > 0 && (!strings.Contains(got[0].words, tt.want) || got[0].key != "7 4711") || inside != tt.inside {
			t.Errorf("%s: %+v, %v", tt.name, got, inside)
		}
	}
}

// told writes what /proc tells of a process or a thread.
func told(t *testing.T, dir, stat, cgroup, status string, ns map[string]string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "ns"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"cgroup": cgroup, "stat": stat, "status": status} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range ns {
		if err := os.Symlink(to, filepath.Join(dir, "ns", name)); err != nil {
			t.Fatal(err)
		}
	}
}

// Each thread has rights and namespaces of its own, and some run on when the first has
// ended, of which the kernel then says nothing else.
func TestOddlyByThread(t *testing.T) {
	const id, gate = "bbbbbbbbbbbb", "aaaaaaaaaaaa"
	root := strings.Replace(confinedStatus, "CapEff:\t0", "CapEff:\t1", 1)
	in := abode{id, []string{gate, id}, map[string]string{"net": "net:[7]", "pid": "pid:[8]"}, confinedAs(1000, 1001)}
	host, there := map[string]string{"net": "net:[1]", "pid": "pid:[2]"}, map[string]string{"net": "net:[7]", "pid": "pid:[2]"}
	for _, tt := range []struct {
		name          string
		first         string // its state
		cgroup        string
		ns, status    [2]any // of the first thread and of another
		confined      bool
		want          []string
		inside        bool
		ofFirstCgroup string // where it is another
	}{
		{name: "elsewhere", first: "S", cgroup: "0::/", ns: [2]any{host, host}},
		{name: "a later thread in its network", first: "S", cgroup: "0::/", ns: [2]any{host, there}, want: []string{"7 4711 8 thread 8 of process 7 of this machine (a ) b) is in its net namespace"}},
		{name: "a later thread in its network, of the gate", first: "S", cgroup: gate, ns: [2]any{host, there}},
		{name: "both", first: "S", cgroup: "0::/", ns: [2]any{there, there}, want: []string{"7 4711 process 7 of this machine"}},
		{name: "all its namespaces, without a first thread", first: "Z", cgroup: "0::/", ns: [2]any{nil, there}, want: []string{"thread 8 of process 7"}},
		{name: "one of its own", first: "S", cgroup: id, ns: [2]any{there, there}, inside: true},
		{name: "one of its own without a first thread", first: "Z", cgroup: id, ofFirstCgroup: "/", ns: [2]any{nil, there}, inside: true},
		{name: "with rights, without a first thread", first: "Z", cgroup: id, ofFirstCgroup: "/", ns: [2]any{nil, there}, status: [2]any{root, root}, want: []string{"thread 8 of process 7 of this machine (a ) b) has capabilities"}, inside: true},
		{name: "a later thread with rights", first: "S", cgroup: id, ns: [2]any{there, there}, status: [2]any{confinedStatus, root}, want: []string{"thread 8 of process 7 of this machine (a ) b) has capabilities"}, inside: true},
		{name: "that had rights", first: "Z", cgroup: id, ns: [2]any{nil, there}, status: [2]any{root, confinedStatus}, inside: true},
	} {
		dir := t.TempDir()
		for i, at := range []string{".", "task/7", "task/8"} {
			state, cgroup, status, which := tt.first, tt.cgroup, confinedStatus, i/2
			if which == 1 {
				state = "S"
			} else if tt.ofFirstCgroup != "" {
				cgroup = tt.ofFirstCgroup
			}
			if s, is := tt.status[which].(string); is {
				status = s
			}
			ns, _ := tt.ns[which].(map[string]string)
			told(t, filepath.Join(dir, at), statOf(state, 2), cgroup, status, ns)
		}
		odd, inside := in.oddly(dir, 7)
		ok := len(odd) == len(tt.want) && inside == tt.inside
		for i, o := range odd {
			ok = ok && strings.Contains(o.key+" "+o.words, tt.want[i])
		}
		if !ok {
			t.Errorf("%s: %+v, %v", tt.name, odd, inside)
		}
	}
}

// What a container has from the program that started it, or this machine has, is no
// namespace of its own.
func TestNamespacesOf(t *testing.T) {
	proc := t.TempDir()
	first := map[string]string{"net": "net:[7]", "pid": "pid:[7]", "ipc": "ipc:[7]", "user": "user:[3]", "mnt": "mnt:[1]"}
	told(t, filepath.Join(proc, "9"), "9 (gate) S 5"+strings.Repeat(" 1", 17)+" 4711\n", "", "", first)
	told(t, filepath.Join(proc, "5"), "", "", "", map[string]string{"net": "net:[1]", "pid": "pid:[1]", "ipc": "ipc:[1]", "user": "user:[3]"})
	told(t, filepath.Join(proc, "self"), "", "", "", map[string]string{"mnt": "mnt:[1]", "user": "user:[1]"})
	if got, want := fmt.Sprint(namespacesOf(proc, 9)), "map[ipc:ipc:[7] net:net:[7] pid:pid:[7]]"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
	// Where no namespace may be looked at there is nothing to say of a gate.
	if words, err := seenOddly(t.Context(), t.TempDir(), 9, "aaaa", nil, nil); !errors.Is(err, errNamespaces) {
		t.Errorf("%q, %v", words, err)
	}
	// Nobody's rights are judged there.
	told(t, filepath.Join(proc, "12"), statOf("S", 1), "aaaa", "rubbish", first)
	if words, err := seenOddly(t.Context(), proc, 9, "aaaa", nil, nil); err != nil || len(words) != 1 || !strings.Contains(words[0], "process 9 of this machine (gate) is in its net namespace") {
		t.Errorf("%q, %v", words, err)
	}
}

// Of this machine's own /proc: a process of our own control group that has rights is
// told if it stays.
func TestSeenOddly(t *testing.T) {
	here, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(string(here)) // all that are where we are
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	dir := t.TempDir() // nobody else's
	pid := strconv.Itoa(cmd.Process.Pid)
	if err := os.Symlink("/proc/"+pid, filepath.Join(dir, pid)); err != nil {
		t.Fatal(err)
	}
	found, err := seenOddly(t.Context(), dir, cmd.Process.Pid, id, nil, confinedAs(12345, 12345))
	if err != nil || len(found) != 1 || !strings.Contains(found[0], "(sleep)") {
		t.Errorf("%q, %v", found, err)
	}
	if found, err := seenOddly(t.Context(), t.TempDir(), 1, id, nil, confinedAs(0, 0)); err == nil {
		t.Errorf("where none is: %q", found)
	}
	if result, _ := (findings{}).judge(); result != spec.Untold {
		t.Errorf("nobody looked: %q", result)
	}
}

// An engine whose machine has another ps says so.
func TestListless(t *testing.T) {
	for said, want := range map[string]bool{
		"error running ps: exit status 1: ps: unrecognized option: e":        true,
		"stderr: ps: bad -o argument 'uid', supported arguments: user,group": true,
		"ps: invalid option -- 'e'\nBusyBox v1.36":                           true,
		"Container 0a is not running":                                        false,
	} {
		if got := strings.Contains(listless(errors.New(said)).Error(), "procps"); got != want {
			t.Errorf("%q: %v", said, listless(errors.New(said)))
		}
	}
}

// A process has another number inside than with the engine, which is said.
func TestOfOther(t *testing.T) {
	if got, want := (task{30919, 1, 0, 0, "sleep 9"}).ofOther(1000, 1001), "process 30919 (as the engine's machine counts) of 0:0, not 1000:1001: sleep 9"; got != want {
		t.Errorf("%q", got)
	}
}

// What the processes of a service call themselves is theirs to choose, nothing too.
func TestListedBlank(t *testing.T) {
	for _, args := range []string{"sleep 9", " ", ""} {
		e := answered(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
			json.NewEncoder(w).Encode(container.TopResponse{
				Titles:    []string{"PID", "PPID", "UID", "GID", "STAT", "COMMAND"},
				Processes: [][]string{{"10", "1", "1000", "1000", "Ss", "tini"}, {"11", "10", "1000", "1000", "S", args}},
			})
		})
		if words, err := e.listedOddly(t.Context(), "c", 1000, 1000); err != nil || len(words) > 0 {
			t.Errorf("%q: %q, %v", args, words, err)
		}
	}
}
