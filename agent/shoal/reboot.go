package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-project/shoal/agent/shutdown"
)

// rebootOptions are the flags of `shoal reboot`.
type rebootOptions struct {
	all, oneAtATime, force bool
	nodes                  []string
	kubeconfig             string
	drain, back            time.Duration
}

func rebootCommand() *cobra.Command {
	o := &rebootOptions{}
	c := &cobra.Command{
		Use: "reboot --all|--node NAMES", Short: "Reboot the cluster's machines one at a time, each drained before and used again afterwards",
		Long: `On a coordinator's machine or with --kubeconfig. Each node is cordoned and drained as budgets (PDB) allow, its agent
reboots the machine, and takes pods again once it is Ready. All nodes that were Ready must be so, and all members of
the coordinators' store answer, before the next one's turn. The machine of this command is the last: it comes back
without it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.all == (len(o.nodes) > 0) {
				return errors.New("say --all, or the nodes with --node")
			}
			if !o.oneAtATime {
				return errors.New("--one-at-a-time=false: there is no other way")
			}
			return o.run(cmd.Context(), os.Stdout)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.all, "all", false, "all nodes")
	f.StringSliceVar(&o.nodes, "node", nil, "these nodes, in this order")
	f.BoolVar(&o.oneAtATime, "one-at-a-time", true, "one machine after the other; there is no other way")
	f.BoolVar(&o.force, "force", false, "drain though nobody makes some pods anew")
	f.DurationVar(&o.drain, "drain-timeout", 5*time.Minute, "how long a node's pods may take to end, and budgets to let them")
	f.DurationVar(&o.back, "timeout", 10*time.Minute, "how long a machine may take to be back and Ready")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "an administrator's kubeconfig (default: the keys on this machine)")
	return c
}

func (o *rebootOptions) run(ctx context.Context, out io.Writer) error {
	f := newFleet(o.kubeconfig, out)
	if err := f.connect(ctx); err != nil {
		return err
	}
	nodes, err := f.nodes(ctx)
	if err != nil {
		return err
	}
	if err := f.note(nodes, o.nodes); err != nil {
		return err
	}
	here := ""
	if h, err := newHealth(agentConfigFile); err == nil {
		here = h.m.name
	}
	for _, name := range turns(nodes, o.nodes, here) {
		if err := f.gate(ctx); err != nil {
			return fmt.Errorf("stopped before %s: %w", name, err)
		}
		if err := o.one(ctx, &f, name, name == here); err != nil {
			return fmt.Errorf("stopped at %s: %w", name, err)
		}
	}
	return nil
}

// turns are the nodes' names in the order in which they reboot, this machine's last.
func turns(nodes []*fleetNode, only []string, here string) []string {
	names := slices.Clone(only)
	if len(names) == 0 {
		for _, n := range nodes {
			names = append(names, n.Metadata.Name)
		}
		slices.Sort(names)
	}
	if i := slices.Index(names, here); i >= 0 {
		names = append(slices.Delete(names, i, i+1), here)
	}
	return names
}

func nodePath(name string) string { return "/api/v1/nodes/" + url.PathEscape(name) }

// one reboots a machine, and waits until it is back; who waits on it cannot.
func (o *rebootOptions) one(ctx context.Context, f *fleet, name string, here bool) error {
	var n fleetNode
	if err := f.client.read(ctx, nodePath(name), &n); err != nil {
		return err
	}
	began := time.Now()
	drain := &leaveOptions{timeout: o.drain, force: o.force}
	if err := drain.drain(ctx, f.client, &machine{name: name}, f.steps); err != nil {
		return errors.Join(err, f.uncordon(ctx, &n))
	}
	text, err := json.Marshal(shutdown.Reboot{Boot: n.Status.NodeInfo.BootID, Uncordon: !n.Spec.Unschedulable})
	if err != nil {
		return err
	}
	patch := map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		shutdown.RebootAnnotation: string(text)}}}
	if err := f.client.do(ctx, http.MethodPatch, nodePath(name), patch, nil); err != nil {
		return errors.Join(fmt.Errorf("ask for the reboot: %w", err), f.uncordon(ctx, &n))
	}
	if here {
		f.steps.done("%s reboots now, and takes pods again when it is Ready", name)
		return nil
	}
	err = f.until(ctx, o.back, func(ctx context.Context) (bool, error) {
		var now fleetNode
		if err := f.client.read(ctx, nodePath(name), &now); err != nil {
			return false, explainDial(err) // a coordinator may be what reboots
		}
		switch {
		case now.Status.NodeInfo.BootID == n.Status.NodeInfo.BootID:
			return false, errors.New("it has not rebooted")
		case !now.is("Ready") || now.Metadata.Annotations[shutdown.RebootAnnotation] != "":
			return false, errors.New("it has rebooted, and is not Ready")
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	f.steps.done("%s is back and Ready, after %s", name, time.Since(began).Round(100*time.Millisecond))
	return nil
}

// uncordon undoes a drain that led to nothing, of a node that took pods before.
func (f *fleet) uncordon(ctx context.Context, n *fleetNode) error {
	if n.Spec.Unschedulable {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
	defer cancel()
	err := f.client.do(ctx, http.MethodPatch, nodePath(n.Metadata.Name),
		map[string]any{"spec": map[string]any{"unschedulable": nil}}, nil)
	if err != nil {
		return fmt.Errorf("it is cordoned: kubectl uncordon %s: %w", n.Metadata.Name, err)
	}
	return nil
}
