package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// strayPrefix marks keys of pods whose Job is gone or finished; Jobs' keys have
// no colon.
const strayPrefix = "pod:"

var ownKind = batchv1.SchemeGroupVersion.WithKind("Job")

type reconciler struct {
	client kubernetes.Interface
	events record.EventRecorder
	jobs   batchlisters.JobLister
	pods   corelisters.PodLister
	podsIx cache.Indexer
	expect *controller.Expectations
	writes *controller.Writes
	loop   *controller.Loop

	mu sync.Mutex
	// freed are pods whose finalizer we took off, until the cache shows it.
	freed map[string]map[types.UID]bool
	// streaks are the Jobs' failures in a row.
	streaks map[string]*streak
}

// New builds the Job controller.
func New(env controller.Env) (*controller.Loop, error) {
	jobs, pods := env.Informers.Batch().V1().Jobs(), env.Informers.Core().V1().Pods()
	if err := controller.IndexByController(pods.Informer()); err != nil {
		return nil, err
	}
	r := &reconciler{
		client: env.Client, events: env.Recorder("job-controller"),
		jobs: jobs.Lister(), pods: pods.Lister(), podsIx: pods.Informer().GetIndexer(),
		expect: controller.NewExpectations(), writes: controller.NewWrites(), loop: controller.New("job", 5, env.Log),
		freed: map[string]map[types.UID]bool{}, streaks: map[string]*streak{},
	}
	r.loop.Reconciler = r
	controller.Watch(r.loop, jobs.Informer(), r.jobChanged)
	controller.WatchOwned(r.loop, pods.Informer(), controller.Owned[corev1.Pod]{
		Kind:    ownKind,
		Changed: r.podChanged,
		Gone:    r.expect.Gone,
		Orphan: func(pod *corev1.Pod) {
			r.stray(pod)
			all, _ := r.jobs.Jobs(pod.Namespace).List(labels.Everything())
			controller.AddAdopters(r.loop, all, func(j *batchv1.Job) *metav1.LabelSelector { return j.Spec.Selector },
				pod)
		},
	})
	return r.loop, nil
}

func (r *reconciler) jobChanged(old, job *batchv1.Job) {
	if job == nil {
		r.loop.Add(controller.Key(old.Namespace, old.Name))
		for _, p := range controller.Controlled[corev1.Pod](r.podsIx, old.UID) {
			r.stray(p)
		}
		return
	}
	r.loop.Add(controller.Key(job.Namespace, job.Name))
}

// podChanged has the pod's Job reconciled, or frees a pod whose Job has ended.
func (r *reconciler) podChanged(owner string, pod *corev1.Pod) {
	namespace, name, _ := cache.SplitMetaNamespaceKey(owner)
	job, err := r.jobs.Jobs(namespace).Get(name)
	if apierrors.IsNotFound(err) || err == nil && (finished(job) || !metav1.IsControlledBy(pod, job)) {
		r.stray(pod)
		return
	}
	r.loop.Add(owner)
}

func (r *reconciler) stray(p *corev1.Pod) {
	if tracked(p) {
		r.loop.Add(strayPrefix + controller.Key(p.Namespace, p.Name))
	}
}

// Reconcile takes one Job on, or frees one stray pod.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	if pod, ok := strings.CutPrefix(key, strayPrefix); ok {
		return 0, r.freeStray(ctx, pod)
	}
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	shared, err := r.jobs.Jobs(namespace).Get(name)
	if apierrors.IsNotFound(err) || err == nil && finished(shared) {
		r.forget(key)
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	if foreign(shared) || r.writes.Behind(key, shared.ResourceVersion) {
		return 0, nil
	}
	job := shared.DeepCopy()
	pods, err := r.claim(ctx, job)
	if err != nil {
		return 0, err
	}
	v := &view{job: job, pods: pods, freed: r.stillFreed(key, pods), now: time.Now()}
	v.failures = r.streak(key).follow(v)
	met, wait := r.expect.Met(key, controller.ShownPods(r.podsIx, job.UID), v.now)
	after, err := r.sync(ctx, key, shared, v, met)
	if wait > 0 && (after == 0 || wait < after) {
		after = wait
	}
	return after, err
}

