package attachdetach

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/csi/storagenet"
)

// A disk of a storage network (iscsi, fc) has no attacher and no VolumeAttachment: a
// node has it when Node.status.volumesAttached lists it, and the agent mounts nothing
// before. Who has a disk is read from the Nodes once a term, from the store; from then on
// this term is the only one that writes it, so that a cache that is behind cannot give it
// away twice. What a leader before had on its way is over: its requests end with its term.

// diskKey is of keys: a disk's name in Nodes' statuses follows.
const diskKey = "disk/"

// add has a volume looked at, or the disk that it is.
func (r *reconciler) add(volume string) {
	if pv, err := r.volumes.Get(volume); err == nil {
		r.addVolume(pv)
		return
	}
	r.loop.Add(volumeKey + volume)
}

func (r *reconciler) addVolume(pv *corev1.PersistentVolume) {
	switch name := storagenet.Name(pv); {
	case name != "":
		r.loop.Add(diskKey + string(name))
	case asDriven(pv).Spec.CSI != nil:
		r.loop.Add(volumeKey + pv.Name)
	}
}

// adopt takes over, once a term, the disks that a Node lists. It is called with r.mu.
func (r *reconciler) adopt(node *corev1.Node) {
	if r.disks[node.Name] != nil {
		return
	}
	r.disks[node.Name] = map[corev1.UniqueVolumeName]bool{}
	for _, v := range node.Status.VolumesAttached {
		if storagenet.Is(v.Name) {
			r.disks[node.Name][v.Name] = true
			r.told[diskAt(v.Name, node.Name)] = telling{what: said} // before this term
			r.loop.Add(diskKey + string(v.Name))
		}
	}
}

// adoptAll is adopt for all Nodes as the store has them, before the first disk is given
// to one: the cache may be older than what the leader before wrote last.
func (r *reconciler) adoptAll(ctx context.Context) error {
	r.mu.Lock()
	adopted := r.adopted
	r.mu.Unlock()
	if adopted {
		return nil
	}
	nodes, err := r.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.adopted {
		return nil
	}
	for i := range nodes.Items {
		delete(r.disks, nodes.Items[i].Name) // as the cache had it
		r.adopt(&nodes.Items[i])
	}
	r.adopted = true
	return nil
}

// disksOf are the disks that a node has, or waits for while it is not there.
func (r *reconciler) disksOf(node string) (list []corev1.UniqueVolumeName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.disks[node] {
		list = append(list, name)
	}
	for name := range r.waiting[node] {
		list = append(list, name)
	}
	return list
}

// setDisk notes whether a node has a disk.
func (r *reconciler) setDisk(node string, name corev1.UniqueVolumeName, has bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.disks[node] == nil {
		r.disks[node] = map[corev1.UniqueVolumeName]bool{}
	}
	if has {
		r.disks[node][name] = true
	} else {
		delete(r.disks[node], name)
	}
}

// forget drops what is kept of a node that is gone and has no disk.
func (r *reconciler) forget(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.disks[node]) == 0 {
		delete(r.disks, node)
	}
}

// wait notes whether a disk waits for a node that is not there.
func (r *reconciler) wait(node string, name corev1.UniqueVolumeName, waits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !waits {
		if delete(r.waiting[node], name); len(r.waiting[node]) == 0 {
			delete(r.waiting, node)
		}
		return
	}
	if r.waiting[node] == nil {
		r.waiting[node] = map[corev1.UniqueVolumeName]bool{}
	}
	r.waiting[node][name] = true
}

// haveDisk are the nodes that have a disk.
func (r *reconciler) haveDisk(name corev1.UniqueVolumeName) map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	nodes := map[string]bool{}
	for node, disks := range r.disks {
		if disks[name] {
			nodes[node] = true
		}
	}
	return nodes
}

// demand is what pods want of a disk.
type demand struct {
	users map[string][]*corev1.Pod            // by node
	pv    map[string]*corev1.PersistentVolume // by which they know it
}

func (r *reconciler) demand(name corev1.UniqueVolumeName) demand {
	d := demand{map[string][]*corev1.Pod{}, map[string]*corev1.PersistentVolume{}}
	objs, _ := r.handles.ByIndex(byHandle, string(name))
	for _, o := range objs {
		pv, ok := o.(*corev1.PersistentVolume)
		if !ok {
			continue
		}
		for node, pods := range r.usersOf(pv) {
			d.users[node] = append(d.users[node], pods...)
			// One that forbids a second node is believed, whatever others of the disk say.
			if d.pv[node] == nil || exclusive(pv) {
				d.pv[node] = pv
			}
		}
	}
	return d
}

