package plugins

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/ephemeral"
	storagehelper "k8s.io/component-helpers/storage/volume"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
	"github.com/shoal-project/shoal/csi/locality"
)

// Storage is what volumeBinding reads of volumes.
type Storage interface {
	Claim(namespace, name string) (*corev1.PersistentVolumeClaim, error)
	Volume(name string) (*corev1.PersistentVolume, error)
	Volumes() ([]*corev1.PersistentVolume, error)
	Class(name string) (*storagev1.StorageClass, error)
	// Capacities are those that the driver reports for the class; ok is false
	// for a driver that reports none.
	Capacities(driver, class string) (list []*storagev1.CSIStorageCapacity, ok bool, err error)
	// Limits are how many volumes can be attached to a node, by driver.
	Limits(node string) map[string]int64
	Attachments() ([]*storagev1.VolumeAttachment, error)
	// SnapshotNode is the node that has a snapshot of the driver that ships with Shoal,
	// "" where that is not known.
	SnapshotNode(namespace, name string) string
}

const unboundImmediate = "pod has unbound immediate PersistentVolumeClaims"

var (
	volumeElsewhere = "node(s) didn't match PersistentVolume's node affinity"
	noVolume        = "node(s) didn't find available persistent volumes to bind"
	volumeTooLarge  = "node(s) did not have enough free storage"
	sourceElsewhere = "node(s) didn't have the volume or the snapshot that a volume is to be made of"
	volumeMissing   = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
)

// volumeBinding refuses pods whose PersistentVolumeClaims are missing, lost,
// being deleted or not bound, and nodes that their volumes are not for. For
// claims whose class waits for the first pod it chooses volumes with the node,
// or has them provisioned there (KEP-561).
type volumeBinding struct {
	storage Storage
	client  kubernetes.Interface
	// wait is how long claims may take to be bound.
	wait time.Duration

	mu sync.Mutex
	// under way, until the API shows it: volumes and claims of pods that are
	// being bound.
	volumes map[string]*corev1.PersistentVolume
	claims  map[types.UID]bool
	plans   map[types.UID]*volumePlan
}

// volumePlan is what a node's choice means for the claims of a pod.
type volumePlan struct {
	bind      []claimVolume
	provision []*corev1.PersistentVolumeClaim
}

type claimVolume struct {
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
}

func newVolumeBinding(args []byte, d *Deps) (framework.Plugin, error) {
	var a configv1.VolumeBindingArgs
	if err := decodeArgs(args, &a); err != nil {
		return nil, err
	}
	seconds := ptr.Deref(a.BindTimeoutSeconds, 600)
	if most := int64(maxBindWait / time.Second); seconds < 0 || seconds > most {
		return nil, fmt.Errorf("args.bindTimeoutSeconds: %d is not from 0 to %d", seconds, most)
	}
	if len(a.Shape) > 0 { // upstream's feature gate StorageCapacityScoring, off by default
		return nil, errors.New("args.shape: nodes are not scored by the capacity of volumes: leave it out")
	}
	return &volumeBinding{
		wait: time.Duration(seconds) * time.Second, storage: d.Storage, client: d.Client,
		volumes: map[string]*corev1.PersistentVolume{},
		claims:  map[types.UID]bool{}, plans: map[types.UID]*volumePlan{},
	}, nil
}

// maxBindWait keeps bindTimeoutSeconds below what a time can be.
const maxBindWait = 24 * time.Hour

// Patience is how long PreBind may take.
func (b *volumeBinding) Patience() time.Duration { return b.wait }

func (*volumeBinding) Name() string { return VolumeBindingName }

// Sign lets a pod without claims share a class; the claims of others change.
func (*volumeBinding) Sign(key []byte, pod *framework.PodInfo, _ *framework.Snapshot) ([]byte, bool) {
	return key, !HasClaims(pod.Pod)
}

// HasClaims tells whether the pod has volumes that are bound apart from it.
func HasClaims(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return true
		}
	}
	return false
}

