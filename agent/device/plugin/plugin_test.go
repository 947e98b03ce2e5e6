package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// full is an answer with all that one can have.
func full(ids []string) *pluginapi.ContainerAllocateResponse {
	return &pluginapi.ContainerAllocateResponse{
		Envs:        map[string]string{"DEVICES": strings.Join(ids, " "), "A": "1"},
		Mounts:      []*pluginapi.Mount{{ContainerPath: "/lib/v", HostPath: "/opt/v", ReadOnly: true}},
		Devices:     []*pluginapi.DeviceSpec{{ContainerPath: "/dev/v", HostPath: "/dev/zero", Permissions: "rw"}},
		Annotations: map[string]string{"v": "w"},
		CdiDevices:  []*pluginapi.CDIDevice{{Name: "vendor.example/dev=" + ids[0]}},
	}
}

// A pod gets devices, keeps them and the answer over a restart of the agent, of the
// plugin and of both, and gives them back.
func TestPodGetsItsDevices(t *testing.T) {
	w := newWorld(t)
	d := w.plug(&program{answer: full}, dev, "a", "b", "c", "d!")
	w.figures(dev, 4, 3)
	p := pod("p", "one=2", "none=0")
	w.ensure(p, "")
	w.called(d, "allocate a b")
	w.ensure(p, "")
	w.called(d, "")
	want := &criv1.ContainerConfig{
		Envs:        []*criv1.KeyValue{{Key: "A", Value: []byte("1")}, {Key: "DEVICES", Value: []byte("a b")}},
		Mounts:      []*criv1.Mount{{ContainerPath: "/lib/v", HostPath: "/opt/v", Readonly: true}},
		Devices:     []*criv1.Device{{ContainerPath: "/dev/v", HostPath: "/dev/zero", Permissions: "rw"}},
		Annotations: map[string]string{"v": "w"},
		CDIDevices:  []*criv1.CDIDevice{{Name: "vendor.example/dev=a"}},
	}
	same := func(when string) {
		t.Helper()
		got, err := w.m.Options(t.Context(), p, &p.Spec.Containers[0])
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("%s it gets %v, want %v: %v", when, got, want, err)
		}
		if got, err := w.m.Options(t.Context(), p, &p.Spec.Containers[1]); err != nil || got != nil {
			t.Errorf("%s the other container gets %v: %v", when, got, err)
		}
	}
	same("at first")
	d.server.Stop()
	w.figures(dev, 4, 0)
	same("with the plugin away")
	w.ensure(pod("q", "c=1"), "no healthy devices present; cannot allocate unhealthy devices "+dev)
	d = w.plug(&program{answer: full}, dev, "a", "b", "c")
	same("with the plugin back")
	w.called(d, "")
	w.start(boot)
	w.figures(dev, 0, 0)
	same("after a restart of the agent")
	w.ensure(p, "")
	d = w.plug(&program{answer: full}, dev, "a", "b", "c")
	w.ensure(pod("q", "c=2"), "requested number of devices unavailable for "+dev+". Requested: 2, Available: 1")
	w.ensure(pod("q", "c=1"), "")
	w.called(d, "allocate c")
	if err := w.m.Release("p"); err != nil {
		t.Fatal(err)
	}
	w.ensure(pod("r", "c=2"), "")
	w.called(d, "allocate a b")
	for _, uid := range []types.UID{"q", "r", "r", "unknown"} {
		if err := w.m.Release(uid); err != nil {
			t.Fatal(err)
		}
	}
	if len(w.disk.pods) > 0 {
		t.Errorf("left: %v", w.disk.pods)
	}
}