func (r *reconciler) claim(ctx context.Context, job *batchv1.Job) ([]*corev1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(job.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector: %w", err)
	}
	return controller.Claim(ctx, &controller.Claimer{
		Owner: job, Kind: ownKind, Selector: selector, Finalizers: []string{batchv1.JobTrackingFinalizer},
		Live: func(ctx context.Context) (metav1.Object, error) {
			return r.client.BatchV1().Jobs(job.Namespace).Get(ctx, job.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, name string, patch []byte) error {
			_, err := r.client.CoreV1().Pods(job.Namespace).Patch(ctx, name, types.StrategicMergePatchType,
				patch, metav1.PatchOptions{})
			return err
		},
	}, controller.Candidates[corev1.Pod](r.podsIx, job))
}

func (r *reconciler) sync(ctx context.Context, key string, shared *batchv1.Job, v *view, met bool) (time.Duration, error) {
	job := v.job
	if job.Status.UncountedTerminatedPods == nil {
		job.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	if job.Status.StartTime == nil && !suspended(job) {
		at := metav1.NewTime(v.now)
		job.Status.StartTime = &at
	}
	t := v.tally()
	active := int32(len(t.active))
	after := t.after
	var manageErr error
	if t.finished != nil {
		var deleted int32
		if deleted, manageErr = r.deleteAll(ctx, key, v, t, t.active, false); deleted != active || !met {
			t.finished = nil
		}
		active -= deleted
	} else {
		managed := met && job.DeletionTimestamp == nil
		if managed {
			do := v.plan(t)
			after = controller.Sooner(after, do.after)
			active, manageErr = r.manage(ctx, key, v, t, do)
		}
		if complete(job, t.succeeded, active) {
			t.finished = v.condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
		} else if managed {
			r.tellSuspension(v)
		}
	}
	job.Status.Active, job.Status.Ready, job.Status.Terminating = active, &t.ready, &t.terminating
	if err := r.track(ctx, key, shared, v, t); err != nil {
		return 0, fmt.Errorf("tracking status: %w", err)
	}
	return after, manageErr
}

func complete(j *batchv1.Job, succeeded, active int32) bool {
	if active > 0 {
		return false
	}
	if j.Spec.Completions == nil {
		return succeeded > 0
	}
	return succeeded >= *j.Spec.Completions
}

func (r *reconciler) tellSuspension(v *view) {
	if suspended(v.job) {
		if v.setCondition(*v.condition(batchv1.JobSuspended, "JobSuspended", "Job suspended")) {
			r.events.Event(v.job, corev1.EventTypeNormal, "Suspended", "Job suspended")
			v.job.Status.StartTime = nil
		}
		return
	}
	resumed := v.condition(batchv1.JobSuspended, "JobResumed", "Job resumed")
	resumed.Status = corev1.ConditionFalse
	if v.setCondition(*resumed) {
		r.events.Event(v.job, corev1.EventTypeNormal, "Resumed", "Job resumed")
		at := metav1.NewTime(v.now)
		v.job.Status.StartTime = &at
	}
}

// manage creates or deletes pods and returns how many are active then.
func (r *reconciler) manage(ctx context.Context, key string, v *view, t *tally, do todo) (int32, error) {
	active := int32(len(t.active))
	if len(do.del) > 0 {
		deleted, err := r.deleteAll(ctx, key, v, t, do.del, true)
		return active - deleted, err
	}
	created, err := controller.SlowStart(ctx, do.create, func(ctx context.Context, i int) error {
		index := noIndex
		if i < len(do.indexes) {
			index = do.indexes[i]
		}
		_, err := r.writer().Create(ctx, key, v.job, newPod(v.job, index, t.replaced[index]))
		return err
	})
	return active + int32(created), err
}

func (r *reconciler) writer() controller.PodWriter {
	return controller.PodWriter{Client: r.client, Events: r.events, Expect: r.expect}
}

// newPod makes a pod of the Job; replaced is the failed pod of its index.
func newPod(job *batchv1.Job, index int, replaced *corev1.Pod) *corev1.Pod {
	pod := controller.NewPod(&job.Spec.Template, job, metav1.NewControllerRef(job, ownKind))
	if !slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer) {
		pod.Finalizers = append(pod.Finalizers, batchv1.JobTrackingFinalizer)
	}
	if index == noIndex {
		return pod
	}
	number := strconv.Itoa(index)
	for i := range pod.Spec.InitContainers {
		indexEnv(&pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		indexEnv(&pod.Spec.Containers[i])
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, batchv1.JobCompletionIndexAnnotation, number)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, batchv1.JobCompletionIndexAnnotation, number)
	pod.Spec.Hostname = job.Name + "-" + number
	suffix := "-" + number + "-"
	pod.GenerateName = job.Name[:min(len(job.Name), maxGenerated-len(suffix))] + suffix
	if perIndex(job) {
		countFailures(pod, job, replaced)
	}
	return pod
}

// maxGenerated is how long a generateName may be: 63 less 5 random characters.
const maxGenerated = 58

func indexEnv(c *corev1.Container) {
	if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "JOB_COMPLETION_INDEX" }) {
		return
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: "JOB_COMPLETION_INDEX", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['" + batchv1.JobCompletionIndexAnnotation + "']"},
	}})
}

