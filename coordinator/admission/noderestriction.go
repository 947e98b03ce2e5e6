package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/shoal-project/shoal/coordinator/auth/identity"
	"github.com/shoal-project/shoal/coordinator/auth/podref"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// nodeRestriction limits what a node may write: its own Node, Lease and CSINode,
// and the pods bound to it. It is the Node authorizer's other half.
type nodeRestriction struct {
	*admission.Handler
	client     kubernetes.Interface
	pods       corelisters.PodLister
	nodes      corelisters.NodeLister
	authorizer authorizer.Authorizer
}

func newNodeRestriction() *nodeRestriction {
	return &nodeRestriction{Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete)}
}

// SetExternalKubeClientSet and the next three implement the initializer's interfaces.
func (n *nodeRestriction) SetExternalKubeClientSet(client kubernetes.Interface) { n.client = client }

// SetExternalKubeInformerFactory takes the informers of pods and nodes.
func (n *nodeRestriction) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	n.pods = f.Core().V1().Pods().Lister()
	n.nodes = f.Core().V1().Nodes().Lister()
}

// SetAuthorizer takes the server's authorizer.
func (n *nodeRestriction) SetAuthorizer(a authorizer.Authorizer) { n.authorizer = a }

// ValidateInitialization says what is missing.
func (n *nodeRestriction) ValidateInitialization() error {
	if n.client == nil || n.pods == nil || n.authorizer == nil {
		return fmt.Errorf("no client, informers or authorizer")
	}
	return nil
}

// Admit checks the requests of nodes, and of nobody else.
func (n *nodeRestriction) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	node, isNode := identity.Node(a.GetUserInfo())
	if !isNode {
		return nil
	}
	if node == "" {
		return forbid(a, "could not determine node from user %q", a.GetUserInfo().GetName())
	}
	switch a.GetResource().GroupResource() {
	case schema.GroupResource{Resource: "pods"}:
		return n.pod(ctx, node, a)
	case schema.GroupResource{Resource: "nodes"}:
		return n.node(node, a)
	case schema.GroupResource{Resource: "persistentvolumeclaims"}:
		return n.claim(node, a)
	case schema.GroupResource{Resource: "persistentvolumes"}:
		return n.volume(ctx, node, a)
	case schema.GroupResource{Group: "storage.k8s.io", Resource: "csistoragecapacities"}:
		return capacityOf(node, a)
	case schema.GroupResource{Resource: "serviceaccounts"}:
		return n.token(ctx, node, a)
	case schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}:
		return n.lease(node, a)
	case schema.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}:
		return n.csiNode(node, a)
	case schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}:
		return n.resourceSlice(node, a)
	case certificateRequests:
		return certificateRequest(node, a)
	}
	return nil
}

// certificateRequest lets a node ask for kubelets' certificates in its own name
// only. What else a request says, its approver and its signer check.
func certificateRequest(node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "" {
		return nil
	}
	request, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return forbid(a, "unexpected type %T", a.GetObject())
	}
	if s := request.Spec.SignerName; s != certificatesv1.KubeletServingSignerName &&
		s != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	parsed, err := pki.ParseRequest(request.Spec.Request)
	if err != nil {
		return forbid(a, "unable to parse csr: %w", err)
	}
	if own := "system:node:" + node; parsed.Subject.CommonName != own {
		return forbid(a, "can only create a node CSR with CN=%s", own)
	}
	return nil
}

func (n *nodeRestriction) pod(ctx context.Context, node string, a admission.Attributes) error {
	switch a.GetSubresource() {
	case "":
		switch a.GetOperation() {
		case admission.Create:
			return n.mirror(ctx, node, a)
		case admission.Delete:
			pod, err := n.podOn(ctx, node, a, a.GetName())
			if err == nil && pod.Spec.NodeName != node {
				err = forbid(a, "node %q can only delete pods with spec.nodeName set to itself", node)
			}
			return err
		}
		return forbid(a, "unexpected operation %q, node %q can only create and delete mirror pods", a.GetOperation(),
			node)
	case "status":
		return n.podStatus(node, a)
	case "eviction":
		return n.eviction(ctx, node, a)
	}
	return forbid(a, "unexpected pod subresource %q, only 'status' and 'eviction' are allowed", a.GetSubresource())
}

// podOn reads a pod. The informer is asked first; when it does not show the pod
// on the node, the API is, since the informer may be behind the node.
func (n *nodeRestriction) podOn(ctx context.Context, node string, a admission.Attributes,
	name string) (*corev1.Pod, error) {
	pod, err := n.pods.Pods(a.GetNamespace()).Get(name)
	if err == nil && pod.Spec.NodeName == node {
		return pod, nil
	}
	pod, err = n.client.CoreV1().Pods(a.GetNamespace()).Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, admission.NewForbidden(a, err)
	}
	return pod, err
}

