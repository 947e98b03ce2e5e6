// Package connect has the API server's connections to nodes, pods and Services:
// the subresources that pass a stream on, and hold nothing.
//
//	kubectl logs                 exec attach    port-forward   get --raw …/proxy/…
//	     │ GET                        │ WebSocket or SPDY │           │ any method
//	     ▼                            ▼                   ▼           ▼
//	pods/log                     pods/exec,attach    pods/portforward pods,nodes,
//	log.go                       stream.go                            services/proxy
//	     │                            │ v5 WebSockets     │ tunnelled  proxy.go
//	     │                            │ become SPDY       │ SPDY       │
//	     │                            │ lost.go: a lost   │            │
//	     │                            │ agent is no success            │
//	     └──────────────┬─────────────┴───────────────────┘            │
//	                    ▼ kubelet.go                                   ▼ address.go
//	  the pod's node, its address and port;          an address that is not the API
//	  the right to create, of a GET too              server's own machine or link
//	                    │                                              │
//	                    ▼ TLS, as apiserver-kubelet-client             ▼ plain, or TLS
//	        the agent's server, port 10250               pods; a node's agent or port
//
// Who may do it is decided before, by the verb that the request has. What a
// request says of its destination is not believed: a node's and an endpoint's
// address are looked at before each dial, names when they have come to an address.
package connect
