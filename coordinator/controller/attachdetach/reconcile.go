package attachdetach

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/csi/migration"
	"github.com/shoal-project/shoal/csi/storagenet"
)

const (
	// The keys are "volume/" and the PersistentVolume's name, "node/" and the Node's, and
	// diskKey.
	volumeKey = "volume/"
	nodeKey   = "node/"

	byClaim  = "attach-claim"  // index of pods at nodes
	byVolume = "attach-volume" // indices of VolumeAttachments
	byNode   = "attach-node"
	byHandle = "attach-handle" // index of PersistentVolumes

	// forget is after how long an attachment that was made, and that the cache does
	// not show, is asked for again.
	forget = 30 * time.Second
)

var nodeSeed = maphash.MakeSeed()

// Deps is what the controller is told.
type Deps struct {
	// KeepMounted: a node that is not ready keeps its volumes until it is out of
	// service, however long.
	KeepMounted bool
}

type reconciler struct {
	client      kubernetes.Interface
	events      record.EventRecorder
	deps        Deps
	pods        cache.Indexer
	claims      corelisters.PersistentVolumeClaimLister
	volumes     corelisters.PersistentVolumeLister
	handles     cache.Indexer // of volumes
	nodes       corelisters.NodeLister
	drivers     storagelisters.CSIDriverLister
	attachments storagelisters.VolumeAttachmentLister
	index       cache.Indexer // of attachments
	loop        *controller.Loop
	// reports: one writer of a Node's volumesAttached at a time; nodes share locks.
	reports [32]sync.Mutex

	mu sync.Mutex
	// made are attachments that the cache may not show yet, by name.
	made map[string]made
	// leaving are those that are out of volumesAttached, or about to be, and will be
	// deleted.
	leaving map[string]bool
	// unused is since when a node has had a volume that none of its pods uses.
	unused map[string]time.Time
	// told is what pods were told last about an attachment, refused the nodes whose
	// pods were told that their volume is elsewhere, by volume.
	told    map[string]telling
	refused map[string]map[string]bool
	// next are the volumes to look at when a node's status is up to date.
	next map[string][]string
	// reported is what was written last to a Node, by name.
	reported map[string]reported
	// disks are those of storage networks that a node has, waiting those for which it would
	// have to be there; adopted tells whether all Nodes were asked for theirs.
	disks, waiting map[string]map[corev1.UniqueVolumeName]bool
	adopted        bool
	// inUse is what a Node that is gone said that it had mounted.
	inUse map[string][]corev1.UniqueVolumeName
}

type made struct {
	*storagev1.VolumeAttachment
	at time.Time
}

// reported is what was written to a Node while the cache had a version of it: as long
// as the cache has that, it does not show what was written.
type reported struct {
	cached string
	list   []corev1.AttachedVolume
}

// telling is what pods know of an attachment that they wait for since a time.
type telling struct {
	what  string
	since time.Time
}

