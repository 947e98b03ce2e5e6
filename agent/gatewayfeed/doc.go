// Package gatewayfeed has the words in which a coordinator tells nodes what their
// gateway proxy does for Gateways and Ingresses (inventory ING-1 to ING-39, Gateway API
// v1.6: https://gateway-api.sigs.k8s.io/reference/spec/):
//
//	GET /shoal/v1/gatewayfeed
//
// answers with lines of JSON. Each that has a configuration has all of it that concerns the
// node that asks; the one before does not count any more. A node asks only while its cache of
// Services has one that is a Gateway's.
//
// References are resolved by who compiles the configuration: a certificate is in it only
// where a listener names it and may, and a backend that may not be used has no Service.
// The addresses behind Services are not in it; each node knows them.
package gatewayfeed
