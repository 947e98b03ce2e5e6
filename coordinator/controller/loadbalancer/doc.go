// Package loadbalancer tells who waits for a load balancer that none comes: a Service
// of type LoadBalancer that nobody has given an address within a minute gets an
// event. Shoal has no load balancer of its own; a cloud's controller, MetalLB and
// their like fill the status.
package loadbalancer
