// Package gatewaystream follows what Gateways and Ingresses are made of, has package gateway
// compile it, and tells nodes; where the coordinator leads, it writes statuses and Services.
//
//	definitions, IngressClasses ─ one of ours? ─> informers ─> compile ─┬─> lines to nodes
//	                                                                   └─> statuses, Services
//
// Until a class asks for it nothing is followed that was not followed anyway, but
// GatewayClasses once the API serves them.
//
// A node that comes to answer for a Gateway is told first, and becomes an endpoint when it
// surely answers; one that leaves is no endpoint first, and is told when nobody is led to it.
package gatewaystream
