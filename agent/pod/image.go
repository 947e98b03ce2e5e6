package pod

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
)

// pulls lets equal pulls at one time be one.
type pulls struct {
	mu    sync.Mutex
	busy  map[string]*pull
	turns chan struct{} // of those at one time, each has a place
}

type pull struct {
	done chan struct{}
	ref  string
	err  error
	took time.Duration // without the wait for its turn
	// waiting is how many wait for it: cancel ends it when nobody does any more.
	waiting int
	cancel  context.CancelFunc
}

// leave tells that one waits no longer.
func (s *pulls) leave(key string, p *pull) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.waiting--; p.waiting > 0 {
		return
	}
	s.forget(key, p)
	p.cancel()
}

// forget has the next one who wants it begin anew; the lock is held.
func (s *pulls) forget(key string, p *pull) {
	if s.busy[key] == p {
		delete(s.busy, key)
	}
}

// turn waits for one of most places, 0 for as many as are wanted, and returns what gives it back.
func (s *pulls) turn(ctx context.Context, most int) (release func(), err error) {
	if most == 0 {
		return func() {}, nil
	}
	s.mu.Lock()
	if s.turns == nil {
		s.turns = make(chan struct{}, most)
	}
	turns := s.turns
	s.mu.Unlock()
	select {
	case turns <- struct{}{}:
		return func() { <-turns }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ensureImage makes the container's image present as its policy says and sets
// f.Image. The verdict is the container's waiting reason.
func (m *Manager) ensureImage(ctx context.Context, f *launch.Facts) *record.Verdict {
	image := f.Container.Image
	spec := &criv1.ImageSpec{Image: image, UserSpecifiedImage: image}
	if _, err := reference.ParseNormalizedNamed(image); err != nil {
		msg := fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %q: %v", image, image, err)
		m.event(f, corev1.EventTypeWarning, "InspectFailed", msg)
		m.event(f, corev1.EventTypeWarning, "Failed", "Error: InvalidImageName")
		return &record.Verdict{Reason: "InvalidImageName", Message: msg}
	}
	st, err := m.Images.ImageStatus(ctx, spec, false)
	if err != nil {
		msg := fmt.Sprintf("Failed to inspect image %q: %v", image, grpcMessage(err))
		m.event(f, corev1.EventTypeWarning, "InspectFailed", msg)
		return &record.Verdict{Reason: "ImageInspectError", Message: msg}
	}
	logins, missing, loginErr := credentials(ctx, m.Objects, f.Pod, image)
	policy := pullPolicy(f.Container)
	if policy != corev1.PullAlways && m.usePresent(f, st.Image, logins) {
		return nil
	}
	if policy == corev1.PullNever { // as if it were not there, also when the pod may not use it
		msg := fmt.Sprintf("Container image %q is not present with pull policy of Never", image)
		m.event(f, corev1.EventTypeWarning, "ErrImageNeverPull", msg)
		m.event(f, corev1.EventTypeWarning, "Failed", "Error: ErrImageNeverPull")
		return &record.Verdict{Reason: "ErrImageNeverPull", Message: msg}
	}
	if len(missing) > 0 && ctx.Err() == nil {
		m.Events.Event(f.Pod, "", corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			fmt.Sprintf("Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.",
				strings.Join(missing, ", ")))
	}
	if loginErr != nil {
		return m.pullFailed(f, loginErr)
	}
	all, loginErr := m.withNode(ctx, logins, image)
	if loginErr != nil && ctx.Err() == nil {
		m.Log.Warn("some of the node's registry logins are missing", "image", image, "err", loginErr)
	}
	why := m.pullImage(ctx, f, spec, all)
	if why != nil && policy != corev1.PullAlways { // an import may have brought it while the pull was tried
		if st, err = m.Images.ImageStatus(ctx, spec, false); err == nil && m.usePresent(f, st.Image, logins) {
			return nil
		}
	}
	return why
}

// usePresent sets f.Image to an image that is there, if it is and the pod may use it without a pull.
func (m *Manager) usePresent(f *launch.Facts, there *criv1.Image, logins []credential) bool {
	image := f.Container.Image
	if there == nil || m.mustPull(image, there, logins) {
		return false
	}
	f.Image = there
	m.event(f, corev1.EventTypeNormal, "Pulled",
		fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", image))
	return true
}

func (m *Manager) mustPull(image string, there *criv1.Image, logins []credential) bool {
	return m.Access != nil && m.Access.MustPull(image, there, logins)
}

// ensureImages makes the container's image present, and those that it mounts.
func (m *Manager) ensureImages(ctx context.Context, f *launch.Facts) *record.Verdict {
	for i := range f.Container.VolumeMounts {
		for j := range f.Pod.Spec.Volumes {
			v := &f.Pod.Spec.Volumes[j]
			if v.Image == nil || v.Name != f.Container.VolumeMounts[i].Name || v.Image.Reference == "" {
				continue
			}
			c := &corev1.Container{Name: f.Container.Name, Image: v.Image.Reference, ImagePullPolicy: v.Image.PullPolicy}
			if why := m.ensureImage(ctx, &launch.Facts{Pod: f.Pod, Container: c}); why != nil {
				return why
			}
		}
	}
	return m.ensureImage(ctx, f)
}

func (m *Manager) pullImage(
	ctx context.Context, f *launch.Facts, spec *criv1.ImageSpec, logins []credential,
) *record.Verdict {
	image := f.Container.Image
	m.event(f, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", image))
	began := time.Now()
	ref, took, err := m.sharedPull(ctx, f, spec, logins)
	if err == nil {
		var st *criv1.ImageStatusResponse
		if st, err = m.Images.ImageStatus(ctx, &criv1.ImageSpec{Image: ref}, false); err == nil && st.Image == nil {
			st, err = m.Images.ImageStatus(ctx, spec, false)
		}
		if err == nil && st.Image == nil {
			err = fmt.Errorf("image %q is gone right after its pull", image)
		}
		if err == nil {
			f.Image = st.Image
		}
	}
	if ctx.Err() != nil {
		return &record.Verdict{Reason: "ErrImagePull", Message: ctx.Err().Error()}
	}
	if err != nil {
		return m.pullFailed(f, err)
	}
	whole := time.Since(began).Truncate(time.Millisecond)
	m.event(f, corev1.EventTypeNormal, "Pulled",
		fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %d bytes.",
			image, min(took.Truncate(time.Millisecond), whole), whole, f.Image.Size))
	return nil
}

func (m *Manager) pullFailed(f *launch.Facts, err error) *record.Verdict {
	msg := grpcMessage(err)
	m.event(f, corev1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %s", f.Container.Image, msg))
	m.event(f, corev1.EventTypeWarning, "Failed", "Error: ErrImagePull")
	return &record.Verdict{Reason: "ErrImagePull", Message: msg, Image: f.Container.Image}
}

// sharedPull pulls once for all who want the same image with the same secrets
// at the same time. A pull goes on while anybody waits for it. It took as long as it did after
// its turn had come.
func (m *Manager) sharedPull(
	ctx context.Context, f *launch.Facts, spec *criv1.ImageSpec, logins []credential,
) (ref string, took time.Duration, err error) {
	key := spec.Image
	for _, c := range logins {
		key += "\x00" + c.auth.String()
	}
	m.pulls.mu.Lock()
	p := m.pulls.busy[key]
	if p == nil {
		ctx, cancel := context.WithCancel(m.ctx)
		p = &pull{done: make(chan struct{}), cancel: cancel}
		if m.pulls.busy == nil {
			m.pulls.busy = map[string]*pull{}
		}
		m.pulls.busy[key] = p
		m.wg.Go(func() {
			p.ref, p.took, p.err = m.pullInTurn(ctx, spec, logins, f.Pod)
			m.pulls.mu.Lock()
			m.pulls.forget(key, p)
			m.pulls.mu.Unlock()
			close(p.done)
		})
	}
	p.waiting++
	m.pulls.mu.Unlock()
	defer m.pulls.leave(key, p)
	wait := progressAfter
	for {
		select {
		case <-p.done:
			return p.ref, p.took, p.err
		case <-ctx.Done():
			return "", 0, ctx.Err()
		case <-time.After(wait):
			m.tellProgress(f)
			wait *= 2
		}
	}
}

// progressAfter is when an event first tells how far a pull is; each next one comes after
// twice the time.
const progressAfter = 10 * time.Second

func (m *Manager) tellProgress(f *launch.Facts) {
	if m.PullProgress == nil {
		return
	}
	if far := m.PullProgress(f.Container.Image); far != "" {
		m.event(f, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q: %s", f.Container.Image, far))
	}
}

// pullInTurn pulls when fewer others do than may at one time.
func (m *Manager) pullInTurn(
	ctx context.Context, spec *criv1.ImageSpec, logins []credential, p *corev1.Pod,
) (ref string, took time.Duration, err error) {
	release, err := m.pulls.turn(ctx, m.MaxPulls)
	if err != nil {
		return "", 0, err
	}
	defer release()
	began := time.Now()
	ref, err = m.recordedPull(ctx, spec, logins, p)
	return ref, time.Since(began), err
}

// recordedPull keeps with which credentials the pull worked.
func (m *Manager) recordedPull(
	ctx context.Context, spec *criv1.ImageSpec, logins []credential, p *corev1.Pod,
) (string, error) {
	if m.Access == nil {
		ref, _, err := m.tryPull(ctx, spec, logins, p)
		return ref, err
	}
	if err := m.Access.Begin(spec.Image); err != nil {
		return "", err
	}
	ref, used, err := m.tryPull(ctx, spec, logins, p)
	if used != nil && used.node {
		used = nil // what the node may have all of its pods may
	}
	id := ref
	if err == nil { // it is there, whoever gave up meanwhile: it must not be without a record
		id, err = m.imageID(context.WithoutCancel(ctx), spec, ref)
	}
	return ref, errors.Join(err, m.Access.End(ctx, spec.Image, id, used))
}

// imageID is the runtime's ID of what was pulled: a runtime may name a pull's
// result by its digest.
func (m *Manager) imageID(ctx context.Context, spec *criv1.ImageSpec, ref string) (string, error) {
	for _, name := range []string{ref, spec.Image} {
		st, err := m.Images.ImageStatus(ctx, &criv1.ImageSpec{Image: name}, false)
		if err != nil {
			return "", err
		}
		if st.Image != nil {
			return st.Image.Id, nil
		}
	}
	return "", fmt.Errorf("image %q is gone right after its pull", spec.Image)
}

// tryPull pulls with one login after the other, and returns which worked; nil
// when none is needed.
func (m *Manager) tryPull(
	ctx context.Context, spec *criv1.ImageSpec, logins []credential, p *corev1.Pod,
) (ref string, used *credential, err error) {
	sc, err := m.sandboxConfig(p, 0, nil)
	if err != nil {
		return "", nil, err
	}
	if len(logins) == 0 {
		ref, err = m.Images.PullImage(ctx, spec, nil, sc)
		return ref, nil, err
	}
	for i := range logins {
		if ref, err = m.Images.PullImage(ctx, spec, logins[i].auth, sc); err == nil {
			return ref, &logins[i], nil
		}
	}
	return "", nil, err
}

// pullPolicy is the container's policy, or what its tag implies.
func pullPolicy(c *corev1.Container) corev1.PullPolicy {
	if c.ImagePullPolicy != "" {
		return c.ImagePullPolicy
	}
	if strings.Contains(c.Image, "@") {
		return corev1.PullIfNotPresent
	}
	last := c.Image[strings.LastIndex(c.Image, "/")+1:]
	if _, tag, ok := strings.Cut(last, ":"); ok && tag != "latest" {
		return corev1.PullIfNotPresent
	}
	return corev1.PullAlways
}
