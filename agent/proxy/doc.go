// Package proxy makes Services work on this node: it keeps one nftables table
// true to service.Tables, changing in one transaction only what changed, so
// that a node with thousands of Services pays for one when one moves.
//
//	service.Tables ─ render ─> objects ─ delta ─> nft.Change ─ commit ─> kernel
//	 one Service     (pure)    before and after   what differs
//
// The table's sets hold the Services; its chains are the same for all of them,
// but for those of Services that a plain destination cannot tell (affinity, source
// ranges, external policy Local). A packet's way through the chains, by hook:
//
//	prerouting, output (nat, dstnat)
//	 └> dispatch ─ to the agent's DNS: return
//	     │         ─ @listeners, where parts of the cluster listen: dnat to the same
//	     │         ─ to a Service's range from outside the pods: mark masquerade
//	     ├ @node-port-plain ─> node-port-plain ┐  to an address of this node, of Config.NodePorts
//	     ├ @node-ports ──────> own chains      │
//	     ├ @plain ───────────> plain ──────────┤
//	     └ @services ────────> own chains      │
//	                                           ├ @…masqueraded: mark masquerade (node ports: all)
//	                                           ├ @…pick-1..8, 16.. ─> …pick-N: dnat to
//	                                           │    key . number at random @…backends
//	                                           ├ @…refuse ────> no-backends: mark reject
//	                                           └ @…elsewhere ─> elsewhere: drop
//	     own chains (NAMESPACE/NAME/PROTOCOL/PORT)
//	      fw-… ─ source ranges ─> ext-… ─ from the node: mark masquerade ─> svc-…: to all backends
//	             others: drop           ─ from pods ────────────────────────> svc-…
//	                                    ─ policy Local, others ─────────────> local-…: to this node's
//	      svc-…, int-…, local-…: dnat to one of the backends; with affinity
//	      @aff… client . backend ─> …/ADDRESS/PORT: remember, dnat
//
//	refuse-prerouting, refuse-output (filter, dstnat + 10)
//	 ├ mark reject ─> refuse: TCP reset, or unreachable: SCTP's protocol (IPv4), else the port
//	 └ still to a Service's range ─> refuse
//
//	guard-forward, guard-input (filter)
//	 ├ @gossip ─> to-gossip ─ from pods, or by a Service: drop
//	 └ of no flow that conntrack knows (forward) ─> invalid ─ from or to pods: drop
//
//	postrouting (nat, srcnat - 1)
//	 ├ mark masquerade: masquerade
//	 └ @hairpin, a pod to itself by a Service: masquerade
//
// Sets with "…" before their name are two: one of addresses (address . protocol .
// port), and one of node ports (protocol . port) that begins with node-port-.
package proxy
