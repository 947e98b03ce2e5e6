// Shoal-agent runs a node: everything between the API server and the kernel.
//
//	source ── pods of this node (API, manifests, checkpoint) ─┐
//	runtime ─ events of containers ───────────────────────────┤
//	probe ─── verdicts ───────────────────────────────────────┴─> pod: one worker a pod
//	pod.Decide(pod, record, observed, now) ─> actions ─> steps.go, runtime ─> record (checkpoint)
//	status.For(pod, record, observed) ─> PATCH pod.status         the only writer of it
//	node ── Node object, Lease and CSINode                        the only writer of them
//	plugins ─ sockets of drivers appear ─> csi: storage drivers by name ─> CSINode
//	device/plugin ─ device plugins ─> Node's capacity, devices of pods ─┬> podresources (for monitoring agents)
//	device/cpu, device/memory ─ what containers have for themselves ────┘  near to each other by device/topology
//	service ─ Services and EndpointSlices ─> proxy (nftables), dns
//	   └─ addresses of load balancers ─> announce (ARP, NDP), in the order that gossip gives
//	gatewayfeed what a coordinator makes of Gateways and Ingresses ─> gateway ─> the process shoal-gateway
//	policyfeed what a coordinator tells of NetworkPolicies ─> policy (nftables)
//	gossip ── who lives ─> network routes, service backends
//	network ─ a third party's configuration comes or goes ─> sandboxes are made anew, one by one
//	serving ─ certificate of the kubelet's API, signed by the cluster ─> server: the kubelet's API on 10250
//	problem ─ what is wrong with the machine: the kernel's log, mounts, the clock ─> Node
//	shutdown ─ logind says that the machine goes ─> pods end in order
//
//	api ──── kubeconfig, gossip ─> client of a coordinator that lives, events, tokens, certificates
//	qos ──── control groups of pods by quality of service
//	host ─── the machine's facts and its use: memory, tasks, file systems, PSI
//	tracing ─ spans of all this for a collector, where the configuration names one
//	logs ─── the logs of containers as files: names, format, rotation, reading
//
// main.go reads the configuration, wire.go has everything built in the order of
// dependencies, by the constructors in wire_*.go, and lists what runs; hollow.go
// builds many nodes without their kernel from other constructors; cleanup.go undoes
// all that an agent made. steps.go is the list of what a pod gets before its
// containers. There is no behaviour here: each has its package. Nothing of a pod
// depends on this process: conmon holds each container, the next agent takes them
// over.
package main
