package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/shoal-project/shoal/tests/harness"
)

// pluginEnv has the test's own program be a device plugin in this directory.
const pluginEnv = "SHOAL_E2E_DEVICE_PLUGIN"

const (
	pluggedResource = "plugin.e2e.test/dev"
	pluggedSocket   = "e2e.sock"
)

// plugged asks for one device of the plugin's three, in an init container too.
const plugged = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  terminationGracePeriodSeconds: 0
  initContainers:
  - name: early
    image: "localhost/busybox:1"
    command: [sh, -c, "echo $DEVICES > /dev/termination-log"]
    resources: {limits: {plugin.e2e.test/dev: 1}}
  containers:
  - name: with
    image: "localhost/busybox:1"
    command: [sh, -c, "echo had $(DEVICES); until [ -f /tmp/end ]; do sleep 0.1; done"]
    resources: {limits: {plugin.e2e.test/dev: %[2]d}}
  - {name: without, image: "localhost/busybox:1", command: [sleep, "3600"]}
`

// devicePlugin is a program as vendors write them: it registers, again each time that the
// kubelet's socket is made anew, and tells of what its file says ("a b c!").
type devicePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	dir string
}

func (d *devicePlugin) file() string { return filepath.Join(d.dir, "..", "e2e-devices") }

func (d *devicePlugin) devices() (list []*pluginapi.Device) {
	data, _ := os.ReadFile(d.file())
	for _, id := range strings.Fields(string(data)) {
		one := &pluginapi.Device{ID: strings.TrimSuffix(id, "!"), Health: pluginapi.Healthy}
		if one.ID != id {
			one.Health = pluginapi.Unhealthy
		}
		list = append(list, one)
	}
	return list
}

func (d *devicePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (
	*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}, nil
}

func (d *devicePlugin) ListAndWatch(_ *pluginapi.Empty,
	s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	last := "nothing yet"
	for { // the test writes the file; a tenth of a second is soon enough
		list := d.devices()
		if now := fmt.Sprint(list); now != last {
			if err := s.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
			last = now
		}
		select {
		case <-s.Context().Done():
			return nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// GetPreferredAllocation prefers the last ones.
func (d *devicePlugin) GetPreferredAllocation(_ context.Context, r *pluginapi.PreferredAllocationRequest) (
	*pluginapi.PreferredAllocationResponse, error) {
	one := r.ContainerRequests[0]
	ids := append([]string{}, one.MustIncludeDeviceIDs...)
	for i := len(one.AvailableDeviceIDs) - 1; i >= 0 && len(ids) < int(one.AllocationSize); i-- {
		ids = append(ids, one.AvailableDeviceIDs[i])
	}
	return &pluginapi.PreferredAllocationResponse{
		ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{{DeviceIDs: ids}}}, nil
}

func (d *devicePlugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	ids := r.ContainerRequests[0].DevicesIds
	answer := &pluginapi.ContainerAllocateResponse{
		Envs:        map[string]string{"DEVICES": strings.Join(ids, "+")},
		Mounts:      []*pluginapi.Mount{{ContainerPath: "/plugin", HostPath: filepath.Dir(d.file()), ReadOnly: true}},
		Annotations: map[string]string{"plugin.e2e.test/note": "here"},
	}
	for _, id := range ids {
		answer.Devices = append(answer.Devices,
			&pluginapi.DeviceSpec{ContainerPath: "/dev/e2e-" + id, HostPath: "/dev/zero", Permissions: "r"})
	}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{answer}}, nil
}

func (d *devicePlugin) PreStartContainer(context.Context, *pluginapi.PreStartContainerRequest) (
	*pluginapi.PreStartContainerResponse, error) {
	return &pluginapi.PreStartContainerResponse{}, nil
}

// serve is the program.
func (d *devicePlugin) serve() error {
	changes, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	if err := changes.Add(d.dir); err != nil {
		return err
	}
	for {
		server := grpc.NewServer()
		pluginapi.RegisterDevicePluginServer(server, d)
		_ = os.Remove(filepath.Join(d.dir, pluggedSocket))
		l, err := net.Listen("unix", filepath.Join(d.dir, pluggedSocket))
		if err != nil {
			return err
		}
		go func() { _ = server.Serve(l) }()
		if err := d.register(); err != nil {
			fmt.Fprintln(os.Stderr, "register:", err)
		}
		for e := range changes.Events {
			if filepath.Base(e.Name) == "kubelet.sock" && e.Has(fsnotify.Create) {
				break
			}
		}
		server.Stop()
	}
}

func (d *devicePlugin) register() error {
	conn, err := grpc.NewClient("unix:"+filepath.Join(d.dir, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: pluggedSocket, ResourceName: pluggedResource}, grpc.WaitForReady(true))
	return err
}

// startPlugin starts the program, and returns what kills it.
func startPlugin(t *testing.T, dir string) (kill func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), pluginEnv+"="+dir)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(kill)
	return kill
}

// TestDevicePlugin: a plugin's devices are the Node's, pods get them as the plugin says,
// none is given twice, and what runs keeps its own when plugin and agent are killed.
func TestDevicePlugin(t *testing.T) {
	s := newSpace(t)
	kubelet := filepath.Join(cluster.Dir, "kubelet")
	d := &devicePlugin{dir: filepath.Join(kubelet, "device-plugins")}
	has := func(devices string) {
		t.Helper()
		if err := os.WriteFile(d.file()+".new", []byte(devices), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(d.file()+".new", d.file()); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Remove(d.file()) })
	node := func(want string) {
		t.Helper()
		harness.Eventually(t, "the node shows "+want, func() (bool, string) {
			out := cluster.Must(t, "get", "node", "node1", "-o",
				`jsonpath={.status.capacity.plugin\.e2e\.test/dev} {.status.allocatable.plugin\.e2e\.test/dev}`)
			return out == want, out
		})
	}
	has("a b c")
	kill := startPlugin(t, d.dir)
	node("3 3")
	s.apply(fmt.Sprintf(plugged, "first", 2))
	s.k("wait", "pod/first", "--for=condition=Ready", "--timeout=60s")
	see := []string{"exec", "first", "-c", "with", "--", "sh", "-c",
		"echo $DEVICES; head -c 4 /dev/e2e-${DEVICES%+*} | wc -c; cat /plugin/e2e-devices"}
	if got, want := s.k(see...), "c+b\n4\na b c"; got != want {
		t.Errorf("the container has %q, want %q", got, want)
	}
	if got := strings.TrimSpace(s.k("logs", "first", "-c", "with")); got != "had c+b" {
		t.Errorf("its command had %q", got)
	}
	early := s.k("get", "pod", "first", "-o", "jsonpath={.status.initContainerStatuses[0].state.terminated.message}")
	if strings.TrimSpace(early) != "c" {
		t.Errorf("the init container had %q, which is to be used again", early)
	}
	s.refused("No such file", "exec", "first", "-c", "without", "--", "ls", "/dev/e2e-c")
	listed, err := podResources(t.Context(), kubelet)
	if got := listed[s.ns+"/first/with"]; err != nil || got != "c b" {
		t.Errorf("the pod resources API tells of %q: %v", got, err)
	}
	health := func(want string) {
		t.Helper()
		harness.Eventually(t, "the pod's status shows "+want, func() (bool, string) {
			out := s.k("get", "pod", "first", "-o", "jsonpath={range .status.containerStatuses[*]}{.name}"+
				"{range .allocatedResourcesStatus[*]} {.name}{range .resources[*]} {.resourceID}={.health}{end}{end}"+
				"{'\\n'}{end}")
			return strings.Contains(out, "with plugin.e2e.test/dev "+want+"\nwithout\n"), out
		})
	}
	health("b=Healthy c=Healthy")
	has("a b! c")
	health("b=Unhealthy c=Healthy")
	node("3 2")
	has("a b c")
	node("3 3")

	// One is left.
	s.apply(fmt.Sprintf(plugged, "second", 2))
	harness.Eventually(t, "the second pod waits", func() (bool, string) {
		out := s.k("get", "events", "-o", "jsonpath={range .items[*]}{.involvedObject.name} {.message}{'\\n'}{end}")
		return strings.Contains(out, "second 0/1 nodes are available: 1 Insufficient plugin.e2e.test/dev"), out
	})

	// The plugin is killed, then the agent; what runs keeps its devices.
	runs := func() string {
		return s.k("get", "pod", "first", "-o",
			"jsonpath={range .status.containerStatuses[*]}{.containerID} {.restartCount} {end}")
	}
	before := runs()
	kill()
	node("3 0")
	health("b=Unknown c=Unknown")
	cluster.Kill(t, "agent")
	node("0 0")
	harness.Eventually(t, "the next agent answers", func() (bool, string) {
		out, err := cluster.Kubectl("", append([]string{"-n", s.ns}, see...)...)
		return err == nil && strings.HasPrefix(out, "c+b\n"), out
	})
	kill = startPlugin(t, d.dir)
	node("3 3") // pending pods stay so: two devices are taken
	health("b=Healthy c=Healthy")
	// A pod that the scheduler did not look at is refused by the node itself.
	s.apply(strings.Replace(fmt.Sprintf(plugged, "forced", 2), "spec:", "spec:\n  nodeName: node1", 1))
	harness.Eventually(t, "the node refuses a pod", func() (bool, string) {
		out := s.k("get", "pod", "forced", "-o", "jsonpath={.status.phase} {.status.reason}: {.status.message}")
		return out == "Failed UnexpectedAdmissionError: Pod was rejected: Allocate failed due to requested number of "+
			"devices unavailable for plugin.e2e.test/dev. Requested: 1, Available: 0, which is unexpected", out
	})
	if now := runs(); now != before {
		t.Errorf("containers restarted: %s, then %s", before, now)
	}
	// A container that runs again has the same.
	s.k("exec", "first", "-c", "with", "--", "touch", "/tmp/end")
	harness.Eventually(t, "the container runs again", func() (bool, string) {
		out := s.k("get", "pod", "first", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"+
			"{.status.containerStatuses[0].ready}")
		return out == "1true", out
	})
	if got := s.k(see...); !strings.HasPrefix(got, "c+b\n4\n") {
		t.Errorf("after its restart the container has %q", got)
	}
	s.k("delete", "pod", "first", "--timeout=60s")
	s.k("wait", "pod/second", "--for=condition=Ready", "--timeout=60s")
	see[1] = "second"
	if got := s.k(see...); !strings.HasPrefix(got, "a+c\n4\n") && !strings.HasPrefix(got, "c+b\n4\n") {
		t.Errorf("the second pod has %q", got)
	}
	s.k("delete", "pod", "second", "--timeout=60s")
	harness.Eventually(t, "all devices are free", func() (bool, string) {
		records, err := filepath.Glob(filepath.Join(cluster.Dir, "agent/checkpoint/devices/*.json"))
		return err == nil && len(records) == 0, fmt.Sprint(records, err)
	})
	kill()
	node("3 0")
}

// pluginPods are a plugin and a monitoring agent as a DaemonSet brings them: privileged,
// with directories of the node. The test's own program is not linked statically, and so
// has the node's root.
const pluginPods = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: plugin}
spec:
  selector: {matchLabels: {app: plugin}}
  template:
    metadata: {labels: {app: plugin}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: plugin
        image: "localhost/busybox:1"
        command: [chroot, /node, %[1]s]
        env: [{name: SHOAL_E2E_DEVICE_PLUGIN, value: %[2]s/device-plugins}]
        securityContext: {privileged: true}
        volumeMounts: [{name: node, mountPath: /node}]
      - name: monitor
        image: "localhost/busybox:1"
        command: [chroot, /node, %[1]s]
        env: [{name: SHOAL_E2E_POD_RESOURCES, value: %[2]s}]
        securityContext: {privileged: true}
        volumeMounts: [{name: node, mountPath: /node}]
      volumes: [{name: node, hostPath: {path: /}}]
`

