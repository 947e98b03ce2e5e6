package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/checkpoint"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/node"
)

// machine is by what one machine is told from another: the UUID that its firmware, or its
// hypervisor, gave it, and where there is none, as in a container, the ID of its system.
type machine struct {
	SystemUUID string `json:"systemUUID,omitempty"`
	MachineID  string `json:"machineID,omitempty"`
}

func machineOf(f host.Facts) machine {
	m := machine{SystemUUID: f.SystemUUID, MachineID: f.MachineID}
	if m.SystemUUID == m.MachineID {
		m.SystemUUID = "" // there is none
	}
	return m
}

// other tells whether two are certainly not the same.
func (m machine) other(before machine) bool {
	if m.SystemUUID != "" && before.SystemUUID != "" {
		return m.SystemUUID != before.SystemUUID
	}
	return m.MachineID != "" && before.MachineID != "" && m.MachineID != before.MachineID
}

// beOnlyMachine ends the start of an agent that was copied to another machine, as long as
// the node runs on the one of before.
func beOnlyMachine(
	ctx context.Context, cfg *config.Config, f host.Facts, seal *checkpoint.Keys, server *api.Server, log *slog.Logger,
) error {
	kept, err := openStore[machine](cfg, "machine", seal, log)
	if err != nil {
		return err
	}
	defer kept.Close()
	now := machineOf(f)
	before, err := kept.Get(cfg.NodeName)
	if err == nil && before != nil && now == *before {
		return nil
	}
	if before != nil && now.other(*before) && server.Configured() {
		leases := server.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
		switch err := node.Alone(ctx, leases, cfg.NodeName, log); {
		case errors.Is(err, node.ErrTwin):
			return fmt.Errorf("node %s: %w; this one has a copy of its disk: delete %s and %s here, and make it a node "+
				"of another name with `shoal join`", cfg.NodeName, err, cfg.DataDir, cfg.Kubeconfig)
		case err != nil:
			return err
		}
		log.Info("the node has moved to this machine", "before", *before, "now", now)
	}
	if err := kept.Put(cfg.NodeName, &now); err != nil { // as on a full disk
		log.Warn("the machine is not noted: the node would not see that it was copied to another", "err", err)
	}
	return nil
}
