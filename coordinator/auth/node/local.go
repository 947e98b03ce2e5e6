package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/coordinator/auth/podref"
	"github.com/shoal-project/shoal/csi/locality"
)

// Nodes make the volumes of the storage driver that ships with Shoal themselves.
// So a node may do more than upstream's with the claims that the scheduler gave to
// it, and with the volumes that it keeps. Package locality tells whose they are.

// Kinds of objects that a node has for its own volumes.
const (
	selectedClaim podref.Kind = "claims given to the node"
	keptVolume    podref.Kind = "volumes kept by the node"
	capacity      podref.Kind = "csistoragecapacities"
	usedSnapshot  podref.Kind = "volumesnapshots"
	usedContent   podref.Kind = "volumesnapshotcontents"
)

// claim: a node reads those of its pods, and finds and writes those given to it;
// NodeRestriction says what it may write.
func (a *Authorizer) claim(ctx context.Context, node string, attrs authorizer.Attributes) (bool, string) {
	switch {
	case verbIn(attrs, "list", "watch") && attrs.GetSubresource() == "" && selects(attrs, locality.SelectedNode, node):
		return true, ""
	case verbIn(attrs, "update", "patch") && attrs.GetSubresource() == "":
		return a.related(ctx, node, selectedClaim, attrs)
	case attrs.GetVerb() == "get" && attrs.GetSubresource() == "" && a.has(ctx, node, selectedClaim,
		attrs.GetNamespace(), attrs.GetName()):
		return true, ""
	case attrs.GetSubresource() != "status":
		return a.get(ctx, node, podref.Claim, attrs)
	case !verbIn(attrs, "update", "patch"):
		return false, "can only get/update/patch this type"
	}
	if ok, _ := a.related(ctx, node, selectedClaim, attrs); ok {
		return true, ""
	}
	return a.related(ctx, node, podref.Claim, attrs)
}

// volume: a node reads those that its pods claim, and writes those that it keeps. It
// lets a create pass: NodeRestriction checks it.
func (a *Authorizer) volume(ctx context.Context, node string, attrs authorizer.Attributes) (bool, string) {
	if attrs.GetSubresource() != "" {
		return false, "cannot get subresource"
	}
	switch attrs.GetVerb() {
	case "create":
		return true, ""
	case "list", "watch":
		if labelled(attrs, locality.NodeKey, node) {
			return true, ""
		}
		return false, fmt.Sprintf("can only list/watch persistentvolumes with the label %s=%s", locality.NodeKey, node)
	case "get", "update", "patch", "delete":
		if a.has(ctx, node, keptVolume, "", attrs.GetName()) {
			return true, ""
		}
	}
	return a.get(ctx, node, volume, attrs)
}

// capacity: a node tells of its own free space. It lets a create pass.
func (a *Authorizer) capacity(ctx context.Context, node string, attrs authorizer.Attributes) (bool, string) {
	switch {
	case attrs.GetSubresource() != "" || attrs.GetNamespace() != metav1.NamespaceSystem:
		return false, fmt.Sprintf("can only access CSIStorageCapacities in the %q system namespace",
			metav1.NamespaceSystem)
	case attrs.GetVerb() == "create":
		return true, ""
	case verbIn(attrs, "get", "update", "patch", "delete"):
		return a.related(ctx, node, capacity, attrs)
	}
	return false, "can only get, create, update, patch, or delete CSIStorageCapacities"
}

// hasLocal is has for the kinds above.
func (w *world) hasLocal(ctx context.Context, node string, kind podref.Kind, namespace, name string) bool {
	switch kind {
	case selectedClaim:
		c, err := w.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, cached)
		return err == nil && locality.AskedOf(c) == node
	case keptVolume:
		pv, err := w.client.CoreV1().PersistentVolumes().Get(ctx, name, cached)
		return err == nil && locality.VolumeNode(pv) == node
	case capacity:
		c, err := w.client.StorageV1().CSIStorageCapacities(namespace).Get(ctx, name, cached)
		return err == nil && locality.CapacityNode(c) == node
	case usedSnapshot:
		return w.usesSnapshot(ctx, node, namespace, name)
	case usedContent:
		return w.usesContent(ctx, node, name)
	}
	return false
}

// usesSnapshot tells whether the node has to make a volume of a snapshot.
func (w *world) usesSnapshot(ctx context.Context, node, namespace, name string) bool {
	if namespace == "" || name == "" {
		return false
	}
	list, err := w.client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{
		ResourceVersion: "0",
		FieldSelector:   fields.OneTermEqualSelector(locality.SelectedNode, node).String(),
	})
	return err == nil && slices.ContainsFunc(list.Items, func(c corev1.PersistentVolumeClaim) bool {
		return locality.AskedOf(&c) == node && c.Spec.VolumeName == "" && locality.SourceSnapshot(&c) == name
	})
}

// usesContent tells whether the node has to make a volume of the snapshot whose
// content it is.
func (w *world) usesContent(ctx context.Context, node, name string) bool {
	raw, err := w.extension(ctx, "/apis/"+locality.SnapshotGroup+"/v1/volumesnapshotcontents", name)
	if err != nil {
		return false
	}
	var content struct {
		Spec struct {
			Driver   string                 `json:"driver"`
			Snapshot corev1.ObjectReference `json:"volumeSnapshotRef"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(raw, &content); err != nil || content.Spec.Driver != locality.Driver {
		return false
	}
	return w.usesSnapshot(ctx, node, content.Spec.Snapshot.Namespace, content.Spec.Snapshot.Name)
}

// extension reads an object of an extension of the API, as JSON.
func extension(client kubernetes.Interface) func(ctx context.Context, path ...string) ([]byte, error) {
	return func(ctx context.Context, path ...string) ([]byte, error) {
		return client.Discovery().RESTClient().Get().AbsPath(path...).SetHeader("Accept", "application/json").DoRaw(ctx)
	}
}

func labelled(attrs authorizer.Attributes, key, value string) bool {
	requirements, err := attrs.GetLabelSelector()
	if err != nil {
		return false
	}
	for _, r := range requirements {
		if r.Key() == key && (r.Operator() == selection.Equals || r.Operator() == selection.DoubleEquals ||
			r.Operator() == selection.In) && only(r, value) {
			return true
		}
	}
	return false
}

func only(r labels.Requirement, value string) bool {
	values := r.ValuesUnsorted()
	return len(values) == 1 && values[0] == value
}
