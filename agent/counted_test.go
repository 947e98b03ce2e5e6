package main

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	criapi "k8s.io/cri-api/pkg/apis"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/metrics"
)

// failing is a runtime that stops no container.
type failing struct{ criapi.RuntimeService }

func (failing) StopContainer(context.Context, string, int64) error {
	return errors.New("it does not end")
}
func (failing) RunPodSandbox(context.Context, *criv1.PodSandboxConfig, string) (string, error) {
	return "", errors.New("it does not begin")
}
func (failing) StartContainer(context.Context, string) error { return nil }

// TestOperationsAreCounted: what pods ask of the runtime, and clients of the API.
func TestOperationsAreCounted(t *testing.T) {
	counts := metrics.NewAgent()
	r := containers{brief: failing{}}.counted(counts, nil).brief
	if err := r.StartContainer(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if err := r.StopContainer(t.Context(), "c", 1); err == nil {
		t.Fatal("the error is lost")
	}
	for _, mode := range []criv1.NamespaceMode{criv1.NamespaceMode_POD, criv1.NamespaceMode_NODE} {
		_, err := r.RunPodSandbox(t.Context(), &criv1.PodSandboxConfig{Linux: &criv1.LinuxPodSandboxConfig{
			SecurityContext: &criv1.LinuxSandboxSecurityContext{NamespaceOptions: &criv1.NamespaceOption{
				UsernsOptions: &criv1.UserNamespace{Mode: mode}}}}}, "")
		if err == nil {
			t.Fatal("the error is lost")
		}
	}
	requests{counts}.Increment(t.Context(), "200", "GET", "h:6443")
	requests{counts}.Observe(t.Context(), "GET", url.URL{Host: "h:6443", Path: "/secret"}, time.Second)
	var out strings.Builder
	p := metrics.NewPage(&out)
	counts.Show(p)
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`kubelet_runtime_operations_total{operation_type="start_container"} 1`,
		`kubelet_runtime_operations_total{operation_type="stop_container"} 1`,
		`kubelet_runtime_operations_errors_total{operation_type="stop_container"} 1`,
		`kubelet_runtime_operations_duration_seconds_count{operation_type="stop_container"} 1`,
		`kubelet_started_user_namespaced_pods_total 1`,
		`kubelet_started_user_namespaced_pods_errors_total 1`,
		`rest_client_requests_total{code="200",method="GET",host="h:6443"} 1`,
		`rest_client_request_duration_seconds_sum{verb="GET",host="h:6443"} 1`,
	} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), `errors_total{operation_type="start_container"`) ||
		strings.Contains(out.String(), "secret") {
		t.Error(out.String())
	}
}

// unlucky is a runtime whose containers named "made" cannot be started, and others not made.
type unlucky struct{ failing }

func (unlucky) RunPodSandbox(_ context.Context, c *criv1.PodSandboxConfig, _ string) (string, error) {
	return c.Metadata.Name, nil
}
func (unlucky) RemovePodSandbox(context.Context, string) error { return nil }
func (unlucky) CreateContainer(_ context.Context, sandbox string, c *criv1.ContainerConfig,
	_ *criv1.PodSandboxConfig) (string, error) {
	if c.Metadata.Name != "made" {
		return "", errors.New("it has no such program")
	}
	return sandbox + "-made", nil
}
func (unlucky) StartContainer(context.Context, string) error { return errors.New("it does not start") }

// TestUserNamespaceFailures: a pod with a user namespace whose containers cannot be made, or
// started, is counted once.
func TestUserNamespaceFailures(t *testing.T) {
	counts := metrics.NewAgent()
	r := containers{brief: unlucky{}}.counted(counts, nil).brief
	pods := map[string]criv1.NamespaceMode{"one": criv1.NamespaceMode_POD, "two": criv1.NamespaceMode_POD,
		"host": criv1.NamespaceMode_NODE}
	for name, mode := range pods {
		id, err := r.RunPodSandbox(t.Context(), &criv1.PodSandboxConfig{Metadata: &criv1.PodSandboxMetadata{Name: name},
			Linux: &criv1.LinuxPodSandboxConfig{SecurityContext: &criv1.LinuxSandboxSecurityContext{
				NamespaceOptions: &criv1.NamespaceOption{UsernsOptions: &criv1.UserNamespace{Mode: mode}}}}}, "")
		if err != nil {
			t.Fatal(err)
		}
		container := map[string]string{"one": "made"}[name]
		for range 2 {
			c, err := r.CreateContainer(t.Context(), id, &criv1.ContainerConfig{
				Metadata: &criv1.ContainerMetadata{Name: container}}, nil)
			if err == nil && r.StartContainer(t.Context(), c) == nil {
				t.Error("the error is lost")
			}
		}
		if err := r.RemovePodSandbox(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	p := metrics.NewPage(&out)
	counts.Show(p)
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kubelet_started_user_namespaced_pods_total 2",
		"kubelet_started_user_namespaced_pods_errors_total 2"} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
}
