package cronjob

import (
	"context"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/controller"
)

var ownKind = batchv1.SchemeGroupVersion.WithKind("CronJob")

type reconciler struct {
	client   kubernetes.Interface
	events   record.EventRecorder
	cronJobs batchlisters.CronJobLister
	jobs     cache.Indexer
	writes   *controller.Writes
	loop     *controller.Loop
}

// New builds the CronJob controller.
func New(env controller.Env) (*controller.Loop, error) {
	batch := env.Informers.Batch().V1()
	if err := controller.IndexByController(batch.Jobs().Informer()); err != nil {
		return nil, err
	}
	r := &reconciler{
		client: env.Client, events: env.Recorder("cronjob-controller"),
		cronJobs: batch.CronJobs().Lister(), jobs: batch.Jobs().Informer().GetIndexer(),
		writes: controller.NewWrites(), loop: controller.New("cronjob", 5, env.Log),
	}
	r.loop.Reconciler = r
	controller.Watch(r.loop, batch.CronJobs().Informer(), r.changed)
	controller.WatchOwned(r.loop, batch.Jobs().Informer(), controller.Owned[batchv1.Job]{Kind: ownKind})
	return r.loop, nil
}

// changed has a CronJob looked at. One whose schedule was changed waits for the next time of the
// new one: a time that has passed already was not missed.
func (r *reconciler) changed(old, cj *batchv1.CronJob) {
	if cj == nil {
		r.loop.Add(controller.Key(old.Namespace, old.Name))
		return
	}
	key := controller.Key(cj.Namespace, cj.Name)
	if old != nil && (old.Spec.Schedule != cj.Spec.Schedule || !ptr.Equal(old.Spec.TimeZone, cj.Spec.TimeZone)) {
		if schedule, err := parse(&cj.Spec); err == nil {
			if wait := untilNext(cj, schedule, time.Now()); wait > 0 {
				r.loop.AddAfter(key, wait)
			}
			return
		}
	}
	r.loop.Add(key)
}

// Reconcile starts the job that is due, and tidies up behind those that ended.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	cj, err := r.cronJobs.CronJobs(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		r.writes.Forget(key)
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	if r.writes.Behind(key, cj.ResourceVersion) {
		return 0, nil
	}
	jobs, err := r.jobsOf(ctx, cj)
	if err != nil {
		return 0, err
	}
	do := plan(cj, jobs, time.Now())
	for _, e := range do.events {
		r.events.Event(cj, e.kind, e.reason, e.message)
	}
	failed := r.act(ctx, cj, &do)
	if err := r.writeStatus(ctx, key, cj, do.status); err != nil {
		return 0, err
	}
	return do.after, failed
}

// jobsOf are the CronJob's in the cache, and those active ones that the cache
// does not show yet.
func (r *reconciler) jobsOf(ctx context.Context, cj *batchv1.CronJob) ([]*batchv1.Job, error) {
	jobs := controller.Controlled[batchv1.Job](r.jobs, cj.UID)
	for _, ref := range cj.Status.Active {
		shown := false
		for _, j := range jobs {
			shown = shown || j.UID == ref.UID
		}
		if shown {
			continue
		}
		job, err := r.client.BatchV1().Jobs(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, err
		case job.UID == ref.UID:
			jobs = append(jobs, job)
		}
	}
	return jobs, nil
}

// act deletes and starts jobs, and notes in the status what it did. An old job that cannot be
// deleted, as when a webhook refuses it, keeps no new one from being started.
func (r *reconciler) act(ctx context.Context, cj *batchv1.CronJob, do *todo) error {
	var errs []error
	for _, j := range do.expired {
		errs = append(errs, r.delete(ctx, cj, j.Name, j.UID))
	}
	return errors.Join(append(errs, r.replaceAndStart(ctx, cj, do))...)
}

func (r *reconciler) replaceAndStart(ctx context.Context, cj *batchv1.CronJob, do *todo) error {
	for _, ref := range do.replaced {
		if err := r.delete(ctx, cj, ref.Name, ref.UID); err != nil {
			return err
		}
		do.drop(ref.UID)
	}
	if do.start.IsZero() {
		return nil
	}
	job, err := r.start(ctx, cj, do.start)
	if err != nil || job == nil || isActive(do.status.Active, job.UID) {
		return err
	}
	do.status.Active = append(do.status.Active, corev1.ObjectReference{
		APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Namespace: job.Namespace, Name: job.Name,
		UID: job.UID, ResourceVersion: job.ResourceVersion,
	})
	do.status.LastScheduleTime = &metav1.Time{Time: do.start}
	return nil
}

// start makes the job of a time, or finds it when an earlier attempt made it
// and did not get to say so. It returns nil for a job that is not the CronJob's.
func (r *reconciler) start(ctx context.Context, cj *batchv1.CronJob, at time.Time) (*batchv1.Job, error) {
	want, err := newJob(cj, at)
	if err != nil {
		return nil, err
	}
	client := r.client.BatchV1().Jobs(cj.Namespace)
	job, err := client.Create(ctx, want, metav1.CreateOptions{})
	switch {
	case err == nil:
		r.events.Eventf(cj, corev1.EventTypeNormal, "SuccessfulCreate", "Created job %v", job.Name)
		return job, nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil, nil
	case !apierrors.IsAlreadyExists(err):
		r.events.Eventf(cj, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		return nil, fmt.Errorf("create job: %w", err)
	}
	job, err = client.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil || !metav1.IsControlledBy(job, cj) {
		return nil, err
	}
	return job, nil
}

func (r *reconciler) delete(ctx context.Context, cj *batchv1.CronJob, name string, uid types.UID) error {
	err := r.client.BatchV1().Jobs(cj.Namespace).Delete(ctx, name, metav1.DeleteOptions{
		PropagationPolicy: ptr.To(metav1.DeletePropagationBackground), Preconditions: &metav1.Preconditions{UID: &uid},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		r.events.Eventf(cj, corev1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
		return fmt.Errorf("delete job: %w", err)
	}
	r.events.Eventf(cj, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted job %v", name)
	return nil
}

func (r *reconciler) writeStatus(ctx context.Context, key string, cj *batchv1.CronJob,
	status batchv1.CronJobStatus) error {
	if equality.Semantic.DeepEqual(cj.Status, status) {
		return nil
	}
	changed := *cj
	changed.Status = status
	updated, err := r.client.BatchV1().CronJobs(cj.Namespace).UpdateStatus(ctx, &changed, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		r.writes.Wrote(key, updated.ResourceVersion)
	}
	return err
}
