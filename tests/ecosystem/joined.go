package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/tests/harness"
)

// joined is what people do with nodes that joined.
var joined = subject{name: "joined-nodes", needs: []string{"metrics-server"}, run: runJoined}

// unsigned is a node that serves with a certificate of its own making.
const unsigned = "node3"

func runJoined(r *rig) {
	r.check("`shoal images` lists the images of a joined node", func() (string, error) {
		config := filepath.Join(r.Dir, nodes[1], "agent.yaml")
		out, err := r.Command("shoal", "images", "list", "--config", config).CombinedOutput()
		if err == nil && !strings.Contains(string(out), "metrics-server") {
			err = fmt.Errorf("no metrics-server in the list")
		}
		if err != nil {
			return "", fmt.Errorf("%w\n%s", err, out)
		}
		return fmt.Sprintf("%d lines", strings.Count(string(out), "\n")), nil
	})
	r.check("a node without a signed certificate is left out of metrics", func() (string, error) {
		a, err := r.Host(unsigned, func(_ *harness.Agent, c *agentconfig.Config) { c.ServerTLSBootstrap = new(bool) })
		if err != nil {
			return "", err
		}
		if err := a.Start(); err != nil {
			return "", err
		}
		// metrics-server says why in its log; the other nodes are shown.
		out, err := r.shows(time.Minute, "-n kube-system logs deployment/metrics-server --tail=50",
			"failed to verify certificate", `node="`+unsigned+`"`)()
		if err == nil {
			_, err = r.shows(time.Minute, "top nodes", append(nodes, unsigned, "<unknown>")...)()
		}
		if _, deleteErr := r.Kubectl("", "delete", "node", unsigned); err == nil {
			err = deleteErr
		}
		if stopErr := a.Stop(); err == nil {
			err = stopErr
		}
		for line := range strings.Lines(out) {
			if strings.Contains(line, "failed to verify certificate") {
				_, reason, _ := strings.Cut(line, "tls: ")
				return reason, err
			}
		}
		return "", err
	})
}
