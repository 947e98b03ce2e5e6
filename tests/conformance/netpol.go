package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

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
	sctp := hasSCTP()
	if err := buildNetworkPolicies(ctx, cache, sctp); err != nil {
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
	if !sctp {
		fmt.Println("the kernel has no SCTP: tests of it are left out")
		args = append(args, "-test.skip=^TestConformance$/SCTP")
	}
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

// hasSCTP tells whether the kernel has sockets of it.
func hasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	return err == nil && unix.Close(fd) == nil
}

// replaceIn replaces each occurrence of a text in a file that has it.
func replaceIn(file, old, with string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !bytes.Contains(data, []byte(old)) {
		return fmt.Errorf("%s has no %q", file, old)
	}
	return os.WriteFile(file, bytes.ReplaceAll(data, []byte(old), []byte(with)), 0o644)
}

// buildNetworkPolicies makes the suite. Without SCTP the servers of it, which would not
// start, and all their pods not be ready, wait instead, and its connections are not tried.
func buildNetworkPolicies(ctx context.Context, cache string, sctp bool) error {
	src := filepath.Join(cache, "network-policy-src")
	if !sctp && !upstream.Have(filepath.Join(cache, "netpol.test")) {
		if err := upstream.Source(ctx, networkPolicyAPI, src); err != nil {
			return err
		}
		dir := filepath.Join(src, "conformance")
		const try = "shouldConnect bool) {\n\trequire.Eventually"
		const leaveOut = "{\n\tif protocol == \"sctp\" {\n\t\tt.Log(\"left out: no SCTP\")\n\t\treturn\n\t}"
		err := errors.Join(
			replaceIn(filepath.Join(dir, "base", "manifests.yaml"), "/agnhost porter", "/agnhost pause"),
			replaceIn(filepath.Join(dir, "utils", "kubernetes", "helper.go"), try,
				strings.Replace(try, "{", leaveOut, 1)))
		if err != nil {
			return err
		}
	}
	return upstream.Build(ctx, networkPolicyAPI, src, cache,
		[]upstream.Program{{Name: "netpol.test", Package: "./conformance", Test: true}})
}
