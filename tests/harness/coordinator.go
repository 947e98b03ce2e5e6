package harness

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"

	coordinatorconfig "github.com/shoal-project/shoal/coordinator/config"
)

// UpCoordinator starts a coordinator on the first machine, which is no node then: the
// cluster's nodes are those of Host. It takes the place of Up. change, if given, has the
// last word on the configuration.
func (c *Cluster) UpCoordinator(change ...func(*coordinatorconfig.Config)) error {
	cfg := coordinatorconfig.Default()
	cfg.DataDir, cfg.AdvertiseAddress, cfg.NodeName = c.Dir, c.Address, "coordinator"
	cfg.GossipPort++ // where agents of Host join
	for _, f := range change {
		f(&cfg)
	}
	data, err := yaml.Marshal(cfg)
	if err != nil {
		return err
	}
	file := c.path("coordinator.yaml")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return err
	}
	if err := os.MkdirAll(c.path("log"), 0o755); err != nil {
		return err
	}
	log, err := os.Create(c.path("log", "coordinator.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	c.coordinator = c.Command("shoal-coordinator", "--config", file)
	c.coordinator.Stdout, c.coordinator.Stderr = log, log
	if err := c.coordinator.Start(); err != nil {
		c.coordinator = nil
		return err
	}
	return c.waitForCoordinator(file)
}

// waitForCoordinator asks again and again: a server of another process tells nobody that
// it is ready.
func (c *Cluster) waitForCoordinator(file string) error {
	deadline := time.Now().Add(time.Minute)
	for {
		out, err := c.Command("shoal-coordinator", "kubeconfig", "--config", file, "--user", "admin", "--group",
			"system:masters", "--server", "https://"+c.Address+":6443", "--out", c.Kubeconfig()).CombinedOutput()
		text := string(out)
		if err == nil {
			if text, err = c.Kubectl("", "get", "--raw", "/readyz"); err == nil && strings.TrimSpace(text) == "ok" {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the coordinator is not ready after a minute: %w: %s%s", err, text, c.Logs())
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func (c *Cluster) stopCoordinator() error {
	if err := c.coordinator.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := c.coordinator.Wait(); err != nil {
		return fmt.Errorf("the coordinator: %w: %s", err, c.Logs())
	}
	return nil
}
