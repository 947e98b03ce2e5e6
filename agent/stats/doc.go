// Package stats measures the node, its pods and containers: as the kubelet's
// summary API and as Prometheus text.
package stats
