package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	criclient "k8s.io/cri-client/pkg"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/network"
	"github.com/shoal-project/shoal/agent/runtime"
)

// This file holds the thin adapters between packages that do not know each
// other.

var eventScheme = scheme.Scheme

var errNoAPI = errors.New("no API server is configured")

func cut(s string) (before, after string, ok bool) { return strings.Cut(s, "://") }

// eventSink writes events of any namespace.
type eventSink struct{ client kubernetes.Interface }

func (s eventSink) Create(e *v1.Event) (*v1.Event, error) {
	return s.client.CoreV1().Events(e.Namespace).Create(context.Background(), e, metav1.CreateOptions{})
}

func (s eventSink) Update(e *v1.Event) (*v1.Event, error) {
	return s.client.CoreV1().Events(e.Namespace).Update(context.Background(), e, metav1.UpdateOptions{})
}

func (s eventSink) Patch(e *v1.Event, data []byte) (*v1.Event, error) {
	return s.client.CoreV1().Events(e.Namespace).Patch(context.Background(), e.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{})
}

// statusAPI is what package status writes to.
type statusAPI struct{ client kubernetes.Interface }

func (s statusAPI) PatchStatus(ctx context.Context, namespace, name string, patch []byte) (*v1.Pod, error) {
	if s.client == nil {
		return nil, errNoAPI
	}
	return s.client.CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
}

func (s statusAPI) Delete(ctx context.Context, namespace, name string, uid types.UID) error {
	if s.client == nil {
		return errNoAPI
	}
	now := int64(0)
	return s.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &uid}})
}

// podNetwork is the network as the runtime calls it.
type podNetwork struct{ m *network.Manager }

func (n podNetwork) pod(p runtime.Pod) network.Pod {
	out := network.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID, ID: p.ID, NetNS: p.NetNSPath, Annotations: p.Annotations}
	for _, m := range p.PortMappings {
		out.PortMappings = append(out.PortMappings, network.PortMapping{HostIP: m.HostIp, HostPort: uint16(m.HostPort),
			ContainerPort: uint16(m.ContainerPort), Protocol: m.Protocol.String()})
	}
	return out
}

func (n podNetwork) Setup(ctx context.Context, p runtime.Pod) (runtime.Result, error) {
	ips, err := n.m.Setup(ctx, n.pod(p))
	return runtime.Result{IPs: ips}, err
}

func (n podNetwork) Teardown(ctx context.Context, p runtime.Pod) error {
	return n.m.Teardown(ctx, n.pod(p))
}

func (n podNetwork) Status() error { return n.m.Status(context.Background()) }

// runtimeAgain is how often an outside runtime that does not answer is tried.
const runtimeAgain = time.Second

// connectRuntime uses a runtime behind a CRI socket, when there is one.
func (a *agent) connectRuntime(ctx context.Context) error {
	endpoint := a.cfg.ContainerRuntimeEndpoint
	if !strings.Contains(endpoint, "://") {
		endpoint = "unix://" + endpoint
	}
	var err error
	for told := false; ; told = true {
		if a.runtime, err = criclient.NewRemoteRuntimeService(ctx, endpoint, 2*time.Minute, nil, false); err == nil {
			break
		}
		if !told {
			a.log.Warn("the container runtime does not answer; trying on (is it running, with its CRI plugin?)", "endpoint", endpoint, "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(runtimeAgain): // both start with the machine
		}
	}
	if a.images, err = criclient.NewRemoteImageService(ctx, endpoint, 15*time.Minute, nil, false); err != nil {
		return fmt.Errorf("images of the container runtime at %s: %w", endpoint, err)
	}
	// The runtime's driver counts: it makes what the agent names (KEP-4033).
	if rc, err := a.runtime.RuntimeConfig(ctx); err == nil && rc.GetLinux() != nil {
		a.cfg.CgroupDriver = string(cgroup.Cgroupfs)
		if rc.GetLinux().GetCgroupDriver() == cri.CgroupDriver_SYSTEMD {
			a.cfg.CgroupDriver = string(cgroup.Systemd)
		}
	}
	if n := a.saved.Load(); n != nil && n.Spec.PodCIDR != "" {
		a.tellPodCIDR(ctx, n.Spec.PodCIDR)
	}
	return a.readVersion(ctx)
}

// tellPodCIDR lets an outside runtime fill its CNI template.
func (a *agent) tellPodCIDR(ctx context.Context, cidr string) {
	err := a.runtime.UpdateRuntimeConfig(ctx, &cri.RuntimeConfig{NetworkConfig: &cri.NetworkConfig{PodCidr: cidr}})
	if err != nil {
		a.log.Warn("the container runtime did not take the pod network", "error", err)
	}
}

// taints reads key=value:Effect.
func taints(list []string) []v1.Taint {
	var out []v1.Taint
	for _, s := range list {
		kv, effect, ok := strings.Cut(s, ":")
		if !ok {
			continue
		}
		key, value, _ := strings.Cut(kv, "=")
		out = append(out, v1.Taint{Key: key, Value: value, Effect: v1.TaintEffect(effect)})
	}
	return out
}

// watchdog tells the service manager that the process lives.
func (a *agent) watchdog(ctx context.Context) error {
	a.manager.KeepAlive(ctx, func(context.Context) bool {
		a.pods.Pods() // does not return when the pods' workers are stuck
		return true
	})
	return nil
}