// disk gives a disk to the nodes whose pods use it, and takes it from others.
func (r *reconciler) disk(ctx context.Context, name corev1.UniqueVolumeName) (wait time.Duration, err error) {
	if err := r.adoptAll(ctx); err != nil {
		return 0, err
	}
	want, have := r.demand(name), r.haveDisk(name)
	alone := false
	for node := range have {
		alone = alone || want.pv[node] != nil && exclusive(want.pv[node])
	}
	for _, node := range slices.Sorted(maps.Keys(have)) {
		if len(want.users[node]) > 0 {
			r.used(diskAt(name, node))
			if _, err := r.listDisk(ctx, name, node, want); err != nil {
				return 0, err
			}
			continue
		}
		gone, after, err := r.takeDisk(ctx, name, node)
		if err != nil {
			return 0, err
		}
		if gone {
			delete(have, node)
		}
		wait = controller.Sooner(wait, after)
	}
	refused := map[string]bool{}
	for _, node := range slices.Sorted(maps.Keys(want.users)) {
		pv := want.pv[node]
		switch {
		case have[node]:
			continue
		case len(have) > 0 && (alone || exclusive(pv)):
			refused[node] = true
			r.refuseDisk(name, pv, have, want, node)
			continue
		}
		given, err := r.giveDisk(ctx, name, node, want)
		if err != nil {
			return 0, err
		}
		if !given {
			continue
		}
		have[node], alone = true, alone || exclusive(pv)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refused[string(name)] = refused; len(refused) == 0 {
		delete(r.refused, string(name))
	}
	return wait, nil
}

// diskAt is a disk at a node, among the names of attachments.
func diskAt(name corev1.UniqueVolumeName, node string) string { return string(name) + " " + node }

// giveDisk gives a disk to a node; false where there is no such node.
func (r *reconciler) giveDisk(ctx context.Context, name corev1.UniqueVolumeName, node string, want demand,
) (bool, error) {
	r.wait(node, name, true)
	if _, err := r.nodes.Get(node); err != nil {
		return false, controller.IgnoreGone(err) // when it comes, its disks are looked at
	}
	r.wait(node, name, false)
	r.setDisk(node, name, true)
	// What comes of a patch that fails is not known: it stays the node's, and the next try
	// lists it or, if nobody wants it any more, takes it.
	there, err := r.listDisk(ctx, name, node, want)
	if err == nil && !there {
		r.setDisk(node, name, false)
	}
	return there, err
}

// listDisk has a node list its disk, and its pods are told so once; false where the node
// is gone.
func (r *reconciler) listDisk(ctx context.Context, name corev1.UniqueVolumeName, node string, want demand,
) (bool, error) {
	there, err := r.report(ctx, node, false)
	if err != nil || there == nil {
		return false, err
	}
	at := diskAt(name, node)
	r.mu.Lock()
	known := r.told[at].what == said
	r.told[at] = telling{what: said}
	r.mu.Unlock()
	for _, pod := range want.users[node] {
		if !known {
			r.events.Eventf(pod, corev1.EventTypeNormal, "SuccessfulAttachVolume",
				"AttachVolume.Attach succeeded for volume %q ", want.pv[node].Name)
		}
	}
	return true, nil
}

// takeDisk takes a disk from a node that has let go of it, or must. As with attachments
// it goes off the list first, and it is seen then that the agent does not use it.
func (r *reconciler) takeDisk(ctx context.Context, name corev1.UniqueVolumeName, node string) (
	gone bool, wait time.Duration, err error) {
	listed := func(list []corev1.UniqueVolumeName) bool { return slices.Contains(list, name) }
	h, err := r.holderOf(diskAt(name, node), node, listed)
	if err != nil {
		return false, 0, err
	}
	d, wait := judge(h, time.Now(), !r.deps.KeepMounted)
	if d == keep {
		_, err := r.report(ctx, node, false)
		return false, wait, err
	}
	r.setDisk(node, name, false)
	there, err := r.report(ctx, node, true)
	if err != nil || d == detach && there != nil && listed(there.Status.VolumesInUse) {
		r.setDisk(node, name, true)
		r.loop.Add(nodeKey + node)
		return false, 0, err
	}
	if d != detach {
		forcedDetach(d)
	}
	if there == nil {
		r.forget(node)
	}
	r.mu.Lock()
	delete(r.unused, diskAt(name, node))
	delete(r.told, diskAt(name, node))
	r.mu.Unlock()
	return true, 0, nil
}

// refuseDisk tells the pods of a node that their disk is at another, once.
func (r *reconciler) refuseDisk(name corev1.UniqueVolumeName, pv *corev1.PersistentVolume, have map[string]bool,
	want demand, node string) {
	r.mu.Lock()
	known := r.refused[string(name)][node]
	r.mu.Unlock()
	if known {
		return
	}
	var others []*corev1.Pod
	for other := range have {
		others = append(others, want.users[other]...)
	}
	for _, pod := range want.users[node] {
		r.events.Event(pod, corev1.EventTypeWarning, "FailedAttachVolume", multiAttach(pv.Name, pod, others))
	}
}

// holderOf finds out what is known of a node that has a volume which none of its pods
// uses.
func (r *reconciler) holderOf(what, name string, listed func([]corev1.UniqueVolumeName) bool) (h holder, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unused[what].IsZero() {
		r.unused[what] = time.Now()
	}
	h.since = r.unused[what]
	node, err := r.nodes.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		last, known := r.inUse[name]
		h.inUse = !known || listed(last)
		return h, nil
	case err != nil:
		return h, err
	}
	h.inUse, h.outOfService = listed(node.Status.VolumesInUse), outOfService(node)
	var changed time.Time
	if h.ready, changed = ready(node); changed.After(h.since) {
		h.since = changed
	}
	return h, nil
}
