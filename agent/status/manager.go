package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/record"
)

// Pods writes to the API.
type Pods interface {
	PatchStatus(ctx context.Context, namespace, name string, patch []byte) (*corev1.Pod, error)
	Delete(ctx context.Context, namespace, name string, uid types.UID) error
}

// Manager sends statuses: each as soon as it changes, the newest only, and
// again when the API comes back. Only those of a pod whose containers are being
// made or replaced are gathered for a moment.
type Manager struct {
	API   Pods
	Facts func(p *corev1.Pod) Facts
	// Mirror returns the API's object of a static pod, nil when there is
	// none yet; false when the pod is no static one.
	Mirror func(p *corev1.Pod) (*corev1.Pod, bool)
	// Ends counts the containers that ended, by kind, exit code and reason; nil:
	// nobody asks.
	Ends *metrics.Counts
	Log  *slog.Logger

	ctx    context.Context
	wg     sync.WaitGroup
	mu     sync.Mutex
	pods   map[types.UID]*outgoing
	failed bool // told that the API does not take statuses
}

// outgoing is one pod's way to the API. One goroutine sends at a time.
type outgoing struct {
	pod     *corev1.Pod // as the API has it, with the status it last took
	want    *corev1.PodStatus
	version uint64
	sent    uint64
	active  bool
	gone    bool        // the API has it no more: nobody is told
	late    *time.Timer // sends a status that may wait a little for the next
	idle    []chan struct{}
}

// batchDelay is how long a status that only says that containers are being made
// waits for the next one, which mostly follows at once: a pod's start is one
// write, not four.
//
// The first status of all waits less: who looks shall see that the node has
// taken the pod.
const (
	batchDelay      = 500 * time.Millisecond
	firstBatchDelay = 150 * time.Millisecond
)

// Start makes the manager ready; ctx bounds every request.
func (m *Manager) Start(ctx context.Context) {
	m.ctx = ctx
	m.pods = map[types.UID]*outgoing{}
}

// Wait returns when nothing is on its way any more.
func (m *Manager) Wait() { m.wg.Wait() }

// Told waits until no status is on its way to the API, or ctx ends.
func (m *Manager) Told(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		m.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Report implements pod.Reporter.
func (m *Manager) Report(p *corev1.Pod, r *record.Pod, o *record.Observed) corev1.PodStatus {
	base := p
	if mirror, static := m.Mirror(p); static {
		base = nil // until the API has it; then it is told
		if mirror != nil && mirror.Annotations[corev1.MirrorPodAnnotationKey] == string(p.UID) {
			base = mirror // not that of an earlier manifest
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out := m.pods[p.UID]
	if out == nil {
		out = &outgoing{}
		m.pods[p.UID] = out
	}
	if base != nil && (out.pod == nil || newer(base, out.pod)) {
		out.gone = out.gone && out.pod.ResourceVersion == base.ResourceVersion
		out.pod = base
	}
	known := *p
	if out.pod != nil {
		known.Status = out.pod.Status
	}
	if out.want != nil {
		// Transition times follow the status last computed, sent or not.
		known.Status = merge(known.Status, *out.want)
	}
	next := For(&known, r, o, m.Facts(p))
	countEnds(m.Ends, &known.Status, &next)
	if out.pod == nil {
		out.want = &next
		return next
	}
	same := out.want != nil && equality.Semantic.DeepEqual(*out.want, next) && out.sent == out.version
	if same && equality.Semantic.DeepEqual(next, out.pod.Status) {
		return next
	}
	out.want = &next
	out.version++
	m.soon(p.UID, out, beingMade(&next) || beingReplaced(r))
	return next
}

// soon sends the newest status, at once or a moment later; the lock is held.
func (m *Manager) soon(uid types.UID, out *outgoing, mayWait bool) {
	if !mayWait {
		m.kick(uid, out)
		return
	}
	if out.late == nil {
		wait := batchDelay
		if len(out.pod.Status.ContainerStatuses) == 0 {
			wait = firstBatchDelay
		}
		out.late = time.AfterFunc(wait, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			out.late = nil
			m.kick(uid, out)
		})
	}
}

// beingMade tells whether nothing but the making of containers has happened.
func beingMade(s *corev1.PodStatus) bool {
	if s.Phase != corev1.PodPending || s.Reason != "" {
		return false
	}
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for _, c := range list {
			if w := c.State.Waiting; w == nil || w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
				return false
			}
		}
	}
	return true
}

// beingReplaced tells whether a container was stopped only to start again with
// another image or other resources. Done within the moment, that is one write
// and no flapping readiness.
func beingReplaced(r *record.Pod) bool {
	again := false
	for _, c := range r.Containers {
		if c.Fault != nil {
			return false
		}
		again = again || c.Again
	}
	return again && r.Stopping == nil
}

// merge is the status to compare with: what this node last computed, with the conditions
// of others as the API has them now, and the end if others have told one.
func merge(api, own corev1.PodStatus) corev1.PodStatus {
	if over(api.Phase) {
		own.Phase, own.Reason, own.Message = api.Phase, api.Reason, api.Message
	}
	var cs []corev1.PodCondition
	for _, c := range api.Conditions {
		if !owned[c.Type] {
			cs = append(cs, c)
		}
	}
	for _, c := range own.Conditions {
		if owned[c.Type] {
			cs = append(cs, c)
		}
	}
	own.Conditions = cs
	own.NominatedNodeName, own.ResourceClaimStatuses = api.NominatedNodeName, api.ResourceClaimStatuses
	own.ExtendedResourceClaimStatus = api.ExtendedResourceClaimStatus
	return own
}

