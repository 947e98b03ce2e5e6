package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// What a Service says of its addresses.
const (
	// Class is that of Services which this controller alone serves; those without a
	// class it serves too. A class without a prefix is left to users (SVC-49).
	Class = "shoal.io/load-balancer"
	// AddressesAnnotation are the addresses that a Service is to have, with commas
	// between them; spec.loadBalancerIP asks for one.
	AddressesAnnotation = "shoal.io/load-balancer-addresses"
	// PoolAnnotation names the pool that a Service is to have its addresses of.
	PoolAnnotation = "shoal.io/load-balancer-pool"
	// Announced is the condition of a Service whose addresses were given here. The
	// agents announce no others.
	Announced = "shoal.io/Announced"
	// Finalizer keeps a Service until its addresses are released. It comes after the
	// condition and goes before it, so that with the condition alone it is told from
	// the same one of a cloud's controller (KEP-980).
	Finalizer = "service.kubernetes.io/load-balancer-cleanup"
)

// waits tells whether a Service has asked for a load balancer and has none.
func waits(s *corev1.Service) bool {
	return s != nil && s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.DeletionTimestamp == nil &&
		len(s.Status.LoadBalancer.Ingress) == 0
}

// message says what is missing, and what serves meanwhile.
func message(s *corev1.Service) string {
	by := "a load balancer"
	if class := ptr.Deref(s.Spec.LoadBalancerClass, ""); class != "" {
		by = fmt.Sprintf("one that serves the class %q", class)
	}
	other := "its cluster IP"
	if ptr.Deref(s.Spec.AllocateLoadBalancerNodePorts, true) {
		other += " and its node ports"
	}
	return fmt.Sprintf("Nobody has given this Service an external address: install %s; it answers at %s as ever",
		by, other)
}

// marked tells whether a Service's addresses were given here.
func marked(s *corev1.Service) bool {
	return meta.IsStatusConditionTrue(s.Status.Conditions, Announced)
}

func isOwn(finalizer string) bool { return finalizer == Finalizer }

// finalized tells whether a Service whose addresses were given here has the finalizer.
func finalized(s *corev1.Service) bool {
	return marked(s) && slices.ContainsFunc(s.Finalizers, isOwn)
}

// served tells whether a Service is to have addresses from here.
func served(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.DeletionTimestamp == nil &&
		(s.Spec.LoadBalancerClass == nil || *s.Spec.LoadBalancerClass == Class) &&
		(marked(s) || len(s.Status.LoadBalancer.Ingress) == 0)
}

