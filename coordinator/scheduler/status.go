package scheduler

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// statusWriters is how many pods' statuses are written at the same time.
const statusWriters = 8

// statusWriter writes the conditions of pods that found no node, apart from the
// scheduling loop. Of several states of a pod it writes the last one.
type statusWriter struct {
	client kubernetes.Interface
	log    *slog.Logger
	q      workqueue.TypedInterface[types.UID]

	mu      sync.Mutex
	todo    map[types.UID]*podPatch
	writing map[types.UID]chan struct{} // closed when the write has ended
}

type podPatch struct {
	pod       *corev1.Pod
	condition *corev1.PodCondition
	nominate  *framework.Nomination
}

func newStatusWriter(c kubernetes.Interface, log *slog.Logger) *statusWriter {
	return &statusWriter{client: c, log: log, q: workqueue.NewTyped[types.UID](), todo: map[types.UID]*podPatch{},
		writing: map[types.UID]chan struct{}{}}
}

// refuse sets PodScheduled to False.
func (w *statusWriter) refuse(pod *corev1.Pod, reason, message string, nominate *framework.Nomination) {
	w.put(&podPatch{pod: pod, nominate: nominate, condition: &corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: message,
		ObservedGeneration: observed(pod),
	}})
}

// nominate sets or clears the nominated node only.
func (w *statusWriter) nominate(pod *corev1.Pod, node string) {
	w.put(&podPatch{pod: pod, nominate: &framework.Nomination{Node: node}})
}

func (w *statusWriter) put(p *podPatch) {
	w.mu.Lock()
	if old := w.todo[p.pod.UID]; old != nil {
		if p.condition == nil {
			p.condition = old.condition
		}
		if p.nominate == nil {
			p.nominate = old.nominate
		}
	}
	w.todo[p.pod.UID] = p
	w.mu.Unlock()
	w.q.Add(p.pod.UID)
}

// drop forgets what is to be written of a pod that is about to be bound, and
// waits for a write under way: it must not come after the binding.
func (w *statusWriter) drop(uid types.UID) {
	w.mu.Lock()
	delete(w.todo, uid)
	end := w.writing[uid]
	w.mu.Unlock()
	if end != nil {
		<-end
	}
}

func (w *statusWriter) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, w.q.ShutDown)
	defer stop()
	var wg sync.WaitGroup
	for range statusWriters {
		wg.Go(func() {
			for uid, end := w.q.Get(); !end; uid, end = w.q.Get() {
				w.write(ctx, uid)
				w.q.Done(uid)
			}
		})
	}
	wg.Wait()
}

func (w *statusWriter) write(ctx context.Context, uid types.UID) {
	w.mu.Lock()
	p := w.todo[uid]
	delete(w.todo, uid)
	if p == nil || ctx.Err() != nil {
		w.mu.Unlock()
		return
	}
	end := make(chan struct{})
	w.writing[uid] = end
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.writing, uid)
		w.mu.Unlock()
		close(end)
	}()
	patch := p.render(time.Now())
	if patch == nil {
		return
	}
	_, err := w.client.CoreV1().Pods(p.pod.Namespace).Patch(ctx, p.pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		// The next attempt to schedule the pod writes it again.
		w.log.Warn("cannot write the pod's condition", "pod", p.pod.Namespace+"/"+p.pod.Name, "err", err)
	}
}

// render returns the patch, nil when the pod's status says all of it.
func (p *podPatch) render(now time.Time) []byte {
	status := map[string]any{}
	if c := p.condition; c != nil && mergeCondition(&p.pod.Status, c, now) {
		status["conditions"] = []*corev1.PodCondition{c}
	}
	if p.nominate != nil && p.nominate.Node != p.pod.Status.NominatedNodeName {
		status["nominatedNodeName"] = p.nominate.Node
		if p.nominate.Node == "" {
			status["nominatedNodeName"] = nil
		}
	}
	if len(status) == 0 {
		return nil
	}
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.pod.UID}, "status": status})
	if err != nil {
		return nil // these types always encode
	}
	return b
}

// mergeCondition gives c its times from what the status says; false when c says nothing new.
func mergeCondition(s *corev1.PodStatus, c *corev1.PodCondition, now time.Time) bool {
	c.LastTransitionTime = metav1.NewTime(now)
	for i := range s.Conditions {
		old := &s.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		return old.Status != c.Status || old.Reason != c.Reason || old.Message != c.Message ||
			old.ObservedGeneration != c.ObservedGeneration
	}
	return true
}

// observed is the generation that a condition is about; servers that keep none say 0.
func observed(pod *corev1.Pod) int64 { return pod.Generation }
