// Package gateway has the node's part in Gateways and Ingresses: it hears what a
// coordinator makes of them (package gatewayfeed), makes the sockets, and has the proxy, a
// process without root (command shoal-gateway), do the rest.
//
//	Services of Gateways ─> feed ─> configuration ┐
//	Services, gossip ─> addresses of backends ────┴─> order ─> shoal-gateway
//
// While no Service is a Gateway's there is no stream, no process and no socket. The proxy
// goes on while the agent is away, and gives it back its sockets when it is there again.
package gateway
