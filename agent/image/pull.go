package image

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
)

// parallelLayers is how many layers of one image are fetched at a time, as
// in containerd's defaults.
const parallelLayers = 3

// Auth are the credentials of one pull, as in the CRI's AuthConfig.
type Auth struct {
	Username, Password string
	Auth               string // base64 of "username:password"
	ServerAddress      string
	IdentityToken      string // a long-lived token that is exchanged for another
	RegistryToken      string // a bearer token that is sent as it is
}

// Pull fetches the image for this platform and unpacks it. Its result is the
// image's ID. Errors read as containerd's do and have its classes.
func (s *Store) Pull(ctx context.Context, ref string, auth *Auth) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("failed to parse image reference %q: %w: %w", ref, err, errdefs.ErrInvalidArgument)
	}
	p, end := s.beginPull(named.String())
	defer end()
	unlock, err := s.pulls.lockUntil(ctx, named.String())
	if err != nil {
		return "", fmt.Errorf("failed to pull image %q: waiting for another pull of it: %w", named, err)
	}
	defer unlock()
	if err := s.pulling.Acquire(ctx, 1); err != nil {
		return "", fmt.Errorf("failed to pull image %q: waiting for other pulls: %w", named, err)
	}
	defer s.pulling.Release(1)
	p.run()
	var id string
	err = s.withSpace(ctx, func(ctx context.Context) (err error) {
		id, err = s.pull(ctx, named, auth, p)
		return err
	})
	if err = s.giveBack(ctx, err); err != nil {
		return "", fmt.Errorf("failed to pull and unpack image %q: %w", named, err)
	}
	return id, nil
}

func (s *Store) pull(ctx context.Context, named reference.Named, auth *Auth, p *progress) (string, error) {
	ctx, done, err := s.leased(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: s.hosts(ctx, auth)})
	name, desc, err := resolve(ctx, resolver, named)
	if err != nil {
		return "", fmt.Errorf("failed to resolve reference %q: %w", named, err)
	}
	fetcher, err := resolver.Fetcher(ctx, name)
	if err != nil {
		return "", fmt.Errorf("failed to get fetcher for %q: %w", name, err)
	}
	names := []string{named.Name() + "@" + desc.Digest.String()}
	if err := s.fetch(ctx, paced(fetcher, s.received.Load()), desc, s.has(names[0]), p); err != nil {
		return "", err
	}
	if _, byDigest := named.(reference.Digested); !byDigest {
		names = append(names, named.String())
	}
	return s.publish(ctx, desc, names, nil)
}

// resolve asks the registry what a name stands for.
func resolve(ctx context.Context, resolver remotes.Resolver, named reference.Named) (string, ocispec.Descriptor, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, resolveWait, errTooSlow)
	defer cancel()
	name, desc, err := resolver.Resolve(ctx, named.String())
	if err != nil && errors.Is(context.Cause(ctx), errTooSlow) {
		err = fmt.Errorf("%w: no answer within %v", errTooSlow, resolveWait)
	}
	return name, desc, err
}

// has tells whether the repository of a name brought its image before.
func (s *Store) has(name string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index.byName[name] != nil
}

// fetch downloads and unpacks at the same time. An image that the repository
// has not brought before is not taken from the node: else whoever knows the
// digest of another's private image would get it by a registry of his own
// that names it (KEP-2535).
func (s *Store) fetch(
	ctx context.Context, fetcher remotes.Fetcher, desc ocispec.Descriptor, known bool, p *progress,
) error {
	get := remotes.FetchHandler(s.content, fetcher)
	parts := &parents{
		Handler: s.children(desc), blobs: s.content, progress: p, of: map[digest.Digest]ocispec.Descriptor{},
	}
	if near := s.peers.Load(); near != nil {
		get = s.fetchNear(near, fetcher, parts)
	}
	if !known {
		get = s.fetchAnew(fetcher, get)
	}
	return s.unpack(ctx, images.Handlers(p.watch(s.fetchWhole(get)), parts), desc)
}