// What init containers had is used again; what sidecars have is theirs.
func TestDevicesAreUsedAgain(t *testing.T) {
	for _, tt := range []struct {
		name       string
		devices    string
		containers []string
		want       string
	}{
		{"by the next", "a b", []string{"init:i=2", "init:j=1", "m=1", "n=1"}, "i: a b, j: a, m: a, n: b"},
		{"more than before", "a b c", []string{"init:i=1", "m=3"}, "i: a, m: a b c"},
		{"not those of sidecars", "a b c", []string{"init:i=2", "sidecar:s=1", "m=1", "n=1"}, "i: a b, s: a, m: b, n: c"},
		{"sidecar first", "a b", []string{"sidecar:s=1", "init:i=1", "m=1"}, "s: a, i: b, m: b"},
	} {
		t.Run(strings.ReplaceAll(tt.name, " ", "-"), func(t *testing.T) {
			w := newWorld(t)
			w.plug(&program{}, dev, strings.Fields(tt.devices)...)
			p := pod("p", tt.containers...)
			w.ensure(p, "")
			var got []string
			for _, s := range tt.containers {
				name, _, _ := strings.Cut(s[strings.Index(s, ":")+1:], "=")
				got = append(got, name+": "+w.env(p, name))
			}
			if g := strings.Join(got, ", "); g != tt.want {
				t.Errorf("%s, want %s", g, tt.want)
			}
			w.ensure(p, "")
		})
	}
	w := newWorld(t)
	w.plug(&program{}, dev, "a", "b")
	w.ensure(pod("p", "sidecar:s=1", "m=2"), "Requested: 2, Available: 1")
}