func (b *volumeBinding) PreFilter(pod *framework.PodInfo, _ *framework.Snapshot) (framework.NodeFilter,
	sets.Set[string], *framework.Status) {
	if !HasClaims(pod.Pod) {
		return nil, nil, nil
	}
	f := &volumeFilter{storage: b.storage, snapshots: map[types.UID]string{}, plans: map[string]*volumePlan{}}
	for i := range pod.Pod.Spec.Volumes {
		c, err := b.claimOf(pod.Pod, &pod.Pod.Spec.Volumes[i])
		if err == nil && c != nil {
			err = b.sort(c, f)
		}
		if err != nil {
			return nil, nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, err.Error())
		}
	}
	if err := b.candidates(f); err != nil {
		return nil, nil, framework.AsStatus(err)
	}
	return f, nil, nil
}

// claimName is the name of the claim of a pod's volume, "" for another kind.
func claimName(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, v)
	}
	return ""
}

// claimOf is the claim of a pod's volume, nil for another kind of volume.
func (b *volumeBinding) claimOf(pod *corev1.Pod, v *corev1.Volume) (*corev1.PersistentVolumeClaim, error) {
	name := claimName(pod, v)
	if name == "" {
		return nil, nil
	}
	if b.storage == nil {
		return nil, fmt.Errorf("persistentvolumeclaim %q not found", name)
	}
	c, err := b.storage.Claim(pod.Namespace, name)
	switch {
	case apierrors.IsNotFound(err) && v.Ephemeral != nil:
		return nil, fmt.Errorf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
	case err != nil:
		return nil, err
	case c.Status.Phase == corev1.ClaimLost:
		return nil, fmt.Errorf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name,
			c.Spec.VolumeName)
	case c.DeletionTimestamp != nil:
		return nil, fmt.Errorf("persistentvolumeclaim %q is being deleted", name)
	case v.Ephemeral != nil:
		return c, ephemeral.VolumeIsForPod(pod, c)
	}
	return c, nil
}

// sort puts a claim where it belongs in the filter.
func (b *volumeBinding) sort(c *corev1.PersistentVolumeClaim, f *volumeFilter) error {
	if bound(c) {
		f.bound = append(f.bound, c)
		return nil
	}
	b.mu.Lock()
	underWay := b.claims[c.UID]
	b.mu.Unlock()
	class, err := b.storage.Class(storagehelper.GetPersistentVolumeClaimClass(c))
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	waits := err == nil && class.VolumeBindingMode != nil &&
		*class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	if !waits || c.Spec.VolumeName != "" || underWay {
		return errors.New(unboundImmediate)
	}
	f.waiting = append(f.waiting, c)
	if snapshot := locality.SourceSnapshot(c); snapshot != "" && class.Provisioner == locality.Driver {
		f.snapshots[c.UID] = b.storage.SnapshotNode(c.Namespace, snapshot)
	}
	return nil
}

func bound(c *corev1.PersistentVolumeClaim) bool {
	return c.Spec.VolumeName != "" && metav1.HasAnnotation(c.ObjectMeta, storagehelper.AnnBindCompleted)
}

// candidates gathers the volumes that claims without one may get, the smallest
// claim being served first.
func (b *volumeBinding) candidates(f *volumeFilter) error {
	if len(f.waiting) == 0 {
		return nil
	}
	slices.SortStableFunc(f.waiting, func(a, b *corev1.PersistentVolumeClaim) int {
		x, y := a.Spec.Resources.Requests[corev1.ResourceStorage], b.Spec.Resources.Requests[corev1.ResourceStorage]
		return x.Cmp(y)
	})
	all, err := b.storage.Volumes()
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, pv := range all {
		if b.volumes[pv.Name] == nil {
			f.free = append(f.free, pv)
		}
	}
	return nil
}

// Events that can help: whatever changes what a claim is bound to or may get.
func (*volumeBinding) Events() []framework.EventHint {
	return []framework.EventHint{
		{Resource: framework.PersistentVolumeClaim, Actions: framework.All,
			Hint: func(pod *corev1.Pod, e framework.Event) framework.Hint {
				c, _ := e.New.(*corev1.PersistentVolumeClaim)
				return framework.Hint(c == nil || c.Namespace == pod.Namespace)
			}},
		{Resource: framework.PersistentVolume, Actions: framework.Add | framework.UpdateOther},
		{Resource: framework.StorageClass, Actions: framework.Add | framework.UpdateOther},
		{Resource: framework.CSIStorageCapacity, Actions: framework.Add | framework.UpdateOther},
		{Resource: framework.Node, Actions: framework.Add | framework.UpdateNodeLabel},
	}
}

