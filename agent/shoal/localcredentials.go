package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	coordinatorconfig "github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// local are the files of the services on a machine with a coordinator.
type local struct {
	agentFile, coordinatorFile string
	admin                      string // the kubeconfig of the machine's root
}

// credentialsCommand is what the agent's unit runs before the agent: on the first
// machine of a cluster nobody has to write a kubeconfig.
func credentialsCommand() *cobra.Command {
	l := local{agentFile: "/etc/shoal/agent.yaml", coordinatorFile: coordinatorconfig.DefaultFile,
		admin: "/etc/shoal/admin.kubeconfig"}
	c := &cobra.Command{
		Use:   "credentials",
		Short: "Write the kubeconfigs of this machine's agent and root, where they are missing or end soon",
		Long: `On a machine with a coordinator: writes the kubeconfig that the agent's configuration names, for this node,
and one for administrators that only root can read. A kubeconfig that serves stays, as does one that another
cluster has signed. On other machines it does nothing. The unit shoal-agent.service runs it at each start.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return l.write(cmd.Context()) },
	}
	f := c.Flags()
	f.StringVar(&l.agentFile, "agent-config", l.agentFile, "the agent's configuration file")
	f.StringVar(&l.coordinatorFile, "coordinator-config", l.coordinatorFile, "the coordinator's configuration file")
	f.StringVar(&l.admin, "admin", l.admin, "the administrators' kubeconfig")
	return c
}

func (l local) write(ctx context.Context) error {
	coordinator, err := coordinatorconfig.Load(l.coordinatorFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(pki.Dir(coordinator.KeysDir()).Path(pki.CAFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no coordinator has run here
	}
	if err != nil {
		return err
	}
	agent, err := agentconfig.ParseKnown([]string{"--config", l.agentFile})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	server := fmt.Sprintf("https://127.0.0.1:%d", coordinator.Port)
	var missing []credential
	for _, c := range []credential{
		{Admin: true, Server: server, Out: l.admin},
		{User: "system:node:" + agent.NodeName, Groups: []string{"system:nodes"}, Server: server, Out: agent.Kubeconfig},
	} {
		if c.Out == "" || !due(c.Out, ca) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(c.Out), 0o700); err != nil {
			return err
		}
		missing = append(missing, c)
	}
	return issue(ctx, l.coordinatorFile, missing)
}

// due tells whether a kubeconfig is to be written: there is none, or the CA signed
// it and it ends soon. What another CA signed is of another cluster, which this
// machine joined.
func due(file string, ca []byte) bool {
	cert, err := certificateOf(file)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil {
		return false // it is somebody's: the agent says what is wrong with it
	}
	signer, err := certificate(ca)
	return err == nil && cert.CheckSignatureFrom(signer) == nil && !fresh(file, ca)
}
