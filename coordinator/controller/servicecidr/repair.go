package servicecidr

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

const (
	byAddress = "servicecidr.address"
	// requestTime is how long an IPAddress may be without its Service: it is made
	// before it, and deleted after it.
	requestTime = 60 * time.Second
	// commitTime is how long a Service may be without the IPAddress of an address: that
	// is deleted just before the Service is written without it.
	commitTime = 5 * time.Second
)

// repairs keeps one IPAddress for each cluster IP; its keys are addresses. It
// has little to do but after a crash, and once for the Services of a cluster
// from before.
type repairs struct {
	client    kubernetes.Interface
	services  cache.Indexer
	cidrs     networkinglisters.ServiceCIDRLister
	addresses networkinglisters.IPAddressLister
	events    record.EventRecorder
	// unmatched are the addresses that a Service or an IPAddress alone has. The loop has
	// one worker.
	unmatched map[string]unmatched
}

// unmatched is an address that something has been missing of since it was seen so.
type unmatched struct {
	what  repair
	since time.Time
}

// NewRepair builds the controller of IPAddresses.
func NewRepair(env controller.Env) (*controller.Loop, error) {
	services, n := env.Informers.Core().V1().Services().Informer(), env.Informers.Networking().V1()
	err := controller.Index(services, byAddress, func(obj any) ([]string, error) {
		if s, ok := obj.(*corev1.Service); ok {
			return addressesOf(s), nil
		}
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	loop := controller.New("ipallocator-repair", 1, env.Log)
	loop.Reconciler = &repairs{
		client: env.Client, services: services.GetIndexer(), cidrs: n.ServiceCIDRs().Lister(),
		addresses: n.IPAddresses().Lister(),
		events:    env.Recorder("ipallocator-repair-controller"), unmatched: map[string]unmatched{},
	}
	controller.Watch(loop, services, func(old, s *corev1.Service) {
		for _, one := range []*corev1.Service{old, s} {
			if one == nil || old != nil && s != nil && slices.Equal(old.Spec.ClusterIPs, s.Spec.ClusterIPs) {
				continue
			}
			for _, ip := range addressesOf(one) {
				loop.Add(ip)
			}
		}
	})
	loop.WatchKeys(n.IPAddresses().Informer())
	loop.Needs(n.ServiceCIDRs().Informer())
	return loop, nil
}

// addressesOf are the cluster IPs of a Service, in the form of IPAddress names.
func addressesOf(s *corev1.Service) (out []string) {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	for _, text := range s.Spec.ClusterIPs {
		if ip, err := netip.ParseAddr(text); err == nil { // not None
			out = append(out, ip.String())
		}
	}
	return out
}

// Reconcile brings an address's IPAddress in line with its Service.
func (r *repairs) Reconcile(ctx context.Context, ip string) (time.Duration, error) {
	a, err := r.addresses.Get(ip)
	if apierrors.IsNotFound(err) {
		a = nil
	} else if err != nil {
		return 0, err
	}
	holders, err := r.holders(ip)
	if err != nil {
		return 0, err
	}
	owner, what := check(a, holders)
	for _, s := range holders {
		if s != owner {
			r.events.Eventf(s, corev1.EventTypeWarning, "ClusterIPAlreadyAllocated",
				"Cluster IP [%v]:%s was assigned to multiple services; please recreate service", family(ip), ip)
		}
	}
	if left := r.waits(ip, what, time.Now()); left > 0 {
		return left, nil
	}
	switch what {
	case orphan:
		return 0, r.dropOrphan(ctx, a)
	case missing:
		return 0, r.add(ctx, ip, owner)
	case wrong:
		r.events.Eventf(owner, corev1.EventTypeWarning, "ClusterIPNotAllocated",
			"the ClusterIP [%v]: %s for Service %s/%s has a wrong reference; repairing", family(ip), ip,
			owner.Namespace, owner.Name)
		if err := r.drop(ctx, a); err != nil {
			return 0, err
		}
		_, err := r.client.NetworkingV1().IPAddresses().Create(ctx, entry(ip, owner), metav1.CreateOptions{})
		return 0, err
	}
	return 0, nil
}

// waits is how long an address is still left as it is, because somebody may be about to
// write what is missing.
func (r *repairs) waits(ip string, what repair, now time.Time) time.Duration {
	patience := map[repair]time.Duration{orphan: requestTime, missing: commitTime}[what]
	if patience == 0 {
		delete(r.unmatched, ip)
		return 0
	}
	seen := r.unmatched[ip]
	if seen.what != what {
		seen = unmatched{what, now}
		r.unmatched[ip] = seen
	}
	left := seen.since.Add(patience).Sub(now)
	if left <= 0 {
		delete(r.unmatched, ip)
	}
	return left
}

// holders are the Services that have an address, the oldest first.
func (r *repairs) holders(ip string) (out []*corev1.Service, err error) {
	list, err := r.services.ByIndex(byAddress, ip)
	if err != nil {
		return nil, err
	}
	for _, obj := range list {
		if s, ok := obj.(*corev1.Service); ok {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.Service) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(string(a.UID), string(b.UID))
	})
	return out, nil
}

// add makes the IPAddress that a Service lacks, unless it only has not been
// heard of yet.
func (r *repairs) add(ctx context.Context, ip string, s *corev1.Service) error {
	list, err := r.cidrs.List(labels.Everything())
	if err != nil {
		return err
	}
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return nil
	}
	if !slices.ContainsFunc(list, func(c *networkingv1.ServiceCIDR) bool { return gives(c, addr) }) {
		r.events.Eventf(s, corev1.EventTypeWarning, "ClusterIPOutOfRange",
			"Cluster IP [%v]: %s is not within any configured Service CIDR; please recreate service", family(ip), ip)
		return nil
	}
	_, err = r.client.NetworkingV1().IPAddresses().Create(ctx, entry(ip, s), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // its event comes
	} else if err != nil {
		return err
	}
	r.events.Eventf(s, corev1.EventTypeWarning, "ClusterIPNotAllocated",
		"Cluster IP [%v]: %s is not allocated; repairing", family(ip), ip)
	return nil
}

// dropOrphan deletes the IPAddress of a Service that is not there.
func (r *repairs) dropOrphan(ctx context.Context, a *networkingv1.IPAddress) error {
	if ref := a.Spec.ParentRef; ofService(a) {
		r.events.Eventf(a, corev1.EventTypeWarning, "IPAddressNotAllocated",
			"IPAddress: %s for Service %s/%s appears to have leaked: cleaning up", a.Name, ref.Namespace, ref.Name)
	} else {
		r.events.Eventf(a, corev1.EventTypeWarning, "IPAddressNotAllocated",
			"IPAddress %s appears to have been modified, not referencing a Service %v: cleaning up", a.Name, ref)
	}
	return r.drop(ctx, a)
}

// drop deletes an IPAddress as it was seen, not one of its name that came later.
func (r *repairs) drop(ctx context.Context, a *networkingv1.IPAddress) error {
	return controller.IgnoreGone(r.client.NetworkingV1().IPAddresses().Delete(ctx, a.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &a.UID},
	}))
}
