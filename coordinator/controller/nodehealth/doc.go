// Package nodehealth turns what is known of nodes into conditions and taints:
// Ready becomes Unknown when neither gossip nor the Lease tells of a node, each
// bad condition is a NoSchedule taint, and NoExecute taints follow at the rates
// of NODE-41..46. Gossip alone never leads to an eviction.
package nodehealth
