// Package nodehealth decides from outside how a node is. Besides the node's own
// agent it is the only writer of a Node's conditions, and the only one of the
// taints that follow from them. It listens to two witnesses: the gossip, which
// tells of a death within seconds, and the Lease with the status, which are
// silent for 50 s before they tell anything. One plan weighs them (planFor in
// plan.go: a function of the node, what was seen of it, and the time):
//
//	   gossip member              Lease, status
//	        │ state                    │ last change
//	        ▼                          ▼
//	┌─────────────── planFor(node, seen, now) ────────────────┐
//	└────┬────────────────┬────────────────┬────────────┬─────┘
//	 conditions     pods not ready   NoExecute taint  look again
//	     │                │           wanted │         at a time
//	     │                │                  ▼
//	     │                │        pace: how many nodes of a zone in
//	     │                │        a time (pace.go, NODE-41..46)
//	     │                │                  │
//	     ▼                ▼                  ▼
//	NoSchedule taints   Endpoint-      controller/taint deletes pods
//	by condition        Slices         when their toleration ends
//
// What the two say leads a node through these states:
//
//	             gossip: dead or left, and the Lease
//	             not renewed since
//	┌───────┐ ────────────────────────────────────► ┌─────────┐
//	│ ready │                                       │ unknown │
//	└───────┘ ◄──────────────────────────────────── └─────────┘
//	    │  ▲     gossip: up, or the Lease renewed:    │
//	    │  │     the conditions are as before         │
//	    │  │                                          │ Lease: silent,
//	    │  │ the agent posts its status               │ and gossip not up
//	    │  │                                          ▼
//	    │  └─────────────────────────────────── ┌───────────────┐
//	    └─────────────────────────────────────► │ unknown,      │
//	             Lease: silent, and gossip      │ eviction due  │
//	             not up                         └───────────────┘
//
// So gossip alone never moves a pod. And if most agents vanish from it at once,
// this coordinator is probably the one that is cut off: the conditions change,
// and nothing is evicted.
package nodehealth
