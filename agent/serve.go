package main

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/evict"
	"github.com/shoal-project/shoal/agent/node"
)

// pressure is what the node is short of now.
func (a *agent) pressure() map[v1.NodeConditionType]bool {
	return evict.Pressure(a.cfg.EvictionHard, evict.Measure(a.cfg.RootDir, a.cfg.DataDir,
		evict.Signal{Available: node.MemoryAvailable(), Capacity: a.facts.MemoryBytes}))
}

// serve runs the kubelet's API until ctx ends.
func (a *agent) serve(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
