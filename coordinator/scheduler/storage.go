package scheduler

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
	"github.com/shoal-project/shoal/csi/locality"
	"github.com/shoal-project/shoal/csi/migration"
)

// storage is what the volume plugins read of volumes (plugins.Storage).
type storage struct {
	claims      corelisters.PersistentVolumeClaimLister
	volumes     corelisters.PersistentVolumeLister
	classes     storagelisters.StorageClassLister
	drivers     storagelisters.CSIDriverLister
	capacities  storagelisters.CSIStorageCapacityLister
	nodes       storagelisters.CSINodeLister
	attachments storagelisters.VolumeAttachmentLister
	client      kubernetes.Interface
}

func newStorage(f informers.SharedInformerFactory, client kubernetes.Interface) *storage {
	core, st := f.Core().V1(), f.Storage().V1()
	return &storage{
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		classes: st.StorageClasses().Lister(),
		drivers: st.CSIDrivers().Lister(), capacities: st.CSIStorageCapacities().Lister(),
		nodes: st.CSINodes().Lister(), attachments: st.VolumeAttachments().Lister(), client: client,
	}
}

func (s *storage) Claim(namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return s.claims.PersistentVolumeClaims(namespace).Get(name)
}

// Volume is the volume as its driver knows it.
func (s *storage) Volume(name string) (*corev1.PersistentVolume, error) {
	pv, err := s.volumes.Get(name)
	if err != nil {
		return nil, err
	}
	return migration.Volume(pv)
}

func (s *storage) Volumes() ([]*corev1.PersistentVolume, error) {
	return s.volumes.List(labels.Everything())
}

func (s *storage) Class(name string) (*storagev1.StorageClass, error) { return s.classes.Get(name) }

func (s *storage) Capacities(driver, class string) (out []*storagev1.CSIStorageCapacity, ok bool, err error) {
	d, err := s.drivers.Get(driver)
	if apierrors.IsNotFound(err) || err == nil && (d.Spec.StorageCapacity == nil || !*d.Spec.StorageCapacity) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, err
	}
	all, err := s.capacities.List(labels.Everything())
	for _, c := range all {
		if c.StorageClassName == class {
			out = append(out, c)
		}
	}
	return out, true, err
}

func (s *storage) Limits(node string) map[string]int64 {
	n, err := s.nodes.Get(node)
	if err != nil {
		return nil // no driver has registered there
	}
	limits := map[string]int64{}
	for _, d := range n.Spec.Drivers {
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			limits[d.Name] = int64(*d.Allocatable.Count)
		}
	}
	return limits
}

func (s *storage) Attachments() ([]*storagev1.VolumeAttachment, error) {
	return s.attachments.List(labels.Everything())
}

// snapshotLimit is how long the API may take to tell where a snapshot is: pods wait
// meanwhile.
const snapshotLimit = 2 * time.Second

// SnapshotNode reads the API: it is for the few pods that are the first of a volume made
// of a snapshot, which are an extension. Of what goes wrong the node tells that is to
// make the volume.
func (s *storage) SnapshotNode(namespace, name string) string {
	ctx, cancel := context.WithTimeout(context.Background(), snapshotLimit)
	defer cancel()
	node, err := locality.SnapshotNode(func(path string) ([]byte, error) {
		return s.client.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
	}, namespace, name)
	if err != nil {
		return ""
	}
	return node
}

// claimInformers are those whose changes can help pods with claims for volumes or
// for devices.
func (s *Scheduler) claimInformers() map[framework.EventResource]cache.SharedIndexInformer {
	core, st, res := s.c.Informers.Core().V1(), s.c.Informers.Storage().V1(), s.c.Informers.Resource().V1()
	return map[framework.EventResource]cache.SharedIndexInformer{
		framework.PersistentVolumeClaim: core.PersistentVolumeClaims().Informer(),
		framework.PersistentVolume:      core.PersistentVolumes().Informer(),
		framework.StorageClass:          st.StorageClasses().Informer(),
		framework.CSIDriver:             st.CSIDrivers().Informer(),
		framework.CSIStorageCapacity:    st.CSIStorageCapacities().Informer(),
		framework.CSINode:               st.CSINodes().Informer(),
		framework.VolumeAttachment:      st.VolumeAttachments().Informer(),
		framework.ResourceClaim:         res.ResourceClaims().Informer(),
		framework.DeviceClass:           res.DeviceClasses().Informer(),
		framework.ResourceSlice:         res.ResourceSlices().Informer(),
	}
}

// claimHandler tells the queue of each change of a kind.
func (s *Scheduler) claimHandler(kind framework.EventResource) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { s.queue.Move(framework.Event{Resource: kind, Action: framework.Add, New: obj}) },
		UpdateFunc: func(old, obj any) {
			s.queue.Move(framework.Event{Resource: kind, Action: framework.UpdateOther, Old: old, New: obj})
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			s.queue.Move(framework.Event{Resource: kind, Action: framework.Delete, Old: obj})
		},
	}
}
