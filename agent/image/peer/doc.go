// Package peer has a node get an image's layers from other nodes, so that a registry
// sends each layer to the cluster about once. Manifests and configurations always come
// from the registry, asked with the pod's own credentials: who cannot have an image
// there does not get it here.
//
// # Who has what
//
// Nothing is kept in tables that all have. A layer's Key leads to one member of the
// gossip (rendezvous hashing over those that live), whose Book knows who has the layer
// and who is getting it; the next member answers when that one does not. Questions and
// answers go over the gossip (gossip.Group.Ask), a few a layer:
//
//	node                     keeper of the key             node that has it
//	 │ find ───────────────────►│                                │
//	 │◄──── three sources, or: the registry                      │
//	 │ GET a range of it, proof of the manifest ────────────────►│
//	 │◄──── what is there, and what comes in ────────────────────│
//	 │ have ───────────────────►│
//
// The first to ask goes to the registry; who asks later gets the bytes from those that
// asked before, while these still get them: a layer runs through the cluster once, and the
// last node ends shortly after the first. Nobody gets from one that asked later, so that
// no circle waits for itself. When the one at the front ends or stalls, another goes
// to the registry for the rest; when it is slow, one more does.
//
// A node that has a whole layer and sends little, falls silent, or is a keeper and does not
// answer, is left alone for some minutes by all transfers.
//
// What a Book knows is lost with its process. Nodes tell a new keeper what they have,
// when the gossip shows that there is one; until then a layer is fetched once more. What a
// node has is believed for a day, and told again four times in it: a Book does not fill up
// with layers that nobody has any more.
//
// # Who may have it
//
// Bytes go over the kubelet's port between nodes' certificates of the cluster's CA, on
// both sides. A node gives a layer to whoever proves that it holds the manifest that
// names it: an HMAC over the TLS session's exported key (RFC 9266), whose key is the
// manifest. A digest, which many may know, is not enough, and a proof is good for its
// connection only. Keys are made of the manifest too, so that a keeper does not learn
// what it keeps. The content store verifies the whole layer's digest: when bytes of
// neighbours were others, the layer comes from the registry, and these neighbours are
// not asked for a time.
package peer
