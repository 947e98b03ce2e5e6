package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/shoal-project/shoal/agent/trust"
)

const agentUnit = "shoal-agent.service"

// unitHere tells whether systemd runs this machine and has a unit.
func unitHere(ctx context.Context, unit string) bool {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return false
	}
	return exec.CommandContext(ctx, "systemctl", "cat", unit).Run() == nil
}

// systemctl has a unit, its last argument, do something.
func systemctl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl %v: %w: %s; see journalctl -u %s", args, err, bytes.TrimSpace(out),
			args[len(args)-1])
	}
	return nil
}

// start has the agent run with its configuration, and waits until the node is Ready.
func (o *joinOptions) start(ctx context.Context, m *machine, steps *steps) error {
	command := "shoal-agent --config " + m.file
	switch {
	case o.noStart:
		steps.done("node %s is set up; start its agent with `systemctl enable --now shoal-agent`, or: %s", m.name,
			command)
		return nil
	case !unitHere(ctx, agentUnit) || m.file != agentConfigFile:
		steps.done("start the agent, which no unit of this machine does with this configuration: %s", command)
	default:
		// Enabled first: a reboot from here on brings the node up.
		if err := systemctl(ctx, "enable", "--quiet", agentUnit); err != nil {
			return err
		}
		if err := systemctl(ctx, "restart", agentUnit); err != nil {
			return err
		}
		steps.done("the agent runs (systemctl status shoal-agent)")
	}
	client, err := m.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	state, err := waitNode(ctx, client, m.name, m.cfg.PodNetwork)
	if err != nil {
		return fmt.Errorf("node %s is not Ready after %s: see journalctl -u %s, and run `shoal join` again to go on waiting: %w",
			m.name, o.timeout, agentUnit, err)
	}
	steps.done("node %s is %s", m.name, state)
	return nil
}

// rotatedFile is where the agent keeps the certificate that it has asked for after
// the kubeconfig's.
const rotatedFile = "kubelet-client.pem"

// client asks as this node, by its newest certificate.
func (m *machine) client() (*api, error) {
	file := m.kubeconfig()
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	k, err := parseKubeconfig(data, file)
	if err != nil {
		return nil, err
	}
	id, err := k.identity(file)
	if err != nil {
		return nil, err
	}
	if id, err = m.newest(id); err != nil {
		return nil, err
	}
	cluster := k.Clusters[0].Cluster
	return connectAs(cluster.Server, cluster.TLSServerName, id, file)
}

// newest is a kubeconfig's identity, by the certificate and the CAs that came after it if
// there are any.
func (m *machine) newest(id identity) (identity, error) {
	if cas := trust.Read(m.cfg.ClusterCAs(), id.ca); cas != nil {
		id.ca = cas
	}
	own, err := certificate(id.cert)
	if err != nil {
		return id, err
	}
	data, err := os.ReadFile(filepath.Join(m.cfg.DataDir, rotatedFile))
	if err != nil {
		return id, nil
	}
	next, err := certificate(data)
	if err == nil && next.NotBefore.After(own.NotBefore) && next.Subject.CommonName == own.Subject.CommonName {
		id.cert, id.key = data, data
	}
	return id, nil
}