// New builds the controller.
func New(env controller.Env, deps Deps) (*controller.Loop, error) {
	core, storage := env.Informers.Core().V1(), env.Informers.Storage().V1()
	attachments := storage.VolumeAttachments()
	r := &reconciler{
		client: env.Client, events: env.Recorder("attachdetach-controller"), deps: deps,
		pods: core.Pods().Informer().GetIndexer(), claims: core.PersistentVolumeClaims().Lister(),
		volumes: core.PersistentVolumes().Lister(), handles: core.PersistentVolumes().Informer().GetIndexer(),
		nodes:   core.Nodes().Lister(),
		drivers: storage.CSIDrivers().Lister(), attachments: attachments.Lister(),
		index: attachments.Informer().GetIndexer(), loop: controller.New("attachdetach", 8, env.Log),
		made: map[string]made{}, leaving: map[string]bool{}, unused: map[string]time.Time{},
		told: map[string]telling{}, refused: map[string]map[string]bool{}, inUse: map[string][]corev1.UniqueVolumeName{},
		next: map[string][]string{}, reported: map[string]reported{},
		disks:   map[string]map[corev1.UniqueVolumeName]bool{},
		waiting: map[string]map[corev1.UniqueVolumeName]bool{},
	}
	if err := r.indices(core.Pods().Informer(), attachments.Informer()); err != nil {
		return nil, err
	}
	if err := controller.Index(core.PersistentVolumes().Informer(), byHandle, func(obj any) ([]string, error) {
		pv, ok := obj.(*corev1.PersistentVolume)
		if !ok {
			return nil, nil
		}
		if name := storagenet.Name(pv); name != "" {
			return []string{string(name)}, nil
		}
		if pv = asDriven(pv); pv.Spec.CSI != nil {
			return []string{string(uniqueName(pv.Spec.CSI))}, nil
		}
		return nil, nil
	}); err != nil {
		return nil, err
	}
	r.loop.Reconciler = r
	controller.Watch(r.loop, core.Pods().Informer(), r.podChanged)
	controller.Watch(r.loop, core.PersistentVolumeClaims().Informer(), func(old, c *corev1.PersistentVolumeClaim) {
		if c != nil && c.Spec.VolumeName != "" && (old == nil || old.Spec.VolumeName == "") {
			r.add(c.Spec.VolumeName)
		}
	})
	controller.Watch(r.loop, core.PersistentVolumes().Informer(), func(old, pv *corev1.PersistentVolume) {
		if old != nil && pv != nil && equality.Semantic.DeepEqual(old.Spec, pv.Spec) {
			return
		}
		if pv != nil {
			r.addVolume(pv)
		}
		if name := storagenet.Name(old); name != "" && name != storagenet.Name(pv) {
			r.loop.Add(diskKey + string(name))
		}
	})
	controller.Watch(r.loop, storage.CSIDrivers().Informer(), r.driverChanged)
	controller.Watch(r.loop, attachments.Informer(), r.attachmentChanged)
	controller.Watch(r.loop, core.Nodes().Informer(), r.nodeChanged)
	return r.loop, nil
}

func (r *reconciler) indices(pods, attachments cache.SharedIndexInformer) error {
	err := controller.Index(pods, byClaim, func(obj any) ([]string, error) {
		if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
			return claimsOf(pod), nil
		}
		return nil, nil
	})
	for name, key := range map[string]func(*storagev1.VolumeAttachment) string{
		byVolume: func(va *storagev1.VolumeAttachment) string { return *va.Spec.Source.PersistentVolumeName },
		byNode:   func(va *storagev1.VolumeAttachment) string { return va.Spec.NodeName },
	} {
		if err != nil {
			return err
		}
		err = controller.Index(attachments, name, func(obj any) ([]string, error) {
			if va, ok := obj.(*storagev1.VolumeAttachment); ok && ours(va) {
				return []string{key(va)}, nil
			}
			return nil, nil
		})
	}
	return err
}

// claimsOf are the keys of the claims that a pod names, its own included.
func claimsOf(pod *corev1.Pod) (keys []string) {
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			keys = append(keys, controller.Key(pod.Namespace, v.PersistentVolumeClaim.ClaimName))
		case v.Ephemeral != nil:
			keys = append(keys, controller.Key(pod.Namespace, ephemeral.VolumeClaimName(pod, v)))
		}
	}
	return keys
}

func (r *reconciler) podChanged(old, pod *corev1.Pod) {
	last := pod
	if last == nil {
		last = old
	}
	if last.Spec.NodeName == "" || old != nil && pod != nil && old.Spec.NodeName != "" && uses(old) == uses(pod) {
		return
	}
	for _, key := range claimsOf(last) {
		namespace, name, _ := cache.SplitMetaNamespaceKey(key)
		c, err := r.claims.PersistentVolumeClaims(namespace).Get(name)
		if err == nil && c.Spec.VolumeName != "" {
			r.add(c.Spec.VolumeName)
		}
	}
}

// driverChanged has the volumes of a driver looked at that needs attaching now, or
// needs it no more.
func (r *reconciler) driverChanged(old, d *storagev1.CSIDriver) {
	if old != nil && d != nil && needsAttach(old) == needsAttach(d) {
		return
	}
	if d == nil {
		d = old
	}
	all, _ := r.volumes.List(labels.Everything())
	for _, pv := range all {
		if pv = asDriven(pv); pv.Spec.CSI != nil && pv.Spec.CSI.Driver == d.Name {
			r.loop.Add(volumeKey + pv.Name)
		}
	}
}

// asDriven is the volume as its driver knows it. One of a cloud that cannot be shown so
// is attached by nobody: its node says why.
func asDriven(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	if driven, err := migration.Volume(pv); err == nil {
		return driven
	}
	return pv
}

