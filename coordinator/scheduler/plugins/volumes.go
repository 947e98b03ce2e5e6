package plugins

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// volumeBinding refuses pods whose PersistentVolumeClaims are missing, lost,
// being deleted or not bound. Binding volumes to suit a node is not there yet.
type volumeBinding struct {
	claim func(namespace, name string) (*v1.PersistentVolumeClaim, error)
}

func newVolumeBinding(_ []byte, d *Deps) (framework.Plugin, error) {
	return &volumeBinding{claim: d.Claim}, nil
}

func (*volumeBinding) Name() string { return VolumeBindingName }

// Sign lets a pod without claims share a class; the claims of others change.
func (*volumeBinding) Sign(key []byte, pod *framework.PodInfo, _ *framework.Snapshot) ([]byte, bool) {
	for i := range pod.Pod.Spec.Volumes {
		if v := &pod.Pod.Spec.Volumes[i]; v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return key, false
		}
	}
	return key, true
}

func (b *volumeBinding) PreFilter(pod *framework.PodInfo, _ *framework.Snapshot) (framework.NodeFilter, sets.Set[string], *framework.Status) {
	for i := range pod.Pod.Spec.Volumes {
		v := &pod.Pod.Spec.Volumes[i]
		if err := b.check(pod.Pod, v); err != nil {
			return nil, nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, err.Error())
		}
	}
	return nil, nil, nil
}

func (b *volumeBinding) check(pod *v1.Pod, v *v1.Volume) error {
	name := ""
	switch {
	case v.PersistentVolumeClaim != nil:
		name = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		name = pod.Name + "-" + v.Name
	default:
		return nil
	}
	if b.claim == nil {
		return fmt.Errorf("persistentvolumeclaim %q not found", name)
	}
	c, err := b.claim(pod.Namespace, name)
	switch {
	case apierrors.IsNotFound(err) && v.Ephemeral != nil:
		return fmt.Errorf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
	case err != nil:
		return err
	case c.Status.Phase == v1.ClaimLost:
		return fmt.Errorf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name, c.Spec.VolumeName)
	case c.DeletionTimestamp != nil:
		return fmt.Errorf("persistentvolumeclaim %q is being deleted", name)
	case c.Spec.VolumeName == "":
		return fmt.Errorf("pod has unbound immediate PersistentVolumeClaims")
	}
	return nil
}

func (*volumeBinding) Events() []framework.EventHint {
	return []framework.EventHint{{Resource: framework.PersistentVolumeClaim, Actions: framework.All,
		Hint: func(pod *v1.Pod, e framework.Event) framework.Hint {
			c, _ := e.New.(*v1.PersistentVolumeClaim)
			return framework.Hint(c == nil || c.Namespace == pod.Namespace)
		}}}
}
