package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func ptr[T any](v T) *T { return &v }

// ep reads "10.1.1.1@node ready|notready|ending|dead hint=node/zone".
func ep(text string) discoveryv1.Endpoint {
	f := strings.Fields(text)
	addr, node, _ := strings.Cut(f[0], "@")
	e := discoveryv1.Endpoint{Addresses: strings.Split(addr, ",")}
	if node != "" {
		e.NodeName = &node
	}
	for _, word := range f[1:] {
		switch {
		case word == "ready":
			e.Conditions.Ready = ptr(true)
		case word == "notready":
			e.Conditions.Ready, e.Conditions.Serving = ptr(false), ptr(false)
		case word == "ending":
			e.Conditions = discoveryv1.EndpointConditions{Ready: ptr(false), Serving: ptr(true), Terminating: ptr(true)}
		case word == "leaving": // serving is not said
			e.Conditions = discoveryv1.EndpointConditions{Ready: ptr(false), Terminating: ptr(true)}
		case word == "dead":
			e.Conditions = discoveryv1.EndpointConditions{Ready: ptr(false), Serving: ptr(false), Terminating: ptr(true)}
		case strings.HasPrefix(word, "hint="):
			n, z, _ := strings.Cut(strings.TrimPrefix(word, "hint="), "/")
			e.Hints = &discoveryv1.EndpointHints{}
			if n != "" {
				e.Hints.ForNodes = []discoveryv1.ForNode{{Name: n}}
			}
			if z != "" {
				e.Hints.ForZones = []discoveryv1.ForZone{{Name: z}}
			}
		}
	}
	return e
}

func slice(name string, eps ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("p"), Port: ptr[int32](80)}},
	}
	for _, e := range eps {
		s.Endpoints = append(s.Endpoints, ep(e))
	}
	return s
}

