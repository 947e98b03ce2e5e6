package service

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What BuildOne reads of the objects is held encoded: it is looked at again only
// when a Service changes, and is a tenth in size that way.
//
// The methods of Source here are called with its mu held.

// heldSlice is one EndpointSlice.
type heldSlice struct {
	name  string
	data  []byte
	nodes []string // with endpoints in it
}

func compareHeld(h heldSlice, name string) int { return cmp.Compare(h.name, name) }

func (s *Source) putService(o *corev1.Service) {
	k := keyOf(o)
	data, err := neededOfService(o).Marshal()
	if err != nil {
		s.log.Error("cannot hold a Service", "service", k, "err", err)
		return
	}
	if old, ok := s.services[k]; ok && bytes.Equal(old, data) {
		return
	}
	s.services[k] = data
	s.touch(serviceKind, k, k)
}

func (s *Source) dropService(k Key) {
	if _, ok := s.services[k]; ok {
		delete(s.services, k)
		s.touch(serviceKind, k, k)
	}
}

func (s *Source) putSlice(o *discoveryv1.EndpointSlice) {
	id := keyOf(o)
	k, ok := sliceKey(o)
	if old, held := s.owner[id]; held && (!ok || old != k) {
		s.dropSlice(id) // its label changed
	}
	if !ok {
		return
	}
	s.triggered(o)
	data, err := neededOfSlice(o, s.cfg.Node).Marshal()
	if err != nil {
		s.log.Error("cannot hold an EndpointSlice", "slice", id, "err", err)
		return
	}
	held := s.slices[k]
	i, found := slices.BinarySearchFunc(held, o.Name, compareHeld)
	if found && bytes.Equal(held[i].data, data) {
		return
	}
	h := heldSlice{name: o.Name, data: data, nodes: nodesOf(o)}
	if found {
		held[i] = h
	} else {
		s.slices[k] = slices.Insert(held, i, h)
		s.owner[id] = k
	}
	s.touch(sliceKind, id, k)
}

func (s *Source) dropSlice(id Key) {
	k, ok := s.owner[id]
	if !ok {
		return
	}
	delete(s.owner, id)
	s.slices[k] = slices.DeleteFunc(s.slices[k], func(h heldSlice) bool { return h.name == id.Name })
	if len(s.slices[k]) == 0 {
		delete(s.slices, k)
	}
	s.touch(sliceKind, id, k)
}

// touch notes that an object changed, and what is to be rebuilt for it.
func (s *Source) touch(kind int, id, service Key) {
	s.dirty[service] = true
	if s.cfg.File != "" {
		s.unsaved[kind][id] = true
	}
}

// one builds one Service's value, nil without the Service.
func (s *Source) one(k Key) *Service {
	svc := s.service(k)
	if svc == nil {
		return nil
	}
	slcs := make([]*discoveryv1.EndpointSlice, 0, len(s.slices[k]))
	for _, h := range s.slices[k] {
		if o := s.decodeSlice(h); o != nil {
			slcs = append(slcs, o)
		}
	}
	return BuildOne(svc, slcs, s.view)
}

func (s *Source) service(k Key) *corev1.Service {
	data, ok := s.services[k]
	if !ok {
		return nil
	}
	o := &corev1.Service{}
	if err := o.Unmarshal(data); err != nil {
		s.log.Error("cannot read a held Service", "service", k, "err", err)
		return nil
	}
	return o
}

// slice finds one EndpointSlice by its own name.
func (s *Source) slice(id Key) *discoveryv1.EndpointSlice {
	held := s.slices[s.owner[id]]
	i, found := slices.BinarySearchFunc(held, id.Name, compareHeld)
	if !found {
		return nil
	}
	return s.decodeSlice(held[i])
}

func (s *Source) decodeSlice(h heldSlice) *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{}
	if err := o.Unmarshal(h.data); err != nil {
		s.log.Error("cannot read a held EndpointSlice", "slice", h.name, "err", err)
		return nil
	}
	return o
}

