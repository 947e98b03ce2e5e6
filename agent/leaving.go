package main

import (
	"context"
	"os"
	"time"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/gossip"
)

// leaveWait is how long a stop may take of a node that leaves: its neighbours hear of
// it twice, and one message may wait two seconds for a member that takes it.
const leaveWait = 5 * time.Second

// leaves tells whether `shoal leave` stops the agent.
func leaves(cfg *config.Config) bool {
	_, err := os.Stat(cfg.LeavingMark())
	return err == nil
}

// runGossip is a member until ctx ends. A restart goes unnoticed by the others; they
// are told when the node leaves, and look for it no more.
func runGossip(ctx context.Context, cfg *config.Config, group *gossip.Group) error {
	_ = os.Remove(cfg.LeavingMark()) // of a node that stayed after all
	member, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	ended := make(chan error, 1)
	go func() { ended <- group.Run(member) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	var err error
	if leaves(cfg) {
		err = group.Leave()
	}
	end()
	<-ended
	return err
}
