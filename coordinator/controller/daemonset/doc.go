// Package daemonset runs one pod on every node that fits, pinned to it by node
// affinity and placed by the scheduler. Updates roll within maxUnavailable or
// maxSurge; ControllerRevisions keep the templates for rollback.
package daemonset
