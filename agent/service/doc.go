// Package service turns Services and EndpointSlices into what a node must do
// for them: one value per Service, rebuilt only when it changed. The proxy and
// the DNS server both read it, so that names and addresses never disagree.
package service