// addresses are those in a Service's status.
func addresses(s *corev1.Service) (out []netip.Addr) {
	for _, i := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(i.IP); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// taken tells who else has an address; "": nobody who may keep it.
type taken func(a netip.Addr) string

// plan is what a Service is to have.
type plan struct {
	addrs []netip.Addr
	pools []string // of addrs
	// problem is why it lacks what it asked for.
	problem string
}

// planFor chooses addresses of pools for a Service.
func planFor(s *corev1.Service, pools []pool, by taken) (out plan) {
	c := chooser{service: s, pools: pools, taken: by}
	wanted, problem := asked(s)
	out.problem = problem
	families := s.Spec.IPFamilies
	if len(families) == 0 {
		families = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	for i, family := range families {
		a, p, problem := c.choose(family, wanted)
		if p != nil {
			out.addrs, out.pools = append(out.addrs, a), append(out.pools, p.name)
		}
		optional := i > 0 && ptr.Deref(s.Spec.IPFamilyPolicy, "") == corev1.IPFamilyPolicyPreferDualStack &&
			!wanted[family].IsValid()
		if problem != "" && !optional && out.problem == "" {
			out.problem = problem
		}
	}
	for family, a := range wanted {
		if !slices.Contains(families, family) && out.problem == "" {
			out.problem = fmt.Sprintf("The Service has no address of the family %s, so it cannot have %s", family, a)
		}
	}
	return out
}

func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// asked are the addresses that a Service asks for.
func asked(s *corev1.Service) (out map[corev1.IPFamily]netip.Addr, problem string) {
	text := s.Annotations[AddressesAnnotation]
	if text == "" {
		text = s.Spec.LoadBalancerIP
	}
	if text == "" {
		return nil, ""
	}
	out = map[corev1.IPFamily]netip.Addr{}
	for one := range strings.SplitSeq(text, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(one))
		switch {
		case err != nil:
			problem = fmt.Sprintf("The Service asks for %q, which is no address", one)
		case out[familyOf(a)].IsValid():
			problem = fmt.Sprintf("The Service asks for both %s and %s; it has one address of each family",
				out[familyOf(a)], a)
		default:
			out[familyOf(a)] = a
		}
	}
	return out, problem
}

type chooser struct {
	service *corev1.Service
	pools   []pool
	taken   taken
}

// choose returns one family's address and its pool, and what is wrong: with a pool the
// Service keeps what it has.
func (c *chooser) choose(family corev1.IPFamily, wanted map[corev1.IPFamily]netip.Addr) (netip.Addr, *pool, string) {
	want := wanted[family]
	problem := ""
	if want.IsValid() {
		p, why := c.allowed(want)
		if p != nil {
			return want, p, ""
		}
		problem = why
	}
	for _, a := range addresses(c.service) {
		if marked(c.service) && familyOf(a) == family {
			if p := c.pool(a, true); p != nil && c.taken(a) == "" {
				return a, p, problem
			}
		}
	}
	if problem != "" {
		return netip.Addr{}, nil, problem
	}
	for i := range c.pools {
		p := &c.pools[i]
		if !c.of(p, false) {
			continue
		}
		if a, ok := c.free(p, family); ok {
			return a, p, ""
		}
	}
	return netip.Addr{}, nil, c.none(family)
}

// allowed returns the pool of an address that is asked for, or why it cannot be had.
func (c *chooser) allowed(a netip.Addr) (*pool, string) {
	p := c.pool(a, true)
	if p == nil {
		return nil, fmt.Sprintf("%s is in no pool that this Service may have addresses of", a)
	}
	if who := c.taken(a); who != "" {
		return nil, fmt.Sprintf("%s is taken: %s has it", a, who)
	}
	return p, ""
}

func (c *chooser) pool(a netip.Addr, explicit bool) *pool {
	for i := range c.pools {
		if p := &c.pools[i]; p.contains(a) && c.of(p, explicit) {
			return p
		}
	}
	return nil
}

// of tells whether the Service may have addresses of a pool; explicit: one that it
// names, or has.
func (c *chooser) of(p *pool, explicit bool) bool {
	if !p.admits(c.service.Namespace) {
		return false
	}
	if name := c.service.Annotations[PoolAnnotation]; name != "" {
		return p.name == name
	}
	return p.auto || explicit
}

// free returns the first address of a pool that nobody has. IPv4 addresses that end in
// 0 or 255 are left to those that ask for them: some devices take them for a network's
// or a broadcast's.
func (c *chooser) free(p *pool, family corev1.IPFamily) (netip.Addr, bool) {
	for _, s := range p.spans {
		if familyOf(s.first) != family {
			continue
		}
		for a := s.first; s.contains(a); a = a.Next() {
			if b := a.AsSlice(); a.Is4() && (b[3] == 0 || b[3] == 255) {
				continue
			}
			if c.taken(a) == "" {
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}

func (c *chooser) none(family corev1.IPFamily) string {
	if name := c.service.Annotations[PoolAnnotation]; name != "" {
		return fmt.Sprintf("No %s address is free in pool %q for Services of namespace %s", family, name,
			c.service.Namespace)
	}
	return fmt.Sprintf("No %s address is free in the pools of ConfigMap %s/%s for Services of namespace %s", family,
		PoolsNamespace, PoolsName, c.service.Namespace)
}

// statusFor is what a Service's status is to be with a plan's addresses, and whether it
// differs.
func statusFor(s *corev1.Service, p plan, now metav1.Time) (corev1.ServiceStatus, bool) {
	if slices.Equal(addresses(s), p.addrs) && marked(s) == (len(p.addrs) > 0) {
		return s.Status, false
	}
	out := *s.Status.DeepCopy()
	out.LoadBalancer.Ingress = nil
	for _, a := range p.addrs {
		out.LoadBalancer.Ingress = append(out.LoadBalancer.Ingress, corev1.LoadBalancerIngress{
			IP: a.String(), IPMode: ptr.To(corev1.LoadBalancerIPModeVIP),
		})
	}
	meta.RemoveStatusCondition(&out.Conditions, Announced)
	if len(p.addrs) > 0 {
		meta.SetStatusCondition(&out.Conditions, metav1.Condition{
			Type:               Announced,
			Status:             metav1.ConditionTrue,
			ObservedGeneration: s.Generation,
			LastTransitionTime: now,
			Reason:             "FromPool",
			Message:            "Given from " + p.from() + "; the nodes announce it",
		})
	}
	return out, true
}

// from names the pools of what is given.
func (p plan) from() string {
	names := slices.Compact(slices.Clone(p.pools))
	for i, n := range names {
		names[i] = fmt.Sprintf("pool %q", n)
	}
	return strings.Join(names, " and ")
}
