// Package apiendpoints publishes where the API is served: Endpoints and
// EndpointSlices of the Service default/kubernetes. Unlike the other controllers
// it runs on every coordinator, for each of them is an endpoint.
//
//	coordinator A                      coordinator B
//	     │ Hold: kept alive, no write       │
//	     ▼                                  ▼
//	/shoal/apiservers/A:6443           /shoal/apiservers/B:6443    leased keys
//	     └─────────────────┬────────────────┘
//	                       │ List, at each change that Follow tells of
//	                       ▼ plan.go (pure)
//	        Endpoints kubernetes · EndpointSlice kubernetes
//
// What is published is the union of those whose lease lives, and the one that
// publishes: nobody overwrites another's address. A coordinator that stops takes
// its key out at once, that of one that dies is gone within TTL, and those that
// live see either as a change. The last one leaves the objects as they are.
package apiendpoints
