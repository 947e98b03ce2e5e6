// Package loadbalancer gives Services of type LoadBalancer addresses of pools, which
// the agents announce on their networks (agent/announce), and tells who waits for a
// load balancer that none comes.
//
// The pools are the keys of the ConfigMap kube-system/shoal-load-balancer (pools.go).
// Without it nothing is given: a cloud's controller, MetalLB and their like fill the
// status, and a Service that nobody has given an address within a minute gets an event.
//
//	who is served      no loadBalancerClass, or Class; not what another controller has
//	                   given an address
//	what is given      one address for each of spec.ipFamilies: the one that is asked for
//	                   (AddressesAnnotation, spec.loadBalancerIP), else the one that the
//	                   Service has, else the first of a pool that is free
//	what is written    status.loadBalancer.ingress, and the condition Announced, by which
//	                   agents know the addresses that are theirs to announce: who may
//	                   write a Service may not write its status. Then Finalizer, with
//	                   which a Service stays until its addresses are released
//
// Addresses are nowhere else: a new leader reads them in the Services. Should two have
// one, after a change of leaders in the middle of a write, the younger gets another.
package loadbalancer
