package node

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/coordinator/auth/identity"
	"github.com/shoal-project/shoal/coordinator/auth/podref"
	"github.com/shoal-project/shoal/csi/locality"
)

// Config is what New needs.
type Config struct {
	// Allows matches a request against the rules of the role system:node, for
	// resources without a rule of their own here.
	Allows func(authorizer.Attributes, []rbacv1.PolicyRule) bool
	Rules  []rbacv1.PolicyRule
}

// Authorizer is the Node authorizer. It knows no relations until Connect.
type Authorizer struct {
	Config
	relations
}

// New returns an authorizer that is not connected yet.
func New(c Config) *Authorizer { return &Authorizer{Config: c} }

// Connect takes the pod informer from the factory; call it before the factory
// starts. The client reads the rarer objects (volumes, attachments, slices).
func (a *Authorizer) Connect(client kubernetes.Interface, f informers.SharedInformerFactory) error {
	return a.relations.connect(client, f)
}

// Authorize implements authorizer.Authorizer, with upstream's reason texts.
func (a *Authorizer) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	name, isNode := identity.Node(attrs.GetUser())
	if !isNode {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if name == "" {
		return authorizer.DecisionNoOpinion, fmt.Sprintf("unknown node for user %q", attrs.GetUser().GetName()), nil
	}
	ok, reason := a.decide(ctx, name, attrs)
	if ok {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, reason, nil
}

func (a *Authorizer) decide(ctx context.Context, node string, attrs authorizer.Attributes) (ok bool, reason string) {
	if !attrs.IsResourceRequest() {
		return a.Allows(attrs, a.Rules), ""
	}
	switch (schema.GroupResource{Group: attrs.GetAPIGroup(), Resource: attrs.GetResource()}) {
	case schema.GroupResource{Resource: "secrets"}:
		return a.read(ctx, node, podref.Secret, attrs)
	case schema.GroupResource{Resource: "configmaps"}:
		return a.read(ctx, node, podref.ConfigMap, attrs)
	case schema.GroupResource{Resource: "persistentvolumeclaims"}:
		return a.claim(ctx, node, attrs)
	case schema.GroupResource{Resource: "persistentvolumes"}:
		return a.volume(ctx, node, attrs)
	case schema.GroupResource{Group: "storage.k8s.io", Resource: "storageclasses"}:
		return verbIn(attrs, "get", "list", "watch") && attrs.GetSubresource() == "", "can only read storage classes"
	case schema.GroupResource{Group: "storage.k8s.io", Resource: "csistoragecapacities"}:
		return a.capacity(ctx, node, attrs)
	case schema.GroupResource{Group: locality.SnapshotGroup, Resource: "volumesnapshots"}:
		return a.get(ctx, node, usedSnapshot, attrs)
	case schema.GroupResource{Group: locality.SnapshotGroup, Resource: "volumesnapshotcontents"}:
		return a.get(ctx, node, usedContent, attrs)
	case schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}:
		return a.get(ctx, node, podref.ResourceClaim, attrs)
	case schema.GroupResource{Group: "storage.k8s.io", Resource: "volumeattachments"}:
		return a.get(ctx, node, attachment, attrs)
	case schema.GroupResource{Resource: "serviceaccounts"}:
		return a.serviceAccount(ctx, node, attrs)
	case schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}:
		return lease(node, attrs)
	case schema.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}:
		return csiNode(node, attrs)
	case schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}:
		return a.resourceSlice(ctx, node, attrs)
	case schema.GroupResource{Resource: "nodes"}:
		return ownNode(node, attrs)
	case schema.GroupResource{Resource: "pods"}:
		return a.pod(ctx, node, attrs)
	}
	return a.Allows(attrs, a.Rules), ""
}

// related asks for a relation between the node and the named object.
func (a *Authorizer) related(ctx context.Context, node string, kind podref.Kind,
	attrs authorizer.Attributes) (bool, string) {
	if attrs.GetName() == "" {
		return false, "No Object name found"
	}
	if a.has(ctx, node, kind, attrs.GetNamespace(), attrs.GetName()) {
		return true, ""
	}
	return false, fmt.Sprintf("no relationship found between node '%s' and this object", node)
}

func (a *Authorizer) read(ctx context.Context, node string, kind podref.Kind, attrs authorizer.Attributes) (bool, string) {
	switch {
	case !verbIn(attrs, "get", "list", "watch"):
		return false, "can only read resources of this type"
	case attrs.GetSubresource() != "":
		return false, "cannot read subresource"
	case attrs.GetNamespace() == "":
		return false, "can only read namespaced object of this type"
	}
	return a.related(ctx, node, kind, attrs)
}

