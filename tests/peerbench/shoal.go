package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"

	coordinatorconfig "github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/tests/bench/measure"
	"github.com/shoal-project/shoal/tests/harness"
)

// shoal is Shoal on one or two machines, as `shoal up` starts it.
type shoal struct {
	cluster *harness.Cluster
	group   measure.Group
	second  *harness.Agent
	others  *host // runs what does not belong to the system
}

func startShoal(context.Context, options, stage) (*cluster, error) {
	c, err := harness.Prepare("peer")
	if err != nil {
		return nil, err
	}
	s := &shoal{cluster: c, others: &host{dir: c.Dir, netns: []string{c.NetNS}}}
	out := &cluster{dir: c.Dir, netns: c.NetNS, address: c.Address, kubeconfig: c.Kubeconfig(),
		podGroup: c.Name, daemons: s}
	if s.group, err = measure.NewGroup(c.Name + "-daemons"); err != nil {
		return out, err
	}
	out.groups = []measure.Group{s.group, measure.Group(filepath.Join(measure.Accountant(), c.Name))}
	c.Prefix = s.group.Prefix()
	if err := onlyExample(filepath.Join(c.Dir, "images")); err != nil {
		return out, err
	}
	start := time.Now()
	err = c.Up()
	out.took = time.Since(start)
	return out, err
}

// onlyExample leaves the example image as the only one to import.
func onlyExample(dir string) error {
	archives, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	for _, a := range archives {
		if filepath.Base(a) != "hello.tar" {
			if err := os.Remove(a); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *shoal) join(context.Context) (err error) {
	if s.second, err = s.cluster.Join(nodeTwo); err == nil {
		s.others.netns = append(s.others.netns, s.second.NetNS)
	}
	return err
}

// cut takes the second machine off the network. What runs on it keeps running,
// as on a machine whose cable is pulled.
func (s *shoal) cut() error { return s.second.Cut() }

func (s *shoal) logs() string { return s.cluster.Logs() }

func (s *shoal) aside(string, ...string) error {
	return errors.New("nothing runs beside a whole cluster")
}

// onNode needs no mounts of its own: agents have those of the whole machine.
func (s *shoal) onNode(node int, name string, command ...string) error {
	return s.others.beside(node, name, command)
}

func (s *shoal) kubeletDir(node int) string {
	if node == 0 {
		return filepath.Join(s.cluster.Dir, "kubelet")
	}
	return filepath.Join(s.second.Dir, "kubelet")
}

func (s *shoal) ended() error { return s.others.ended() }

func (s *shoal) stop() error {
	var errs []error
	for _, p := range s.others.procs {
		errs = append(errs, p.end())
	}
	return errors.Join(append(errs, s.cluster.Stop(), measure.RemoveGroups(s.cluster.Name+"-daemons"))...)
}

// shoalPlane is a coordinator alone.
type shoalPlane struct{ *host }

func startShoalPlane(ctx context.Context, o options, _ stage) (*cluster, error) {
	h, err := newHost()
	if h == nil {
		return nil, err
	}
	out := &cluster{dir: h.dir, kubeconfig: h.path("kubeconfig"), podGroup: h.name, daemons: shoalPlane{h},
		groups: []measure.Group{h.group}}
	if err != nil {
		return out, err
	}
	out.netns, out.address = h.netns[0], h.addrs[0]
	file, err := coordinatorFile(h)
	if err != nil {
		return out, err
	}
	program := filepath.Join(o.bin, "shoal-coordinator")
	if _, err := h.start(0, "coordinator", program, "--config", file); err != nil {
		return out, err
	}
	if err := h.until(ctx, "the coordinator serves", time.Minute,
		func() error { return ready(ctx, h.netns[0], "https://"+h.addrs[0]+":6443") }); err != nil {
		return out, err
	}
	cmd := harness.Command(h.netns[0], program, "kubeconfig", "--config", file, "--user", "admin", "--group",
		"system:masters", "--server", "https://"+h.addrs[0]+":6443", "--out", out.kubeconfig)
	if text, err := cmd.CombinedOutput(); err != nil {
		return out, fmt.Errorf("kubeconfig: %w: %s", err, text)
	}
	return out, nil
}

func coordinatorFile(h *host) (string, error) {
	c := coordinatorconfig.Default()
	c.DataDir, c.AdvertiseAddress, c.ClusterCIDR = h.path("data"), h.addrs[0], planeCIDR
	data, err := yaml.Marshal(c)
	if err != nil {
		return "", err
	}
	file := h.path("coordinator.yaml")
	return file, os.WriteFile(file, data, 0o600)
}

func (shoalPlane) join(context.Context) error {
	return errors.New("a control plane alone has no nodes")
}
func (shoalPlane) cut() error { return errors.New("a control plane alone has no nodes") }
func (shoalPlane) onNode(int, string, ...string) error {
	return errors.New("a control plane alone has no nodes")
}
func (shoalPlane) kubeletDir(int) string { return "" }
