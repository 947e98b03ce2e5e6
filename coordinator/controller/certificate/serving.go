package certificate

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/shoal-project/shoal/coordinator/controller"
)

const (
	servingSigner  = certificatesv1.KubeletServingSignerName
	nodeUserPrefix = "system:node:"
)

// watchNodes looks at open requests again when a Node says other addresses, or
// one that had them is gone.
func (r *reconciler) watchNodes(loop *controller.Loop, env controller.Env) {
	nodes := env.Informers.Core().V1().Nodes()
	r.nodes = nodes.Lister()
	controller.Watch(loop, nodes.Informer(), func(old, obj *corev1.Node) {
		if old != nil && obj != nil && equality.Semantic.DeepEqual(old.Status.Addresses, obj.Status.Addresses) {
			return
		}
		all, err := r.requests.List(labels.Everything())
		if err != nil {
			return // a lister reads memory and does not fail
		}
		for _, c := range all {
			if c.Spec.SignerName == servingSigner && len(c.Status.Conditions) == 0 {
				loop.Add(c.Name)
			}
		}
	})
}

// ownServing tells why a request for a serving certificate is not the node's own
// for its own names and addresses; nil: it is. Upstream leaves all of them to an
// administrator (KEP-4872 tells what a node may do with another's certificate).
func (r *reconciler) ownServing(c *certRequest, parsed *x509.CertificateRequest) error {
	if err := checkNodeServing(parsed, c.Spec.Usages); err != nil {
		return err
	}
	name, isNode := strings.CutPrefix(c.Spec.Username, nodeUserPrefix)
	if !isNode || !slices.Contains(c.Spec.Groups, "system:nodes") || parsed.Subject.CommonName != c.Spec.Username {
		return fmt.Errorf("%s asks for a certificate of %s", c.Spec.Username, parsed.Subject.CommonName)
	}
	node, err := r.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no Node %s", name)
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range parsed.DNSNames {
		errs = append(errs, plainName(name))
	}
	for _, san := range sans(parsed) {
		errs = append(errs, r.ownSAN(node, san))
	}
	return errors.Join(errs...)
}

// plainName refuses wildcards, and what clients may read in other ways: a Node
// may say any text as its name, and "*.default.svc" stands for the API server's.
func plainName(name string) error {
	if wrong := validation.IsDNS1123Subdomain(strings.ToLower(name)); len(wrong) > 0 {
		return fmt.Errorf("%q is no host's name", name)
	}
	return nil
}

func sans(r *x509.CertificateRequest) []string {
	out := slices.Clone(r.DNSNames)
	for _, ip := range r.IPAddresses {
		out = append(out, ip.String())
	}
	return out
}

// ownSAN tells why a name or address is not the node's alone.
func (r *reconciler) ownSAN(node *corev1.Node, san string) error {
	if !says(node, san) {
		return fmt.Errorf("%s is no address of Node %s", san, node.Name)
	}
	if owner, reserved := r.Reserved(san); reserved && owner != node.Name {
		return fmt.Errorf("%s belongs to the API server", san)
	}
	all, err := r.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, other := range all {
		if other.Name != node.Name && says(other, san) {
			return fmt.Errorf("%s is an address of Node %s too", san, other.Name)
		}
	}
	return nil
}

// says tells whether a Node has a name or an address.
func says(n *corev1.Node, san string) bool {
	return strings.EqualFold(n.Name, san) || slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
		return sameAddress(a.Address, san)
	})
}

func sameAddress(a, b string) bool {
	x, err := netip.ParseAddr(a)
	if err != nil {
		return strings.EqualFold(a, b)
	}
	y, err := netip.ParseAddr(b)
	return err == nil && x.Unmap() == y.Unmap()
}
