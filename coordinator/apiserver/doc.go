// Package apiserver serves the declared kinds, custom resources and aggregated
// APIs by the libraries of k8s.io: one chain of three servers, aggregation in
// front, then the built-in groups, then CRDs, all on one store.
package apiserver