// needsAttach tells whether a driver's volumes are attached; they are where no
// CSIDriver says anything else.
func needsAttach(d *storagev1.CSIDriver) bool {
	return d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

func (r *reconciler) attachmentChanged(old, va *storagev1.VolumeAttachment) {
	last := va
	if last == nil {
		last = old
	}
	if !ours(last) {
		return
	}
	r.mu.Lock()
	if m, ok := r.made[last.Name]; ok && m.UID == last.UID {
		delete(r.made, last.Name)
	}
	if va == nil {
		delete(r.leaving, last.Name)
		delete(r.told, last.Name)
		delete(r.unused, last.Name)
	}
	r.mu.Unlock()
	volume := *last.Spec.Source.PersistentVolumeName
	if va == nil || !stands(va) && (old != nil && stands(old)) {
		// The node's list first, the next node then.
		r.mu.Lock()
		r.next[last.Spec.NodeName] = append(r.next[last.Spec.NodeName], volume)
		r.mu.Unlock()
		r.loop.Add(nodeKey + last.Spec.NodeName)
		return
	}
	r.loop.Add(volumeKey + volume)
}

// stands tells whether a node may use what is attached.
func stands(va *storagev1.VolumeAttachment) bool {
	return va.Status.Attached && va.DeletionTimestamp == nil
}

// nodeChanged has a node's volumes looked at when it may let go of one, and its
// status when that may be untrue.
func (r *reconciler) nodeChanged(old, node *corev1.Node) {
	last := node
	if last == nil {
		last = old
	}
	r.mu.Lock()
	if node == nil {
		r.inUse[old.Name] = old.Status.VolumesInUse
		delete(r.reported, old.Name)
		if len(r.disks[old.Name]) == 0 {
			delete(r.disks, old.Name)
		}
	} else {
		delete(r.inUse, node.Name)
	}
	r.mu.Unlock()
	if node != nil && (old == nil ||
		!equality.Semantic.DeepEqual(old.Status.VolumesAttached, node.Status.VolumesAttached)) {
		r.loop.Add(nodeKey + node.Name)
	}
	if old != nil && node != nil && isReady(old) == isReady(node) && outOfService(old) == outOfService(node) &&
		equality.Semantic.DeepEqual(old.Status.VolumesInUse, node.Status.VolumesInUse) {
		return
	}
	for _, va := range r.indexed(byNode, last.Name) {
		r.loop.Add(volumeKey + *va.Spec.Source.PersistentVolumeName)
	}
	for _, name := range r.disksOf(last.Name) {
		r.loop.Add(diskKey + string(name))
	}
}

// ready tells whether a node is ready, and since when it is so or not.
func ready(node *corev1.Node) (is bool, since time.Time) {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time
		}
	}
	return false, time.Time{}
}

func isReady(node *corev1.Node) bool {
	is, _ := ready(node)
	return is
}

func outOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService
	})
}

func (r *reconciler) indexed(index, key string) (list []*storagev1.VolumeAttachment) {
	objs, _ := r.index.ByIndex(index, key)
	for _, o := range objs {
		if va, ok := o.(*storagev1.VolumeAttachment); ok {
			list = append(list, va)
		}
	}
	slices.SortFunc(list, func(a, b *storagev1.VolumeAttachment) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Reconcile looks at one volume or disk, or at one node's status.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	if node, ok := strings.CutPrefix(key, nodeKey); ok {
		return 0, r.node(ctx, node)
	}
	if disk, ok := strings.CutPrefix(key, diskKey); ok {
		return r.disk(ctx, corev1.UniqueVolumeName(disk))
	}
	return r.volume(ctx, strings.TrimPrefix(key, volumeKey))
}

// node brings a Node's status up to date, and then has the volumes looked at that
// may go elsewhere now.
func (r *reconciler) node(ctx context.Context, name string) error {
	if _, err := r.report(ctx, name, false); err != nil {
		return err
	}
	r.mu.Lock()
	next := r.next[name]
	delete(r.next, name)
	r.mu.Unlock()
	for _, volume := range next {
		r.loop.Add(volumeKey + volume)
	}
	return nil
}

