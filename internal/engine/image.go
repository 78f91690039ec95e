package engine

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"

	"github.com/corral-sandbox/corral/deploy"
	"github.com/corral-sandbox/corral/internal/command"
	"github.com/corral-sandbox/corral/internal/host"
	"github.com/corral-sandbox/corral/internal/plan"
	"github.com/corral-sandbox/corral/internal/printable"
	"github.com/corral-sandbox/corral/internal/render"
)

const (
	gateBase = "debian:bookworm-slim"
	gateRepo = "corral-gate"
)

// Prune drops the gate images and guest volumes of other builds that nothing
// uses.
func (e *Engine) Prune(ctx context.Context, guests host.Guests, gate string) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin) // an economy, which nobody waits for
	defer cancel()
	e.prune(ctx, gateRepo, gate)
	e.pruneGuests(ctx, guestName(guests))
}

// Built is an image that is there now.
type Built struct {
	Image string        // its name, with the digest of everything that went in
	Took  time.Duration // what it took to build; 0 if it was there
}

// Build makes the images of a plan that are not there: the gate's, then one of
// each service, in the plan's order. No container is made.
func (e *Engine) Build(ctx context.Context, guests host.Guests, p *plan.Plan, files render.Tree) (gate Built, services []Built, err error) {
	if gate, err = e.gateImage(ctx, guests); err != nil {
		return gate, nil, err
	}
	for _, s := range p.Services {
		built, err := e.serviceImage(ctx, p.ID, s, files)
		if err != nil {
			return gate, nil, err
		}
		services = append(services, built)
	}
	return gate, services, nil
}

// GateImage builds the gate image if it is not there and returns its name,
// which holds the digest of everything that went in.
func (e *Engine) GateImage(ctx context.Context, guests host.Guests) (string, error) {
	built, err := e.gateImage(ctx, guests)
	return built.Image, err
}

func (e *Engine) gateImage(ctx context.Context, guests host.Guests) (Built, error) {
	return e.build(ctx, gateRepo, gateBase, e.gateTree(guests), "the gate image", nil)
}

// gateName is the name that the gate image gets here. Nothing is fetched or built.
func (e *Engine) gateName(ctx context.Context, guests host.Guests) (string, error) {
	got, err := e.api.ImageInspect(ctx, gateBase)
	if err != nil {
		return "", fmt.Errorf("image %s: %w", gateBase, err)
	}
	_, tag := named(gateRepo, got.ID, e.gateTree(guests))
	return tag, nil
}

// gateTree is what goes into the gate image.
func (e *Engine) gateTree(guests host.Guests) render.Tree {
	tree := render.Tree{"Dockerfile": deploy.GateDockerfile, "ca/README": []byte("certificates that the build trusts\n")}
	for i, c := range e.Trusted {
		tree[fmt.Sprintf("ca/%03d.crt", i+1)] = c
	}
	for name, b := range guests {
		tree["bin/"+name] = b
	}
	return tree
}

// named is a tree together with the image that it builds on, since another one makes
// another image, and the name of what comes of it.
func named(repo, base string, tree render.Tree) (render.Tree, string) {
	tree = tree.With("base", []byte(base))
	return tree, repo + ":" + tree.Digest()[:16]
}

// ServiceImage builds a service's image if what goes in has changed.
func (e *Engine) ServiceImage(ctx context.Context, sandbox string, s plan.Service, files render.Tree) (string, error) {
	built, err := e.serviceImage(ctx, sandbox, s, files)
	return built.Image, err
}

func (e *Engine) serviceImage(ctx context.Context, sandbox string, s plan.Service, files render.Tree) (Built, error) {
	repo := "corral-" + sandbox + "-" + s.Name
	tree := files.Sub(render.Image(s.Name))
	for _, name := range s.Binaries {
		b, err := host.Guest(name)
		if err != nil {
			return Built{}, err
		}
		tree = tree.With("bin/"+name, b)
	}
	built, err := e.build(ctx, repo, s.Base, tree, "the image of service "+s.Name, s.Asked)
	if err == nil {
		e.prune(ctx, repo, built.Image)
	}
	return built, err
}

func (e *Engine) build(ctx context.Context, repo, base string, tree render.Tree, what string, asked []string) (Built, error) {
	start := time.Now()
	id, err := e.base(ctx, base)
	if err != nil {
		return Built{}, err
	}
	tree, tag := named(repo, id, tree)
	if _, err := e.api.ImageInspect(ctx, tag); err == nil {
		return Built{Image: tag}, nil
	} else if !errdefs.IsNotFound(err) {
		return Built{}, fmt.Errorf("image %s: %w", tag, err)
	}
	defer e.working("building %s", what)()
	said, err := e.made(ctx, tree, tag)
	if vanished(err) && ctx.Err() == nil {
		said, err = e.made(ctx, tree, tag)
	}
	if err != nil {
		if ctx.Err() != nil {
			return Built{}, context.Cause(ctx)
		}
		return Built{}, &BuildFailed{What: what, Asked: asked, Output: lastWords(string(said)), Err: err}
	}
	return Built{Image: tag, Took: time.Since(start)}, nil
}

