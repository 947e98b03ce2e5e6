// Package server is the kubelet's HTTPS API: logs, exec, attach, port forwarding,
// statistics, metrics and health, for the API server and for monitoring. Everybody
// must show who they are; the cluster's RBAC says what they may. What a caller can
// take before it is known who it is has limits.
package server
