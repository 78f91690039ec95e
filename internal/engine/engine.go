// Package engine makes a Plan and its files real on the Docker Engine and
// takes them down again, one verb a file. It decides nothing about policy:
// what is allowed was planned. The engine is the record: what exists is read
// from its containers, networks and labels, never from files alone.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/docker/docker/client"

	"github.com/corral-sandbox/corral/internal/command"
	"github.com/corral-sandbox/corral/internal/render"
	"github.com/corral-sandbox/corral/internal/spec"
)

// Labels on everything that corral makes.
const (
	labelSandbox   = render.LabelSandbox
	labelService   = render.LabelService
	labelGate      = render.LabelGate
	labelLink      = render.LabelLink
	labelRole      = render.LabelRole
	labelAddress   = render.LabelAddress
	labelInstance  = render.LabelInstance
	labelPolicy    = render.LabelPolicy
	labelDigest    = render.LabelDigest
	labelInode     = render.LabelInode
	labelFurniture = render.LabelFurniture
	labelShields   = render.LabelShields
	labelPurpose   = render.LabelPurpose
	labelSubmounts = "dev.corral.submounts"     // below a service's mounts, when it was made
	labelConfig    = "dev.corral.config-digest" // of what was asked of the engine, by parts
	labelOwner     = "dev.corral.owner"         // the process that looks after it
)

// Purposes of a sandbox.
const (
	PurposeRun    = render.PurposeRun
	PurposeDaemon = "daemon" // always on, and nobody's: no process looks after it
	PurposeVerify = "verify" // thrown away as soon as it is proven
	PurposeDemo   = "demo"
	PurposeCheck  = "check" // of this machine, by corral install
)

// Roles of containers.
const (
	RoleGate    = render.RoleGate
	RoleService = render.RoleService
	RoleTool    = "tool" // short-lived, ours: lock, guest filler, demo's witness
)

// Engine is a local Docker Engine.
type Engine struct {
	api  *client.Client
	host string // unix://…

	selinux bool // it gives containers labels of SELinux

	// Trusted are certificates, in PEM, that building the gate image trusts.
	Trusted [][]byte

	// Progress is told what a person should know, a line at a time. Never nil.
	Progress func(format string, args ...any)
	// Watcher is told how far it is.
	Watcher
}

// NotUsable is an engine that corral cannot work with, and the remedy.
type NotUsable struct {
	Reason, Hint string
	// Away is one that does not answer, and may yet.
	Away bool
}

func (e *NotUsable) Error() string { return e.Reason }

// Connect finds the engine of the active Docker context and makes sure that
// it answers, is on this machine, and is one on which a fence is what it says.
func Connect(ctx context.Context) (*Engine, error) {
	command, err := dockerCommand()
	if err != nil {
		return nil, err
	}
	e, err := reach(ctx)
	if err != nil {
		return nil, err
	}
	said, err := e.said(ctx, command)
	if err != nil && e.Away(ctx) { // it has ended since
		return nil, absent(e.host, err)
	}
	if err != nil {
		return nil, err
	}
	for _, c := range Conditions {
		if c.by == nil || c.Unmet != Refused {
			continue
		}
		if f := c.by(said); f.Result != spec.OK {
			return nil, &NotUsable{Reason: f.Detail, Hint: f.Hint}
		}
	}
	e.selinux = said.has("selinux")
	return e, nil
}

// dockerCommand is the path of the docker command.
func dockerCommand() (string, error) {
	path, err := exec.LookPath("docker")
	if err != nil {
		return "", &NotUsable{
			Reason: "there is no docker command",
			Hint:   "corral builds images and attaches terminals with it: sudo apt-get install docker.io (or docker-cli)",
		}
	}
	return path, nil
}

// reach finds the engine of the active Docker context and makes sure that it
// answers at a socket of this machine.
func reach(ctx context.Context) (*Engine, error) {
	host, err := activeHost(ctx)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(host, "unix://") {
		return nil, &NotUsable{
			Reason: fmt.Sprintf("the active Docker engine is %s, and corral needs the Unix socket of one on this machine", host),
			Hint:   "it binds directories and addresses of the machine that it is on: use its engine (unset DOCKER_HOST, or docker context use default)",
		}
	}
	api, err := client.NewClientWithOpts(client.WithHTTPClient(bounded()), client.WithHost(host), client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fmt.Errorf("docker client: %w", err)
	}
	within, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	ping, err := api.Ping(within)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, os.ErrPermission) || err != nil && strings.Contains(err.Error(), "permission denied"):
		return nil, &NotUsable{
			Reason: fmt.Sprintf("no permission to use the Docker engine at %s", strings.TrimPrefix(host, "unix://")),
			Hint:   `let your user use Docker: sudo usermod -aG docker "$USER", then log in again`,
		}
	case err != nil:
		return nil, absent(host, err)
	}
	api.NegotiateAPIVersionPing(ping)
	return &Engine{api: api, host: host, Progress: func(string, ...any) {}}, nil
}

// absent is an engine that does not answer.
func absent(host string, err error) error {
	return &NotUsable{
		Reason: fmt.Sprintf("no Docker engine answers at %s (%v)", strings.TrimPrefix(host, "unix://"), err),
		Hint:   "start it: sudo systemctl start docker; or install it: sudo apt-get install docker.io tini",
		Away:   true,
	}
}

// Away reports whether the engine does not answer now.
func (e *Engine) Away(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	_, err := e.api.Ping(ctx)
	return err != nil
}

// silentWithin bounds how long the engine may say nothing to any request: it begins its
// answer at once where that is a stream, and at the end of the longest work otherwise,
// which is starting or stopping a container on a busy machine. A request for a container
// whose lock is held would wait for ever.
const silentWithin = time.Minute

// bounded is a client for a socket, as Docker's own is, whose requests end.
func bounded() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{ResponseHeaderTimeout: silentWithin, MaxIdleConns: 6, IdleConnTimeout: 30 * time.Second},
		CheckRedirect: client.CheckRedirect,
	}
}

// answerWithin bounds every question that takes the engine, or a gate, no work
// to answer.
const answerWithin = 10 * time.Second

// activeHost is where the docker command would go.
func activeHost(ctx context.Context) (string, error) {
	if h := os.Getenv("DOCKER_HOST"); h != "" {
		return h, nil
	}
	if os.Getenv("DOCKER_CONTEXT") == "" && !contextChosen() {
		return client.DefaultDockerHost, nil
	}
	out, err := command.Run(ctx, nil, "docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
	if err != nil {
		return "", &NotUsable{Reason: fmt.Sprintf("the active Docker context cannot be read: %v", err), Hint: "docker context ls shows those there are, docker context use chooses one"}
	}
	return strings.TrimSpace(string(out)), nil
}

func contextChosen() bool {
	dir := os.Getenv("DOCKER_CONFIG")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return false
		}
		dir = filepath.Join(home, ".docker")
	}
	b, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return false
	}
	var config struct {
		CurrentContext string `json:"currentContext"`
	}
	return json.Unmarshal(b, &config) == nil && config.CurrentContext != "" && config.CurrentContext != "default"
}

// docker runs the docker command against this engine, for what the command
// does better than the API: builds and a person's terminal.
func (e *Engine) docker(ctx context.Context, stdin io.Reader, args ...string) ([]byte, error) {
	return command.Run(ctx, stdin, append([]string{"docker", "--host", e.host}, args...)...)
}
