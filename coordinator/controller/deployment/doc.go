// Package deployment rolls pod templates out: one ReplicaSet for each template,
// scaled up and down within the surge and unavailability limits, with revisions
// kept for rollback and the progress told in conditions.
package deployment
