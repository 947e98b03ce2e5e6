package expand

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// New builds the controller.
func New(env controller.Env) (*controller.Loop, error) {
	loop := controller.New("persistentvolume-expander", 1, env.Log)
	core := env.Informers.Core().V1()
	claims, volumes := core.PersistentVolumeClaims().Lister(), core.PersistentVolumes().Lister()
	loop.Needs(core.PersistentVolumes().Informer())
	events := env.Recorder("volume_expand")
	loop.Reconciler = controller.Func(func(ctx context.Context, key string) (time.Duration, error) {
		namespace, name, err := cache.SplitMetaNamespaceKey(key)
		if err != nil {
			return 0, nil
		}
		c, err := claims.PersistentVolumeClaims(namespace).Get(name)
		if err != nil {
			return 0, controller.IgnoreGone(err)
		}
		pv, err := volumes.Get(c.Spec.VolumeName)
		if err != nil {
			return 0, controller.IgnoreGone(err)
		}
		s := plan(c, pv)
		if s.Resizer != "" && c.Annotations[resizerKey] != s.Resizer {
			c = c.DeepCopy()
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, resizerKey, s.Resizer)
			_, err := env.Client.CoreV1().PersistentVolumeClaims(namespace).Update(ctx, c, metav1.UpdateOptions{})
			if err != nil {
				return 0, controller.IgnoreGone(err)
			}
		}
		if s.Message != "" {
			events.Event(c, s.Type, reason, s.Message)
		}
		return 0, nil
	})
	controller.Watch(loop, core.PersistentVolumeClaims().Informer(), func(old, c *corev1.PersistentVolumeClaim) {
		if c != nil && c.Status.Phase == corev1.ClaimBound && (old == nil || grew(old, c)) {
			loop.Add(controller.Key(c.Namespace, c.Name))
		}
	})
	return loop, nil
}

// grew tells whether the claim asks for more, or has more, than before.
func grew(old, c *corev1.PersistentVolumeClaim) bool {
	return c.Spec.Resources.Requests.Storage().Cmp(*old.Spec.Resources.Requests.Storage()) > 0 ||
		c.Status.Capacity.Storage().Cmp(*old.Status.Capacity.Storage()) > 0
}