// volume attaches and detaches one volume.
func (r *reconciler) volume(ctx context.Context, name string) (wait time.Duration, err error) {
	pv, err := r.volumes.Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	if err != nil {
		pv = nil
	} else {
		pv = asDriven(pv)
	}
	users, have, err := r.all(ctx, name, pv)
	if err != nil {
		return 0, err
	}
	var left []*storagev1.VolumeAttachment
	for _, va := range have {
		if len(users[va.Spec.NodeName]) > 0 && r.isAttachmentOf(va, pv) {
			left = append(left, va)
			r.used(va.Name)
			after, err := r.tell(ctx, pv, va, users[va.Spec.NodeName])
			if err != nil {
				return 0, err
			}
			wait = controller.Sooner(wait, after)
			continue
		}
		after, err := r.detach(ctx, va)
		if err != nil {
			return 0, err
		}
		left, wait = append(left, va), controller.Sooner(wait, after)
	}
	refused := map[string]bool{}
	for _, node := range slices.Sorted(maps.Keys(users)) {
		at := func(va *storagev1.VolumeAttachment) bool { return va.Spec.NodeName == node }
		if slices.ContainsFunc(left, at) {
			continue // attached, being attached, or to be detached first
		}
		if len(left) > 0 && exclusive(pv) {
			refused[node] = true
			r.refuse(pv, left, users, node)
			continue
		}
		va, err := r.attach(ctx, pv, node)
		if err != nil {
			return 0, err
		}
		left, wait = append(left, va), controller.Sooner(wait, attachTimeout)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refused[name] = refused; len(refused) == 0 {
		delete(r.refused, name)
	}
	return wait, nil
}

// all are the pods that need a volume, by node, and its attachments, also where
// several PersistentVolumes are the same volume of a driver.
func (r *reconciler) all(ctx context.Context, name string, pv *corev1.PersistentVolume) (users map[string][]*corev1.Pod,
	have []*storagev1.VolumeAttachment, err error) {
	users = map[string][]*corev1.Pod{}
	names := []string{name}
	if pv != nil && pv.Spec.CSI != nil {
		objs, _ := r.handles.ByIndex(byHandle, string(uniqueName(pv.Spec.CSI)))
		for _, o := range objs {
			same, ok := o.(*corev1.PersistentVolume)
			if !ok {
				continue
			}
			for node, pods := range r.users(asDriven(same)) {
				users[node] = append(users[node], pods...)
			}
			if same.Name != name {
				names = append(names, same.Name)
			}
		}
	}
	for _, n := range names {
		list, err := r.known(ctx, n)
		if err != nil {
			return nil, nil, err
		}
		have = append(have, list...)
	}
	return users, have, nil
}

// isAttachmentOf tells whether an attachment is the one that the volume needs at
// its node: the volume may be another than it was.
func (r *reconciler) isAttachmentOf(va *storagev1.VolumeAttachment, pv *corev1.PersistentVolume) bool {
	return va.Name == attachmentName(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle, va.Spec.NodeName)
}

// users are the pods that need a volume, by node: none of one that is not attached.
func (r *reconciler) users(pv *corev1.PersistentVolume) map[string][]*corev1.Pod {
	if pv == nil || pv.Spec.CSI == nil {
		return map[string][]*corev1.Pod{}
	}
	if d, err := r.drivers.Get(pv.Spec.CSI.Driver); err == nil && !needsAttach(d) {
		return map[string][]*corev1.Pod{}
	}
	return r.usersOf(pv)
}

// usersOf are the pods that name a volume and need it at their node.
func (r *reconciler) usersOf(pv *corev1.PersistentVolume) map[string][]*corev1.Pod {
	users := map[string][]*corev1.Pod{}
	if pv.Spec.ClaimRef == nil {
		return users
	}
	ref := pv.Spec.ClaimRef
	claim, err := r.claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name)
	if err != nil || claim.Spec.VolumeName != pv.Name || ref.UID != "" && ref.UID != claim.UID {
		return users
	}
	objs, _ := r.pods.ByIndex(byClaim, controller.Key(ref.Namespace, ref.Name))
	for _, o := range objs {
		if pod, ok := o.(*corev1.Pod); ok && uses(pod) {
			users[pod.Spec.NodeName] = append(users[pod.Spec.NodeName], pod)
		}
	}
	return users
}

