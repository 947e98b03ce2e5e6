package core

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// allocation owns the cluster's service addresses and node ports. It learns
// what is taken from the stored services when it is first asked, so a crash
// between an allocation and its service's write loses nothing.
type allocation struct {
	list func(context.Context) (*corev1.ServiceList, error)
	// dropEndpoints deletes the Endpoints of a deleted service, so that a new
	// one of its name does not begin with old addresses.
	dropEndpoints func(namespace, name string)

	mu       sync.Mutex
	seeded   bool
	families []corev1.IPFamily // the primary first
	ips      map[corev1.IPFamily]addresses
	ports    *pool
	portMin  int
	portMax  int
}

func newAllocation(env *kind.Env, store *genericregistry.Store) *allocation {
	a := newPools(env.ServiceCIDRs, env.NodePortMin, env.NodePortMax)
	a.list = func(ctx context.Context) (*corev1.ServiceList, error) {
		obj, err := store.List(request.WithNamespace(ctx, metav1.NamespaceAll), nil)
		if err != nil {
			return nil, err
		}
		return obj.(*corev1.ServiceList), nil
	}
	a.dropEndpoints = func(namespace, name string) { dropEndpoints(env.Client, namespace, name) }
	return a
}

func newPools(cidrs []netip.Prefix, portMin, portMax int) *allocation {
	if portMin == 0 {
		portMin, portMax = 30000, 32767
	}
	ports := uint64(portMax - portMin + 1)
	a := &allocation{
		ips: map[corev1.IPFamily]addresses{}, portMin: portMin, portMax: portMax,
		ports: newPool(ports, min(max(16, ports/32), 128)),
	}
	for _, cidr := range cidrs {
		f := familyOf(cidr.Addr().String())
		if _, twice := a.ips[f]; !twice {
			a.families = append(a.families, f)
			a.ips[f] = newAddresses(cidr)
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
			a.release(s)
		}
	}
}

// hold is one reserved number of a pool.
type hold struct {
	pool *pool
	n    uint64
}

// holds are what one write reserves, and what it gives up when it succeeds.
type holds struct {
	taken, unused []hold
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
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.seed(ctx); err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("list services to learn what is allocated: %w", err))
	}
	var h holds
	err := a.fillIPs(&h, s, old)
	if err == nil {
		err = a.fillPorts(&h, s, old)
	}
	if err != nil {
		freeAll(h.taken)
		return nil, err
	}
	return func(_ context.Context, success bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		switch {
		case dryRun || !success:
			freeAll(h.taken)
		default:
			freeAll(h.unused)
		}
	}, nil
}

func freeAll(list []hold) {
	for _, h := range list {
		h.pool.free(h.n)
	}
}

// seed marks what stored services hold, once.
func (a *allocation) seed(ctx context.Context) error {
	if a.seeded {
		return nil
	}
	list, err := a.list(ctx)
	if err != nil {
		return err
	}
	for i := range list.Items {
		for _, h := range a.heldBy(&list.Items[i]) {
			h.pool.take(h.n)
		}
	}
	a.seeded = true
	return nil
}

// heldBy returns all that a service holds.
func (a *allocation) heldBy(s *corev1.Service) (out []hold) {
	if s.Spec.Type != corev1.ServiceTypeExternalName {
		for _, ip := range s.Spec.ClusterIPs {
			out = append(out, a.ipHold(ip)...)
		}
	}
	for i := range s.Spec.Ports {
		out = append(out, a.portHold(int(s.Spec.Ports[i].NodePort))...)
	}
	if needsHealthPort(s) {
		out = append(out, a.portHold(int(s.Spec.HealthCheckNodePort))...)
	}
	return out
}

func (a *allocation) ipHold(ip string) []hold {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return nil // None
	}
	pool, ok := a.ips[familyOf(ip)]
	if !ok {
		return nil
	}
	n, err := pool.index(addr)
	if err != nil {
		return nil
	}
	return []hold{{pool.pool, n}}
}

func (a *allocation) portHold(port int) []hold {
	if port < a.portMin || port > a.portMax {
		return nil
	}
	return []hold{{a.ports, uint64(port - a.portMin)}}
}

func (a *allocation) release(s *corev1.Service) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seeded {
		freeAll(a.heldBy(s))
	}
}

// fillIPs reserves the addresses that a service lacks or asks for.
func (a *allocation) fillIPs(h *holds, v, old *corev1.Service) error {
	s := &v.Spec
	var had []string
	if old != nil && old.Spec.Type != corev1.ServiceTypeExternalName {
		had = old.Spec.ClusterIPs
		if isHeadless(old) {
			return nil
		}
	}
	if s.Type == corev1.ServiceTypeExternalName {
		for _, ip := range had {
			h.unused = append(h.unused, a.ipHold(ip)...)
		}
		return nil
	}
	if isHeadless(v) {
		return nil
	}
	for i, f := range s.IPFamilies {
		if i < len(had) {
			continue // addresses do not change; validation sees to it
		}
		if i >= len(s.ClusterIPs) {
			s.ClusterIPs = append(s.ClusterIPs, "")
		}
		ip, err := a.takeIP(h, v, f, s.ClusterIPs[i])
		if err != nil {
			return err
		}
		s.ClusterIPs[i] = ip
	}
	if len(s.ClusterIPs) > 0 {
		s.ClusterIP = s.ClusterIPs[0]
	}
	if len(had) > len(s.IPFamilies) {
		for _, ip := range had[len(s.IPFamilies):] {
			h.unused = append(h.unused, a.ipHold(ip)...)
		}
	}
	return nil
}

