// Package gossipkeys rotates the key that all members of the gossip share, on all of
// them, while they run:
//
//	[A]     the only key
//	[A B]   B is added: every member opens what it seals before anybody uses it
//	[B A]   B is first: members seal with it
//	[B]     A is dropped
//
// Between two of these every node has the one before: the coordinator gives it to
// each agent through the kubelet's API. A comment in the coordinator's key file
// tells how far a rotation has come, so that one that was interrupted, or that a
// node was away from, goes on where it was. Package gossip uses the keys.
package gossipkeys
