// Command shoal-coordinator holds what a cluster must agree on: the API on its
// store on every coordinator, and on the one that leads the scheduler and the
// controllers. All of it is one process with one copy of the objects.
//
//	kubectl, agents, webhooks …                     scheduler    one file a plugin
//	     │ HTTPS                                    controller/  one folder a controller
//	     ▼                                               │ client and informers,
//	apiserver   the chain of handlers                    │ in process: no HTTP, no copies
//	  auth      who is it, may they? ────────────────────┘ writes go the same way
//	  admission one file a plugin; quota; audit records
//	     ▼
//	registry    the kinds: one folder a group, one file a kind
//	  kind      what a kind declares, and the stores made of it
//	  podspec, volumespec, scale …   what kinds share
//	  allocate  addresses and ports of Services
//	  connect   streams to nodes: exec, logs, port-forward, proxies ──► kubelet: TLS to agents
//	     ▼
//	store       watch caches, encryption, etcd: embedded, or elsewhere
//
// Beside them: config (file and flags), pki (keys, certificates), encryption
// (rotation of the store's keys), leader (the Lease), members (coordinators that join
// and leave), joining and joinapi (nodes that do), snapshots (copies of the store), and
// of the agent's packages gossip, as a member that only watches, process, and trust, what nodes believe.
// policystream tells nodes of NetworkPolicies, in the words of the agent's policyfeed.
// gatewaystream has gateway compile Gateways and Ingresses, and tells nodes in the words of
// gatewayfeed.
// rotation has all coordinators follow when keys change. The layers are a table in
// tests/imports_test.go; docs/architecture.md walks a pod's way through them.
//
// This package puts them together and decides nothing else:
//
//	main.go         the command; flags.go: the file, and the flags over it
//	wire.go         builds every part in the order of dependence
//	serve.go        runs the API and what is beside it, always; ready.go tells when
//	lead.go         runs the scheduler and the controllers, where the Lease is
//	controllers.go  the list of controllers; scales.go is what one of them reads
//	gossip.go       this coordinator as a member of the gossip
//	address.go      its name and address, the port; keys.go its certificates
//	certnames.go    the names that no node's certificate may have
//	member.go       this coordinator as one of several; runwitness.go: as a vote only
//	joining.go      what machines that join are answered from
//	encryption.go   the store's encryption at start
//	sharedkeys.go   the keys that all coordinators have alike; rotate.go, rotatenodes.go: their change
//	credentials.go, secrets.go   the other commands: kubeconfigs, the store's keys;
//	join.go, coordinators.go, snapshot.go   becoming a coordinator, listing them, copies
package main
