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
// A node without a kubeconfig has a Server too: its requests fail with ErrNone.
package api