func web(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.9", Ports: []corev1.ServicePort{{Name: "p", Port: 8000, Protocol: corev1.ProtocolTCP}},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

func showRoute(r Route) string {
	var parts []string
	for _, b := range r.Backends {
		text := b.String()
		if b.Local {
			text += "*"
		}
		parts = append(parts, text)
	}
	if r.Drop {
		parts = append(parts, "else drop")
	}
	return strings.Join(parts, " ")
}

func TestBackends(t *testing.T) {
	internalLocal := func(s *corev1.Service) {
		s.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicyLocal)
	}
	externalLocal := func(s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	for _, x := range []struct {
		name               string
		svc                func(*corev1.Service)
		eps                []string
		down               string
		internal, external string
	}{
		// VIP-8
		{name: "ready ones only", eps: []string{"10.1.0.1@me ready", "10.1.0.2@n2 notready", "10.1.0.3@n2 ready"},
			internal: "10.1.0.1:80* 10.1.0.3:80", external: "10.1.0.1:80* 10.1.0.3:80"},
		{name: "no condition means ready", eps: []string{"10.1.0.1"}, internal: "10.1.0.1:80", external: "10.1.0.1:80"},
		{name: "all addresses of an endpoint", eps: []string{"10.1.0.2,10.1.0.1"}, // SVC-10
			internal: "10.1.0.1:80 10.1.0.2:80", external: "10.1.0.1:80 10.1.0.2:80"},
		{name: "none", internal: "", external: ""},
		// VIP-22
		{name: "ending ones when nothing else is left", eps: []string{"10.1.0.1@me ending", "10.1.0.2@n2 dead"},
			internal: "10.1.0.1:80*", external: "10.1.0.1:80*"},
		{name: "ending ones that do not say whether they serve do", eps: []string{"10.1.0.1@me leaving", "10.1.0.2@n2 dead"},
			internal: "10.1.0.1:80*", external: "10.1.0.1:80*"},
		{name: "ready before ending", eps: []string{"10.1.0.1@me ending", "10.1.0.2@n2 ready"},
			internal: "10.1.0.2:80", external: "10.1.0.2:80"},
		// VIP-20, ITP-1
		{name: "internal Local", svc: internalLocal, eps: []string{"10.1.0.1@me ready", "10.1.0.2@n2 ready"},
			internal: "10.1.0.1:80* else drop", external: "10.1.0.1:80* 10.1.0.2:80"},
		{name: "internal Local without one here", svc: internalLocal, eps: []string{"10.1.0.2@n2 ready"},
			internal: "else drop", external: "10.1.0.2:80"},
		{name: "internal Local without any", svc: internalLocal, internal: "", external: ""},
		// VIP-21
		{name: "external Local prefers ready", svc: externalLocal,
			eps:      []string{"10.1.0.1@me ending", "10.1.0.2@me ready", "10.1.0.3@n2 ready"},
			internal: "10.1.0.2:80* 10.1.0.3:80", external: "10.1.0.2:80* else drop"},
		// VIP-23
		{name: "external Local falls back to ending", svc: externalLocal, eps: []string{"10.1.0.1@me ending", "10.1.0.3@n2 ready"},
			internal: "10.1.0.3:80", external: "10.1.0.1:80* else drop"},
		{name: "dead node is avoided", down: "n2", eps: []string{"10.1.0.1@me ready", "10.1.0.2@n2 ready"},
			internal: "10.1.0.1:80*", external: "10.1.0.1:80*"},
		{name: "dead node has the last", down: "n2", eps: []string{"10.1.0.2@n2 ready"},
			internal: "10.1.0.2:80", external: "10.1.0.2:80"},
		{name: "same node hint", eps: []string{"10.1.0.1@me ready hint=me/z1", "10.1.0.2@n2 ready hint=n2/z1"},
			internal: "10.1.0.1:80*", external: "10.1.0.1:80*"},
		{name: "zone hint", eps: []string{"10.1.0.1@n3 ready hint=/z1", "10.1.0.2@n2 ready hint=/z2"},
			internal: "10.1.0.1:80", external: "10.1.0.1:80"},
		{name: "a missing hint disables hints", eps: []string{"10.1.0.1@n3 ready hint=/z1", "10.1.0.2@n2 ready"},
			internal: "10.1.0.1:80 10.1.0.2:80", external: "10.1.0.1:80 10.1.0.2:80"},
		{name: "no hint for here", eps: []string{"10.1.0.1@n3 ready hint=/z3", "10.1.0.2@n2 ready hint=/z2"},
			internal: "10.1.0.1:80 10.1.0.2:80", external: "10.1.0.1:80 10.1.0.2:80"},
	} {
		t.Run(x.name, func(t *testing.T) {
			// The second slice repeats the first endpoint as not ready (EPS-22).
			second := slice("web-2")
			if len(x.eps) > 0 {
				addr, _, _ := strings.Cut(x.eps[0], " ")
				second = slice("web-2", addr+" notready")
			}
			got := Build(Input{
				Services: []*corev1.Service{web(x.svc)},
				Slices:   []*discoveryv1.EndpointSlice{second, slice("web-1", x.eps...)},
				View:     View{Node: "me", Zone: "z1", Down: map[string]bool{x.down: x.down != ""}},
			}).Get(Key{"ns", "web"}).Ports[0]
			if s := showRoute(got.Internal); s != x.internal {
				t.Errorf("internal: got %q, want %q", s, x.internal)
			}
			if s := showRoute(got.External); s != x.external {
				t.Errorf("external: got %q, want %q", s, x.external)
			}
		})
	}
}

// TestFamilies: endpoints of each family are chosen among themselves, as clients of one
// cannot use the other's. Pods that began before the cluster had both have one.
func TestFamilies(t *testing.T) {
	local := func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicyLocal) }
	for _, x := range []struct {
		name   string
		svc    func(*corev1.Service)
		v4, v6 []string
		want   string
		last   bool
	}{
		{"same_node", nil, []string{"10.1.0.1@me ready hint=me/", "10.1.0.2@n2 ready hint=n2/"},
			[]string{"fd00::2@n2 ready hint=n2/"},
			"10.1.0.1:80* [fd00::2]:80", false},
		{"same_zone", nil, []string{"10.1.0.1@n3 ready hint=/z1", "10.1.0.2@n2 ready hint=/z2"},
			[]string{"fd00::2@n2 ready hint=/z2"},
			"10.1.0.1:80 [fd00::2]:80", false},
		{"hints_of_one", nil, []string{"10.1.0.1@n3 ready hint=/z1", "10.1.0.2@n2 ready hint=/z2"},
			[]string{"fd00::2@n2 ready"},
			"10.1.0.1:80 [fd00::2]:80", false},
		{"one_ends", nil, []string{"10.1.0.1@n3 ready"},
			[]string{"fd00::2@n2 ending"}, "10.1.0.1:80 [fd00::2]:80", false},
		{"the_other_ends", nil, []string{"10.1.0.1@n3 ending"},
			[]string{"fd00::2@n2 ready"}, "10.1.0.1:80 [fd00::2]:80", false},
		{"both_end", nil, []string{"10.1.0.1@n3 ending"},
			[]string{"fd00::2@n2 ending"}, "10.1.0.1:80 [fd00::2]:80", true},
		{"one_is_of_a_dead_node", nil, []string{"10.1.0.1@n3 ready"},
			[]string{"fd00::2@down ready"}, "10.1.0.1:80 [fd00::2]:80", false},
		{"local", local, []string{"10.1.0.1@me ready"}, []string{"fd00::1@me ending"},
			"10.1.0.1:80* [fd00::1]:80* else drop", false},
		{"one_alone", nil, nil, []string{"fd00::2@n2 ending"}, "[fd00::2]:80", true},
	} {
		t.Run(x.name, func(t *testing.T) {
			v6 := slice("b", x.v6...)
			v6.AddressType = discoveryv1.AddressTypeIPv6
			got := BuildOne(web(x.svc), []*discoveryv1.EndpointSlice{v6, slice("a", x.v4...)},
				View{Node: "me", Zone: "z1", Down: map[string]bool{"down": true}}).Ports[0].Internal
			if s := showRoute(got); s != x.want || got.Last != x.last {
				t.Errorf("got %q, last %v, want %q", s, got.Last, x.want)
			}
		})
	}
	// A load balancer's health check counts a pod of both families once, as DNS names it by both.
	v6 := slice("b", "fd00::1@me ready", "fd00::2@down ready")
	v6.AddressType = discoveryv1.AddressTypeIPv6
	got := BuildOne(web(func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 31000 }),
		[]*discoveryv1.EndpointSlice{v6, slice("a", "10.1.0.1@me ready"), slice("c", "10.1.0.1@me ready", "10.1.0.3@me ready")},
		View{Node: "me", Down: map[string]bool{"down": true}})
	if got.LocalReady != 2 || len(got.Endpoints) != 3 {
		t.Errorf("%d ready here, names of %v", got.LocalReady, got.Endpoints)
	}
}