// TestDevicePluginInPod: a plugin and a monitoring agent that run in pods of the node are
// heard, and so they are by the next agent.
func TestDevicePluginInPod(t *testing.T) {
	s := newSpace(t)
	kubelet := filepath.Join(cluster.Dir, "kubelet")
	d := &devicePlugin{dir: filepath.Join(kubelet, "device-plugins")}
	if err := os.WriteFile(d.file(), []byte("x y"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(d.file()) })
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	has := func(want string) {
		t.Helper()
		harness.Eventually(t, "the node shows "+want, func() (bool, string) {
			out := cluster.Must(t, "get", "node", "node1", "-o", `jsonpath={.status.allocatable.plugin\.e2e\.test/dev}`)
			return out == want, out
		})
	}
	s.apply(fmt.Sprintf(pluginPods, program, kubelet))
	has("2")
	s.apply(fmt.Sprintf(plugged, "inpod", 2))
	s.k("wait", "pod/inpod", "--for=condition=Ready", "--timeout=60s")
	harness.Eventually(t, "the monitoring agent tells of the pod", func() (bool, string) {
		out := s.k("logs", "daemonset/plugin", "-c", "monitor", "--tail=20")
		return strings.Contains(out, s.ns+"/inpod/with: y x\n"), out
	})
	cluster.Kill(t, "agent")
	s.k("delete", "pod", "inpod", "--timeout=60s")
	s.apply(fmt.Sprintf(plugged, "again", 2)) // the plugin has registered again, or is waited for
	s.k("wait", "pod/again", "--for=condition=Ready", "--timeout=60s")
}

// monitorEnv has the test's own program tell of the pod resources of this kubelet.
const monitorEnv = "SHOAL_E2E_POD_RESOURCES"

// monitor is that program.
func monitor(kubelet string) {
	for ; ; time.Sleep(time.Second) {
		list, err := podResources(context.Background(), kubelet)
		if err != nil {
			fmt.Println(err)
		}
		for name, devices := range list {
			fmt.Printf("%s: %s\n", name, devices)
		}
	}
}

// podResources is what the API tells, by namespace/pod/container.
func podResources(ctx context.Context, kubelet string) (map[string]string, error) {
	conn, err := grpc.NewClient("unix:"+filepath.Join(kubelet, "pod-resources", "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := podresourcesv1.NewPodResourcesListerClient(conn)
	list, err := client.List(ctx, &podresourcesv1.ListPodResourcesRequest{})
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, p := range list.GetPodResources() {
		for _, c := range p.GetContainers() {
			var ids []string
			for _, d := range c.GetDevices() {
				ids = append(ids, d.GetDeviceIds()...)
			}
			out[p.GetNamespace()+"/"+p.GetName()+"/"+c.GetName()] = strings.Join(ids, " ")
		}
	}
	return out, nil
}
