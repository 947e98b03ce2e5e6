// Package gossip keeps the list of live machines by direct, encrypted probing
// between them (hashicorp/memberlist), so that a death is known within seconds
// and without the API. It carries liveness and a small digest a member, never
// tables. It is the only agent package that the coordinator imports.
package gossip
