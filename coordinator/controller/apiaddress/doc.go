// Package apiaddress keeps the Service kube-system/shoal-api, by which one address leads to
// whichever coordinator lives (virtualAddress). It is an ordinary Service of type
// LoadBalancer: controller/loadbalancer gives it the address, the nodes announce it
// (agent/announce), and their nftables lead to the API on the same machine.
//
//	EndpointSlices default/kubernetes   where coordinators serve the API
//	Nodes                               which of these machines have an agent
//	     └─> Service and EndpointSlice kube-system/shoal-api
//
// With externalTrafficPolicy Local only nodes with a coordinator announce the address, and
// the API sees who asks. Of a machine that fails others take it by what they hear on the
// network, before anything here changes. That of a coordinator that dies alone is moved
// when its endpoint is gone (apiendpoints.TTL).
package apiaddress
