// Package endpointslice keeps the EndpointSlices of every Service with a
// selector, by the published k8s.io/endpointslice library, without delay.
package endpointslice