// TestLasting: to which endpoints, beside those for new ones, flows of UDP and SCTP stay.
func TestLasting(t *testing.T) {
	for name, x := range map[string]struct {
		eps       []string
		udp, sctp string
	}{
		"all are chosen": {[]string{"10.1.0.1 ready", "10.1.0.2 notready"}, "[]", "[10.1.0.2:80]"},
		"one ends, one is dead": {[]string{"10.1.0.1 ready", "10.1.0.2 ending", "10.1.0.3 dead"},
			"[10.1.0.2:80]", "[10.1.0.2:80 10.1.0.3:80]"},
		"those that end are all": {[]string{"10.1.0.1 ending", "10.1.0.2 ending"}, "[]", "[]"},
		"one is hinted for others": {[]string{"10.1.0.1@n1 ready hint=/z1", "10.1.0.2@n2 ready hint=/z2"},
			"[10.1.0.2:80]", "[10.1.0.2:80]"},
		"one's node died": {[]string{"10.1.0.1@n1 ready", "10.1.0.2@n3 ready", "10.1.0.3@n3 ending"},
			"[]", "[10.1.0.2:80 10.1.0.3:80]"},
	} {
		for protocol, want := range map[corev1.Protocol]string{
			corev1.ProtocolUDP: x.udp, corev1.ProtocolSCTP: x.sctp, corev1.ProtocolTCP: "[]"} {
			svc := web(func(s *corev1.Service) { s.Spec.Ports[0].Protocol = protocol })
			slc := slice("a", x.eps...)
			slc.Ports[0].Protocol = &protocol
			view := View{Node: "me", Zone: "z1", Down: map[string]bool{"n3": true}}
			got := BuildOne(svc, []*discoveryv1.EndpointSlice{slc}, view).Ports[0]
			if s := fmt.Sprint(got.Lasting); s != want || len(got.Cluster.Backends) == 0 {
				t.Errorf("%s, %s: got %s beside %s, want %s", name, protocol, s, showRoute(got.Cluster), want)
			}
		}
	}
}

