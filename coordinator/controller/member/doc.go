// Package member brings the gossip's word into the API: the conditions of a
// node whose agent is dead turn Unknown within seconds, instead of after the
// Lease's grace period, and come back as they were when the agent does. What
// follows from the conditions (taints, pods not ready) is nodehealth's.
package member
