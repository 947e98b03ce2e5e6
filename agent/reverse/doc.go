// Package reverse is how a coordinator reaches the kubelet's API of a node that it cannot
// dial, because a router that translates addresses stands between: the agent keeps one
// connection to each such coordinator, and takes through it what a coordinator would dial
// otherwise.
//
//	agent ── TLS, the node's client certificate ──> API server   GET /shoal/v1/reverse
//	      <──────── 101 Switching Protocols ───────
//	      <═══ HTTP/2, asked by the coordinator ═══              POST /10250
//	                 each request: bytes of one connection, both ways
//	                 in them: TLS of the kubelet's API, as if it had been dialled
//
// What goes through is the same TLS as on port 10250: the API server shows its certificate
// for kubelets, verifies the node's, and the kubelet's API asks what it may. So the
// connection gives a coordinator nothing that a dial would not, and whoever takes it over
// sees nothing. No address is told through it, and nothing is dialled on the node: a request
// becomes a connection of the kubelet's server itself.
//
// An agent asks each coordinator over the gossip from where its words come. If that is an
// address of its own, no connection is made and nothing is kept; on one network with the
// coordinator it does not even ask.
package reverse
