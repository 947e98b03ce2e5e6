package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/oci"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/runtime"
)

func (a *agent) runtimeConfig() runtime.Config {
	return runtime.Config{
		DataDir: a.cfg.DataDir, RunDir: a.cfg.RunDir, ImportDir: a.cfg.ImagesDir, CertsDir: a.cfg.RegistryConfigDir,
		CgroupRoot: a.kubepods(), Driver: a.driver(), Runtimes: a.handlers(), Network: podNetwork{a.network}, Pause: a.pause(), Seal: a.seal, Log: a.log,
		KeepFree: a.imagesKeepFree, KeepInodes: a.imagesKeepInodes,
	}
}

// pause is the program shoal-pause, which lies beside this one.
func (a *agent) pause() string {
	self, err := os.Executable()
	path := filepath.Join(filepath.Dir(self), "shoal-pause")
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		a.log.Warn("pods with shareProcessNamespace or hostUsers: false do not start: install shoal-pause beside shoal-agent", "error", err)
	}
	return path
}

// handlers are the OCI runtimes that the configuration names.
func (a *agent) handlers() map[string]oci.Runtime {
	out := map[string]oci.Runtime{}
	for name, program := range a.cfg.RuntimeHandlers {
		out[name] = oci.Runtime{Path: program}
	}
	return out
}

func (a *agent) buildRuntime(ctx context.Context) error {
	if a.cfg.ContainerRuntimeEndpoint != "" {
		return a.connectRuntime(ctx)
	}
	var err error
	if a.cgroups, err = cgroup.Open(a.driver()); err != nil {
		return err
	}
	if a.pids, err = a.limitPIDs(); err != nil {
		return err
	}
	if err := a.qosGroups(); err != nil {
		return err
	}
	if a.builtin, err = runtime.Open(ctx, a.runtimeConfig()); err != nil {
		return err
	}
	a.runtime, a.images = a.builtin, a.builtin
	a.releaseNetwork(ctx)
	return a.readVersion(ctx)
}

// releaseNetwork frees the addresses and interfaces of sandboxes that a crash
// or a reboot took.
func (a *agent) releaseNetwork(ctx context.Context) {
	sandboxes, err := a.runtime.ListPodSandbox(ctx, nil)
	ids := make([]string, len(sandboxes))
	for i, s := range sandboxes {
		ids[i] = s.Id
	}
	if err == nil {
		err = a.network.Release(ctx, ids)
	}
	if err != nil {
		a.log.Warn("addresses of lost sandboxes are not freed", "error", err)
	}
}

// qosGroups makes the groups that pods lie in. All pods together get what the
// node can give (node allocatable).
func (a *agent) qosGroups() error {
	_, allocatable := node.Capacity(a.facts, a.cfg.MaxPods, a.reserved())
	memory := allocatable.Memory().Value()
	shares := uint64(pod.Shares(allocatable.Cpu().MilliValue()))
	if err := a.cgroups.Ensure(a.kubepods(), cgroup.Resources{CPUShares: &shares, MemoryLimit: &memory, PidsLimit: a.pids.all}); err != nil {
		return fmt.Errorf("cgroup of all pods: %w", err)
	}
	least := uint64(2)
	return errors.Join(a.cgroups.Ensure(a.driver().Child(a.kubepods(), "burstable"), cgroup.Resources{}),
		a.cgroups.Ensure(a.driver().Child(a.kubepods(), "besteffort"), cgroup.Resources{CPUShares: &least}))
}

// unified are the v2 control files of every container: for lack of memory the
// kernel ends it as a whole, and it gets no swap.
func (a *agent) unified() map[string]string {
	groups := a.cgroups
	if groups == nil { // those of an outside runtime
		var err error
		if groups, err = cgroup.New(""); err != nil {
			return nil
		}
	}
	if groups.Mode() != cgroup.V2 {
		return nil
	}
	out := map[string]string{}
	if !a.cfg.SingleProcessOOMKill {
		out["memory.oom.group"] = "1"
	}
	if groups.HasFile(a.kubepods(), "memory.swap.max") {
		out["memory.swap.max"] = "0"
	}
	return out
}

// reserved is what the system and the agent keep for themselves.
func (a *agent) reserved() v1.ResourceList {
	out := v1.ResourceList{}
	for _, m := range []map[string]string{a.cfg.SystemReserved, a.cfg.KubeReserved} {
		for k, v := range m {
			q, err := resource.ParseQuantity(v)
			if err != nil {
				continue // validated before
			}
			sum := out[v1.ResourceName(k)]
			sum.Add(q)
			out[v1.ResourceName(k)] = sum
		}
	}
	return out
}

func (a *agent) readVersion(ctx context.Context) error {
	v, err := a.runtime.Version(ctx, "v1")
	if err != nil {
		return fmt.Errorf("container runtime: %w", err)
	}
	a.version = v.RuntimeName + "://" + v.RuntimeVersion
	return nil
}