// TestPick: what is used again goes first, then what the plugin prefers and is free.
func TestPick(t *testing.T) {
	for _, tt := range []struct {
		want                         int
		reuse, preferred, free, gets string
	}{
		{2, "", "", "a b c", "a b"},
		{2, "", "c b", "a b c", "c b"},
		{2, "", "c c c", "a b c", "c a"},
		{2, "", "x y", "a b c", "a b"},
		{1, "", "c b a", "a b c", "c"},
		{3, "r s", "b", "a b", "r s b"},
		{1, "r s", "", "a b", "r"},
		{3, "", "", "a b", "a b"},
	} {
		got := pick(tt.want, strings.Fields(tt.reuse), strings.Fields(tt.preferred), strings.Fields(tt.free))
		if strings.Join(got, " ") != tt.gets {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

// The plugin is asked what it prefers where it offers that; without an answer it goes on.
func TestPreferred(t *testing.T) {
	w := newWorld(t)
	d := &program{prefer: func(r *pluginapi.ContainerPreferredAllocationRequest) ([]string, error) {
		slices.Reverse(r.AvailableDeviceIDs)
		return append(r.MustIncludeDeviceIDs, r.AvailableDeviceIDs...), nil
	}}
	d.options.GetPreferredAllocationAvailable = true
	w.plug(d, dev, "a", "b", "c", "d", "e!")
	w.ensure(pod("p", "init:i=1", "m=2"), "")
	w.called(d, "prefer 1 of [a b c d] with [], allocate d, prefer 2 of [d a b c] with [d], allocate d c")
	d.prefer = func(*pluginapi.ContainerPreferredAllocationRequest) ([]string, error) {
		return nil, errors.New("no idea")
	}
	w.ensure(pod("q", "m=1"), "")
	w.called(d, "prefer 1 of [a b] with [], allocate a")
}

// PreStartContainer comes before each start, where the plugin wants it; without it the
// container does not start.
func TestPreStart(t *testing.T) {
	w := newWorld(t)
	d := &program{}
	d.options.PreStartRequired = true
	w.plug(d, dev, "a", "b")
	p := pod("p", "m=2")
	w.ensure(p, "")
	for range 2 {
		if got := w.env(p, "m"); got != "a b" {
			t.Error(got)
		}
	}
	w.called(d, "allocate a b, prestart a b, prestart a b")
	d.set("it burns", false)
	if got := w.env(p, "m"); !strings.Contains(got, "it burns") {
		t.Error(got)
	}
	w.start(boot)
	if got := w.env(p, "m"); !strings.Contains(got, "the plugin is away") {
		t.Error(got)
	}
	w.plug(&program{}, dev, "a", "b")
	if got := w.env(p, "m"); got != "a b" {
		t.Error("a newer plugin that does not want it: ", got)
	}
}

// After a start of the machine the devices are allocated to the same pods again; pods
// wait for that, but not for ever.
func TestMachineStartsAgain(t *testing.T) {
	w := newWorld(t)
	w.plug(&program{}, dev, "a", "b", "c")
	p, fresh := pod("p", "m=2"), pod("fresh", "m=1")
	w.ensure(p, "")
	w.start("next boot")
	var waiting *Waiting
	for _, pod := range []*corev1.Pod{p, fresh} {
		if err := ensure(t.Context(), w.m, pod); !errors.As(err, &waiting) {
			t.Fatalf("%s: %v", pod.Name, err)
		}
	}
	d := w.plug(&program{}, dev, "c")
	w.until("waiting pods are told", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.ready == 1 })
	if err := ensure(t.Context(), w.m, p); !errors.As(err, &waiting) { // the plugin looks for them yet
		t.Fatal(err)
	}
	w.list(d, dev, "a", "b!", "c")
	if err := ensure(t.Context(), w.m, p); !errors.As(err, &waiting) ||
		!strings.Contains(err.Error(), "previously allocated devices are no longer healthy") {
		t.Fatal(err)
	}
	w.ensure(pod("greedy", "m=2"), "Requested: 2, Available: 1") // a is p's
	w.list(d, dev, "a", "b", "c")
	w.ensure(p, "")
	w.called(d, "allocate a b")
	w.ensure(p, "")
	w.ensure(fresh, "")
	w.called(d, "allocate c")
	w.start("a boot without the plugin")
	w.m.mu.Lock()
	w.m.began = time.Now().Add(-comeback)
	w.m.mu.Unlock()
	for _, pod := range []*corev1.Pod{p, fresh} {
		if err := ensure(t.Context(), w.m, pod); err == nil || errors.As(err, &waiting) {
			t.Errorf("%s waits on: %v", pod.Name, err)
		}
	}
}

// A resource whose plugin stays away counts as none, and is forgotten with the next agent.
func TestPluginStaysAway(t *testing.T) {
	w := newWorld(t)
	w.plug(&program{}, dev, "a")
	w.start(boot)
	w.figures(dev, 0, 0)
	if !w.m.Has(dev) {
		t.Error("forgotten at once")
	}
	d := w.plug(&program{}, dev, "a")
	d.server.Stop()
	w.figures(dev, 1, 0)
	w.m.mu.Lock()
	w.m.resources[dev].left = time.Now().Add(-absence - time.Second)
	w.m.mu.Unlock()
	w.figures(dev, 0, 0)
	w.start(boot)
	if w.m.Has(dev) {
		t.Error("known for ever")
	}
	p := pod("p", "m=1") // as upstream: who advertises the resource is to give it
	w.ensure(p, "")
	if got, err := w.m.Options(t.Context(), p, &p.Spec.Containers[0]); got != nil || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	w.plug(&program{}, dev, "a") // and a container that starts later gets it
	if got := w.env(p, "m"); got != "a" {
		t.Error(got)
	}
}

// Health is as the plugin tells it, and not known while it is away; pods are told.
func TestHealth(t *testing.T) {
	w := newWorld(t)
	d := w.plug(&program{}, dev, "a", "b@1", "c")
	p := pod("p", "m=2")
	w.ensure(p, "")
	w.ensure(pod("q", "m=1"), "")
	shows := func(want string, poked ...types.UID) {
		t.Helper()
		var got []string
		w.until("health "+want, func() bool {
			got = nil
			for _, s := range w.m.Health(p, &p.Spec.Containers[0]) {
				for _, r := range s.Resources {
					got = append(got, fmt.Sprint(s.Name, " ", r.ResourceID, " ", r.Health))
				}
			}
			return strings.Join(got, ", ") == want
		})
		w.until("those are told", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.Equal(w.poked, poked)
		})
		w.mu.Lock()
		w.poked = nil
		w.mu.Unlock()
	}
	shows("vendor.example/dev a Healthy, vendor.example/dev b Healthy")
	w.list(d, dev, "a!", "b@1", "c")
	shows("vendor.example/dev a Unhealthy, vendor.example/dev b Healthy", "p")
	w.list(d, dev, "a!", "b@1", "c")
	shows("vendor.example/dev a Unhealthy, vendor.example/dev b Healthy")
	w.list(d, dev, "a", "c")
	shows("vendor.example/dev a Healthy, vendor.example/dev b Unknown", "p")
	d.server.Stop()
	shows("vendor.example/dev a Unknown, vendor.example/dev b Unknown", "p", "q")
	w.plug(&program{}, dev, "a", "b@1", "c")
	shows("vendor.example/dev a Healthy, vendor.example/dev b Healthy", "p", "q")
	w.start(boot)
	shows("vendor.example/dev a Unknown, vendor.example/dev b Unknown")
	if got := fmt.Sprint(w.m.Devices("p", "m")); !strings.Contains(got, `device_ids:"b"  topology:{nodes:{ID:1}}`) &&
		!strings.Contains(got, `device_ids:"b" topology:{nodes:{ID:1}}`) {
		t.Error("after a restart the pod resources API does not know where the device is: ", got)
	}
}

// TestRefused: who may not register is told why, and nothing is dialled that is no socket
// in the directory.
func TestRefused(t *testing.T) {
	w := newWorld(t)
	outside := filepath.Join(t.TempDir(), "s")
	(&program{}).serve(t, outside)
	if err := os.Symlink(outside, filepath.Join(w.dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ version, endpoint, resource, want string }{
		{"v1alpha1", "s", dev,
			`requested API version ["v1alpha1"] is not supported by kubelet. Supported version is ["v1beta1"]`},
		{"v1beta1", "s", "dev", `the ResourceName "dev" is invalid`},
		{"v1beta1", "s", "kubernetes.io/dev", `the ResourceName "kubernetes.io/dev" is invalid`},
		{"v1beta1", "s", "x.kubernetes.io/dev", "is invalid"},
		{"v1beta1", "s", "requests.vendor.example/dev", "is invalid"},
		{"v1beta1", "s", "vendor.example/d/e", "is invalid"},
		{"v1beta1", "s", "vendor_example/dev", "is invalid"},
		{"v1beta1", "", dev, "has to be the name of the plugin's socket"},
		{"v1beta1", "..", dev, "has to be the name of the plugin's socket"},
		{"v1beta1", "../../" + outside, dev, "has to be the name of the plugin's socket"},
		{"v1beta1", "kubelet.sock", dev, "has to be the name of the plugin's socket"},
	} {
		if err := w.register(tt.version, tt.endpoint, tt.resource); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
	dial := func(name string) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s := &registry{m: w.m, dir: open(t, w.dir)}
		_, err := s.Register(ctx, &pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: name, ResourceName: dev})
		return err
	}
	for name, want := range map[string]string{"link": "too many levels of symbolic links", "file": "not a socket",
		"none": "no such file"} {
		if err := dial(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	if w.m.Has(dev) {
		t.Error("it was taken")
	}
}

// A plugin may be found by its socket in plugins_registry.
func TestFoundBySocket(t *testing.T) {
	w := newWorld(t)
	p, path := &program{}, filepath.Join(t.TempDir(), "s")
	p.serve(t, path)
	if err := w.m.Register(t.Context(), dev, path, []string{"v2"}); err == nil {
		t.Error("a version that nobody knows")
	}
	if err := w.m.Register(t.Context(), dev, path, []string{"v2", "v1beta1"}); err != nil {
		t.Fatal(err)
	}
	w.list(p, dev, "a")
	w.m.Deregister(dev, "another")
	w.figures(dev, 1, 1)
	w.m.Deregister(dev, path)
	w.figures(dev, 1, 0)
}

// Two plugins of a name: the later one is asked, and the end of the other changes nothing.
func TestNewerPluginTakesOver(t *testing.T) {
	w := newWorld(t)
	old := w.plug(&program{}, dev, "a")
	now := w.plug(&program{}, dev, "a", "b")
	old.server.Stop()
	w.ensure(pod("p", "m=2"), "")
	w.called(old, "")
	w.called(now, "allocate a b")
	w.figures(dev, 2, 2)
	// One that takes the place of a dead one counts once it has told of its devices.
	now.server.Stop()
	w.figures(dev, 2, 0)
	silent := &program{}
	silent.serve(t, filepath.Join(w.dir, "silent"))
	if err := w.register(pluginapi.Version, "silent", dev); err != nil {
		t.Fatal(err)
	}
	w.figures(dev, 2, 0)
	w.ensure(pod("q", "m=1"), "no healthy devices present")
	w.list(silent, dev, "a", "b")
}

// A failure of the plugin or the disk leaves no device taken.
func TestFailuresLeaveDevicesFree(t *testing.T) {
	w := newWorld(t)
	d := w.plug(&program{}, dev, "a")
	p := pod("p", "m=1")
	d.set("it burns", false)
	w.ensure(p, "it burns")
	d.set(strings.Repeat("ä", 1<<12), false)
	if err := ensure(t.Context(), w.m, p); err == nil || len(err.Error()) > maxError+100 {
		t.Errorf("%v", err)
	}
	d.set("", false)
	w.disk.full = true
	w.ensure(p, "no space left on device")
	w.disk.full = false
	d.answer = func([]string) *pluginapi.ContainerAllocateResponse {
		return &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"A": strings.Repeat("x", maxAnswer)}}
	}
	w.ensure(p, "at most 262144 are taken")
	d.answer = nil
	d.took()
	w.ensure(p, "")
	w.called(d, "allocate a")
	p.Spec.Containers[0] = pod("p", "m=2").Spec.Containers[0]
	w.ensure(p, "changed request for resource")
}

// A plugin that tells of more devices than the agent takes is not followed any more.
func TestTooManyDevices(t *testing.T) {
	w := newWorld(t)
	d := w.plug(&program{}, dev, "a")
	list := make([]*pluginapi.Device, maxDevices+1)
	for i := range list {
		list[i] = &pluginapi.Device{ID: fmt.Sprint(i)}
	}
	d.lists <- list
	w.figures(dev, 1, 0)
}

// A plugin that hangs holds up nobody else, nor the end of the agent.
func TestWedgedPlugin(t *testing.T) {
	w := newWorld(t)
	stuck := w.plug(&program{}, "stuck.example/dev", "a", "b")
	stuck.set("", true)
	d := w.plug(&program{}, dev, "a")
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ensure(ctx, w.m, podOf("stuck", "stuck.example/dev", "m=1")) }()
	w.until("it is asked", func() bool { return stuck.took() != "" })
	w.ensure(pod("p", "m=1"), "")
	w.called(d, "allocate a")
	go func() { ended <- ensure(ctx, w.m, podOf("next", "stuck.example/dev", "m=1")) }()
	w.until("the next pod of the same plugin is not held up either", func() bool { return stuck.took() == "allocate b" })
	end()
	for range 2 {
		if err := <-ended; err == nil {
			t.Error("allocated")
		}
	}
	w.stop()
}