// fetchWhole has one pull at a time get a blob. What an earlier one left of it is not fetched
// again, unless that was something else: then all of it is, and nothing wrong is left for the
// next pull to go on with.
func (s *Store) fetchWhole(get images.HandlerFunc) images.HandlerFunc {
	return func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		name := remotes.MakeRefKey(ctx, desc)
		unlock, err := s.fetches.lockUntil(ctx, name)
		if err != nil {
			return nil, err
		}
		defer unlock()
		begun, noBeginning := s.content.Status(ctx, name)
		list, err := get(ctx, desc)
		if !errdefs.IsFailedPrecondition(err) {
			return list, err
		}
		if noBeginning == nil && begun.Offset > 0 {
			s.cfg.Log.Warn("what an earlier pull left of a blob is not its beginning; it is fetched anew", "blob",
				desc.Digest, "err", err)
			if err := s.discard(ctx, name); err != nil {
				return nil, err
			}
			list, err = get(ctx, desc)
		}
		if errdefs.IsFailedPrecondition(err) {
			err = errors.Join(err, s.discard(ctx, name))
		}
		return list, err
	}
}

// discard removes what is there of a blob that is not whole.
func (s *Store) discard(ctx context.Context, name string) error {
	if err := s.content.Abort(context.WithoutCancel(ctx), name); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove what came of %s: %w", name, err)
	}
	return nil
}

// fetchAnew has the registry send manifests, indexes and configurations also
// where they are on the node. Of layers it need not: their digests are in
// these only.
func (s *Store) fetchAnew(fetcher remotes.Fetcher, layers images.HandlerFunc) images.HandlerFunc {
	return func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if sizeLimit(desc.MediaType) == 0 || desc.Size == 0 || desc.MediaType == images.MediaTypeDockerSchema1Manifest {
			return layers(ctx, desc)
		}
		if err := desc.Digest.Validate(); err != nil {
			return nil, fmt.Errorf("%s %q: %w", desc.MediaType, desc.Digest, err)
		}
		body, err := fetcher.Fetch(ctx, desc)
		if err != nil {
			return nil, err
		}
		defer body.Close()
		blob, err := io.ReadAll(io.LimitReader(body, desc.Size+1))
		if err != nil {
			return nil, err
		}
		if got := desc.Digest.Algorithm().FromBytes(blob); got != desc.Digest {
			return nil, fmt.Errorf("unexpected digest %s of %s %s: %w", got, desc.MediaType, desc.Digest,
				errdefs.ErrFailedPrecondition)
		}
		err = content.WriteBlob(ctx, s.content, remotes.MakeRefKey(ctx, desc), bytes.NewReader(blob), desc)
		if errdefs.IsAlreadyExists(err) {
			err = nil
		}
		return nil, err
	}
}

// unpack walks an image with handler and makes snapshots of its layers, several at a time.
// An image with a layer that needs those below it is unpacked in their order.
func (s *Store) unpack(ctx context.Context, handler images.Handler, desc ocispec.Descriptor) error {
	if s.unpackers < 2 {
		return s.unpackLayers(ctx, handler, desc)
	}
	err := s.unpackLayers(ctx, handler, desc, unpack.WithUnpackLimiter(semaphore.NewWeighted(int64(s.unpackers))))
	if errors.Is(err, errNeedsLower) {
		err = s.unpackLayers(ctx, handler, desc)
	}
	return err
}