// countFailures hands the failures of an index on to the pod that replaces one.
func countFailures(pod *corev1.Pod, job *batchv1.Job, replaced *corev1.Pod) {
	failed, ignored := 0, 0
	if replaced != nil {
		failed, ignored = count(replaced, batchv1.JobIndexFailureCountAnnotation), count(replaced,
			batchv1.JobIndexIgnoredFailureCountAnnotation)
		if judge(job.Spec.PodFailurePolicy, replaced).counts() {
			failed++
		} else {
			ignored++
		}
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, batchv1.JobIndexFailureCountAnnotation, strconv.Itoa(failed))
	if ignored > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta,
			batchv1.JobIndexIgnoredFailureCountAnnotation, strconv.Itoa(ignored))
	}
}

// deleteAll deletes pods; free takes their finalizer off first, so that they
// count neither as succeeded nor as failed.
func (r *reconciler) deleteAll(ctx context.Context, key string, v *view, t *tally, pods []*corev1.Pod,
	free bool) (int32, error) {
	var ready atomic.Int32
	deleted, err := controller.Each(ctx, 0, len(pods), func(ctx context.Context, i int) error {
		p := pods[i]
		if free && tracked(p) {
			if err := r.free(ctx, key, p); err != nil {
				return err
			}
		}
		if err := r.writer().Delete(ctx, key, v.job, p); err != nil {
			return err
		}
		if controller.PodReady(p) {
			ready.Add(1)
		}
		return nil
	})
	t.ready -= ready.Load()
	t.terminating += int32(deleted)
	return int32(deleted), err
}

// track counts finished pods: note them in the status, store it, take their
// finalizers off, move them to the counters. A crash after any step loses and
// doubles none.
func (r *reconciler) track(ctx context.Context, key string, shared *batchv1.Job, v *view, t *tally) error {
	held := map[types.UID]bool{}
	for _, p := range v.pods {
		if tracked(p) && !v.freed[p.UID] {
			held[p.UID] = true
		}
	}
	countReleased(&v.job.Status, held)
	l := v.note(t)
	v.announce(t)
	stored := shared.Status
	if len(l.release) > 0 && !equality.Semantic.DeepEqual(stored, v.job.Status) {
		if err := r.write(ctx, key, v); err != nil {
			return err
		}
		stored = *v.job.Status.DeepCopy()
	}
	var mu sync.Mutex
	_, freeErr := controller.Each(ctx, 0, len(l.release), func(ctx context.Context, i int) error {
		if err := r.free(ctx, key, l.release[i]); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		delete(held, l.release[i].UID)
		return nil
	})
	countReleased(&v.job.Status, held)
	over := freeErr == nil && v.enact(t, l)
	if !equality.Semantic.DeepEqual(stored, v.job.Status) {
		if err := r.write(ctx, key, v); err != nil {
			return errors.Join(freeErr, err)
		}
	}
	if over {
		r.tellEnd(v, t.finished)
	}
	return freeErr
}

