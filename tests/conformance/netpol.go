package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/shoal-project/shoal/tests/upstream"
)

// networkPolicyAPI has the conformance suite of ClusterNetworkPolicies; what is beyond the
// standard channel is left out.
const (
	networkPolicyAPI      = "sigs.k8s.io/network-policy-api@v0.2.0"
	networkPolicyFeatures = "ClusterNetworkPolicy,ClusterNetworkPolicyNamedPorts"
)

// runNetworkPolicies runs that suite on a cluster of its own. It fails unless all pass.
func (o options) runNetworkPolicies(ctx context.Context, cache, archive string) (err error) {
	err = upstream.Build(ctx, networkPolicyAPI, filepath.Join(cache, "network-policy-src"), cache,
		[]upstream.Program{{Name: "netpol.test", Package: "./conformance", Test: true}})
	if err != nil {
		return err
	}
	s := suite{cache: cache, options: o}
	if s.report, err = filepath.Abs(o.report); err != nil {
		return err
	}
	c, err := s.start(ctx, archive)
	if c != nil && !o.keep {
		defer func() {
			if serr := c.Stop(); serr != nil {
				fmt.Fprintln(os.Stderr, "conformance: stop the cluster:", serr)
			}
		}()
	}
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(s.report, "netpol.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"--net=/run/netns/" + c.NetNS, "--", filepath.Join(cache, "netpol.test"), "-test.v",
		"-test.timeout=" + o.timeout.String(), "-supported-features=" + networkPolicyFeatures}
	// The suite's other test makes a report of an implementation's.
	args = append(args, "-test.run=^TestConformance$/"+o.focus)
	cmd := exec.CommandContext(ctx, "nsenter", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	cmd.Stdout, cmd.Stderr = io.MultiWriter(os.Stdout, log), log
	cmd.Dir = s.report
	cmd.Env = append(os.Environ(), "HOME="+s.report, "KUBECONFIG="+c.Kubeconfig())
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("conformance of network policies: %w (log: %s)", err, log.Name())
	}
	return nil
}
