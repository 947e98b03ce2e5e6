package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/shoal-project/shoal/agent/config"
)

const (
	nodeIP    = "10.98.0.1"
	podCIDR   = "10.244.7.0/24"
	startWait = 20 * time.Second
)

// agent is an agent without a cluster: a runtime with a pod network.
type agent struct {
	bin, dir string
	cmd      *exec.Cmd
}

func (a *agent) path(elem ...string) string {
	return filepath.Join(append([]string{a.dir}, elem...)...)
}
func (a *agent) socket() string { return a.path("run", "cri.sock") }

func (a *agent) configure() error {
	cfg := config.Default()
	cfg.NodeName, cfg.NodeIP, cfg.PodCIDR = "critest", nodeIP, podCIDR
	cfg.DataDir, cfg.RootDir, cfg.RunDir = a.path("agent"), a.path("kubelet"), a.path("run")
	cfg.PodLogsDir, cfg.ContainerLogsDir, cfg.ImagesDir = a.path("pod-logs"), "-", ""
	cfg.CNIConfDir, cfg.CNIBinDir, cfg.CgroupRoot = a.path("cni-conf"), a.path("cni-bin"), "/"+netns
	cfg.RegistryConfigDir = a.path("certs.d")
	cfg.GossipPort = 0
	data, err := yaml.Marshal(cfg)
	if err != nil {
		return err
	}
	return os.WriteFile(a.path("agent.yaml"), data, 0o600)
}

// start starts the agent and waits for its socket.
func (a *agent) start(ctx context.Context) error {
	if err := a.configure(); err != nil {
		return err
	}
	log, err := os.Create(a.path("agent.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	a.cmd = exec.Command(filepath.Join(a.bin, "shoal-agent"), "--config", a.path("agent.yaml"))
	a.cmd.Stdout, a.cmd.Stderr = log, log
	if err := a.cmd.Start(); err != nil {
		return err
	}
	// no event tells of a socket
	for end := time.Now().Add(startWait); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if c, err := net.Dial("unix", a.socket()); err == nil {
			return c.Close()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	text, _ := os.ReadFile(a.path("agent.log"))
	return fmt.Errorf("the agent does not serve %s: %s", a.socket(), text)
}

// stop ends the agent and removes what it made.
func (a *agent) stop() error {
	if a.cmd != nil && a.cmd.Process != nil {
		_ = a.cmd.Process.Signal(syscall.SIGTERM)
		_ = a.cmd.Wait()
	}
	out, err := exec.Command(filepath.Join(a.bin, "shoal-agent"), "cleanup", "--purge",
		"--config", a.path("agent.yaml")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("clean up: %w: %s", err, out)
	}
	return nil
}
