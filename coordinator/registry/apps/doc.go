// Package apps declares the kinds of the API group apps/v1: Deployment,
// ReplicaSet, DaemonSet and ControllerRevision, one file each.
package apps
