package gossipgrant

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/controller"
)

// Deps are what grants are signed with, and the ranges of the cluster.
type Deps struct {
	// CAs are believed; the first one's Key signs.
	CAs []*x509.Certificate
	Key crypto.Signer
	// ClusterCIDRs hold all pods, ServiceCIDRs all Services.
	ClusterCIDRs, ServiceCIDRs []netip.Prefix
}

// patience is how long a new Node's grant waits for its pod range, so that one
// is signed, not two.
const patience = 10 * time.Second

type reconciler struct {
	client kubernetes.Interface
	events record.EventRecorder
	nodes  corelisters.NodeLister
	deps   Deps
	// trust is who signs: what another CA has signed is signed anew.
	trust gossip.Trust
}

// New builds the controller; its keys are nodes.
func New(env controller.Env, deps Deps) (*controller.Loop, error) {
	nodes := env.Informers.Core().V1().Nodes()
	r := &reconciler{client: env.Client, events: env.Recorder("gossip-grants"), nodes: nodes.Lister(), deps: deps,
		trust: gossip.Trust(deps.CAs[:1])}
	loop := controller.New("gossipgrant", 4, env.Log)
	loop.Reconciler = r
	controller.Watch(loop, nodes.Informer(), func(old, node *corev1.Node) {
		if node != nil && (old == nil || !sameBasis(old, node)) {
			loop.Add(node.Name)
		}
	})
	return loop, nil
}

// sameBasis tells whether a grant for the one is a grant for the other.
func sameBasis(a, b *corev1.Node) bool {
	return a.UID == b.UID && slices.Equal(a.Spec.PodCIDRs, b.Spec.PodCIDRs) &&
		equality.Semantic.DeepEqual(a.Status.Addresses, b.Status.Addresses) &&
		a.Annotations[gossip.CertificateAnnotation] == b.Annotations[gossip.CertificateAnnotation] &&
		a.Annotations[gossip.GrantAnnotation] == b.Annotations[gossip.GrantAnnotation]
}

// Reconcile signs a node's grant when it has none that says the same.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	node, err := r.nodes.Get(key)
	if apierrors.IsNotFound(err) || err == nil && node.Annotations[gossip.CertificateAnnotation] == "" {
		return 0, nil // an agent without gossip, or none of ours
	}
	if err != nil {
		return 0, err
	}
	now := time.Now()
	if age := now.Sub(node.CreationTimestamp.Time); len(node.Spec.PodCIDRs) == 0 && age < patience {
		return patience - age, nil
	}
	all, err := r.nodes.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	want, err := plan(node, all, r.deps.CAs, ranges{r.deps.ClusterCIDRs, r.deps.ServiceCIDRs}, now)
	if err != nil {
		r.events.Eventf(node, corev1.EventTypeWarning, "GossipGrantRefused",
			"Node %s gets no gossip grant: %v", node.Name, err)
		return 0, nil
	}
	have := r.held(node, now)
	if have.Same(want) {
		return 0, nil
	}
	if !want.Issued.After(have.Issued) { // signed by a coordinator whose clock is ahead
		want.Issued = have.Issued.Add(time.Millisecond)
	}
	return 0, r.write(ctx, node, want)
}

// held is the node's grant; the empty one if it has none that counts.
func (r *reconciler) held(node *corev1.Node, now time.Time) gossip.Grant {
	raw, err := base64.StdEncoding.DecodeString(node.Annotations[gossip.GrantAnnotation])
	if err != nil {
		return gossip.Grant{}
	}
	have, err := gossip.OpenGrant(node.Name, raw, r.trust, now)
	if err != nil {
		return gossip.Grant{}
	}
	return have
}

func (r *reconciler) write(ctx context.Context, node *corev1.Node, want gossip.Grant) error {
	raw, err := want.Sign(node.Name, r.deps.Key)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         node.UID,
		"annotations": map[string]string{gossip.GrantAnnotation: base64.StdEncoding.EncodeToString(raw)},
	}})
	if err != nil {
		return err
	}
	_, err = r.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is gone; if another node has the name now, its event comes
	}
	return err
}
