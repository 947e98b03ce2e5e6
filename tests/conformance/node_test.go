package main

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// TestAgentConfiguration: what the suite writes for a kubelet becomes the agent's, but for
// where the node is; what it leaves out has the default again.
func TestAgentConfiguration(t *testing.T) {
	base := map[string]any{"nodeName": "node1", "rootDir": "/var/lib/kubelet", "maxPods": 5, "clientCAFile": "ca.crt",
		"systemReserved": map[string]any{"cpu": "100m"}}
	kubelet := map[string]any{
		"kind": "KubeletConfiguration", "podCIDR": "10.0.0.0/8", "cpuManagerPolicy": "static",
		"serializeImagePulls": true,
		"crashLoopBackOff":    map[string]any{"maxContainerRestartPeriod": "1m0s"},
		"registerWithTaints":  []any{map[string]any{"key": "a", "effect": "NoSchedule"}},
		"authentication":      map[string]any{"x509": map[string]any{"clientCAFile": "another.crt"}},
	}
	want := map[string]any{
		"nodeName": "node1", "rootDir": "/var/lib/kubelet", "cpuManagerPolicy": "static", "serializeImagePulls": true,
		"maxContainerRestartPeriod": "1m0s", "registerWithTaints": []string{"a=:NoSchedule"}, "clientCAFile": "another.crt",
	}
	if got := agentConfiguration(base, kubelet); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestHidePressure: what says that the node is short of something is kept from the suite.
func TestHidePressure(t *testing.T) {
	const taints = `"spec":{"taints":[{"key":"node.kubernetes.io/memory-pressure"},{"key":"a"}]}`
	for path, body := range map[string]string{
		"/api/v1/nodes":       `{"items":[{` + taints + `}]}`,
		"/api/v1/nodes/node1": `{` + taints + `}`,
	} {
		r := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)),
			Request: &http.Request{Method: http.MethodGet, URL: &url.URL{Path: path}}}
		if err := hidePressure(r); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r.Body)
		if err != nil || strings.Contains(string(got), "pressure") || !strings.Contains(string(got), `{"key":"a"}`) {
			t.Errorf("%s: %s, %v", path, got, err)
		}
	}
}

// TestListener: who listens on a socket is known, and in which namespace.
func TestListener(t *testing.T) {
	dir, err := os.MkdirTemp("", "l") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := listener(socket)
	if err != nil || pid != os.Getpid() {
		t.Errorf("%d, %v, want %d", pid, err, os.Getpid())
	}
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	if !inNamespace(pid, own) || inNamespace(pid, "pid:[1]") || inNamespace(1<<30, own) {
		t.Error("a process is taken for one of another machine")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if pid, err := listener(socket); err == nil {
		t.Errorf("nobody listens: %d", pid)
	}
}

// TestCausesOnContainerd: what is for want of a runtime of its own is no cause where there is one.
func TestCausesOnContainerd(t *testing.T) {
	all := causes{
		{regexp.MustCompile("reboot"), "the runtime is part of the agent: nobody answers while it is stopped"},
		{regexp.MustCompile("reboot|sctp"), "the kernel has no sockets of SCTP"},
	}
	for _, c := range []struct {
		among causes
		want  string
	}{{all, all[0].why}, {all.withoutOwnRuntime(), all[1].why}} {
		if got := c.among.of("after a reboot"); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
