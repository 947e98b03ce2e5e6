package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shoal-project/shoal/tests/harness"
	"github.com/shoal-project/shoal/tests/upstream"
)

// nodes are those of the rig's cluster: the first machine and an agent that joined.
var nodes = []string{"node1", "node2"}

// rig is a cluster, and the checks that were made on it.
type rig struct {
	*harness.Cluster

	ctx            context.Context
	netns          map[string]string // of nodes
	cache          string
	work           string     // directory of what subjects write on the machine
	volumes        string     // where the disk of the first node's volumes is mounted
	subject        string     // whose checks are made
	software       []software // that the subject was built of
	passed, failed int
}

// start starts the cluster with images for all nodes. After an error the
// cluster, if there is one, has to be stopped as well.
func (r *rig) start(archives []string) (err error) {
	if r.Cluster, err = harness.Prepare("eco"); err != nil {
		return err
	}
	for _, a := range archives {
		to := filepath.Join(r.Dir, "images", filepath.Base(a))
		if os.Link(a, to) == nil {
			continue
		}
		if err := upstream.CopyFile(a, to); err != nil { // the directories are on two disks
			return err
		}
	}
	if err := r.mountVolumes(); err != nil {
		return err
	}
	if err := r.Up(); err != nil {
		return err
	}
	r.netns = map[string]string{nodes[0]: r.NetNS}
	for _, name := range nodes[1:] {
		a, err := r.Join(name)
		if err != nil {
			return err
		}
		r.netns[name] = a.NetNS
	}
	_, err = r.Kubectl("", "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s")
	return err
}

// stop takes the cluster down and removes all files; what is left is an error.
func (r *rig) stop() error {
	var err error
	if r.Cluster != nil {
		if r.volumes != "" {
			err = errors.Join(r.Down(), r.unmountVolumes())
		}
		err = errors.Join(err, r.Stop())
	}
	return errors.Join(err, os.RemoveAll(r.work))
}

// nodeDir is the directory of a node's files.
func (r *rig) nodeDir(node string) string {
	if node == nodes[0] {
		return r.Dir
	}
	return filepath.Join(r.Dir, node)
}

// onNode runs a command in a node's network.
func (r *rig) onNode(node, program string, args ...string) (string, error) {
	out, err := harness.Command(r.netns[node], program, args...).CombinedOutput()
	return string(out), err
}

// source is the directory of a module's files.
func (r *rig) source(name string) string { return filepath.Join(r.cache, "src", name) }

// check makes one check and prints a line about it; what the check returns is
// printed as its finding.
func (r *rig) check(what string, run func() (string, error)) bool {
	began := time.Now()
	err := r.ctx.Err()
	var found string
	if err == nil {
		found, err = run()
	}
	took := time.Since(began).Round(100 * time.Millisecond)
	if err != nil {
		r.failed++
		reason := strings.ReplaceAll(err.Error(), "\n", "\n     ")
		fmt.Printf("FAIL %-18s %-60s %7s\n     %s\n", r.subject, what, took, reason)
		return false
	}
	r.passed++
	found = strings.Join(strings.Fields(found), " ")
	fmt.Printf("ok   %-18s %-60s %7s  %s\n", r.subject, what, took, found[:min(len(found), 120)])
	return true
}

// do runs kubectl commands; the last one's output is the finding.
func (r *rig) do(commands ...string) func() (string, error) {
	return func() (out string, err error) {
		for _, c := range commands {
			if out, err = r.Kubectl("", strings.Fields(c)...); err != nil {
				return "", err
			}
		}
		return out, nil
	}
}

// apply applies a manifest of testdata.
func (r *rig) apply(file string) error {
	text, err := os.ReadFile(filepath.Join("tests/ecosystem/testdata", file))
	if err != nil {
		return err
	}
	_, err = r.Kubectl(string(text), "apply", "-f", "-")
	return err
}

// until asks again and again, as commands' output has no events, until get
// succeeds; for at most a time.
func (r *rig) until(limit time.Duration, get func() (string, error)) (string, error) {
	deadline := time.Now().Add(limit)
	for {
		found, err := get()
		if err == nil {
			return found, nil
		}
		if r.ctx.Err() != nil || time.Now().After(deadline) {
			return "", fmt.Errorf("not within %v: %w", limit, err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// shows waits until the output of a kubectl command holds all words.
func (r *rig) shows(limit time.Duration, command string, words ...string) func() (string, error) {
	return func() (string, error) {
		return r.until(limit, func() (string, error) {
			out, err := r.Kubectl("", strings.Fields(command)...)
			if err != nil {
				return "", err
			}
			for _, w := range words {
				if !strings.Contains(out, w) {
					return "", fmt.Errorf("kubectl %s: no %q in:\n%s", command, w, out)
				}
			}
			return out, nil
		})
	}
}

// installed makes a check of what installs something, and waits for a workload.
func (r *rig) installed(namespace, workload string, install func() error) bool {
	return r.check("is installed", func() (string, error) {
		if err := install(); err != nil {
			return "", err
		}
		return "", r.rollout(namespace, workload)
	})
}

// rollout waits until all pods of a Deployment, StatefulSet or DaemonSet are ready.
func (r *rig) rollout(namespace, workload string) error {
	_, err := r.do("-n " + namespace + " rollout status " + workload + " --timeout=120s")()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, r.state(namespace))
	}
	return err
}

// state tells of a namespace what helps to see why something does not start.
func (r *rig) state(namespace string) string {
	pods, _ := r.Kubectl("", "-n", namespace, "get", "pods", "-o", "wide")
	events, _ := r.Kubectl("", "-n", namespace, "events", "--types=Warning")
	return pods + events
}
