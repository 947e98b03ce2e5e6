// Package joining serves what a machine needs that joins the cluster or leaves it,
// beside the API (joinapi has the paths). Who may ask is RBAC's to say, and the
// handlers look at the user again: a token learns whether it can join and what time
// it is, a node learns the gossip's keys and may delete its own Node.
package joining