func (r *reconciler) tellEnd(v *view, c *batchv1.JobCondition) {
	if c.Type != batchv1.JobComplete {
		r.events.Event(v.job, corev1.EventTypeWarning, c.Reason, c.Message)
		return
	}
	if n := v.job.Spec.Completions; n != nil && v.job.Status.Succeeded > *n {
		r.events.Event(v.job, corev1.EventTypeWarning, "TooManySucceededPods", "Too many succeeded pods running after completion count reached")
	}
	r.events.Event(v.job, corev1.EventTypeNormal, "Completed", "Job completed")
}

// write stores the status. The version it was made from must still hold, so
// that nothing is counted twice.
func (r *reconciler) write(ctx context.Context, key string, v *view) error {
	updated, err := r.client.BatchV1().Jobs(v.job.Namespace).UpdateStatus(ctx, v.job, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	v.job.ResourceVersion = updated.ResourceVersion
	r.writes.Wrote(key, updated.ResourceVersion)
	return nil
}

// free takes the tracking finalizer off a pod.
func (r *reconciler) free(ctx context.Context, key string, p *corev1.Pod) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": p.UID, "$deleteFromPrimitiveList/finalizers": []string{batchv1.JobTrackingFinalizer},
	}})
	if err != nil {
		return err
	}
	_, err = r.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType,
		patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.freed[key] == nil {
		r.freed[key] = map[types.UID]bool{}
	}
	r.freed[key][p.UID] = true
	return nil
}

// stillFreed drops from freed what the cache shows by now and returns the rest.
func (r *reconciler) stillFreed(key string, pods []*corev1.Pod) map[types.UID]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rest := map[types.UID]bool{}
	for _, p := range pods {
		if tracked(p) && r.freed[key][p.UID] {
			rest[p.UID] = true
		}
	}
	r.freed[key] = rest
	out := make(map[types.UID]bool, len(rest))
	for uid := range rest {
		out[uid] = true
	}
	return out
}

// streak is that of one Job: only its own reconciler, one at a time, uses it.
func (r *reconciler) streak(key string) *streak {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.streaks[key] == nil {
		r.streaks[key] = &streak{}
	}
	return r.streaks[key]
}

func (r *reconciler) forget(key string) {
	r.expect.Forget(key)
	r.writes.Forget(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.freed, key)
	delete(r.streaks, key)
}

// freeStray takes the finalizer off a pod that no Job counts any more. The pods of a Job that
// another controller manages are that one's, also when it has ended.
func (r *reconciler) freeStray(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil
	}
	p, err := r.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) || err == nil && !tracked(p) {
		return nil
	} else if err != nil {
		return err
	}
	if owner, owned := controller.OwnerKey(p, ownKind); owned {
		_, of, _ := cache.SplitMetaNamespaceKey(owner)
		job, err := r.client.BatchV1().Jobs(namespace).Get(ctx, of, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) ||
			err == nil && metav1.IsControlledBy(p, job) && (!finished(job) || foreign(job)) {
			return err
		}
	} else if metav1.GetControllerOfNoCopy(p) != nil {
		return nil // whoever controls it may have a use for the finalizer
	}
	err = r.free(ctx, strayPrefix, p)
	r.forget(strayPrefix)
	return err
}
