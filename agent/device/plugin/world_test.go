package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/device/topology"
)

const (
	boot = "this boot"
	dev  = "vendor.example/dev"
)

// program is a device plugin of the test's own, behind a real socket.
type program struct {
	pluginapi.UnimplementedDevicePluginServer
	options pluginapi.DevicePluginOptions
	// answer makes the answer for devices, nil: a variable with their names.
	answer func(ids []string) *pluginapi.ContainerAllocateResponse
	prefer func(r *pluginapi.ContainerPreferredAllocationRequest) ([]string, error)

	mu    sync.Mutex
	calls []string
	fail  string
	hang  bool

	lists  chan []*pluginapi.Device
	server *grpc.Server
}

func (p *program) called(what string) (fail error, hang bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, what)
	if p.fail != "" {
		fail = errors.New(p.fail)
	}
	return fail, p.hang
}

func (p *program) set(fail string, hang bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail, p.hang = fail, hang
}

// took returns the calls since it was asked the last time.
func (p *program) took() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() { p.calls = nil }()
	return strings.Join(p.calls, ", ")
}

func (p *program) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{PreStartRequired: p.options.PreStartRequired,
		GetPreferredAllocationAvailable: p.options.GetPreferredAllocationAvailable}, nil
}

func (p *program) ListAndWatch(_ *pluginapi.Empty, s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		select {
		case <-s.Context().Done():
			return s.Context().Err()
		case list := <-p.lists:
			if err := s.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		}
	}
}

func (p *program) Allocate(ctx context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	ids := r.ContainerRequests[0].DevicesIds
	fail, hang := p.called("allocate " + strings.Join(ids, " "))
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if fail != nil {
		return nil, fail
	}
	answer := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"DEVICES": strings.Join(ids, " ")}}
	if p.answer != nil {
		answer = p.answer(ids)
	}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{answer}}, nil
}

func (p *program) GetPreferredAllocation(_ context.Context, r *pluginapi.PreferredAllocationRequest) (
	*pluginapi.PreferredAllocationResponse, error) {
	one := r.ContainerRequests[0]
	_, _ = p.called(fmt.Sprint("prefer ", one.AllocationSize, " of ", one.AvailableDeviceIDs, " with ",
		one.MustIncludeDeviceIDs))
	ids, err := p.prefer(one)
	return &pluginapi.PreferredAllocationResponse{
		ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{{DeviceIDs: ids}}}, err
}

func (p *program) PreStartContainer(_ context.Context, r *pluginapi.PreStartContainerRequest) (
	*pluginapi.PreStartContainerResponse, error) {
	fail, _ := p.called("prestart " + strings.Join(r.DevicesIds, " "))
	return &pluginapi.PreStartContainerResponse{}, fail
}

// disk is what outlives managers, and may be full.
type disk struct {
	mu    sync.Mutex
	pods  map[string]*Pod
	known map[string]*Known
	full  bool
}

type podDisk struct{ *disk }

func (d podDisk) All() (map[string]*Pod, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]*Pod{}
	for key, p := range d.pods { // without what is not written
		c := &Pod{UID: p.UID, Namespace: p.Namespace, Name: p.Name, Containers: map[string]map[string]*Allocation{}}
		for container, list := range p.Containers {
			c.Containers[container] = map[string]*Allocation{}
			for name, a := range list {
				c.Containers[container][name] = &Allocation{Devices: a.Devices, Answer: a.Answer, PreStart: a.PreStart,
					Boot: a.Boot}
			}
		}
		out[key] = c
	}
	return out, nil
}

func (d podDisk) PutNow(key string, p *Pod) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full {
		return errors.New("no space left on device")
	}
	d.pods[key] = p
	return nil
}

func (d podDisk) Delete(key string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pods, key)
	return nil
}

type knownDisk struct{ *disk }

func (d knownDisk) All() (map[string]*Known, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]*Known{}
	for key, k := range d.known {
		out[key] = k
	}
	return out, nil
}

func (d knownDisk) Put(key string, k *Known) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[key] = k
	return nil
}

func (d knownDisk) Delete(key string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, key)
	return nil
}

// world is a node with plugins.
type world struct {
	*testing.T
	dir  string
	disk *disk
	m    *Manager
	stop func()

	mu    sync.Mutex
	poked []types.UID
	ready int
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, dir: t.TempDir(), disk: &disk{pods: map[string]*Pod{}, known: map[string]*Known{}}}
	w.start(boot)
	t.Cleanup(func() { w.stop() })
	return w
}

