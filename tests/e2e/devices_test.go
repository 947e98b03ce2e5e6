package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	drahealthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/shoal-project/shoal/csi/csitest"
	"github.com/shoal-project/shoal/tests/harness"
)

// equipped is a pod of two containers, of which one gets the device of a claim.
const equipped = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: dra.e2e.test}
spec: {selectors: [{cel: {expression: "device.driver == 'dra.e2e.test'"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node1-dra.e2e.test}
spec:
  driver: dra.e2e.test
  nodeName: node1
  pool: {name: node1, generation: 1, resourceSliceCount: 1}
  devices: [{name: only}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: dra.e2e.test}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: equipped}
spec:
  terminationGracePeriodSeconds: 0
  resourceClaims: [{name: d, resourceClaimTemplateName: one}]
  containers:
  - {name: with, image: "localhost/busybox:1", command: [sleep, "3600"], resources: {claims: [{name: d, request: r}]}}
  - {name: without, image: "localhost/busybox:1", command: [sleep, "3600"]}
`

// asking asks for the same device as an extended resource.
const asking = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: dra.e2e.test}
spec:
  extendedResourceName: dra.e2e.test/device
  selectors: [{cel: {expression: "device.driver == 'dra.e2e.test'"}}]
---
apiVersion: v1
kind: Pod
metadata: {name: asking}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: with
    image: "localhost/busybox:1"
    command: [sleep, "3600"]
    resources: {limits: {dra.e2e.test/device: 1}}
  - {name: without, image: "localhost/busybox:1", command: [sleep, "3600"]}
`

// deviceDriver prepares devices by a file of the container device interface: a variable
// and a device node that behaves as /dev/zero.
type deviceDriver struct {
	drav1.UnimplementedDRAPluginServer
	drahealthv1alpha1.UnimplementedDRAResourceHealthServer
	file string

	mu       sync.Mutex
	prepared map[string]bool
}

func (d *deviceDriver) NodePrepareResources(_ context.Context, r *drav1.NodePrepareResourcesRequest) (
	*drav1.NodePrepareResourcesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{}}
	for _, c := range r.Claims {
		spec := fmt.Sprintf(`{"cdiVersion": "0.6.0", "kind": "dra.e2e.test/device", "devices": [{"name": %q,
"containerEdits": {"env": ["DEVICE_OF=%s"], "deviceNodes": [{"path": "/dev/shoal-e2e", "hostPath": "/dev/zero"}]}}]}`,
			c.Uid, c.Uid)
		if err := os.WriteFile(d.file, []byte(spec), 0o644); err != nil {
			return nil, err
		}
		d.prepared[c.Uid] = true
		out.Claims[c.Uid] = &drav1.NodePrepareResourceResponse{Devices: []*drav1.Device{{
			RequestNames: []string{"r", "container-0-request-0"},
			PoolName:     "node1", DeviceName: "only", CdiDeviceIds: []string{"dra.e2e.test/device=" + c.Uid}}}}
	}
	return out, nil
}

func (d *deviceDriver) NodeUnprepareResources(_ context.Context, r *drav1.NodeUnprepareResourcesRequest) (
	*drav1.NodeUnprepareResourcesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{}}
	for _, c := range r.Claims {
		delete(d.prepared, c.Uid)
		out.Claims[c.Uid] = &drav1.NodeUnprepareResourceResponse{}
	}
	return out, os.RemoveAll(d.file)
}

// NodeWatchResources tells that the device is not well.
func (d *deviceDriver) NodeWatchResources(_ *drahealthv1alpha1.NodeWatchResourcesRequest,
	s drahealthv1alpha1.DRAResourceHealth_NodeWatchResourcesServer) error {
	err := s.Send(&drahealthv1alpha1.NodeWatchResourcesResponse{Devices: []*drahealthv1alpha1.DeviceHealth{{
		Device:                    &drahealthv1alpha1.DeviceIdentifier{PoolName: "node1", DeviceName: "only"},
		Health:                    drahealthv1alpha1.HealthStatus_UNHEALTHY,
		HealthCheckTimeoutSeconds: 3600,
		Message:                   "it burns",
	}}})
	if err == nil {
		<-s.Context().Done()
	}
	return err
}

func (d *deviceDriver) claims() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.prepared)
}