// EndpointsOf are a pod of this node's endpoints, by its namespace and name, ready or not, behind
// Services that a proxy leads traffic to.
func (s *Source) EndpointsOf(pod Key) (out []EndpointOf) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, held := range s.slices {
		if k.Namespace != pod.Namespace {
			continue
		}
		for _, h := range held {
			if slices.Contains(h.nodes, s.cfg.Node) && bytes.Contains(h.data, []byte(pod.Name)) {
				out = appendEndpoints(out, k, s.decodeSlice(h), pod.Name)
			}
		}
	}
	return out
}

func appendEndpoints(out []EndpointOf, k Key, o *discoveryv1.EndpointSlice, pod string) []EndpointOf {
	if o == nil || forNames(o) {
		return out
	}
	ports := slicePorts(o)
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if e.TargetRef == nil || e.TargetRef.Name != pod {
			continue
		}
		for _, a := range parseAddrs(e.Addresses) {
			for _, p := range ports {
				out = append(out, EndpointOf{k, netip.AddrPortFrom(a, p.Number)})
			}
		}
	}
	return out
}

func nodesOf(o *discoveryv1.EndpointSlice) []string {
	var nodes []string
	for i := range o.Endpoints {
		if n := o.Endpoints[i].NodeName; n != nil && !slices.Contains(nodes, *n) {
			nodes = append(nodes, unique.Make(*n).Value())
		}
	}
	return nodes
}

// neededOfService keeps what BuildOne reads.
func neededOfService(o *corev1.Service) *corev1.Service {
	out := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}}
	for _, name := range []string{labelProxyName, LabelGateway} {
		if v, ok := o.Labels[name]; ok {
			if out.Labels == nil {
				out.Labels = map[string]string{}
			}
			out.Labels[name] = v
		}
	}
	in := &o.Spec
	out.Spec = corev1.ServiceSpec{
		Type: in.Type, ClusterIP: in.ClusterIP, ClusterIPs: in.ClusterIPs, ExternalIPs: in.ExternalIPs,
		ExternalName:             in.ExternalName,
		LoadBalancerSourceRanges: in.LoadBalancerSourceRanges, SessionAffinity: in.SessionAffinity,
		SessionAffinityConfig: in.SessionAffinityConfig,
		HealthCheckNodePort:   in.HealthCheckNodePort, InternalTrafficPolicy: in.InternalTrafficPolicy,
		ExternalTrafficPolicy: in.ExternalTrafficPolicy, PublishNotReadyAddresses: in.PublishNotReadyAddresses,
	}
	for _, p := range in.Ports {
		out.Spec.Ports = append(out.Spec.Ports,
			corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port, NodePort: p.NodePort})
	}
	for _, i := range o.Status.LoadBalancer.Ingress {
		out.Status.LoadBalancer.Ingress = append(out.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: i.IP, IPMode: i.IPMode})
	}
	if announced(o) {
		out.Status.Conditions = []metav1.Condition{{Type: conditionAnnounced, Status: metav1.ConditionTrue}}
	}
	return out
}

// neededOfSlice keeps what Build and BuildOne read, and which pods are behind the endpoints
// of a node.
func neededOfSlice(o *discoveryv1.EndpointSlice, node string) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name},
		AddressType: o.AddressType}
	out.Labels = map[string]string{discoveryv1.LabelServiceName: o.Labels[discoveryv1.LabelServiceName]}
	if forNames(o) {
		out.Labels[corev1.IsHeadlessService] = ""
	}
	for _, p := range o.Ports {
		out.Ports = append(out.Ports, discoveryv1.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
	}
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		kept := discoveryv1.Endpoint{
			Addresses: e.Addresses, Conditions: e.Conditions, Hostname: e.Hostname, NodeName: e.NodeName, Hints: e.Hints,
		}
		if t := e.TargetRef; t != nil && t.Kind == "Pod" && e.NodeName != nil && *e.NodeName == node {
			kept.TargetRef = &corev1.ObjectReference{Name: t.Name}
		}
		out.Endpoints = append(out.Endpoints, kept)
	}
	return out
}
