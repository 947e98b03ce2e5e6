// Package endpointslicemirroring copies Endpoints that users write by hand, for
// Services without selector, into EndpointSlices.
package endpointslicemirroring
