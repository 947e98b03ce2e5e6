package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/distribution/reference"
	"golang.org/x/sync/singleflight"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1 "k8s.io/kubelet/config/v1"
	credentialv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/shoal-project/shoal/agent/process"
)

// Node is what a node has of its own.
type Node struct {
	File    string // a Docker config.json; it need not exist
	Plugins []*Plugin
}

// For are the node's own logins for an image: of its file first, then of its plugins, in
// their order. An error tells of a source that failed; the logins of the others are there.
func (n *Node) For(ctx context.Context, image string) (out []*criv1.AuthConfig, err error) {
	a, err := readFile(n.File)
	errs := []error{err}
	out = a.For(image)
	for _, p := range n.Plugins {
		if !slices.ContainsFunc(p.match, func(m string) bool { return Matches(m, image) }) {
			continue
		}
		a, err := p.auths(ctx, image)
		out, errs = append(out, a.For(image)...), append(errs, err)
	}
	return out, errors.Join(errs...)
}

// Plugin is a program that is asked for logins, by the kubelet's protocol
// (credentialprovider.kubelet.k8s.io/v1).
type Plugin struct {
	name     string
	path     string
	args     []string
	env      []string
	match    []string
	duration time.Duration

	asking singleflight.Group // by image
	mu     sync.Mutex
	cache  map[cacheKey]cached
}

// cacheKey is what an answer is for.
type cacheKey struct {
	kind credentialv1.PluginCacheKeyType
	of   string
}

type cached struct {
	auths Auths
	until time.Time
}

// maxCached bounds the answers that are kept of one plugin.
const maxCached = 1000

func newPlugin(p *kubeletv1.CredentialProvider, path string) *Plugin {
	out := &Plugin{name: p.Name, path: path, args: p.Args, match: p.MatchImages,
		duration: p.DefaultCacheDuration.Duration, cache: map[cacheKey]cached{}}
	for _, e := range p.Env {
		out.env = append(out.env, e.Name+"="+e.Value)
	}
	return out
}

// keys are those that an answer for an image may be kept under.
func keys(image string) []cacheKey {
	host, _ := split(image)
	return []cacheKey{{credentialv1.ImagePluginCacheKeyType, Repository(image)},
		{credentialv1.RegistryPluginCacheKeyType, host}, {credentialv1.GlobalPluginCacheKeyType, ""}}
}

// Repository is an image's name without tag and digest, in full: one for "nginx" and
// "docker.io/library/nginx:1".
func Repository(image string) string {
	if named, err := reference.ParseDockerRef(image); err == nil {
		return named.Name()
	}
	return image
}

func (p *Plugin) auths(ctx context.Context, image string) (Auths, error) {
	if a, ok := p.kept(image, time.Now()); ok {
		return a, nil
	}
	got := p.asking.DoChan(Repository(image), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pluginTime) // others wait for it too
		defer cancel()
		r, err := p.run(ctx, image)
		if err != nil {
			return Auths(nil), fmt.Errorf("credential provider %s: %w", p.name, err)
		}
		return p.keep(image, r, time.Now()), nil
	})
	select {
	case r := <-got:
		return r.Val.(Auths), r.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *Plugin) kept(image string, now time.Time) (Auths, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range keys(image) {
		if c, ok := p.cache[k]; ok && now.Before(c.until) {
			return c.auths, true
		}
	}
	return nil, false
}

func (p *Plugin) keep(image string, r *credentialv1.CredentialProviderResponse, now time.Time) Auths {
	a := Auths{}
	for key, l := range r.Auth {
		a[key] = Auth{Username: l.Username, Password: l.Password}
	}
	duration := p.duration
	if r.CacheDuration != nil {
		duration = r.CacheDuration.Duration
	}
	if duration <= 0 {
		return a
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, c := range p.cache {
		if !now.Before(c.until) {
			delete(p.cache, k)
		}
	}
	if len(p.cache) >= maxCached {
		clear(p.cache) // its answers are for a few registries; this plugin's are not
	}
	for _, k := range keys(image) {
		if k.kind == r.CacheKeyType {
			p.cache[k] = cached{a, now.Add(duration)}
		}
	}
	return a
}

// run runs the program.
func (p *Plugin) run(ctx context.Context, image string) (*credentialv1.CredentialProviderResponse, error) {
	asked, err := json.Marshal(credentialv1.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: pluginVersion, Kind: "CredentialProviderRequest"}, Image: image})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, p.path, p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdin = bytes.NewReader(asked)
	said, wrong := &process.Output{Limit: maxAnswer}, &process.Output{Limit: maxError}
	cmd.Stdout, cmd.Stderr = said, wrong
	// One that hangs ends with all that it started: each pull of an image tries again.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for what it left behind with its pipes
	err = cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("no answer in %s", pluginTime)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(wrong.String()))
	}
	if said.Over() {
		return nil, fmt.Errorf("its answer is longer than %d bytes", maxAnswer)
	}
	return parseAnswer(said.Bytes())
}

func parseAnswer(b []byte) (*credentialv1.CredentialProviderResponse, error) {
	var r credentialv1.CredentialProviderResponse
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("its answer: %w", err)
	}
	if r.APIVersion != pluginVersion || r.Kind != "CredentialProviderResponse" {
		return nil, fmt.Errorf("its answer is %s %q, not %s CredentialProviderResponse", r.APIVersion, r.Kind,
			pluginVersion)
	}
	switch r.CacheKeyType {
	case credentialv1.ImagePluginCacheKeyType, credentialv1.RegistryPluginCacheKeyType,
		credentialv1.GlobalPluginCacheKeyType:
		return &r, nil
	}
	return nil, fmt.Errorf("its answer's cacheKeyType is %q: use Image, Registry or Global", r.CacheKeyType)
}