// newer tells whether a is no older than b by resource version, a number that
// grows (KEP-5504). Of two of the same version the one just given counts: the
// other may be what a checkpoint made of it.
func newer(a, b *corev1.Pod) bool {
	x, y := a.ResourceVersion, b.ResourceVersion
	if a.UID != b.UID {
		return true
	}
	return len(x) > len(y) || len(x) == len(y) && x >= y
}

// kick starts the sender; the lock is held.
func (m *Manager) kick(uid types.UID, out *outgoing) {
	if out.active || out.gone || out.sent == out.version || m.ctx.Err() != nil {
		return
	}
	if out.late != nil {
		out.late.Stop()
		out.late = nil
	}
	out.active = true
	m.wg.Go(func() { m.send(uid, out) })
}

func (m *Manager) send(uid types.UID, out *outgoing) {
	pause := 100 * time.Millisecond
	for {
		m.mu.Lock()
		if out.sent == out.version || out.gone || m.ctx.Err() != nil || m.pods[uid] != out {
			out.active = false
			for _, c := range out.idle {
				close(c)
			}
			out.idle = nil
			m.mu.Unlock()
			return
		}
		base, want, version := out.pod, *out.want, out.version
		m.mu.Unlock()
		got, err := m.patch(base, want)
		m.mu.Lock()
		switch {
		case err == nil:
			out.sent = version
			if got != nil && newer(got, out.pod) {
				out.pod = got
			}
			m.failed, pause = false, 100*time.Millisecond
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err) || isReplaced(err):
			out.sent = version // gone, or another pod of that name: nothing to tell
			// A static pod's mirror, which has another UID, may come again.
			out.gone = base.UID == uid && !apierrors.IsConflict(err)
		}
		if err != nil && out.sent != version {
			if !m.failed && m.ctx.Err() == nil {
				m.failed = true
				m.Log.Warn("the API does not take pod statuses; they are sent when it does",
					"pod", base.Namespace+"/"+base.Name, "err", err)
			}
			m.mu.Unlock()
			select {
			case <-m.ctx.Done():
			case <-time.After(pause):
			}
			pause = min(2*pause, 5*time.Second)
			continue
		}
		m.mu.Unlock()
	}
}

var errReplaced = errors.New("the pod was replaced")

// isReplaced tells whether the API has another pod of that name: it does not let a patch,
// which has the UID of the one before, change that.
func isReplaced(err error) bool {
	if errors.Is(err, errReplaced) {
		return true
	}
	var refused apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &refused) || refused.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(refused.Status().Details.Causes, func(c metav1.StatusCause) bool {
		return c.Field == "metadata.uid"
	})
}

// patch sends the difference between two statuses.
func (m *Manager) patch(base *corev1.Pod, want corev1.PodStatus) (*corev1.Pod, error) {
	if equality.Semantic.DeepEqual(base.Status, want) {
		return nil, nil
	}
	body, err := diff(base, want)
	if err != nil || body == nil {
		return nil, err
	}
	got, err := m.API.PatchStatus(m.ctx, base.Namespace, base.Name, body)
	if err == nil && got.UID != base.UID {
		return nil, errReplaced
	}
	return got, err
}

// diff is a strategic merge patch of the status alone, bound to the pod's UID.
func diff(base *corev1.Pod, want corev1.PodStatus) ([]byte, error) {
	old, err := json.Marshal(corev1.Pod{Status: base.Status})
	if err != nil {
		return nil, err
	}
	fresh, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: base.UID}, Status: want})
	if err != nil {
		return nil, err
	}
	body, err := strategicpatch.CreateTwoWayMergePatch(old, fresh, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("status patch: %w", err)
	}
	return body, nil
}

// Finish implements pod.Reporter: the last status arrives before the pod is
// deleted, because watchers act on how it ended.
func (m *Manager) Finish(ctx context.Context, p *corev1.Pod) error {
	if _, static := m.Mirror(p); static {
		return nil
	}
	if err := m.flush(ctx, p.UID); err != nil {
		return err
	}
	err := m.API.Delete(ctx, p.Namespace, p.Name, p.UID)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func (m *Manager) flush(ctx context.Context, uid types.UID) error {
	m.mu.Lock()
	out := m.pods[uid]
	if out == nil || out.gone || out.sent == out.version {
		m.mu.Unlock()
		return nil
	}
	idle := make(chan struct{})
	out.idle = append(out.idle, idle)
	m.kick(uid, out)
	m.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Forget implements pod.Reporter.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if out := m.pods[uid]; out != nil && out.late != nil {
		out.late.Stop()
	}
	delete(m.pods, uid)
}

// Retry sends at once what could not be sent, after the API came back.
func (m *Manager) Retry() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, out := range m.pods {
		if out.sent != out.version {
			m.kick(uid, out)
		}
	}
}
