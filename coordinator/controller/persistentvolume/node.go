package persistentvolume

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/csi/locality"
)

// candidate is a node that may make a claim's volume.
type candidate struct {
	node *corev1.Node
	// driver tells whether the driver runs there.
	driver bool
	// room is what the node told of its free space for the class, nil for nothing.
	room *storagev1.CSIStorageCapacity
	// promised is what other claims, given to the node, are still to take of it.
	promised int64
	// refused tells whether the node gave the claim back a while ago.
	refused bool
}

// wish is what a claim wants of its node.
type wish struct {
	class *storagev1.StorageClass
	size  resource.Quantity
	// source is the only node that can do, "" for any.
	source string
}

// chooseNode is the node with the most room of those that can make the volume; one
// that pods cannot go to without a toleration is the last choice. Where there is none
// it tells why, unless a node is still to tell of its free space.
func chooseNode(w wish, all []candidate) (node, why string) {
	var fit []candidate
	obstacles := map[string]int{}
	for _, c := range all {
		if o := obstacle(w, c); o != "" {
			obstacles[o]++
		} else {
			fit = append(fit, c)
		}
	}
	switch {
	case len(fit) > 0:
		return slices.MinFunc(fit, better).node.Name, ""
	case obstacles[tellsNoRoom] > 0:
		return "", ""
	}
	var reasons []string
	for o, n := range obstacles {
		reasons = append(reasons, fmt.Sprintf("%d %s", n, o))
	}
	slices.Sort(reasons)
	return "", fmt.Sprintf("0/%d nodes can make a volume of %s: %s", len(all), w.size.String(),
		strings.Join(reasons, ", "))
}

// Obstacles, as they follow the number of nodes.
const (
	isNoSource     = "without the volume or the snapshot that it is to be made of"
	hasNoDriver    = "without the driver"
	outOfTopology  = "not of allowedTopologies"
	isNotReady     = "not ready"
	isCordoned     = "unschedulable"
	tellsNoRoom    = "that told nothing of free space yet"
	hasTooLittle   = "without enough free space"
	gaveBackBefore = "that gave the claim back"
)

func obstacle(w wish, c candidate) string {
	switch {
	case w.source != "" && c.node.Name != w.source:
		return isNoSource
	case !c.driver:
		return hasNoDriver
	case !topologyAllows(w.class.AllowedTopologies, c.node.Labels):
		return outOfTopology
	case c.node.DeletionTimestamp != nil || controller.NodeReadyStatus(c.node) != corev1.ConditionTrue:
		return isNotReady
	case c.node.Spec.Unschedulable:
		return isCordoned
	case c.room == nil:
		return tellsNoRoom
	case largest(c.room) < w.size.Value():
		return hasTooLittle
	case c.refused:
		return gaveBackBefore
	}
	return ""
}

// largest is the size of the largest volume that there is room for, as the scheduler
// reads it (KEP-1472).
func largest(room *storagev1.CSIStorageCapacity) int64 {
	switch {
	case room.MaximumVolumeSize != nil:
		return room.MaximumVolumeSize.Value()
	case room.Capacity != nil:
		return room.Capacity.Value()
	}
	return 0
}

func better(a, b candidate) int {
	if x, y := repels(a.node), repels(b.node); x != y {
		if y {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(b.left(), a.left()), strings.Compare(a.node.Name, b.node.Name))
}

// left is the room that nobody was promised.
func (c candidate) left() int64 {
	room := largest(c.room)
	if c.room.Capacity != nil {
		room = c.room.Capacity.Value()
	}
	return room - c.promised
}

func repels(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	})
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

// hasDriver tells whether the driver registered at a node.
func hasDriver(n *storagev1.CSINode) bool {
	return slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == locality.Driver })
}
