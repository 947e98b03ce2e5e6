package core

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// allocation gives services their addresses and node ports. The truth is in the
// store, so that several coordinators share it; a crash between a claim and its
// service's write leaves a claim that is found and dropped later.
type allocation struct {
	families  []corev1.IPFamily // the primary first
	addresses *serviceAddresses
	ports     *nodePorts
	// dropEndpoints deletes the Endpoints of a deleted service, so that a new
	// one of its name does not begin with old addresses.
	dropEndpoints func(namespace, name string)
	reserved      *reservedRanges
}

func newAllocation(env *kind.Env, stores kind.Stores) *allocation {
	services := listOf[*corev1.ServiceList](stores["/services"])
	addresses := stores["networking.k8s.io/ipaddresses"]
	book := &storedAddresses{
		store: addresses, addresses: listOf[*networkingv1.IPAddressList](addresses),
		cidrs: listOf[*networkingv1.ServiceCIDRList](stores["networking.k8s.io/servicecidrs"]), services: services,
		stored: storedService(stores["/services"]),
	}
	a := &allocation{
		addresses: newServiceAddresses(book),
		reserved: &reservedRanges{
			services: env.ServiceCIDRs, pods: env.ClusterCIDRs, more: book.ranges, nodes: listOf[*corev1.NodeList](stores["/nodes"]),
		},
		ports:         openNodePorts(newStoredPorts(env, services), env.NodePortMin, env.NodePortMax),
		dropEndpoints: func(namespace, name string) { dropEndpoints(env.Client, namespace, name) },
	}
	for _, cidr := range env.ServiceCIDRs {
		if f := familyOf(cidr.Addr().String()); !slices.Contains(a.families, f) {
			a.families = append(a.families, f)
		}
	}
	return a
}

func dropEndpoints(client kubernetes.Interface, namespace, name string) {
	if client == nil {
		return
	}
	err := client.CoreV1().Endpoints(namespace).Delete(context.Background(), name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		utilruntime.HandleError(fmt.Errorf("delete endpoints of deleted service %s/%s: %w", namespace, name, err))
	}
}

func (a *allocation) install(store *genericregistry.Store) {
	store.BeginCreate = func(ctx context.Context, obj runtime.Object, o *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		s := obj.(*corev1.Service)
		syncClusterIPs(&s.Spec, nil)
		return a.begin(ctx, s, nil, dryrun.IsDryRun(o.DryRun))
	}
	store.BeginUpdate = func(ctx context.Context, obj, old runtime.Object, o *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
		s, was := obj.(*corev1.Service), old.(*corev1.Service)
		keepAllocated(s, was)
		syncClusterIPs(&s.Spec, &was.Spec)
		return a.begin(ctx, s, was, dryrun.IsDryRun(o.DryRun))
	}
	store.AfterDelete = func(obj runtime.Object, o *metav1.DeleteOptions) {
		if s := obj.(*corev1.Service); !dryrun.IsDryRun(o.DryRun) {
			a.dropEndpoints(s.Namespace, s.Name)
			a.release(claims{addresses: addressesOf(s), ports: portsOf(s)}, s)
		}
	}
}

// claims are what one write has reserved, or gives up.
type claims struct {
	addresses []netip.Addr
	ports     []int32
}

// begin fills the addresses and ports of a service that is about to be written.
// The returned func makes them final, or gives them back.
func (a *allocation) begin(ctx context.Context, s, old *corev1.Service, dryRun bool) (genericregistry.FinishFunc, error) {
	if len(a.families) == 0 {
		return nil, apierrors.NewInternalError(errors.New("no service address range is configured"))
	}
	if err := chooseFamilies(s, old, a.families); err != nil {
		return nil, err
	}
	if errs := a.reserved.refuse(ctx, s, old); len(errs) > 0 {
		return nil, invalidService(s, errs)
	}
	var taken claims
	// Both wait for the disk, so they wait together.
	ports := make(chan error, 1)
	go func() {
		var err error
		taken.ports, err = a.ports.fill(ctx, s, old, dryRun)
		ports <- err
	}()
	err := a.fillIPs(ctx, &taken.addresses, s, old, dryRun)
	if portErr := <-ports; err == nil {
		err = portErr
	}
	if dryRun {
		taken = claims{}
	}
	if err != nil {
		a.release(taken, s)
		if status := (*apierrors.StatusError)(nil); errors.As(err, &status) {
			return nil, status
		}
		return nil, apierrors.NewInternalError(err)
	}
	return func(_ context.Context, success bool) {
		switch {
		case !success:
			a.release(taken, s)
		case old != nil && !dryRun:
			a.release(unused(s, old), s)
		}
	}, nil
}

// unused is what a service had and has no more.
func unused(s, old *corev1.Service) (c claims) {
	now := addressesOf(s)
	for _, ip := range addressesOf(old) {
		if !slices.Contains(now, ip) {
			c.addresses = append(c.addresses, ip)
		}
	}
	ports := portsOf(s)
	for _, port := range portsOf(old) {
		if !slices.Contains(ports, port) {
			c.ports = append(c.ports, port)
		}
	}
	return c
}

// addressesOf are the cluster IPs of a service that has any.
func addressesOf(s *corev1.Service) (out []netip.Addr) {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	for _, text := range s.Spec.ClusterIPs {
		if ip, err := netip.ParseAddr(text); err == nil { // not None
			out = append(out, ip)
		}
	}
	return out
}

// release gives claims back. The request that they were for is over, or fails
// anyway; what cannot be given back is found later.
func (a *allocation) release(c claims, s *corev1.Service) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	for _, ip := range c.addresses {
		if err := a.addresses.release(ctx, s, ip); err != nil {
			utilruntime.HandleError(err)
		}
	}
	if err := a.ports.release(ctx, c.ports); err != nil {
		utilruntime.HandleError(fmt.Errorf("release node ports %v: %w", c.ports, err))
	}
}

const releaseTimeout = 10 * time.Second

// fillIPs reserves the addresses that a service lacks or asks for.
func (a *allocation) fillIPs(ctx context.Context, taken *[]netip.Addr, v, old *corev1.Service, dryRun bool) error {
	s := &v.Spec
	var had []string
	if old != nil && old.Spec.Type != corev1.ServiceTypeExternalName {
		had = old.Spec.ClusterIPs
		if isHeadless(old) {
			return nil
		}
	}
	if s.Type == corev1.ServiceTypeExternalName || isHeadless(v) {
		return nil
	}
	for i, f := range s.IPFamilies {
		if i < len(had) {
			continue // addresses do not change; validation sees to it
		}
		if i >= len(s.ClusterIPs) {
			s.ClusterIPs = append(s.ClusterIPs, "")
		}
		ip, err := a.claimIP(ctx, v, f, s.ClusterIPs[i], dryRun)
		if err != nil {
			return err
		}
		s.ClusterIPs[i] = ip.String()
		*taken = append(*taken, ip)
	}
	if len(s.ClusterIPs) > 0 {
		s.ClusterIP = s.ClusterIPs[0]
	}
	return nil
}

func (a *allocation) claimIP(ctx context.Context, v *corev1.Service, f corev1.IPFamily, wanted string, dryRun bool) (netip.Addr, error) {
	if wanted == "" {
		return a.addresses.next(ctx, v, f, dryRun)
	}
	ip, err := netip.ParseAddr(wanted)
	if err != nil {
		return ip, apierrors.NewInternalError(fmt.Errorf("failed to parse service IP %q", wanted))
	}
	return ip, a.addresses.take(ctx, v, ip, dryRun)
}