// mirror lets a node create the images of its static pods, owned by its Node and
// without any right to other objects.
func (n *nodeRestriction) mirror(ctx context.Context, node string, a admission.Attributes) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return forbid(a, "unexpected type %T", a.GetObject())
	}
	if !isMirror(pod) {
		return forbid(a,
			"pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, node)
	}
	if pod.Spec.NodeName != node {
		return forbid(a, "node %q can only create pods with spec.nodeName set to itself", node)
	}
	if err := n.mirrorOwner(ctx, node, a, pod.OwnerReferences); err != nil {
		return err
	}
	if resource := podref.Needed(pod); resource != "" {
		return forbid(a, "node %q can not create pods that reference %s", node, resource)
	}
	return nil
}

func (n *nodeRestriction) mirrorOwner(ctx context.Context, node string, a admission.Attributes,
	owners []metav1.OwnerReference) error {
	if len(owners) > 1 {
		return forbid(a, "node %q can only create pods with a single owner reference set to itself", node)
	}
	if len(owners) == 0 || owners[0].APIVersion != "v1" || owners[0].Kind != "Node" || owners[0].Name != node {
		return forbid(a, "node %q can only create pods with an owner reference set to itself", node)
	}
	owner := owners[0]
	if owner.Controller == nil || !*owner.Controller {
		return forbid(a, "node %q can only create pods with a controller owner reference set to itself", node)
	}
	if owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion {
		return forbid(a, "node %q must not set blockOwnerDeletion on an owner reference", node)
	}
	current, err := n.nodes.Get(node)
	if err != nil || current.UID != owner.UID {
		current, err = n.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		return forbid(a, "error looking up node %s to verify uid: %w", node, err)
	}
	if owner.UID != current.UID {
		return forbid(a, "node %s UID mismatch: expected %s got %s", node, owner.UID, current.UID)
	}
	return nil
}

func (n *nodeRestriction) podStatus(node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Update {
		return forbid(a, "unexpected operation %q", a.GetOperation())
	}
	old, ok := a.GetOldObject().(*corev1.Pod)
	if !ok {
		return forbid(a, "unexpected type %T", a.GetOldObject())
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return forbid(a, "unexpected type %T", a.GetObject())
	}
	switch {
	case old.Spec.NodeName != node:
		return forbid(a, "node %q can only update pod status for pods with spec.nodeName set to itself", node)
	case !labels.Equals(old.Labels, pod.Labels):
		return forbid(a, "node %q cannot update labels through pod status", node)
	case !equality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses):
		return forbid(a, "node %q cannot update resource claim statues", node)
	case !equality.Semantic.DeepEqual(old.Status.ExtendedResourceClaimStatus, pod.Status.ExtendedResourceClaimStatus):
		return forbid(a, "node %q cannot update extended resource claim status", node)
	}
	return nil
}

func (n *nodeRestriction) eviction(ctx context.Context, node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Create {
		return forbid(a, "unexpected operation %s", a.GetOperation())
	}
	eviction, ok := a.GetObject().(*policyv1.Eviction)
	if !ok {
		return forbid(a, "unexpected type %T", a.GetObject())
	}
	name := a.GetName()
	if name == "" {
		name = eviction.Name
	}
	if name == "" {
		return forbid(a, "could not determine pod from request data")
	}
	pod, err := n.podOn(ctx, node, a, name)
	if err == nil && pod.Spec.NodeName != node {
		err = forbid(a, "node %s can only evict pods with spec.nodeName set to itself", node)
	}
	return err
}

func (n *nodeRestriction) node(node string, a admission.Attributes) error {
	if a.GetName() != node {
		return forbid(a, "node %q is not allowed to modify node %q", node, a.GetName())
	}
	obj, _ := a.GetObject().(*corev1.Node)
	old, _ := a.GetOldObject().(*corev1.Node)
	switch a.GetOperation() {
	case admission.Create:
		if obj == nil {
			return forbid(a, "unexpected type %T", a.GetObject())
		}
		if obj.Spec.ConfigSource != nil {
			return forbid(a, "node %q is not allowed to create pods with a non-nil configSource", node)
		}
		// Upstream lets it; but what pods a node routes is given to it.
		if obj.Spec.PodCIDR != "" || len(obj.Spec.PodCIDRs) > 0 {
			return forbid(a, "node %q is not allowed to set podCIDR and podCIDRs", node)
		}
		if err := ownLocality(node, a, obj.Labels, nil); err != nil {
			return err
		}
		if l := forbiddenLabels(obj.Labels, nil); len(l) > 0 {
			return forbid(a, "node %q is not allowed to set the following labels: %s", node, strings.Join(l, ", "))
		}
	case admission.Update:
		if obj == nil || old == nil {
			return forbid(a, "unexpected type %T", a.GetObject())
		}
		return nodeUpdate(node, a, obj, old)
	}
	return nil
}