// However many pods come at once, each device has one owner.
func TestOneOwner(t *testing.T) {
	w := newWorld(t)
	d := &program{prefer: func(r *pluginapi.ContainerPreferredAllocationRequest) ([]string, error) {
		return r.AvailableDeviceIDs, nil
	}}
	d.options.GetPreferredAllocationAvailable = true
	var names []string
	for i := range 16 {
		names = append(names, fmt.Sprintf("d%02d", i))
	}
	w.plug(d, dev, names...)
	var wg sync.WaitGroup
	var mu sync.Mutex
	refused := 0
	for i := range 12 {
		wg.Go(func() {
			p := pod(fmt.Sprint("p", i), "m=2")
			if err := ensure(t.Context(), w.m, p); err != nil {
				mu.Lock()
				refused++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	owners := map[string]types.UID{}
	for uid, p := range w.m.pods {
		for id := range p.ids(dev) {
			if o := owners[id]; o != "" {
				t.Errorf("%s is of %s and %s", id, o, uid)
			}
			owners[id] = uid
		}
	}
	if refused != 4 || len(owners) != 16 {
		t.Errorf("%d are refused, %d devices are given", refused, len(owners))
	}
}

// The devices of a pod that has ended are free, though it is not released yet; those of
// one that ends are waited for, for a time.
func TestEndedPodLetsGo(t *testing.T) {
	w := newWorld(t)
	w.plug(&program{}, dev, "a", "b")
	w.ensure(pod("p", "m=1"), "")
	w.ensure(pod("stays", "m=1"), "")
	ending, idle := false, false
	w.m.Ending = func(uid types.UID) (bool, bool) { return uid == "p" && ending, uid == "p" && idle }
	var waiting *Waiting
	waits := func(want bool, p *corev1.Pod) {
		t.Helper()
		err := ensure(t.Context(), w.m, p)
		if err == nil || !strings.Contains(err.Error(), "requested number of devices unavailable for ") ||
			errors.As(err, &waiting) != want {
			t.Errorf("%v", err)
		}
	}
	waits(false, pod("q", "m=1"))
	ending = true
	waits(false, pod("q", "m=2"))
	waits(true, pod("q", "m=1"))
	w.m.mu.Lock()
	w.m.waiting["q"] = time.Now().Add(-comeback - time.Second)
	w.m.mu.Unlock()
	waits(false, pod("q", "m=1"))
	waits(true, pod("r", "m=1"))
	if w.ready != 0 {
		t.Error("told too early")
	}
	if err := w.m.Release("q"); err != nil {
		t.Fatal(err)
	}
	if err := w.m.Release("p"); err != nil {
		t.Fatal(err)
	}
	if w.ready != 1 {
		t.Errorf("pods that wait are told %d times that devices are free", w.ready)
	}
	w.ensure(pod("r", "m=1"), "")
	w.m.Ending = func(uid types.UID) (bool, bool) { return uid == "r", uid == "r" }
	w.ensure(pod("s", "m=1"), "")
	if len(w.m.waiting) > 0 {
		t.Errorf("waiting: %v", w.m.waiting)
	}
}

// Devices for which the scheduler made a claim come with the claim.
func TestClaimed(t *testing.T) {
	w := newWorld(t)
	d := w.plug(&program{}, dev, "a")
	p := pod("p", "m=1")
	p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
		RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "m", ResourceName: dev}}}
	w.ensure(p, "")
	w.called(d, "")
}

// The agent's socket is for root alone; sockets of before are removed, nothing else is.
func TestSockets(t *testing.T) {
	w := newWorld(t)
	w.plug(&program{}, dev, "a")
	st, err := os.Lstat(filepath.Join(w.dir, socketName))
	if err != nil || st.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("%v %v", st, err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.stop()
	if _, err := os.Lstat(filepath.Join(w.dir, socketName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket of an agent that ended: %v", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(w.dir, socketName), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // as of one that was killed
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	w.start(boot)
	entries, err := os.ReadDir(w.dir)
	if err != nil || len(entries) != 2 || entries[0].Name() != "file" || entries[1].Name() != socketName {
		t.Errorf("%v %v", entries, err)
	}
}

// FuzzRecord: whatever a record has, it is refused or it can be used.
func FuzzRecord(f *testing.F) {
	answer, err := proto.Marshal(full([]string{"a"}))
	if err != nil {
		f.Fatal(err)
	}
	good, err := json.Marshal(&Pod{UID: "u", Namespace: "ns", Name: "p", Containers: map[string]map[string]*Allocation{
		"m": {dev: {Devices: []Device{{ID: "a", Nodes: []int64{1}}}, Answer: answer, PreStart: true, Boot: boot}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"UID": "u", "Containers": {"m": {"vendor.example/dev": null}}}`))
	f.Add([]byte(`{"UID": "u", "Containers": {"m": {"": {"Answer": "/w=="}}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := &Pod{}
		if json.Unmarshal(data, p) != nil || p.decode(string(p.UID)) != nil {
			return
		}
		d := &disk{pods: map[string]*Pod{string(p.UID): p}, known: map[string]*Known{}}
		m := &Manager{Records: podDisk{d}, Known: knownDisk{d}, Boot: boot, Log: slog.New(slog.DiscardHandler)}
		if err := m.Load(); err != nil {
			t.Fatal(err)
		}
		of := pod("p", "m=1")
		of.UID = p.UID
		for name, list := range p.Containers {
			c := &of.Spec.Containers[0]
			c.Name, c.Resources.Limits = name, corev1.ResourceList{}
			for r := range list {
				c.Resources.Limits[corev1.ResourceName(r)] = one
			}
			_, _ = m.Options(t.Context(), of, c)
			m.Health(of, c)
			m.Devices(p.UID, name)
		}
		m.Figures()
		_ = ensure(t.Context(), m, of)
		if err := m.Release(p.UID); err != nil || len(m.Pods()) > 0 {
			t.Errorf("left: %v %v", m.Pods(), err)
		}
	})
}

var one = apiresource.MustParse("1")
