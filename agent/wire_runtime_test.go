package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/hollow"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/qos"
)

// another is a container runtime that makes groups as files.
type another struct {
	criv1.UnimplementedRuntimeServiceServer
	criv1.UnimplementedImageServiceServer
	driver criv1.CgroupDriver
}

func (a *another) Version(context.Context, *criv1.VersionRequest) (*criv1.VersionResponse, error) {
	return &criv1.VersionResponse{
		Version: "0.1.0", RuntimeApiVersion: "v1", RuntimeName: "another", RuntimeVersion: "1",
	}, nil
}

func (a *another) RuntimeConfig(
	context.Context, *criv1.RuntimeConfigRequest,
) (*criv1.RuntimeConfigResponse, error) {
	return &criv1.RuntimeConfigResponse{Linux: &criv1.LinuxRuntimeConfiguration{CgroupDriver: a.driver}}, nil
}

func (a *another) ImageFsInfo(context.Context, *criv1.ImageFsInfoRequest) (*criv1.ImageFsInfoResponse, error) {
	return &criv1.ImageFsInfoResponse{}, nil
}

// serve answers at a socket until the test ends.
func (a *another) serve(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cri") // short: it holds a socket
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	criv1.RegisterRuntimeServiceServer(s, a)
	criv1.RegisterImageServiceServer(s, a)
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		<-done
		os.RemoveAll(dir)
	})
	return "unix://" + path
}

// Pods of an outside runtime lie in groups with their limits, as those of the agent's own; the
// groups go with them, and at a cleanup those of all pods, where nothing runs.
func TestGroupsOfAnotherRuntime(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes control groups")
	}
	cfg := config.Default()
	cfg.ContainerRuntimeEndpoint = (&another{driver: criv1.CgroupDriver_CGROUPFS}).serve(t)
	cfg.CgroupRoot = fmt.Sprintf("/shoal-another-%d", os.Getpid())
	log := slog.New(slog.DiscardHandler)
	facts := host.Facts{CPUs: 2, MemoryBytes: 4 << 30}
	memory := node.Remember(hollow.Store[corev1.Node]{}, "n", log)
	c, err := connectRuntime(t.Context(), &cfg, facts, memory, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	defer c.images.Close(t.Context())
	groups, err := cgroup.Open(cgroup.Cgroupfs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := groups.Delete(cfg.CgroupRoot); err != nil {
			t.Error(err)
		}
	})
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
			corev1.ResourceMemory: resource.MustParse("64Mi"), corev1.ResourceCPU: resource.MustParse("1")}},
	}}}}
	step, s := groupStep(&launch.Host{}, c.groups), &pod.Setting{Pod: p}
	if err := step.Ensure(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if got, err := groups.Stat(cgroupOf(c.tree, p)); err != nil || got.MemoryLimit != 64<<20 {
		t.Errorf("the pod's limit is %d, %v", got.MemoryLimit, err)
	}
	if err := step.Release(t.Context(), s); err != nil || groups.HasFile(cgroupOf(c.tree, p), "cgroup.procs") {
		t.Errorf("the group of a pod that is gone is left: %v", err)
	}
	if err := c.tree.RemoveEmpty(); err != nil || groups.HasFile(c.tree.Kubepods(), "cgroup.procs") {
		t.Errorf("the groups of all pods are left: %v", err)
	}
}

// Where control groups are v1 and systemd makes them, they are the runtime's.
func TestGroupsThatAreTheRuntimes(t *testing.T) {
	tree := qos.Tree{Driver: cgroup.Systemd, Root: "/shoal-another"}
	if _, err := cgroup.Open(tree.Driver); err == nil {
		t.Skip("control groups are v2: the agent can ask systemd, too")
	}
	cfg := config.Default()
	g, err := foreignGroups(&cfg, host.Facts{}, tree, slog.New(slog.DiscardHandler))
	if g != nil || err != nil {
		t.Errorf("%v, %v", g, err)
	}
	if err := tree.RemoveEmpty(); err != nil {
		t.Error(err)
	}
}