// TestDevices: a pod waits for the driver of its claim, its container has the device
// that the driver prepared, over a restart of the agent too, and the device is given
// back with the pod. So it is where the pod asks for an extended resource.
func TestDevices(t *testing.T) {
	s := newSpace(t)
	if err := os.MkdirAll("/var/run/cdi", 0o755); err != nil {
		t.Fatal(err)
	}
	d := &deviceDriver{file: filepath.Join("/var/run/cdi", cluster.Name+"-e2e.json"), prepared: map[string]bool{}}
	t.Cleanup(func() { _ = os.Remove(d.file) })
	endpoint := filepath.Join(t.TempDir(), "dra.sock")
	l, err := net.Listen("unix", endpoint)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	drav1.RegisterDRAPluginServer(server, d)
	drahealthv1alpha1.RegisterDRAResourceHealthServer(server, d)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	s.apply(equipped)
	t.Cleanup(func() {
		cluster.Must(t, "delete", "deviceclass/dra.e2e.test", "resourceslice/node1-dra.e2e.test", "--wait=false",
			"--ignore-not-found")
	})
	harness.Eventually(t, "the pod waits for the driver", func() (bool, string) {
		out := s.k("get", "events", "-o", "jsonpath={range .items[*]}{.reason} {.message}{'\\n'}{end}")
		return strings.Contains(out, "FailedPrepareDynamicResources") &&
			strings.Contains(out, "DRA driver dra.e2e.test is not registered"), out
	})
	told, gone := csitest.Register(t, filepath.Join(cluster.Dir, "kubelet", "plugins_registry"),
		&registrationv1.PluginInfo{Type: registrationv1.DRAPlugin, Name: "dra.e2e.test", Endpoint: endpoint,
			SupportedVersions: []string{drav1.DRAPluginService}})
	answered := func() {
		t.Helper()
		select {
		case answer := <-told:
			if answer != "" {
				t.Fatalf("it is not registered: %s", answer)
			}
		case <-time.After(time.Minute):
			t.Fatal("nobody heard it register")
		}
	}
	answered()
	s.k("wait", "pod/equipped", "--for=condition=Ready", "--timeout=60s")
	claim := s.k("get", "resourceclaim", "-o", "jsonpath={.items[0].metadata.uid}")
	see := []string{"exec", "equipped", "-c", "with", "--", "sh", "-c",
		"echo $DEVICE_OF; head -c 4 /dev/shoal-e2e | wc -c"}
	if got := strings.Fields(s.k(see...)); len(got) != 2 || got[0] != claim || got[1] != "4" {
		t.Errorf("the container has %q, want %s and 4", got, claim)
	}
	harness.Eventually(t, "the pod's status tells of the device", func() (bool, string) {
		out := s.k("get", "pod", "equipped", "-o", "jsonpath={range .status.containerStatuses[*]}{.name}"+
			"{range .allocatedResourcesStatus[*]} {.name}{range .resources[*]} {.health} {.message}{end}{end}{'\\n'}{end}")
		return strings.Contains(out, "with claim:d/r Unhealthy it burns\nwithout\n"), out
	})
	s.refused("No such file", "exec", "equipped", "-c", "without", "--", "ls", "/dev/shoal-e2e")
	cluster.Kill(t, "agent")
	answered() // by the next agent
	harness.Eventually(t, "the next agent answers", func() (bool, string) {
		out, err := cluster.Kubectl("", append([]string{"-n", s.ns}, see...)...)
		return err == nil && strings.Contains(out, claim), out
	})
	s.k("delete", "pod", "equipped", "--timeout=60s")
	harness.Eventually(t, "the device is given back", func() (bool, string) {
		records, _ := filepath.Glob(filepath.Join(cluster.Dir, "agent/checkpoint/claims/*.json"))
		return d.claims() == 0 && len(records) == 0, fmt.Sprint(d.claims(), records)
	})
	s.apply(asking)
	s.k("wait", "pod/asking", "--for=condition=Ready", "--timeout=60s")
	claim = s.k("get", "resourceclaim", "-o", "jsonpath={.items[0].metadata.uid}")
	see[1] = "asking"
	if got := strings.Fields(s.k(see...)); len(got) != 2 || got[0] != claim || got[1] != "4" {
		t.Errorf("by an extended resource the container has %q, want %s and 4", got, claim)
	}
	s.refused("No such file", "exec", "asking", "-c", "without", "--", "ls", "/dev/shoal-e2e")
	s.k("delete", "pod", "asking", "--timeout=60s")
	harness.Eventually(t, "the device is given back again", func() (bool, string) {
		left := s.k("get", "resourceclaim", "-o", "name")
		return d.claims() == 0 && left == "", fmt.Sprint(d.claims(), left)
	})
	gone()
}