// start is an agent that begins, in a boot of the machine.
func (w *world) start(boot string) {
	w.Helper()
	if w.stop != nil {
		w.stop()
	}
	w.m = &Manager{
		Dir:     w.dir,
		Records: podDisk{w.disk},
		Known:   knownDisk{w.disk},
		Boot:    boot,
		Poke: func(uid types.UID) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.poked = append(w.poked, uid)
		},
		Ready: func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ready++
		},
		Log: slog.New(slog.DiscardHandler),
	}
	if err := w.m.Load(); err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.m.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Error(err)
		}
	})
	w.until("the agent listens", func() bool {
		c, err := net.Dial("unix", filepath.Join(w.dir, socketName))
		if err != nil {
			return false
		}
		return c.Close() == nil
	})
}

func (w *world) until(what string, ok func() bool) {
	w.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("not in a minute: %s", what)
		}
	}
}

// register asks the agent to take what listens at endpoint.
func (w *world) register(version, endpoint, resource string) error {
	w.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(w.dir, socketName),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.Fatal(err)
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(w.Context(),
		&pluginapi.RegisterRequest{Version: version, Endpoint: endpoint, ResourceName: resource})
	return err
}

// serve has a plugin listen.
func (p *program) serve(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if p.lists == nil {
		p.lists = make(chan []*pluginapi.Device)
	}
	s := grpc.NewServer()
	p.server = s
	pluginapi.RegisterDevicePluginServer(s, p)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
}

// plug has a plugin come with devices.
func (w *world) plug(p *program, resource string, devices ...string) *program {
	w.Helper()
	endpoint := strings.ReplaceAll(resource, "/", "_") + fmt.Sprint(time.Now().UnixNano())
	p.serve(w.T, filepath.Join(w.dir, endpoint))
	if err := w.register(pluginapi.Version, endpoint, resource); err != nil {
		w.Fatal(err)
	}
	w.list(p, resource, devices...)
	return p
}

// list has a plugin tell of devices: "a", or "a!" for one that is not healthy, or "a@1"
// for one that is near to NUMA node 1 (0 or 1).
func (w *world) list(p *program, resource string, devices ...string) {
	w.Helper()
	list := []*pluginapi.Device{}
	healthy := int64(0)
	for _, s := range devices {
		d := &pluginapi.Device{ID: s, Health: pluginapi.Healthy}
		for node := range int64(2) {
			if id, near := strings.CutSuffix(s, fmt.Sprint("@", node)); near {
				d.ID, d.Topology = id, &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: node}}}
			}
		}
		if id, ill := strings.CutSuffix(s, "!"); ill {
			d.ID, d.Health = id, pluginapi.Unhealthy
			healthy--
		}
		healthy++
		list = append(list, d)
	}
	p.lists <- list
	w.figures(resource, int64(len(list)), healthy)
}

// figures waits until the Node shows as many.
func (w *world) figures(resource string, capacity, allocatable int64) {
	w.Helper()
	w.until(fmt.Sprint(resource, " has ", capacity, " and ", allocatable), func() bool {
		return w.m.Figures()[corev1.ResourceName(resource)] == Figures{capacity, allocatable}
	})
}

func (w *world) ensure(p *corev1.Pod, want string) {
	w.Helper()
	err := ensure(w.Context(), w.m, p)
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		w.Errorf("%v, want %q", err, want)
	}
}

func (w *world) called(p *program, want string) {
	w.Helper()
	if got := p.took(); got != want {
		w.Errorf("calls %q, want %q", got, want)
	}
}

// env is the variable DEVICES of a container.
func (w *world) env(p *corev1.Pod, container string) string {
	w.Helper()
	all := append(slices.Clone(p.Spec.InitContainers), p.Spec.Containers...)
	i := slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == container })
	config, err := w.m.Options(w.Context(), p, &all[i])
	if err != nil {
		return err.Error()
	}
	for _, e := range config.GetEnvs() {
		if e.Key == "DEVICES" {
			return string(e.Value)
		}
	}
	return ""
}

// pod has containers that ask for devices: "c=2", "init:c=1", "sidecar:c=1".
func pod(name string, containers ...string) *corev1.Pod { return podOf(name, dev, containers...) }

func podOf(name, of string, containers ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	for _, s := range containers {
		kind, rest, early := strings.Cut(s, ":")
		if !early {
			rest = s
		}
		name, n, _ := strings.Cut(rest, "=")
		c := corev1.Container{Name: name, Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceName(of): apiresource.MustParse(n),
				corev1.ResourceCPU: apiresource.MustParse("1")}}}
		switch {
		case !early:
			p.Spec.Containers = append(p.Spec.Containers, c)
			continue
		case kind == "sidecar":
			c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	return p
}

func open(t *testing.T, dir string) *beneath.Dir {
	t.Helper()
	d, err := beneath.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// ensure gives all containers of a pod their devices, without a policy of the topology.
func ensure(ctx context.Context, m *Manager, p *corev1.Pod) error {
	all, err := topology.New(topology.Manager{Machine: &topology.Machine{}, Providers: []topology.Provider{m}}, 0)
	if err != nil {
		return err
	}
	return all.Ensure(ctx, p)
}
