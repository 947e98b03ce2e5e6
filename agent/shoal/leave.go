package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-project/shoal/coordinator/joinapi"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// leaveOptions are the flags of `shoal leave`.
type leaveOptions struct {
	config, kubeconfig string
	force, purge       bool
	timeout            time.Duration
}

func leaveCommand() *cobra.Command {
	o := &leaveOptions{}
	c := &cobra.Command{
		Use: "leave", Short: "Drain this node, end its agent, and have the cluster forget it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.leave(cmd.Context(), os.Stdout) },
	}
	f := c.Flags()
	f.StringVar(&o.config, "config", agentConfigFile, "the agent's configuration file")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "an administrator's kubeconfig (default: the node's own, which deletes a Node without taints)")
	f.DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long pods may take to end, and budgets (PDB) to let them")
	f.BoolVar(&o.force, "force", false, "leave though the API is away, pods do not end in time, or have nobody who makes them anew")
	f.BoolVar(&o.purge, "purge", false, "also delete the agent's data: images, and what local volumes hold")
	return c
}

// leave takes this machine out of its cluster. Each step is done already when it is
// repeated; the credentials go last.
func (o *leaveOptions) leave(ctx context.Context, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("must run as root; try sudo")
	}
	steps := &steps{out: out, start: time.Now()}
	m, err := (&joinOptions{config: o.config}).machine()
	if err != nil {
		return err
	}
	if err := m.free(); err != nil {
		return err
	}
	client, err := o.client(m)
	if err != nil {
		return err
	}
	remains := false // the Node
	if client != nil {
		if err := o.drain(ctx, client, m, steps); err != nil {
			if !o.force {
				return fmt.Errorf("%w; --force leaves nevertheless", err)
			}
			steps.said("not drained: %v", err)
		}
	}
	if err := o.end(ctx, m, steps); err != nil {
		return err
	}
	if client != nil {
		if err := o.forget(ctx, client, m.name); err != nil {
			if !o.force {
				return fmt.Errorf("%w; --force leaves nevertheless, and the Node remains", err)
			}
			remains = true
			steps.said("Node %s remains: %v; delete it where the API answers: kubectl delete node %s", m.name, err,
				m.name)
		}
	}
	if err := o.removeCredentials(ctx, m); err != nil {
		return err
	}
	if client == nil {
		steps.done("this machine is in no cluster")
	} else if !remains {
		steps.done("the cluster has forgotten node %s", m.name)
	}
	return nil
}

// client is who drains and deletes; nil on a machine without credentials.
func (o *leaveOptions) client(m *machine) (*api, error) {
	if cert, err := certificateOf(m.kubeconfig()); err == nil {
		if name, ok := strings.CutPrefix(cert.Subject.CommonName, "system:node:"); ok {
			m.name = name // whatever the file says now
		}
	}
	if o.kubeconfig != "" {
		return connect(o.kubeconfig)
	}
	client, err := m.client()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return client, err
}

// end stops the agent, and has all removed that it made.
func (o *leaveOptions) end(ctx context.Context, m *machine, steps *steps) error {
	// The agent takes leave of its neighbours, who would look for a dead one for a day.
	if exists(m.cfg.DataDir) {
		if err := pki.WriteFile(m.cfg.LeavingMark(), nil, 0o600); err != nil {
			return err
		}
	}
	if unitHere(ctx, agentUnit) && m.file == agentConfigFile {
		if err := systemctl(ctx, "disable", "--quiet", "--now", agentUnit); err != nil {
			return err
		}
		steps.done("the agent is stopped")
	}
	if err := cleanupAgent(ctx, m.file, false); err != nil {
		return fmt.Errorf("%w; stop the agent of this machine if it still runs", err)
	}
	steps.done("containers, networks and mounts of its pods are gone")
	return nil
}

// cleanupAgent has the agent's program undo what it made by a configuration file.
func cleanupAgent(ctx context.Context, file string, purge bool) error {
	bin, err := program(agentBin)
	if err != nil {
		return err
	}
	args := []string{"cleanup"}
	if exists(file) {
		args = append(args, "--config", file)
	}
	if purge {
		args = append(args, "--purge")
	}
	out, err := exec.CommandContext(ctx, bin, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("clean up: %w\n%s", err, out)
	}
	return nil
}

// forgetPatience is how long the API may take to delete the Node.
const forgetPatience = 30 * time.Second

// forget deletes the Node: an administrator may by the API, the node itself by the
// coordinator's word for it.
func (o *leaveOptions) forget(ctx context.Context, client *api, name string) error {
	ctx, cancel := context.WithTimeout(ctx, forgetPatience)
	defer cancel()
	path := joinapi.NodePath
	if o.kubeconfig != "" {
		path = "/api/v1/nodes/" + url.PathEscape(name)
	}
	for {
		err := client.do(ctx, http.MethodDelete, path, nil, nil)
		if err == nil || answered(err, http.StatusNotFound) && o.kubeconfig != "" {
			return nil
		}
		var refused *statusError
		if errors.As(err, &refused) && refused.code != http.StatusServiceUnavailable {
			return errors.New(refused.message)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("delete the Node: %w", explainDial(err))
		case <-time.After(time.Second):
		}
	}
}

// removeCredentials deletes what the node proves itself with. The kubeconfig is the
// last: while it is there, leaving is not over.
func (o *leaveOptions) removeCredentials(ctx context.Context, m *machine) error {
	kubeconfig := m.kubeconfig()
	for _, file := range []string{m.path("joining.key"), m.path("gossip.key"), m.path("kubelet-serving.pem"),
		m.path(rotatedFile), m.path(rotatedFile + ".before"), m.cfg.ClusterCAs(), m.path(knownFile), m.cfg.LeavingMark(),
		kubeconfig} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if o.purge {
		return cleanupAgent(ctx, m.file, true)
	}
	return nil
}
