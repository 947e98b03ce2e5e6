// Package ledger keeps which pod has what of the machine for itself. What it says is what the
// records on the disk say: a share is recorded before anybody is told that the pod has it, and
// is free when the record is gone. Shares of pods that have ended, but are not released yet,
// are freed for others (Sweep): the scheduler does not count them any more.
package ledger
