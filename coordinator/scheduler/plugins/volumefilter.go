package plugins

import (
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	storagehelper "k8s.io/component-helpers/storage/volume"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
	"github.com/shoal-project/shoal/csi/locality"
)

// noProvisioner is the provisioner of classes whose volumes are made by hand.
const noProvisioner = "kubernetes.io/no-provisioner"

// volumeFilter judges nodes by the claims of one pod.
type volumeFilter struct {
	storage Storage
	bound   []*corev1.PersistentVolumeClaim
	waiting []*corev1.PersistentVolumeClaim // for their first pod, smallest first
	free    []*corev1.PersistentVolume
	// snapshots are the nodes of those that claims' volumes are to be made of.
	snapshots map[types.UID]string

	mu    sync.Mutex
	plans map[string]*volumePlan // by node
}

func (f *volumeFilter) plan(node string) *volumePlan {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.plans[node]
}

// Filter refuses nodes that the pod's volumes cannot be used at.
func (f *volumeFilter) Filter(n *framework.NodeInfo) *framework.Status {
	var reasons []string
	reason, err := f.checkBound(n.Node)
	if err != nil {
		return framework.AsStatus(err)
	}
	if reason != "" {
		reasons = append(reasons, reason)
	}
	if len(f.waiting) > 0 {
		plan, reason, err := f.choose(n.Node)
		if err != nil {
			return framework.AsStatus(err)
		}
		if reason != "" {
			reasons = append(reasons, reason)
		}
		f.mu.Lock()
		f.plans[n.Node.Name] = plan
		f.mu.Unlock()
	}
	if len(reasons) > 0 {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, reasons...)
	}
	return nil
}

func (f *volumeFilter) checkBound(n *corev1.Node) (reason string, err error) {
	for _, c := range f.bound {
		pv, err := f.storage.Volume(c.Spec.VolumeName)
		if apierrors.IsNotFound(err) {
			return volumeMissing, nil
		} else if err != nil {
			return "", err
		}
		if storagehelper.CheckNodeAffinity(pv, n.Labels) != nil {
			return volumeElsewhere, nil
		}
	}
	return "", nil
}

// choose finds a volume for each claim that waits, or lets it be provisioned.
func (f *volumeFilter) choose(n *corev1.Node) (plan *volumePlan, reason string, err error) {
	plan = &volumePlan{}
	taken := map[string]*corev1.PersistentVolume{}
	for _, c := range f.waiting {
		if node, ok := c.Annotations[storagehelper.AnnSelectedNode]; ok {
			if node != n.Name {
				return nil, noVolume, nil
			}
			plan.provision = append(plan.provision, c)
			continue
		}
		pv, err := storagehelper.FindMatchingVolume(c, f.free, n, taken, true, true)
		if err != nil {
			return nil, "", err
		}
		if pv == nil {
			plan.provision = append(plan.provision, c)
			continue
		}
		taken[pv.Name] = pv
		plan.bind = append(plan.bind, claimVolume{c, pv})
	}
	for _, c := range plan.provision {
		if reason, err := f.provisionable(c, n); reason != "" || err != nil {
			return nil, reason, err
		}
	}
	return plan, "", nil
}

// provisionable tells why no volume can be made for the claim at the node.
func (f *volumeFilter) provisionable(c *corev1.PersistentVolumeClaim, n *corev1.Node) (reason string, err error) {
	name := storagehelper.GetPersistentVolumeClaimClass(c)
	class, err := f.storage.Class(name)
	if err != nil {
		return "", fmt.Errorf("failed to find storage class %q", name)
	}
	if class.Provisioner == "" || class.Provisioner == noProvisioner ||
		!topologyAllows(class.AllowedTopologies, n.Labels) {
		return noVolume, nil
	}
	if class.Provisioner == locality.Driver && !f.hasSource(c, n.Name) {
		return sourceElsewhere, nil
	}
	capacities, reported, err := f.storage.Capacities(class.Provisioner, name)
	if err != nil || !reported {
		return "", err
	}
	size := c.Spec.Resources.Requests[corev1.ResourceStorage]
	if slices.ContainsFunc(capacities,
		func(x *storagev1.CSIStorageCapacity) bool { return hasRoom(x, size.Value(), n.Labels) }) {
		return "", nil
	}
	return volumeTooLarge, nil
}

// hasSource tells whether what the claim's volume is to be made of, if there is such,
// is at the node: the driver that ships with Shoal makes copies nowhere else.
func (f *volumeFilter) hasSource(c *corev1.PersistentVolumeClaim, node string) bool {
	if at := f.snapshots[c.UID]; at != "" && at != node {
		return false
	}
	name := locality.SourceClaim(c)
	if name == "" {
		return true
	}
	source, err := f.storage.Claim(c.Namespace, name)
	if err != nil || !bound(source) {
		return false
	}
	pv, err := f.storage.Volume(source.Spec.VolumeName)
	return err == nil && locality.VolumeNode(pv) == node
}

// hasRoom tells whether the driver has room of this size, in bytes, at a node
// with these labels (KEP-1472).
func hasRoom(x *storagev1.CSIStorageCapacity, size int64, node map[string]string) bool {
	limit := x.Capacity
	if x.MaximumVolumeSize != nil {
		limit = x.MaximumVolumeSize
	}
	if limit == nil || limit.Value() < size || x.NodeTopology == nil {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(x.NodeTopology)
	return err == nil && selector.Matches(labels.Set(node))
}

// topologyAllows tells whether one of the terms, if there are any, matches; a
// term without expressions matches nothing.
func topologyAllows(terms []corev1.TopologySelectorTerm, node map[string]string) bool {
	return len(terms) == 0 || slices.ContainsFunc(terms, func(t corev1.TopologySelectorTerm) bool {
		return len(t.MatchLabelExpressions) > 0 &&
			!slices.ContainsFunc(t.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
				value, ok := node[e.Key]
				return !ok || !slices.Contains(e.Values, value)
			})
	})
}