// Reserve keeps volumes and claims from other pods until they are bound.
func (b *volumeBinding) Reserve(_ context.Context, pod *framework.PodInfo, node string,
	judged framework.NodeFilter) *framework.Status {
	f, ok := judged.(*volumeFilter)
	if !ok {
		return nil // the pod has no claims
	}
	plan := f.plan(node)
	if plan == nil {
		return nil // all is bound
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.plans[pod.UID()] = plan
	for _, x := range plan.bind {
		b.volumes[x.volume.Name], b.claims[x.claim.UID] = x.volume, true
	}
	for _, c := range plan.provision {
		b.claims[c.UID] = true
	}
	return nil
}

// Unreserve undoes Reserve.
func (b *volumeBinding) Unreserve(_ context.Context, pod *framework.PodInfo, _ string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.release(pod.UID())
}

func (b *volumeBinding) release(uid types.UID) {
	plan := b.plans[uid]
	if plan == nil {
		return
	}
	delete(b.plans, uid)
	for _, x := range plan.bind {
		delete(b.volumes, x.volume.Name)
		delete(b.claims, x.claim.UID)
	}
	for _, c := range plan.provision {
		delete(b.claims, c.UID)
	}
}

// PreFlight implements framework.PreFlightPlugin.
func (b *volumeBinding) PreFlight(pod *framework.PodInfo) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.plans[pod.UID()] != nil
}

// PreBind writes the choice and waits until the claims are bound.
func (b *volumeBinding) PreBind(ctx context.Context, pod *framework.PodInfo, node string) *framework.Status {
	b.mu.Lock()
	plan := b.plans[pod.UID()]
	b.mu.Unlock()
	if plan == nil {
		return nil
	}
	var claims []*corev1.PersistentVolumeClaim
	for _, x := range plan.bind {
		claims = append(claims, x.claim)
		pv, changed, err := storagehelper.GetBindVolumeToClaim(x.volume, x.claim)
		if err == nil && changed {
			_, err = b.client.CoreV1().PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{})
		}
		if err != nil {
			return framework.AsStatus(fmt.Errorf("binding volumes: %w", err))
		}
	}
	given := map[types.UID]string{}
	for _, c := range plan.provision {
		claims = append(claims, c)
		given[c.UID] = c.ResourceVersion
		if c.Annotations[storagehelper.AnnSelectedNode] == node {
			continue
		}
		c = c.DeepCopy()
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, storagehelper.AnnSelectedNode, node)
		written, err := b.client.CoreV1().PersistentVolumeClaims(c.Namespace).Update(ctx, c, metav1.UpdateOptions{})
		if err != nil {
			return framework.AsStatus(fmt.Errorf("binding volumes: %w", err))
		}
		given[c.UID] = written.ResourceVersion
	}
	if err := b.await(ctx, claims, given, node); err != nil {
		return framework.AsStatus(fmt.Errorf("binding volumes: %w", err))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.release(pod.UID())
	return nil
}

// bindPoll is how often claims are looked at that are being bound: by a cache,
// for the few pods that wait here, which an event would have to be sorted to.
const bindPoll = 20 * time.Millisecond

// await returns when all claims are bound, or when a driver gives one of those back
// that it is to provision at the node: there is no room, and another node may be
// chosen. given has the versions of these from which on they name the node.
func (b *volumeBinding) await(ctx context.Context, claims []*corev1.PersistentVolumeClaim,
	given map[types.UID]string, node string) error {
	ctx, cancel := context.WithTimeout(ctx, b.wait)
	defer cancel()
	tick := time.NewTicker(bindPoll)
	defer tick.Stop()
	for _, c := range claims {
		for {
			now, err := b.storage.Claim(c.Namespace, c.Name)
			if err != nil {
				return err
			}
			if bound(now) {
				break
			}
			if from, ok := given[c.UID]; ok && now.Annotations[storagehelper.AnnSelectedNode] != node &&
				notBefore(now.ResourceVersion, from) {
				return fmt.Errorf("provisioning failed for PVC %q", c.Name)
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("persistentvolumeclaim %q is not bound: %w", c.Name, context.Cause(ctx))
			case <-tick.C:
			}
		}
	}
	return nil
}

// notBefore compares versions of one kind, which are numbers in order (KEP-5504).
func notBefore(version, than string) bool {
	v, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return false
	}
	t, err := strconv.ParseUint(than, 10, 64)
	return err == nil && v >= t
}