func TestPortsAreMatchedByNameAndProtocol(t *testing.T) { // SVC-5, SVC-22
	svc := web(func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "q", Port: 9000, Protocol: corev1.ProtocolUDP})
	})
	a, b := slice("a", "10.1.0.1 ready"), slice("b", "10.1.0.2 ready")
	b.Ports = []discoveryv1.EndpointPort{
		{Name: ptr("p"), Port: ptr[int32](81)}, {Name: ptr("q"), Port: ptr[int32](90)}, // q is TCP there
	}
	got := BuildOne(svc, []*discoveryv1.EndpointSlice{a, b}, View{})
	if s := fmt.Sprint(showRoute(got.Ports[0].Cluster), "|", showRoute(got.Ports[1].Cluster)); s != "10.1.0.1:80 10.1.0.2:81|" {
		t.Errorf("got %q", s)
	}
}

// A slice with the label of headless Services is for DNS alone, as in kube-proxy.
func TestHeadlessSlices(t *testing.T) {
	names := slice("b", "10.1.0.2@me ready")
	names.Labels[corev1.IsHeadlessService] = ""
	slcs := []*discoveryv1.EndpointSlice{slice("a", "10.1.0.1@me ready"), names}
	got := BuildOne(web(func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 31000 }), slcs, View{Node: "me"})
	if s := showRoute(got.Ports[0].Cluster); s != "10.1.0.1:80*" || got.LocalReady != 1 {
		t.Errorf("got %q, %d ready here", s, got.LocalReady)
	}
	got = BuildOne(web(func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }), slcs, View{})
	if len(got.Endpoints) != 2 {
		t.Errorf("DNS knows %v", got.Endpoints)
	}
}

func TestKindsOfServices(t *testing.T) {
	headless := BuildOne(web(func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }),
		[]*discoveryv1.EndpointSlice{slice("a", "10.1.0.1 ready", "10.1.0.2 notready")}, View{})
	if !headless.Headless || len(headless.ClusterIPs) != 0 || len(headless.Endpoints) != 1 { // DNS-17
		t.Errorf("headless: %+v", headless)
	}
	ext := BuildOne(web(func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "db.example.com"
	}), nil, View{})
	if ext.ExternalName != "db.example.com" {
		t.Errorf("external name: %+v", ext)
	}
	lb := BuildOne(web(func(s *corev1.Service) {
		s.Spec.Type, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, 31000
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
			{IP: "192.0.2.1"}, {IP: "192.0.2.2", IPMode: ptr(corev1.LoadBalancerIPModeProxy)}, {Hostname: "lb.example.com"},
		}
	}), []*discoveryv1.EndpointSlice{slice("a", "10.1.0.1@me ready")}, View{Node: "me"})
	// VIP-14
	if fmt.Sprint(lb.BalancerIPs) != "[192.0.2.1]" || lb.HealthPort != 31000 || lb.LocalReady != 1 ||
		lb.Affinity.Seconds() != 10800 {
		t.Errorf("load balancer: %+v", lb)
	}
}

// External addresses that are nodes' are refused, those of a balancer are not; a
// Service has no more than some of a kind.
func TestExternalAddresses(t *testing.T) {
	node, free := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("203.0.113.1")
	view := View{Nodes: map[netip.Addr]bool{node: true}}
	svc := &corev1.Service{
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer,
			ClusterIP: "10.96.0.5", ExternalIPs: []string{"192.0.2.1", "203.0.113.1"}}}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	got := BuildOne(svc, nil, view)
	if !slices.Equal(got.ExternalIPs, []netip.Addr{free}) || !slices.Equal(got.BalancerIPs, []netip.Addr{node}) ||
		!slices.Equal(got.Refused, []netip.Addr{node}) {
		t.Errorf("external %v, of balancers %v, refused %v", got.ExternalIPs, got.BalancerIPs, got.Refused)
	}
	many := []string{}
	for i := range 100_000 {
		many = append(many, netip.AddrFrom4([4]byte{198, byte(i >> 16), byte(i >> 8), byte(i)}).String())
	}
	svc.Spec.ExternalIPs = many
	if got := BuildOne(svc, nil, view); len(got.ExternalIPs) != maxExternal || len(got.Refused) != 1 {
		t.Errorf("of very many: %d, refused %d", len(got.ExternalIPs), len(got.Refused))
	}
}