func (a *Authorizer) get(ctx context.Context, node string, kind podref.Kind, attrs authorizer.Attributes) (bool, string) {
	switch {
	case attrs.GetVerb() != "get":
		return false, "can only get individual resources of this type"
	case attrs.GetSubresource() != "":
		return false, "cannot get subresource"
	}
	return a.related(ctx, node, kind, attrs)
}

func (a *Authorizer) serviceAccount(ctx context.Context, node string, attrs authorizer.Attributes) (bool, string) {
	switch {
	case attrs.GetVerb() == "get" && attrs.GetSubresource() == "":
		return a.read(ctx, node, podref.ServiceAccount, attrs)
	case attrs.GetVerb() != "create" || attrs.GetName() == "":
		return false, "can only create tokens for individual service accounts"
	case attrs.GetSubresource() != "token":
		return false, "can only create token subresource of serviceaccount"
	}
	return a.related(ctx, node, podref.ServiceAccount, attrs)
}

// lease and csiNode let a create pass: its name is not known yet, and
// NodeRestriction checks it.
func lease(node string, attrs authorizer.Attributes) (bool, string) {
	switch {
	case !verbIn(attrs, "get", "create", "update", "patch", "delete"):
		return false, "can only get, create, update, patch, or delete a node lease"
	case attrs.GetNamespace() != corev1.NamespaceNodeLease:
		return false, fmt.Sprintf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	case attrs.GetVerb() != "create" && attrs.GetName() != node:
		return false, "can only access node lease with the same name as the requesting node"
	}
	return true, ""
}

func csiNode(node string, attrs authorizer.Attributes) (bool, string) {
	switch {
	case !verbIn(attrs, "get", "create", "update", "patch", "delete"):
		return false, "can only get, create, update, patch, or delete a CSINode"
	case attrs.GetSubresource() != "":
		return false, "cannot authorize CSINode subresources"
	case attrs.GetVerb() != "create" && attrs.GetName() != node:
		return false, "can only access CSINode with the same name as the requesting node"
	}
	return true, ""
}

func (a *Authorizer) resourceSlice(ctx context.Context, node string, attrs authorizer.Attributes) (bool, string) {
	if attrs.GetSubresource() != "" {
		return false, "cannot authorize ResourceSlice subresources"
	}
	switch attrs.GetVerb() {
	case "create":
		return true, ""
	case "get", "update", "patch", "delete":
		return a.related(ctx, node, slice, attrs)
	case "watch", "list", "deletecollection":
		if selects(attrs, "spec.nodeName", node) {
			return true, ""
		}
		return false, "can only list/watch/deletecollection resourceslices with nodeName field selector"
	}
	return false, "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection"
}

// ownNode lets writes pass for NodeRestriction to check.
func ownNode(node string, attrs authorizer.Attributes) (bool, string) {
	switch attrs.GetSubresource() {
	case "":
		if verbIn(attrs, "create", "update", "patch") {
			return true, ""
		}
		if !verbIn(attrs, "get", "list", "watch") {
			return false, ""
		}
		switch attrs.GetName() {
		case node:
			return true, ""
		case "":
			return false, fmt.Sprintf("node '%s' cannot read all nodes, only its own Node object", node)
		}
		return false, fmt.Sprintf("node '%s' cannot read '%s', only its own Node object", node, attrs.GetName())
	case "status":
		return verbIn(attrs, "update", "patch"), ""
	}
	return false, ""
}

// pod lets writes pass for NodeRestriction to check.
func (a *Authorizer) pod(ctx context.Context, node string, attrs authorizer.Attributes) (bool, string) {
	switch attrs.GetSubresource() {
	case "":
		switch attrs.GetVerb() {
		case "get":
			return a.get(ctx, node, podKind, attrs)
		case "list", "watch":
			if selects(attrs, "spec.nodeName", node) {
				return true, ""
			}
			if attrs.GetName() != "" {
				return a.related(ctx, node, podKind, attrs)
			}
			return false, "can only list/watch pods with spec.nodeName field selector"
		case "create", "delete":
			return true, ""
		}
	case "status":
		return verbIn(attrs, "update", "patch"), ""
	case "eviction":
		return attrs.GetVerb() == "create", ""
	}
	return false, ""
}

func verbIn(attrs authorizer.Attributes, verbs ...string) bool {
	for _, v := range verbs {
		if attrs.GetVerb() == v {
			return true
		}
	}
	return false
}

func selects(attrs authorizer.Attributes, field, value string) bool {
	requirements, err := attrs.GetFieldSelector()
	if err != nil {
		return false
	}
	for _, r := range requirements {
		if r.Field == field && r.Operator == selection.Equals && r.Value == value {
			return true
		}
	}
	return false
}
