package allocate

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
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// Allocator gives Services their addresses and node ports. The truth is in the
// store, so that several coordinators share it; a crash between a claim and its
// Service's write leaves a claim that is found and dropped later.
type Allocator struct {
	families  []corev1.IPFamily // the primary first
	addresses *addressPools
	ports     *nodePorts
	reserved  *reservedRanges
}

// New returns an allocator on the stored Services, IPAddresses, ServiceCIDRs
// and Nodes.
func New(env *kind.Env, stores kind.Stores) *Allocator {
	services := listOf[*corev1.ServiceList](stores["/services"])
	addresses := stores["networking.k8s.io/ipaddresses"]
	book := &storedAddresses{
		store:     addresses,
		addresses: listOf[*networkingv1.IPAddressList](addresses),
		cidrs:     listOf[*networkingv1.ServiceCIDRList](stores["networking.k8s.io/servicecidrs"]),
		services:  services,
		stored:    storedService(stores["/services"]),
	}
	a := &Allocator{
		addresses: newAddressPools(book),
		ports:     openNodePorts(newStoredPorts(env, services), env.NodePortMin, env.NodePortMax),
		reserved: &reservedRanges{
			services: env.ServiceCIDRs,
			pods:     env.ClusterCIDRs,
			more:     book.ranges,
			nodes:    listOf[*corev1.NodeList](stores["/nodes"]),
		},
	}
	for _, cidr := range env.ServiceCIDRs {
		if f := familyOf(cidr.Addr().String()); !slices.Contains(a.families, f) {
			a.families = append(a.families, f)
		}
	}
	return a
}

// claims are what one write has reserved, or gives up.
type claims struct {
	addresses []netip.Addr
	ports     []int32
}

// Begin fills the addresses and ports of a Service that is about to be written;
// old is what is stored, nil for a new one. The returned func, called when the
// write is done or has failed, makes them final or gives them back.
func (a *Allocator) Begin(ctx context.Context, s, old *corev1.Service, dryRun bool) (genericregistry.FinishFunc, error) {
	carryOver(s, old)
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

// Release gives back what a deleted Service had.
func (a *Allocator) Release(s *corev1.Service) {
	a.release(claims{addresses: addressesOf(s), ports: portsOf(s)}, s)
}

// release gives claims back. The request that they were for is over, or fails
// anyway; what cannot be given back is found later.
func (a *Allocator) release(c claims, s *corev1.Service) {
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
func (a *Allocator) fillIPs(ctx context.Context, taken *[]netip.Addr, v, old *corev1.Service, dryRun bool) error {
	s := &v.Spec
	var had []string
	if old != nil && old.Spec.Type != corev1.ServiceTypeExternalName {
		had = old.Spec.ClusterIPs
		if IsHeadless(old) {
			return nil
		}
	}
	if s.Type == corev1.ServiceTypeExternalName || IsHeadless(v) {
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

func (a *Allocator) claimIP(ctx context.Context, v *corev1.Service, f corev1.IPFamily, wanted string,
	dryRun bool) (netip.Addr, error) {
	if wanted == "" {
		return a.addresses.next(ctx, v, f, dryRun)
	}
	ip, err := netip.ParseAddr(wanted)
	if err != nil {
		return ip, apierrors.NewInternalError(fmt.Errorf("failed to parse service IP %q", wanted))
	}
	return ip, a.addresses.take(ctx, v, ip, dryRun)
}