// Ranges are read as the API reads them, and one that cannot be read opens
// nothing.
func TestSourceRanges(t *testing.T) {
	svc := &corev1.Service{Spec: corev1.ServiceSpec{LoadBalancerSourceRanges: []string{" 10.1.2.3/8 ", "nonsense"}}}
	got := BuildOne(svc, nil, View{}).SourceRanges
	if len(got) != 2 || got[0] != netip.MustParsePrefix("10.0.0.0/8") || got[1].IsValid() {
		t.Errorf("got %v", got)
	}
	// All of a family says nothing of the other, which is open as without ranges.
	for want, ranges := range map[int][]string{0: {"0.0.0.0/0", "10.0.0.0/8"}, 1: {"10.0.0.0/8"},
		2: {"::/0", "10.0.0.0/8"}, 3: {"0.0.0.0/0", "::/0", "nonsense"}} {
		svc.Spec.LoadBalancerSourceRanges = ranges
		if got := BuildOne(svc, nil, View{}).SourceRanges; len(got) != want {
			t.Errorf("of %v: %v", ranges, got)
		}
	}
}

// TestAnnouncement: only addresses that the coordinator gave are announced, with the policy
// Local by nodes with a ready endpoint.
func TestAnnouncement(t *testing.T) {
	balancer := func(policy corev1.ServiceExternalTrafficPolicy, given bool) *corev1.Service {
		return web(func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, policy
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
			if given {
				s.Status.Conditions = []metav1.Condition{{Type: conditionAnnounced, Status: metav1.ConditionTrue}}
			}
		})
	}
	cluster, local := corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal
	for _, tt := range []struct {
		name string
		svc  *corev1.Service
		eps  []string
		want string
	}{
		{"of_others", balancer(cluster, false), []string{"10.1.0.1@me ready"}, "<nil>"},
		{"cluster", balancer(cluster, true), []string{"10.1.0.1@me ready"}, "&{[192.0.2.1] false []}"},
		{"local", balancer(local, true), []string{"10.1.0.1@n2 ready", "10.1.0.2@me ready", "10.1.0.3@me ready", "10.1.0.4@n3 notready"},
			"&{[192.0.2.1] true [me n2]}"},
		{"local_ending", balancer(local, true), []string{"10.1.0.1@n2 ending", "10.1.0.2@me dead"}, "&{[192.0.2.1] true [n2]}"},
		{"local_mostly_ending", balancer(local, true), []string{"10.1.0.1@n2 ending", "10.1.0.2@me ready"},
			"&{[192.0.2.1] true [me]}"},
		{"local_none", balancer(local, true), nil, "&{[192.0.2.1] true []}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// As it is held, what is needed must be there.
			svc := neededOfService(tt.svc)
			got := BuildOne(svc, []*discoveryv1.EndpointSlice{slice("a", tt.eps...)}, View{Node: "me"})
			if text := fmt.Sprint(got.Announcement); text != tt.want {
				t.Errorf("got %s, want %s", text, tt.want)
			}
		})
	}
}

// TestAnnounced: what is announced follows the tables, and other changes are none.
func TestAnnounced(t *testing.T) {
	one := func(name, addr string) *Service {
		s := &Service{Key: Key{"ns", name}}
		if addr != "" {
			s.Announcement = &Announcement{Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
		}
		return s
	}
	var a Announced
	tables := NewTables(one("a", "192.0.2.1"), one("b", ""))
	for _, step := range []struct {
		change  map[Key]*Service
		changed bool
		want    string
	}{
		{nil, true, "[192.0.2.1]"},
		{map[Key]*Service{{"ns", "c"}: one("c", "")}, false, "[192.0.2.1]"},
		{map[Key]*Service{{"ns", "a"}: one("a", "192.0.2.1")}, false, "[192.0.2.1]"},
		{map[Key]*Service{{"ns", "0"}: one("0", "192.0.2.9")}, true, "[192.0.2.9 192.0.2.1]"},
		{map[Key]*Service{{"ns", "a"}: nil}, true, "[192.0.2.9]"},
		{map[Key]*Service{{"ns", "0"}: one("0", "")}, true, "[]"},
	} {
		tables = tables.With(step.change)
		changed := a.Update(tables)
		addrs := []netip.Addr{}
		for _, x := range a.All() {
			addrs = append(addrs, x.Addrs...)
		}
		if changed != step.changed || fmt.Sprint(addrs) != step.want {
			t.Errorf("after %v: %v, changed %v; want %s, %v", step.change, addrs, changed, step.want, step.changed)
		}
	}
}
