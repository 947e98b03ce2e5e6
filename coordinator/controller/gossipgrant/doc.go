// Package gossipgrant signs what the API gives each Node in the gossip: its
// name, the key of its client certificate, its pod ranges and addresses. The
// agent shows its certificate in an annotation of its Node and finds the grant
// in another; neighbours check it with the cluster's CA alone.
package gossipgrant
