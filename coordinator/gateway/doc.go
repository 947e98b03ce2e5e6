// Package gateway makes of the API's Gateways, routes and Ingresses what nodes' proxies do
// (package gatewayfeed), and what their statuses say (Gateway API v1.6; ING-1 to ING-39).
// It is pure: who watches and who writes is elsewhere (package gatewaystream).
//
//	classes ─> gateways + listener sets ─> listeners ─ routes attach ─> configuration
//	                                           └─ a Service each gateway ─> addresses
//
// Each Gateway has a Service of its own, by which it has addresses as any Service has: that
// of a load balancer, or its cluster IP. The Service's target ports are the ports on which
// nodes' proxies answer for the Gateway.
package gateway
