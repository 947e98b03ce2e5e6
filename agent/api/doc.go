// Package api is the node's way to the API server: the connection that its
// kubeconfig describes, what the log says when the server refuses it, the events
// that the node writes, and the few requests that other packages ask for by an
// interface of their own.
//
//	kubeconfig ─> Load ─> rest.Config ─> Connect ─> Server ─┬─ Client        nil without a kubeconfig
//	                                                        ├─ Recorder      events of pods and of the node
//	                                                        ├─ Pods          status patches, deletions
//	                                                        ├─ RequestToken  tokens of service accounts
//	                                                        └─ Credentials   key, certificates; Follow: their changes
//
// The connections are the package's own, where a certificate proves who asks:
//
//	gossip: coordinators ─> SetCoordinators ─┐                ┌─ the kubeconfig's, unless it is dead or doubted
//	file of the last run ────────────────────┴> coordinators ─┼─ the others, in an order of this node's
//	503s, time-outs ─> judge: doubted ───────┘   (race)       └─ TLS: the cluster's CA, kubernetes.default.svc
//	Renew ─> CertificateSigningRequest ─> kubelet-client.pem ─> new connections; old ones end with their watches
//
// A node without a kubeconfig has a Server too: its requests fail with ErrNone.
package api
