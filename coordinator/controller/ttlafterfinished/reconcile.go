package ttlafterfinished

import (
	"context"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// New builds the controller.
func New(env controller.Env) (*controller.Loop, error) {
	loop := controller.New("ttl-after-finished", 2, env.Log)
	loop.Reconciler = controller.Func(func(ctx context.Context, key string) (time.Duration, error) {
		return reconcile(ctx, env.Client, key)
	})
	controller.Watch(loop, env.Informers.Batch().V1().Jobs().Informer(), func(_, job *batchv1.Job) {
		if job == nil {
			return
		}
		if at, ever := due(job); ever {
			loop.AddAfter(controller.Key(job.Namespace, job.Name), time.Until(at))
		}
	})
	return loop, nil
}

// reconcile deletes a Job whose time is over by what the API says, not the
// cache: its TTL may have been raised a moment ago.
func reconcile(ctx context.Context, client kubernetes.Interface, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	job, err := client.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	at, ever := due(job)
	if !ever {
		return 0, nil
	}
	if left := time.Until(at); left > 0 {
		return left, nil
	}
	foreground := metav1.DeletePropagationForeground
	err = client.BatchV1().Jobs(namespace).Delete(ctx, name, metav1.DeleteOptions{
		PropagationPolicy: &foreground,
		Preconditions:     &metav1.Preconditions{UID: &job.UID, ResourceVersion: &job.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	return 0, err
}
