// Package announce has one node answer for each address of a load balancer that the
// cluster itself gives (controller/loadbalancer), and another when that one fails.
//
// # Who is to have an address
//
// Those nodes may that are up and not leaving, have an interface on the address's network
// and say so in the gossip (Meta.Announces), and, with externalTrafficPolicy Local, have a
// ready endpoint. A rendezvous hash puts them in an order that all nodes agree on as far as
// their gossip agrees (Ranking), and that changes little when one comes or goes. The first
// is to have the address, the second is the one to take it, and so on.
//
// # Who has it
//
// What nodes believe of each other is never quite the same everywhere. What counts is
// what is said on the network itself, where two owners would do harm:
//
//	waiting ── nobody heard, asked 3 times ──> owner     the first at once, others after
//	   ^                                        │        silence, each later than the one before
//	   │<── another claims it ──────────────────┤        the first contradicts; of two that are
//	   │    own process hung, or cut off        │        first for themselves the lower MAC stays
//	   └<── no candidate, and lingered ─────────┘
//
// An owner claims one of its addresses after the other, one a beat, by a gratuitous ARP
// request or an unsolicited neighbour advertisement. All hear that. The first in order
// takes an address from another owner by claiming it, when it was the first for a moment.
//
// Who asks for an address says that it has it not: an owner that stopped without a successor
// asks once, so that nobody waits for it.
//
// # What fences an owner
//
//   - An answer is given only for some moments after the last decision (answerFor). A
//     process that was stopped, or a machine that was, is no owner when it goes on.
//   - An owner that hears no other machine for the time of lease, neither by gossip nor on
//     the network itself, which it asks then, stops. Others take the address not before
//     silence, which is longer. With two machines only, none can tell which of them is cut
//     off: each goes on. So does the last one of more when it was alone for alonePatience.
//
// # An agent that restarts
//
// Its node leads traffic on all the while, by its nftables, and must keep the address:
// connections would break twice. So who would take over asks for the node's own address,
// which its kernel answers. As long as it does, and for restartPatience, the others answer
// for the address with the old owner's MAC, and none takes it.
//
// # Times
//
//	power cut                     others take over within silence + a tick + 3 questions:
//	                              1.2 to 1.8 s, one more stagger for each that failed with it
//	planned (leaving, drained)    handed over, while the old owner goes on: no gap
//	agent killed, node well       nobody takes over for restartPatience
//	agent's network cut           it stops within lease
package announce
