// Package policy enforces NetworkPolicies and ClusterNetworkPolicies on the pods of this
// node. It is told of its
// own pods by the agent, before their containers run, and of all else by a coordinator
// (package policyfeed); the last that was told is in a file, for a start without one.
//
//	stream, file ─ delta ─> compiler (pure) ─ journal: what changed ─> nft.Change ─> kernel
//	own pods ────┘             └ World ─> Verdict, the same by the plain words of the API
//
// Engine runs this. For the order of things at a pod's start see Admit: it returns once
// the pod's policies are in the kernel.
//
// There is one table in each family, as long as a pod of this node is isolated in it,
// and none otherwise. A packet's way:
//
//	forward (filter)
//	 ├ of one who answers: replies ─ jump to-egress-replies, jump to-ingress-replies
//	 ├ jump to-egress   ─ @egress:  source's address ─> the chain of its policies
//	 └ jump to-ingress  ─ @ingress: destination's address ─> the chain of its policies
//	input (filter)
//	 └ to the agent's DNS: to-dns ─ jump to-egress
//
//	egress/NAMESPACE/POLICIES/HASH, the same for all pods under the same policies
//	 ├ ip daddr @pods-… tcp dport @ports-… return      peers by selectors, and ports
//	 ├ ip daddr @blocks-… return                       peers by blocks of addresses
//	 ├ ip daddr . meta l4proto . th dport @named-… return   ports by each peer's own name
//	 └ goto denied
//	egress/Admin/POLICIES/HASH, before that chain, of ClusterNetworkPolicies (cluster.go)
//	 ├ …  accepted: return   denied: goto denied   passed on: goto what follows
//	 └ goto egress/NAMESPACE/…, or where no NetworkPolicy isolates the pod egress/Baseline/…
//	denied ─ a pod to itself: return ─ errors about a flow that passes: return ─ drop
//
// Both ends' policies look at each packet, of both directions of a flow: each chain has
// a twin for answers (…-replies) with source and destination the other way round. So a
// policy that comes cuts what it does not allow, also what had begun, and nothing has
// to be remembered of flows. Pods are matched after a Service's address was rewritten
// and before the node's hides them: by the addresses of the pods themselves. A selector
// is one set of addresses whatever number of policies use it, so that a pod elsewhere
// that comes or goes is one element. What the node itself sends to its pods, and they
// to it, does not pass forward, and is always allowed; only its DNS, which stands for
// pods that answer names elsewhere, is asked for in input.
package policy
