package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"sigs.k8s.io/yaml"

	agentconfig "github.com/shoal-project/shoal/agent/config"
)

// Agent is a further node: an agent process in a network namespace of its own.
type Agent struct {
	Name, NetNS, Address, Dir string

	cluster *Cluster
	host    int // its number on the lan
	machine bool
	service bool // of a machine that outlives it
	init    *exec.Cmd
	memory  chan struct{} // closed when nobody need be told of such a machine's memory any more
	config  string
	disk    string // of a machine's volumes, "" for none
	id      string // a file with the machine's ID, "" for that of the machine that tests
	cmd     *exec.Cmd
	ended   chan struct{} // closed when the agent of a machine that outlives it has ended
}

// Join adds a node to the cluster.
func (c *Cluster) Join(name string) (*Agent, error) {
	a, err := c.Host(name)
	if err != nil {
		return nil, err
	}
	return a, a.Start()
}

// Host makes the machine and the configuration of a node that Start starts.
// change, if given, has the last word on the configuration.
func (c *Cluster) Host(name string, change ...func(*Agent, *agentconfig.Config)) (*Agent, error) {
	netns, address, err := c.lan.host()
	if err != nil {
		return nil, err
	}
	a := &Agent{Name: name, NetNS: netns, Address: address, Dir: c.path(name), cluster: c, host: c.lan.hosts}
	c.agents = append(c.agents, a)
	if err := os.MkdirAll(a.Dir, 0o700); err != nil {
		return nil, err
	}
	return a, a.configure(change)
}

func (a *Agent) path(elem ...string) string {
	return filepath.Join(append([]string{a.Dir}, elem...)...)
}

func (a *Agent) configure(change []func(*Agent, *agentconfig.Config)) error {
	cfg := agentconfig.Default()
	cfg.NodeName, cfg.NodeIP, cfg.DataDir = a.Name, a.Address, a.path("agent")
	cfg.Kubeconfig, cfg.ImagesDir = a.path("kubeconfig"), a.cluster.path("images")
	cfg.RootDir, cfg.PodLogsDir, cfg.ContainerLogsDir, cfg.RunDir = a.path("kubelet"), a.path("pod-logs"),
		a.path("container-logs"), a.path("run")
	cfg.CNIConfDir, cfg.CNIBinDir, cfg.CgroupRoot = a.path("cni-conf"), a.path("cni-bin"), "/"+a.cluster.Name+"-"+a.Name
	cfg.RegistryConfigDir = a.path("certs.d")
	cfg.ClientCAFile = a.cluster.path("coordinator", "pki", "ca.crt")
	cfg.GossipKeyFile, cfg.Join = a.cluster.path("coordinator", "pki",
		"gossip.key"), []string{fmt.Sprintf("%s:%d", a.cluster.Address, cfg.GossipPort+1)}
	cfg.EvictionHard["nodefs.available"], cfg.EvictionHard["imagefs.available"] = "50Mi", "50Mi"
	for _, f := range change {
		f(a, &cfg)
	}
	data, err := yaml.Marshal(cfg)
	if err != nil {
		return err
	}
	a.config = a.path("agent.yaml")
	if err := os.WriteFile(a.config, data, 0o600); err != nil {
		return err
	}
	out, err := exec.Command(filepath.Join(a.cluster.Bin, "shoal-coordinator"), "kubeconfig",
		"--config", a.cluster.path("coordinator.yaml"),
		"--user", "system:node:"+a.Name, "--group", "system:nodes", "--server", "https://"+a.cluster.Address+":6443",
		"--out", cfg.Kubeconfig).CombinedOutput()
	if err != nil {
		return fmt.Errorf("kubeconfig for %s: %w: %s", a.Name, err, out)
	}
	return nil
}

// Start starts the agent's process.
func (a *Agent) Start() error {
	logs, err := os.OpenFile(a.path("agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer logs.Close()
	if a.service {
		return a.startService(logs)
	}
	if a.machine {
		return a.startMachine(logs)
	}
	command := named(a.Name, filepath.Join(a.cluster.Bin, "shoal-agent"), "--config", a.config)
	a.cmd = in(a.NetNS, command[0], command[1:]...)
	a.cmd.Stdout, a.cmd.Stderr = logs, logs
	return a.cmd.Start()
}

// Kill ends the agent with SIGKILL, as a power cut ends its part of a machine:
// its pods' processes stay.
func (a *Agent) Kill() error {
	if a.cmd == nil {
		return nil
	}
	err := a.cmd.Process.Signal(syscall.SIGKILL)
	_ = a.cmd.Wait()
	a.cmd = nil
	return err
}

// Signal sends the agent's process a signal.
func (a *Agent) Signal(s syscall.Signal) error { return a.cmd.Process.Signal(s) }

// Stop ends the agent and removes all that it made.
func (a *Agent) Stop() error {
	a.cluster.agents = slices.DeleteFunc(a.cluster.agents, func(other *Agent) bool { return other == a })
	if a.init != nil {
		return a.stopService()
	}
	if a.machine && a.cmd != nil {
		return a.stopMachine()
	}
	if a.cmd != nil {
		_ = a.cmd.Process.Signal(syscall.SIGTERM)
		_ = a.cmd.Wait()
		a.cmd = nil
	}
	out, err := in(a.NetNS, filepath.Join(a.cluster.Bin, "shoal-agent"), "cleanup", "--purge",
		"--config", a.config).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("cleanup of %s: %w: %s", a.Name, err, out)
	}
	return errors.Join(err, os.RemoveAll(a.Dir))
}

// Logs returns the end of the agent's log.
func (a *Agent) Logs() string {
	data, _ := os.ReadFile(a.path("agent.log"))
	return string(data[max(0, len(data)-4000):])
}
