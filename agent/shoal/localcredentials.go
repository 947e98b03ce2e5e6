package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

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
	l := servicesFiles()
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

// servicesFiles are where the package has the units read them.
func servicesFiles() local {
	return local{agentFile: "/etc/shoal/agent.yaml", coordinatorFile: coordinatorconfig.DefaultFile,
		admin: "/etc/shoal/admin.kubeconfig"}
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

// due tells whether a kubeconfig is to be written: there is none, or one of the cluster's
// CAs signed it and it ends soon, or they are others by now. What another CA signed is of
// another cluster, which this machine joined.
func due(file string, ca []byte) bool {
	cert, err := certificateOf(file)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil {
		return false // it is somebody's: the agent says what is wrong with it
	}
	ours := slices.ContainsFunc(certificates(ca), func(c *x509.Certificate) bool {
		return cert.CheckSignatureFrom(c) == nil
	})
	return ours && (!fresh(file, ca) || !believes(file, ca))
}

// renewKubeconfigs has the kubeconfigs of `shoal up` follow the cluster's CAs.
func (o *options) renewKubeconfigs(ctx context.Context, coordinatorFile string) error {
	ca, err := os.ReadFile(o.keys().Path(pki.CAFile))
	if err != nil {
		return err
	}
	var missing []credential
	for _, file := range []string{o.kubeconfig(), filepath.Join(o.agentDir(), "kubeconfig")} {
		cert, err := certificateOf(file)
		if err != nil || !due(file, ca) {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		k, err := parseKubeconfig(data, file)
		if err != nil {
			return err
		}
		missing = append(missing, credential{
			User:   cert.Subject.CommonName,
			Groups: cert.Subject.Organization,
			Admin:  slices.Contains(cert.Subject.Organization, pki.AdminGroup),
			Server: k.Clusters[0].Cluster.Server,
			Out:    file,
		})
	}
	return issue(ctx, coordinatorFile, missing)
}

// believes tells whether a kubeconfig has the same CAs.
func believes(file string, ca []byte) bool {
	data, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	k, err := parseKubeconfig(data, file)
	if err != nil {
		return true // a certificate
	}
	id, err := k.identity(file)
	return err == nil && slices.EqualFunc(certificates(id.ca), certificates(ca), (*x509.Certificate).Equal)
}