// nodeUpdate keeps a node from drawing workloads to itself.
func nodeUpdate(node string, a admission.Attributes, obj, old *corev1.Node) error {
	switch {
	case obj.Spec.ConfigSource != nil && !equality.Semantic.DeepEqual(obj.Spec.ConfigSource, old.Spec.ConfigSource):
		return forbid(a, "node %q is not allowed to update configSource to a new non-nil configSource", node)
	case !equality.Semantic.DeepEqual(obj.Spec.Taints, old.Spec.Taints):
		return forbid(a, "node %q is not allowed to modify taints", node)
	case !equality.Semantic.DeepEqual(obj.OwnerReferences, old.OwnerReferences):
		return forbid(a, "node %q is not allowed to modify ownerReferences", node)
	case a.GetSubresource() == "" &&
		(obj.Spec.PodCIDR != old.Spec.PodCIDR || !equality.Semantic.DeepEqual(obj.Spec.PodCIDRs, old.Spec.PodCIDRs)):
		return forbid(a, "node %q is not allowed to modify podCIDR and podCIDRs", node)
	}
	if err := ownLocality(node, a, obj.Labels, old.Labels); err != nil {
		return err
	}
	if l := forbiddenLabels(obj.Labels, old.Labels); len(l) > 0 {
		return forbid(a, "is not allowed to modify labels: %s", strings.Join(l, ", "))
	}
	return nil
}

// forbiddenLabels lists, sorted, the labels that differ and are not a node's to set.
func forbiddenLabels(now, before map[string]string) []string {
	var out []string
	check := func(key string) {
		namespace, _, _ := strings.Cut(key, "/")
		if namespace == key {
			return
		}
		restricted := within(namespace, corev1.LabelNamespaceNodeRestriction)
		kubernetes := within(namespace, "kubernetes.io") || within(namespace, "k8s.io")
		if restricted || kubernetes && !kubeletapis.IsKubeletLabel(key) {
			out = append(out, key)
		}
	}
	for k, v := range now {
		if old, ok := before[k]; !ok || old != v {
			check(k)
		}
	}
	for k := range before {
		if _, ok := now[k]; !ok {
			check(k)
		}
	}
	slices.Sort(out)
	return out
}

func within(namespace, domain string) bool {
	return namespace == domain || strings.HasSuffix(namespace, "."+domain)
}

func (n *nodeRestriction) claim(node string, a admission.Attributes) error {
	if a.GetSubresource() == "" && a.GetOperation() == admission.Update {
		return givenBack(node, a)
	}
	if a.GetSubresource() != "status" {
		return forbid(a, "may only update PVC status")
	}
	if a.GetOperation() != admission.Update {
		return forbid(a, "unexpected operation %q", a.GetOperation())
	}
	old, ok1 := a.GetOldObject().(*corev1.PersistentVolumeClaim)
	claim, ok2 := a.GetObject().(*corev1.PersistentVolumeClaim)
	if !ok1 || !ok2 {
		return forbid(a, "unexpected type %T", a.GetObject())
	}
	old, claim = old.DeepCopy(), claim.DeepCopy()
	for _, c := range []*corev1.PersistentVolumeClaim{old, claim} {
		c.ResourceVersion, c.ManagedFields = "", nil
		c.Status.Capacity, c.Status.Conditions = nil, nil
		c.Status.AllocatedResources, c.Status.AllocatedResourceStatuses = nil, nil
	}
	if !equality.Semantic.DeepEqual(old, claim) {
		return forbid(a,
			"node %q is not allowed to update fields other than status.quantity and status.conditions: %v", node,
			diff.Diff(old, claim))
	}
	return nil
}

func (n *nodeRestriction) lease(node string, a admission.Attributes) error {
	if a.GetNamespace() != corev1.NamespaceNodeLease {
		return forbid(a, "can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	name := a.GetName()
	if a.GetOperation() == admission.Create {
		lease, ok := a.GetObject().(*coordinationv1.Lease)
		if !ok {
			return forbid(a, "unexpected type %T", a.GetObject())
		}
		name = lease.Name
	}
	if name != node {
		return forbid(a, "can only access node lease with the same name as the requesting node")
	}
	return nil
}

func (n *nodeRestriction) csiNode(node string, a admission.Attributes) error {
	name := a.GetName()
	if a.GetOperation() == admission.Create {
		obj, ok := a.GetObject().(metav1.Object)
		if !ok {
			return forbid(a, "unable to access the object name")
		}
		name = obj.GetName()
	}
	if name != node {
		return forbid(a, "can only access CSINode with the same name as the requesting node")
	}
	return nil
}

func (n *nodeRestriction) resourceSlice(node string, a admission.Attributes) error {
	obj, verb := a.GetObject(), "create"
	switch a.GetOperation() {
	case admission.Create:
	case admission.Delete:
		obj, verb = a.GetOldObject(), "delete"
	default:
		return nil
	}
	slice, ok := obj.(*resourcev1.ResourceSlice)
	if !ok {
		return forbid(a, "unexpected type %T", obj)
	}
	if slice.Spec.NodeName == nil || *slice.Spec.NodeName != node {
		return forbid(a, "can only %s ResourceSlice with the same NodeName as the requesting node", verb)
	}
	return nil
}
