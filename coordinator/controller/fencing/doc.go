// Package fencing replaces pods of nodes that are lost, once it is sure that they do not
// run there any more (docs/fencing.md has the proof, agent/fence the node's side).
//
//	                      node unknown, its Lease
//	                      silent, pods to replace
//	┌──────────┐ ──────────────────────────────────► ┌────────┐ ─┐ after fence.Wait, or when
//	│ no fence │                                     │ raised │  │ a new leader has waited as
//	└──────────┘                                     └────────┘ ◄┘ long: pods are deleted by
//	     ▲                                               │         force, volumes detached
//	     │  every pod that is left was                   │ the node says by
//	     │  written once ┌─────────┐                     │ the Lease that all
//	     └────────────── │ lifting │ ◄───────────────────┘ its pods are stopped
//	                     └─────────┘
//
// Where other nodes may vouch for the fenced one, fence.Wait begins when enough of them have
// refused it (fence.Refuse).
//
// The fence is an annotation of the node's Lease. A coordinator that leads no more may
// still have a deletion under way: it names the version of the pod that it read before it
// last saw the fence raised, and lifting writes each pod between "lifting" and "no fence".
// So it comes before the fence is lifted, or it is refused.
package fencing
