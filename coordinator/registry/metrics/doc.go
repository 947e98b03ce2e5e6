// Package metrics declares the API group metrics.k8s.io/v1beta1: what nodes and
// containers use of CPU and memory now, for kubectl top and autoscalers.
//
//	kubectl top, autoscalers
//	        │ get, list
//	        ▼
//	storage.go   which nodes and pods are meant: labels, fields, namespace
//	        │ their nodes, all at once
//	        ▼
//	collect.go   asks each node's kubelet, and keeps its last two answers
//	        │ GET /stats/summary
//	        ▼
//	sample.go    what an answer says; a rate is the difference of two
//
// Nobody is asked while nobody asks. An answer serves for some seconds; when
// nobody has asked for a minute, the first one waits a second for its second
// sample, and what was kept from before is dropped.
//
// Whoever installs an APIService of this group version, metrics-server for one, is
// asked in place of this package, until that object is deleted.
package metrics
