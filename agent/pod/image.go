package pod

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/record"
)

// pulls lets equal pulls at one time be one.
type pulls struct {
	mu   sync.Mutex
	busy map[string]*pull
}

type pull struct {
	done chan struct{}
	ref  string
	err  error
}

// ensureImage makes the container's image present as its policy says and sets
// l.image and l.ref. The verdict is the container's waiting reason.
func (m *Manager) ensureImage(ctx context.Context, l *launch) *record.Verdict {
	image := l.c.Image
	spec := &runtimeapi.ImageSpec{Image: image, UserSpecifiedImage: image}
	if !validImage(image) {
		msg := fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %q: invalid reference format", image, image)
		m.Events.Event(l.pod, l.c.Name, v1.EventTypeWarning, "InspectFailed", msg)
		m.Events.Event(l.pod, l.c.Name, v1.EventTypeWarning, "Failed", "Error: InvalidImageName")
		return &record.Verdict{Reason: "InvalidImageName", Message: msg}
	}
	st, err := m.Images.ImageStatus(ctx, spec, false)
	if err != nil {
		msg := fmt.Sprintf("Failed to inspect image %q: %v", image, grpcMessage(err))
		m.Events.Event(l.pod, l.c.Name, v1.EventTypeWarning, "InspectFailed", msg)
		return &record.Verdict{Reason: "ImageInspectError", Message: msg}
	}
	policy := pullPolicy(l.c)
	if st.Image != nil && policy != v1.PullAlways {
		l.image, l.ref = st.Image, st.Image.Id
		m.Events.Event(l.pod, l.c.Name, v1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine", image))
		return nil
	}
	if policy == v1.PullNever {
		msg := fmt.Sprintf("Container image %q is not present with pull policy of Never", image)
		m.Events.Event(l.pod, l.c.Name, v1.EventTypeWarning, "ErrImageNeverPull", msg)
		m.Events.Event(l.pod, l.c.Name, v1.EventTypeWarning, "Failed", "Error: ErrImageNeverPull")
		return &record.Verdict{Reason: "ErrImageNeverPull", Message: msg}
	}
	return m.pullImage(ctx, l, spec)
}

func (m *Manager) pullImage(ctx context.Context, l *launch, spec *runtimeapi.ImageSpec) *record.Verdict {
	image := l.c.Image
	m.Events.Event(l.pod, l.c.Name, v1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", image))
	began := time.Now()
	ref, err := m.sharedPull(ctx, l, spec)
	if err == nil {
		var st *runtimeapi.ImageStatusResponse
		if st, err = m.Images.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: ref}, false); err == nil && st.Image == nil {
			st, err = m.Images.ImageStatus(ctx, spec, false)
		}
		if err == nil && st.Image == nil {
			err = fmt.Errorf("image %q is gone right after its pull", image)
		}
		if err == nil {
			l.image, l.ref = st.Image, st.Image.Id
		}
	}
	if ctx.Err() != nil {
		return &record.Verdict{Reason: "ErrImagePull", Message: ctx.Err().Error()}
	}
	if err != nil {
		msg := grpcMessage(err)
		m.Events.Event(l.pod, l.c.Name, v1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %s", image, msg))
		m.Events.Event(l.pod, l.c.Name, v1.EventTypeWarning, "Failed", "Error: ErrImagePull")
		return &record.Verdict{Reason: "ErrImagePull", Message: msg}
	}
	took := time.Since(began).Truncate(time.Millisecond)
	m.Events.Event(l.pod, l.c.Name, v1.EventTypeNormal, "Pulled",
		fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %d bytes.", image, took, took, l.image.Size))
	return nil
}

// sharedPull pulls once for all who want the same image with the same secrets
// at the same time. A pull goes on while anybody waits for it.
func (m *Manager) sharedPull(ctx context.Context, l *launch, spec *runtimeapi.ImageSpec) (string, error) {
	auths, err := credentials(ctx, m.Objects, l.pod, spec.Image)
	if err != nil {
		return "", err
	}
	key := spec.Image
	for _, a := range auths {
		key += "\x00" + a.String()
	}
	m.pulls.mu.Lock()
	p := m.pulls.busy[key]
	if p == nil {
		p = &pull{done: make(chan struct{})}
		if m.pulls.busy == nil {
			m.pulls.busy = map[string]*pull{}
		}
		m.pulls.busy[key] = p
		m.wg.Go(func() {
			p.ref, p.err = m.tryPull(m.ctx, spec, auths, l.pod)
			m.pulls.mu.Lock()
			delete(m.pulls.busy, key)
			m.pulls.mu.Unlock()
			close(p.done)
		})
	}
	m.pulls.mu.Unlock()
	select {
	case <-p.done:
		return p.ref, p.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (m *Manager) tryPull(ctx context.Context, spec *runtimeapi.ImageSpec, auths []*runtimeapi.AuthConfig, p *v1.Pod) (string, error) {
	sc, err := m.Host.sandboxConfig(p, 0)
	if err != nil {
		return "", err
	}
	if len(auths) == 0 {
		return m.Images.PullImage(ctx, spec, nil, sc)
	}
	var ref string
	for _, a := range auths {
		if ref, err = m.Images.PullImage(ctx, spec, a, sc); err == nil {
			return ref, nil
		}
	}
	return "", err
}

// pullPolicy is the container's policy, or what its tag implies.
func pullPolicy(c *v1.Container) v1.PullPolicy {
	if c.ImagePullPolicy != "" {
		return c.ImagePullPolicy
	}
	if strings.Contains(c.Image, "@") {
		return v1.PullIfNotPresent
	}
	last := c.Image[strings.LastIndex(c.Image, "/")+1:]
	if _, tag, ok := strings.Cut(last, ":"); ok && tag != "latest" {
		return v1.PullIfNotPresent
	}
	return v1.PullAlways
}

// validImage is a cheap check of an image reference: the runtime does the
// full one.
func validImage(s string) bool {
	if s == "" || strings.ContainsAny(s, " \t\n\"'\\") {
		return false
	}
	name := s
	if i := strings.Index(name, "@"); i >= 0 {
		name = name[:i]
	}
	slash := strings.LastIndex(name, "/")
	if i := strings.LastIndex(name, ":"); i > slash {
		name = name[:i]
	}
	path := name
	if i := strings.Index(name, "/"); i > 0 && strings.ContainsAny(name[:i], ".:") {
		path = name[i+1:]
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part != strings.ToLower(part) || strings.HasPrefix(part, "-") || strings.HasSuffix(part, "-") {
			return false
		}
	}
	return true
}