// made builds a tree into an image and returns what the build said.
func (e *Engine) made(ctx context.Context, tree render.Tree, tag string) ([]byte, error) {
	return e.docker(ctx, tree.Tar(), "build", "--force-rm", "--tag", tag, "-")
}

// vanishing is what an engine's own builder ends with when a layer that it took
// from its cache is removed before the next one stands on it. Images go with the
// layers beneath them, and another sandbox's may go at any time.
var vanishing = regexp.MustCompile(`(?i)no such image: "?sha256:|unable to find image "sha256:|unknown parent image ID sha256:|failed to get digest sha256:|layer does not exist`)

// vanished reports whether a build failed for a layer that went away meanwhile:
// done again, it finds none to stand on and makes its own.
func vanished(err error) bool {
	var failed *command.Error
	return errors.As(err, &failed) && vanishing.MatchString(failed.Stderr)
}

// BuildFailed is an image that could not be built.
type BuildFailed struct {
	What   string
	Asked  []string // the keys of the policy that say what is in it
	Output string   // the last lines of what the build said
	Err    error
}

func (e *BuildFailed) Error() string {
	if e.Output == "" {
		return fmt.Sprintf("building %s: %v", e.What, e.Err)
	}
	return fmt.Sprintf("building %s failed:\n%s", e.What, e.Output)
}

func (e *BuildFailed) Unwrap() error { return e.Err }

// Hint is what to look at: the policy has no part in most steps.
func (e *BuildFailed) Hint() string {
	const fetch = "see that this machine reaches what the build fetches: docker must know of a proxy (proxies in ~/.docker/config.json), and corral of a company's own CA (ca_bundle, docs/machine.md)"
	if len(e.Asked) == 0 {
		return fetch
	}
	return strings.Join(e.Asked, ", ") + " of the policy may say it wrongly; else " + fetch
}

// mostLines of a failed build tell why; before them it worked. Of a package that
// cannot be fetched npm says so in the first of 16.
const mostLines = 25

// colours are what the builder paints its errors with.
var colours = regexp.MustCompile("\x1b\\[[0-9;]*m")

// lastWords are the last lines of a build's output, indented and safe to show.
func lastWords(s string) string {
	lines := strings.Split(strings.TrimSpace(colours.ReplaceAllString(s, "")), "\n")
	lines = lines[max(0, len(lines)-mostLines):]
	for i, l := range lines {
		lines[i] = "  " + printable.Escape(strings.TrimRight(l, "\r"))
	}
	return strings.TrimRight(strings.Join(lines, "\n"), " ")
}

// base is the identity of an image that others are built from.
func (e *Engine) base(ctx context.Context, name string) (string, error) {
	got, err := e.api.ImageInspect(ctx, name)
	if errdefs.IsNotFound(err) {
		done := e.working("pulling %s", name)
		_, failure := e.docker(ctx, nil, "pull", "--quiet", name)
		done()
		if failure != nil {
			return "", fmt.Errorf("image %s is not there and could not be pulled: %w", name, failure)
		}
		got, err = e.api.ImageInspect(ctx, name)
	}
	if err != nil {
		return "", fmt.Errorf("image %s: %w", name, err)
	}
	return got.ID, nil
}

// digestTag matches the tags that builds get here. What has another one somebody
// else has named, for stacks of their own.
var digestTag = regexp.MustCompile(`^[0-9a-f]{16}$`)

// prune drops earlier builds of a repository that nothing uses any more.
func (e *Engine) prune(ctx context.Context, repo, keep string) {
	list, err := e.api.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("reference", repo))})
	if err != nil {
		return
	}
	containers, err := e.api.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return
	}
	for _, img := range list {
		// The engine takes a name away from one in use, too, if it has another.
		if slices.ContainsFunc(containers, func(c container.Summary) bool { return c.ImageID == img.ID }) {
			continue
		}
		for _, tag := range img.RepoTags {
			if of, is := strings.CutPrefix(tag, repo+":"); is && tag != keep && digestTag.MatchString(of) {
				_, _ = e.api.ImageRemove(ctx, tag, image.RemoveOptions{PruneChildren: true})
			}
		}
	}
}

// RemoveImages drops the images of a sandbox.
func (e *Engine) RemoveImages(ctx context.Context, sandbox string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	list, err := e.api.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(filters.Arg("reference", "corral-"+sandbox+"-*"))})
	if err != nil {
		return fmt.Errorf("images of %s: %w", sandbox, err)
	}
	for _, img := range list {
		for _, tag := range img.RepoTags {
			if _, err := e.api.ImageRemove(ctx, tag, image.RemoveOptions{PruneChildren: true}); err != nil {
				return fmt.Errorf("image %s: %w", tag, err)
			}
		}
	}
	return nil
}
