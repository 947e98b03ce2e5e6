// Command gateway runs the conformance suite of the Gateway API
// (sigs.k8s.io/gateway-api/conformance) against a cluster of its own:
//
//	make gateway-conformance FOCUS=HTTPRoute
//
// Suite, echo server and CoreDNS are built from the module proxy, and their images packed
// here. The definitions are those of the standard channel, applied as a user applies them.
package main
