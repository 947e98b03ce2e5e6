// Shoal-agent runs a node: everything between the API server and the kernel.
//
//	source ── pods of this node (API, manifests, checkpoint) ─┐
//	runtime ─ events of containers ───────────────────────────┤
//	probe ─── verdicts ───────────────────────────────────────┴─> pod: one worker a pod
//	pod.Decide(pod, record, observed, now) ─> actions ─> steps.go, runtime ─> record (checkpoint)
//	status.Of(pod, record, observed) ─> PATCH pod.status          the only writer of it
//	node ── Node object and Lease                                 the only writer of them
//	service ─ Services and EndpointSlices ─> proxy (nftables), dns
//	gossip ── who lives ─> network routes, service backends
//	serving ─ certificate of the kubelet's API, signed by the cluster ─> server: the kubelet's API on 10250
//	shutdown ─ logind says that the machine goes ─> pods end in order
//
// main.go reads the configuration, wire.go has everything built (wire_*.go) in
// the order in which it depends on each other, hollow.go has many nodes built
// without their kernel, steps.go is the list of what a pod gets before
// its containers. Nothing of a pod depends on this process: conmon holds each
// container, the next agent takes them over.
package main
