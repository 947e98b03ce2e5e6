// Package gatewayproxy is the proxy of Gateways and Ingresses (ING-1 to ING-39; Gateway
// API v1.6). It runs in a process without root and without a client of the API: what it
// does is told by the agent (package agent/gateway), all of it at once.
//
//	sockets of the agent ─> port ─ by name ─> listener ─ table ─> rule ─> backend's pods
//
// A configuration is compiled before it counts, and replaces the one before for requests
// that come then. Nothing that a client sends decides how much is kept of it: headers,
// connections and the time that they may idle are bounded (see limits.go).
package gatewayproxy