func (s *Store) unpackLayers(ctx context.Context, handler images.Handler, desc ocispec.Descriptor,
	opts ...unpack.UnpackerOpt) error {
	u, err := unpack.NewUnpacker(ctx, s.content, append(opts, unpack.WithUnpackPlatform(unpack.Platform{
		Platform: s.platform, SnapshotterKey: snapshotter, Snapshotter: s.snaps,
		SnapshotterCapabilities: []string{snapshots.RebaseCap},
		Applier:                 applier{s.content, s.unpacking, s.capacity},
	}), unpack.WithLimiter(semaphore.NewWeighted(parallelLayers)))...)
	if err != nil {
		return err
	}
	err = images.Dispatch(ctx, u.Unpack(handler), nil, desc)
	result, waitErr := u.Wait()
	if errors.Is(waitErr, errNeedsLower) {
		return waitErr
	}
	if err != nil {
		return err
	}
	if waitErr != nil {
		return waitErr
	}
	if result.Unpacks == 0 {
		return fmt.Errorf("no match for platform in manifest %s: %w", desc.Digest, errdefs.ErrNotFound)
	}
	return nil
}

// publish makes an unpacked image known by names, with labels. Its files are on the
// disk before its names are, so that a power failure leaves no half image.
func (s *Store) publish(ctx context.Context, desc ocispec.Descriptor, names []string,
	labels map[string]string) (string, error) {
	img, err := s.read(ctx, desc)
	if err != nil {
		return "", err
	}
	if _, err := s.Lower(ctx, img.ChainID); err != nil {
		return "", err
	}
	if err := s.sync(); err != nil {
		return "", err
	}
	for _, n := range names {
		rec := images.Image{Name: n, Target: desc, Labels: labels}
		_, err := s.images.Update(ctx, rec, "target", "labels")
		if errdefs.IsNotFound(err) {
			_, err = s.images.Create(ctx, rec)
		}
		if err != nil {
			return "", fmt.Errorf("record image %q: %w", n, err)
		}
	}
	return img.ID, s.reload(ctx)
}

func (s *Store) sync() error {
	f, err := os.Open(s.cfg.Dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// hosts says how to talk to registries: plain HTTP for this machine, what
// CertsDir says for others, credentials only for the hosts they belong to.
func (s *Store) hosts(ctx context.Context, auth *Auth) docker.RegistryHosts {
	own := &registry{auth: auth}
	opts := config.HostOptions{
		Credentials: func(host string) (string, string, error) {
			if !own.has(host) {
				return "", "", nil // where the registry redirected to
			}
			return auth.credentials(host)
		},
		UpdateClient: func(c *http.Client) error { return limitTransport(c, own) },
	}
	if s.cfg.CertsDir != "" {
		opts.HostDir = config.HostDirFromRoot(s.cfg.CertsDir)
	}
	find := config.ConfigureHosts(ctx, opts)
	return func(host string) ([]docker.RegistryHost, error) {
		hosts, err := find(host)
		own.set(hosts)
		return hosts, err
	}
}

// credentials are those for host; an empty user name with a secret is an
// identity token.
func (a *Auth) credentials(host string) (user, secret string, err error) {
	if a == nil || !a.isFor(host) {
		return "", "", nil
	}
	if a.Username != "" {
		return a.Username, a.Password, nil
	}
	if a.IdentityToken != "" {
		return "", a.IdentityToken, nil
	}
	if a.Auth == "" {
		return "", "", nil
	}
	plain, err := base64.StdEncoding.DecodeString(a.Auth)
	if err != nil {
		return "", "", fmt.Errorf("decode auth: %w", err)
	}
	user, secret, ok := strings.Cut(string(plain), ":")
	if !ok {
		return "", "", fmt.Errorf("decode auth: no user name and password in it")
	}
	return user, strings.TrimRight(secret, "\x00"), nil
}

func (a *Auth) isFor(host string) bool {
	if a.ServerAddress == "" {
		return true
	}
	address := a.ServerAddress
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	if host == "registry-1.docker.io" {
		return u.Host == "docker.io" || strings.HasSuffix(u.Host, ".docker.io")
	}
	if u.Host == host {
		return true
	}
	ok, err := path.Match(u.Host, host) // "*.example.com" is for one level
	return ok && err == nil && strings.Count(u.Host, ".") == strings.Count(host, ".")
}
