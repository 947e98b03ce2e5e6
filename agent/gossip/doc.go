// Package gossip keeps the list of live machines by direct probing between them
// (hashicorp/memberlist), so that a death is known within seconds and without
// the API. It carries liveness and a small digest a member, never tables. It is
// the only agent package with decisions of its own that the coordinator imports.
//
// # Who may say what
//
// Gossip proves who is alive; it gives nobody anything. A member's metadata (512
// bytes at most) holds
//
//	grant      what the API gives it: role, public key, pod ranges, addresses,
//	           times; signed by the cluster's CA for the member's name
//	words      zone, API address, leaving, the public key of its tunnels
//	serial     grows with each statement: older ones are ignored
//	ceiling    the highest incarnation that the statement covers
//	signature  of all that, the name and the gossip address, by the granted key
//
// The key is that of the node's client certificate (system:node:NAME). The agent
// shows the certificate in an annotation of its Node; controller/gossipgrant
// verifies it and answers with the grant in another annotation, which the agent
// keeps in its checkpoint with the Node. So a grant costs one write to the Node
// when its key, range or address changes; peers check it offline, in a start
// without the API too, and no agent watches other Nodes. (A watch of all Nodes by
// all agents would need a right that upstream's Node authorizer takes away since
// 1.32, and at 1,000 agents send each Node status to 1,000 watchers: some 3,300
// events a second from the five-minute reports alone.) A coordinator has the CA
// at hand: it grants itself its role for a key that lives as long as its process.
//
// A grant counts until a week after its certificate ended, so that a node which
// is cut off from the API does not lose its neighbours at once. Of two grants for
// a name the later counts: a machine that was made anew takes its name back.
//
// # What stands before memberlist
//
//	network -> guard -> open -> filter -> memberlist
//
// guard (guard.go) is the transport: no answers to pods, limits on streams. A
// packet (seal.go) is sealed for its receiver with a key of both members, derived
// from their certificates' keys and the shared key (static ECDH, HKDF, AES-GCM):
// the shared key alone opens and forges nothing. It costs one ECDH a neighbour,
// then what memberlist's own encryption cost; no packet is signed. A stream
// (stream.go) begins with its sender's grant and a signature, read and checked
// before anything larger than 1 KiB; by streams two members meet, and learn each
// other's new keys: memberlist opens one when a probe is not answered. The filter
// (filter.go) decodes each message and lets pass alive messages whose metadata
// verifies, and accusations up to the accused member's ceiling. Memberlist adds
// one to an accusation's 32-bit incarnation, which wraps (hashicorp/memberlist#358);
// with ceilings, 256 above what the member reached, no message gets there.
// Memberlist's own encryption, compression and user messages are off and refused:
// its decoders end the process for some inputs of a key's holder.
//
// A question of one member to another, and its answer, are a stream of their own (ask.go),
// which memberlist does not see; the fences of agent/fence need it.
//
// What a verified member that turned bad still can: call others dead. They
// contradict within a second; conditions flap, no pod is evicted without the
// Lease.
//
// # Members behind address translation
//
// Such a member tells an address where nobody reaches it. Packets of it that verify show
// where the answers go (sighting.go), and members learn by a question where others see
// them. Streams go from it alone; those who cannot reach it have others ask for them
// (memberlist's indirect probes). Tunnels of pods' packets are chosen by that. Two of them
// hear nothing of each other but what others hand on: each says in its words that it is one.
//
// # What is known before anybody is heard
//
// A member keeps the other nodes' addresses and grants in a file (remember.go). After
// a power cut that takes all coordinators, nodes find each other by it, have routes to
// each other's pods at once, and know who is missing. What they say of themselves is
// not kept: a machine whose clock was set back would not be believed any more.
//
// Without Config.Trust members are believed as they are, and give no pod ranges;
// that is for load tests.
package gossip