// known are the attachments of a volume, those that the cache does not show yet
// too.
func (r *reconciler) known(ctx context.Context, pv string) ([]*storagev1.VolumeAttachment, error) {
	list := r.indexed(byVolume, pv)
	var unseen []made
	r.mu.Lock()
	for name, m := range r.made {
		if *m.Spec.Source.PersistentVolumeName != pv {
			continue
		}
		if slices.ContainsFunc(list, func(va *storagev1.VolumeAttachment) bool { return va.UID == m.UID }) {
			delete(r.made, name)
			continue
		}
		unseen = append(unseen, m)
	}
	r.mu.Unlock()
	for _, m := range unseen {
		if time.Since(m.at) > forget {
			_, err := r.client.StorageV1().VolumeAttachments().Get(ctx, m.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				r.mu.Lock()
				delete(r.made, m.Name)
				r.mu.Unlock()
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		// What the cache shows under the name is gone in the meantime.
		list = slices.DeleteFunc(list, func(va *storagev1.VolumeAttachment) bool { return va.Name == m.Name })
		list = append(list, m.VolumeAttachment)
	}
	return list, nil
}

// used notes that pods use a volume at its node.
func (r *reconciler) used(attachment string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.unused, attachment)
}

// attach has the driver attach a volume to a node.
func (r *reconciler) attach(ctx context.Context, pv *corev1.PersistentVolume, node string,
) (*storagev1.VolumeAttachment, error) {
	api := r.client.StorageV1().VolumeAttachments()
	va, err := api.Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachmentName(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle, node)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: pv.Spec.CSI.Driver,
			NodeName: node,
			Source:   storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name},
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		va, err = api.Get(ctx, attachmentName(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle, node), metav1.GetOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("attach volume %s to node %s: %w", pv.Name, node, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made[va.Name], r.told[va.Name] = made{va, time.Now()}, telling{since: time.Now()}
	delete(r.leaving, va.Name)
	return va, nil
}

// said is what pods were told last of an attachment that stands.
const said = "attached"

// tell tells pods how far the attachment of their volume is, each thing once.
func (r *reconciler) tell(ctx context.Context, pv *corev1.PersistentVolume, va *storagev1.VolumeAttachment,
	pods []*corev1.Pod) (wait time.Duration, err error) {
	if va.DeletionTimestamp != nil {
		return 0, nil
	}
	r.mu.Lock()
	last, waiting := r.told[va.Name]
	if !waiting {
		last.since = time.Now()
	}
	r.mu.Unlock()
	now, failure := last.what, ""
	switch {
	case va.Status.Attached:
		now = said
	case va.Status.AttachError != nil:
		failure = va.Status.AttachError.Message
		now = failure + va.Status.AttachError.Time.String()
	default:
		periods := time.Since(last.since) / attachTimeout
		wait = time.Until(last.since.Add((periods + 1) * attachTimeout))
		if periods > 0 {
			now = fmt.Sprintf("late %d", periods)
			failure = fmt.Sprintf("timed out waiting for external-attacher of %s CSI driver to attach volume %s",
				va.Spec.Attacher, pv.Spec.CSI.VolumeHandle)
		}
	}
	if now == said && last.what != said {
		// What the event tells, the agent has to see.
		if _, err := r.report(ctx, va.Spec.NodeName, false); err != nil {
			return 0, err
		}
	}
	r.mu.Lock()
	r.told[va.Name] = telling{now, last.since}
	r.mu.Unlock()
	for _, pod := range pods {
		switch {
		case now == last.what:
		case failure != "":
			r.events.Eventf(pod, corev1.EventTypeWarning, "FailedAttachVolume",
				"AttachVolume.Attach failed for volume %q : %s", pv.Name, failure)
		case now == said && waiting: // else it stood before this term
			r.events.Eventf(pod, corev1.EventTypeNormal, "SuccessfulAttachVolume",
				"AttachVolume.Attach succeeded for volume %q ", pv.Name)
		}
	}
	return wait, nil
}

// refuse tells the pods of a node that their volume is at another, once.
func (r *reconciler) refuse(pv *corev1.PersistentVolume, left []*storagev1.VolumeAttachment,
	users map[string][]*corev1.Pod, node string) {
	r.mu.Lock()
	known := r.refused[pv.Name][node]
	r.mu.Unlock()
	if known {
		return
	}
	var others []*corev1.Pod
	for _, va := range left {
		others = append(others, users[va.Spec.NodeName]...)
	}
	for _, pod := range users[node] {
		r.events.Event(pod, corev1.EventTypeWarning, "FailedAttachVolume", multiAttach(pv.Name, pod, others))
	}
}

// detach has the driver detach a volume from a node, where the node has let go of
// it, or must. It is detached when its attachment is gone, whose event comes.
func (r *reconciler) detach(ctx context.Context, va *storagev1.VolumeAttachment) (wait time.Duration, err error) {
	if va.DeletionTimestamp != nil {
		return 0, nil // the attacher's turn
	}
	h, err := r.holder(va)
	if err != nil {
		return 0, err
	}
	d, wait := judge(h, time.Now(), !r.deps.KeepMounted)
	if d == keep {
		_, err := r.report(ctx, va.Spec.NodeName, false)
		return wait, err
	}
	r.mu.Lock()
	r.leaving[va.Name] = true
	r.mu.Unlock()
	stay := func() {
		r.mu.Lock()
		delete(r.leaving, va.Name)
		r.mu.Unlock()
		r.loop.Add(nodeKey + va.Spec.NodeName)
	}
	// The agent says first that it uses the volume and looks then whether it is
	// listed; here it is taken off the list first: one of the two sees the other.
	node, err := r.report(ctx, va.Spec.NodeName, true)
	if err != nil {
		stay()
		return 0, err
	}
	if d == detach && node != nil && inUse(node.Status.VolumesInUse, va) {
		stay()
		return 0, nil // the Node's event comes
	}
	if d != detach {
		forcedDetach(d)
	}
	err = r.client.StorageV1().VolumeAttachments().Delete(ctx, va.Name, metav1.DeleteOptions{
		Preconditions: metav1.NewUIDPreconditions(string(va.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		stay()
		return 0, fmt.Errorf("detach volume %s from node %s: %w",
			*va.Spec.Source.PersistentVolumeName, va.Spec.NodeName, err)
	}
	return 0, nil
}

// holder finds out what is known of the node of an attachment.
func (r *reconciler) holder(va *storagev1.VolumeAttachment) (holder, error) {
	return r.holderOf(va.Name, va.Spec.NodeName, func(list []corev1.UniqueVolumeName) bool { return inUse(list, va) })
}

func inUse(list []corev1.UniqueVolumeName, va *storagev1.VolumeAttachment) bool {
	return slices.ContainsFunc(list, func(n corev1.UniqueVolumeName) bool { return isOf(n, va) })
}

// report brings a Node's volumesAttached up to date and returns the Node, nil for
// none. fresh: it is as the API has it now, whatever the cache shows.
func (r *reconciler) report(ctx context.Context, name string, fresh bool) (*corev1.Node, error) {
	lock := &r.reports[maphash.String(nodeSeed, name)%uint64(len(r.reports))]
	lock.Lock()
	defer lock.Unlock()
	node, err := r.nodes.Get(name)
	if err != nil {
		return nil, controller.IgnoreGone(err)
	}
	have := node.Status.VolumesAttached
	r.mu.Lock()
	r.adopt(node)
	disks := slices.Collect(maps.Keys(r.disks[name]))
	cached := node.ResourceVersion
	if last, ok := r.reported[name]; ok && last.cached == cached {
		have = last.list
	}
	r.mu.Unlock()
	want := attached(have, disks, r.standing(name), r.nameOf)
	if !fresh && equality.Semantic.DeepEqual(want, have) {
		return node, nil
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"volumesAttached": want}})
	if err != nil {
		return nil, err
	}
	node, err = r.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, controller.IgnoreGone(err)
	}
	r.mu.Lock()
	r.reported[name] = reported{cached, want}
	r.mu.Unlock()
	return node, nil
}

// standing are the attachments of a node that it may use.
func (r *reconciler) standing(node string) (list []*storagev1.VolumeAttachment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, va := range r.indexed(byNode, node) {
		if stands(va) && !r.leaving[va.Name] {
			list = append(list, va)
		}
	}
	return list
}

// nameOf is the name of an attachment's volume, "" when that is gone.
func (r *reconciler) nameOf(va *storagev1.VolumeAttachment) corev1.UniqueVolumeName {
	pv, err := r.volumes.Get(*va.Spec.Source.PersistentVolumeName)
	if err != nil {
		return ""
	}
	if pv = asDriven(pv); pv.Spec.CSI == nil || !r.isAttachmentOf(va, pv) {
		return ""
	}
	return uniqueName(pv.Spec.CSI)
}