func (a *allocation) takeIP(h *holds, v *corev1.Service, f corev1.IPFamily, wanted string) (string, error) {
	pool := a.ips[f]
	if wanted == "" {
		n, ok := pool.next()
		if !ok {
			return "", apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: range is full", v.Name))
		}
		h.taken = append(h.taken, hold{pool.pool, n})
		return pool.at(n).String(), nil
	}
	addr, err := netip.ParseAddr(wanted)
	if err != nil {
		return "", apierrors.NewInternalError(fmt.Errorf("failed to parse service IP %q", wanted))
	}
	n, err := pool.index(addr)
	if err == nil && !pool.take(n) {
		err = errors.New("provided IP is already allocated")
	}
	if err != nil {
		return "", invalidService(v, field.ErrorList{field.Invalid(field.NewPath("spec", "clusterIPs"), v.Spec.ClusterIPs,
			fmt.Sprintf("failed to allocate IP %v: %v", wanted, err))})
	}
	h.taken = append(h.taken, hold{pool.pool, n})
	return wanted, nil
}

// fillPorts reserves node ports, one number for ports that differ only in
// protocol, and the health check port.
func (a *allocation) fillPorts(h *holds, v, old *corev1.Service) error {
	had, keeps := map[int32]bool{}, map[int32]bool{}
	if old != nil && hasNodePorts(old) {
		for i := range old.Spec.Ports {
			had[old.Spec.Ports[i].NodePort] = true
		}
	}
	if hasNodePorts(v) {
		if err := a.takePorts(h, v, had, keeps, old == nil); err != nil {
			return err
		}
	}
	for port := range had {
		if !keeps[port] {
			h.unused = append(h.unused, a.portHold(int(port))...)
		}
	}
	return a.fillHealthPort(h, v, old)
}

func (a *allocation) takePorts(h *holds, v *corev1.Service, had, keeps map[int32]bool, fresh bool) error {
	byPort := map[int32]int32{}
	if fresh {
		for _, p := range v.Spec.Ports {
			if p.NodePort != 0 && byPort[p.Port] == 0 {
				byPort[p.Port] = p.NodePort
			}
		}
	}
	automatic := v.Spec.Type == corev1.ServiceTypeNodePort || deref(v.Spec.AllocateLoadBalancerNodePorts)
	for i := range v.Spec.Ports {
		p := &v.Spec.Ports[i]
		if p.NodePort == 0 && !automatic {
			continue
		}
		if p.NodePort == 0 {
			p.NodePort = byPort[p.Port]
		}
		if p.NodePort == 0 {
			n, ok := a.ports.next()
			if !ok {
				return apierrors.NewInternalError(errors.New("failed to allocate a nodePort: range is full"))
			}
			h.taken = append(h.taken, hold{a.ports, n})
			p.NodePort = int32(a.portMin) + int32(n)
			if fresh {
				byPort[p.Port] = p.NodePort
			}
		} else if !had[p.NodePort] && !keeps[p.NodePort] {
			if err := a.takePort(h, int(p.NodePort)); err != nil {
				return invalidService(v, field.ErrorList{field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), p.NodePort, err.Error())})
			}
		}
		keeps[p.NodePort] = true
	}
	return nil
}

func (a *allocation) takePort(h *holds, port int) error {
	list := a.portHold(port)
	if len(list) == 0 {
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %d-%d", a.portMin, a.portMax)
	}
	if !list[0].pool.take(list[0].n) {
		return errors.New("provided port is already allocated")
	}
	h.taken = append(h.taken, list...)
	return nil
}

func (a *allocation) fillHealthPort(h *holds, v, old *corev1.Service) error {
	had := old != nil && needsHealthPort(old)
	switch needs := needsHealthPort(v); {
	case had && !needs:
		h.unused = append(h.unused, a.portHold(int(old.Spec.HealthCheckNodePort))...)
	case !had && needs && v.Spec.HealthCheckNodePort != 0:
		if err := a.takePort(h, int(v.Spec.HealthCheckNodePort)); err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", v.Spec.HealthCheckNodePort, err))
		}
	case !had && needs:
		n, ok := a.ports.next()
		if !ok {
			return apierrors.NewInternalError(errors.New("failed to allocate a HealthCheck NodePort: range is full"))
		}
		h.taken = append(h.taken, hold{a.ports, n})
		v.Spec.HealthCheckNodePort = int32(a.portMin) + int32(n)
	}
	return nil
}
