package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// status prints processes, nodes and how many pods run. It fails (exit status
// 1) when the cluster is not up.
func status(ctx context.Context, w io.Writer, dataDir string) error {
	o, err := load(dataDir)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	defer t.Flush()
	for _, p := range []struct{ name, file, program string }{
		{"supervisor", o.path("shoal.pid"), "shoal"},
		{"coordinator", o.path("log", "coordinator.pid"), coordinatorBin},
		{"agent", o.path("log", "agent.pid"), agentBin},
	} {
		state := "not running"
		if process := running(p.file, p.program); process != nil {
			state = fmt.Sprintf("running (pid %d)", process.Pid)
		}
		fmt.Fprintf(t, "%s\t%s\n", p.name, state)
	}
	client, err := connect(o.kubeconfig())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var nodes, pods struct{ Items []object }
	if err := client.read(ctx, "/api/v1/nodes", &nodes); err != nil {
		fmt.Fprintf(t, "API\tnot reached: %v\n", err)
		return errShown
	}
	if err := client.read(ctx, "/api/v1/pods", &pods); err != nil {
		return err
	}
	fmt.Fprintf(t, "API\t%s\n", client.server)
	for _, n := range nodes.Items {
		fmt.Fprintf(t, "node %s\t%s, %s, %s\n", n.Metadata.Name, n.state(), n.Status.NodeInfo.KubeletVersion,
			n.Status.NodeInfo.ContainerRuntimeVersion)
	}
	ready := 0
	for _, p := range pods.Items {
		if p.is("Ready") {
			ready++
		}
	}
	fmt.Fprintf(t, "pods\t%d, %d of them ready\n", len(pods.Items), ready)
	fmt.Fprintf(t, "kubeconfig\t%s\n", o.kubeconfig())
	return nil
}
