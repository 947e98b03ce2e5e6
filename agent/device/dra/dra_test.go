package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	"k8s.io/utils/ptr"
)

const boot = "this boot"

// program is a driver of the test's own, behind a real socket.
type program struct {
	drav1.UnimplementedDRAPluginServer
	mu       sync.Mutex
	calls    []string
	prepared map[string]bool
	fail     string // what the next calls answer
	hang     bool
}

func (p *program) call(name string, claims []*drav1.Claim) (fail string, hang bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range claims {
		p.calls = append(p.calls, name+" "+c.Namespace+"/"+c.Name+"/"+c.Uid)
		if p.fail == "" && !p.hang {
			p.prepared[c.Uid] = name == "prepare"
		}
	}
	return p.fail, p.hang
}

func (p *program) NodePrepareResources(ctx context.Context, r *drav1.NodePrepareResourcesRequest) (
	*drav1.NodePrepareResourcesResponse, error) {
	fail, hang := p.call("prepare", r.Claims)
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	out := &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{}}
	for _, c := range r.Claims {
		out.Claims[c.Uid] = &drav1.NodePrepareResourceResponse{Error: fail, Devices: []*drav1.Device{
			{PoolName: "n1", DeviceName: "a", RequestNames: []string{"one"},
				CdiDeviceIds: []string{"d.io/x=" + c.Name + "-a"}},
			{PoolName: "n1", DeviceName: "b", RequestNames: []string{"two/big"},
				CdiDeviceIds: []string{"d.io/x=" + c.Name + "-b"}},
		}}
	}
	return out, nil
}

func (p *program) NodeUnprepareResources(_ context.Context, r *drav1.NodeUnprepareResourcesRequest) (
	*drav1.NodeUnprepareResourcesResponse, error) {
	fail, _ := p.call("unprepare", r.Claims)
	out := &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{}}
	for _, c := range r.Claims {
		out.Claims[c.Uid] = &drav1.NodeUnprepareResourceResponse{Error: fail}
	}
	return out, nil
}

func (p *program) set(fail string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail = fail
}

// took returns the calls since it was asked the last time.
func (p *program) took() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() { p.calls = nil }()
	return strings.Join(p.calls, ", ")
}

// serve serves the program in one version of the interface.
func (p *program) serve(t *testing.T, version string) (endpoint string) {
	t.Helper()
	endpoint = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", endpoint)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	if version == drav1.DRAPluginService {
		drav1.RegisterDRAPluginServer(s, p)
	} else {
		drav1beta1.RegisterDRAPluginServer(s, drav1beta1.V1ServerWrapper{DRAPluginServer: p})
	}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return endpoint
}

// disk is Records that outlive managers, and that may be full.
type disk struct {
	mu   sync.Mutex
	kept map[string]Claim
	full bool
}

func (d *disk) All() (map[string]*Claim, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]*Claim{}
	for k, c := range d.kept {
		out[k] = c.clone()
	}
	return out, nil
}

func (d *disk) Put(key string, c *Claim) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full {
		return errors.New("no space left on device")
	}
	d.kept[key] = *c.clone()
	return nil
}

func (d *disk) Delete(key string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.kept, key)
	return nil
}

// world is a node with the API's claims.
type world struct {
	*testing.T
	disk   *disk
	claims map[string]*resourcev1.ResourceClaim
	away   bool // the API does not answer
	m      *Manager
}

func newWorld(t *testing.T, claims ...*resourcev1.ResourceClaim) *world {
	w := &world{T: t, disk: &disk{kept: map[string]Claim{}}, claims: map[string]*resourcev1.ResourceClaim{}}
	for _, c := range claims {
		w.claims[c.Namespace+"/"+c.Name] = c
	}
	w.start(boot)
	return w
}

// start is an agent that begins, in a boot of the machine.
func (w *world) start(boot string) {
	w.Helper()
	w.m = &Manager{Drivers: &Drivers{}, Records: w.disk, Boot: boot,
		Claim: func(_ context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
			switch c := w.claims[namespace+"/"+name]; {
			case w.away:
				return nil, errors.New("connection refused")
			case c == nil:
				return nil, apierrors.NewNotFound(resourcev1.Resource("resourceclaims"), name)
			default:
				return c, nil
			}
		}}
	w.Cleanup(w.m.Drivers.close)
	if err := w.m.Load(); err != nil {
		w.Fatal(err)
	}
}

// driver registers a program.
func (w *world) driver(name string, versions ...string) *program {
	w.Helper()
	p := &program{prepared: map[string]bool{}}
	w.register(name, p, versions...)
	return p
}

func (w *world) register(name string, p *program, versions ...string) (endpoint string) {
	w.Helper()
	if len(versions) == 0 {
		versions = []string{drav1.DRAPluginService}
	}
	endpoint = p.serve(w.T, versions[0])
	if err := w.m.Drivers.Register(name, endpoint, versions); err != nil {
		w.Fatal(err)
	}
	return endpoint
}

func (w *world) ensure(p *corev1.Pod, want string) {
	w.Helper()
	w.wants(w.m.Ensure(w.Context(), p), want)
}

func (w *world) release(p *corev1.Pod, want string) {
	w.Helper()
	w.wants(w.m.Release(w.Context(), p), want)
}

func (w *world) wants(err error, want string) {
	w.Helper()
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

// claim is allocated of drivers, and reserved for pods.
func claim(name string, drivers []string, pods ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("u-" + name)}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	for _, d := range drivers {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Request: "one", Driver: d, Pool: "n1", Device: "a"},
			resourcev1.DeviceRequestAllocationResult{Request: "two/big", Driver: d, Pool: "n1", Device: "b"})
	}
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: types.UID(p)})
	}
	return c
}

// pod has a container that asks for requests of claims, as in "c/one" or "c".
func pod(name string, claims []string, wants ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	for _, c := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c, ResourceClaimName: &c})
	}
	var container corev1.Container
	for _, want := range wants {
		c, request, _ := strings.Cut(want, "/")
		container.Resources.Claims = append(container.Resources.Claims, corev1.ResourceClaim{Name: c, Request: request})
	}
	p.Spec.Containers = []corev1.Container{container}
	return p
}

func TestPodGetsItsDevices(t *testing.T) {
	for _, version := range []string{drav1.DRAPluginService, drav1beta1.DRAPluginService} {
		w := newWorld(t, claim("c", []string{"d.io"}, "p", "q"))
		d := w.driver("d.io", version)
		p, q := pod("p", []string{"c"}, "c/one"), pod("q", []string{"c"}, "c", "c/two")
		w.ensure(p, "")
		w.called(d, "prepare ns/c/u-c")
		w.ensure(p, "")
		w.ensure(q, "") // shares the claim
		w.called(d, "")
		for pod, want := range map[*corev1.Pod][]string{p: {"d.io/x=c-a"}, q: {"d.io/x=c-a", "d.io/x=c-b"}} {
			got, err := w.m.Devices(pod, &pod.Spec.Containers[0])
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s has %v, want %v: %v", pod.Name, got, want, err)
			}
		}
		w.release(p, "")
		w.called(d, "")
		w.release(q, "")
		w.called(d, "unprepare ns/c/u-c")
		w.release(q, "")
		w.called(d, "")
		if len(w.disk.kept) > 0 {
			t.Errorf("left: %v", w.disk.kept)
		}
	}
}

// The devices of a claim that was deleted by force are given back before another claim
// of its name is prepared.
func TestClaimMadeAgain(t *testing.T) {
	w := newWorld(t, claim("c", []string{"d.io"}, "p"))
	d := w.driver("d.io")
	p, q := pod("p", []string{"c"}, "c"), pod("q", []string{"c"}, "c")
	w.ensure(p, "")
	again := claim("c", []string{"d.io"}, "q")
	again.UID = "again"
	w.claims["ns/c"] = again
	d.took()
	d.set("not yet")
	w.release(p, "not yet")
	w.called(d, "unprepare ns/c/u-c")
	w.ensure(q, "resource claim c: old ResourceClaim with same name c and different UID u-c still exists")
	w.called(d, "")
	d.set("")
	w.release(p, "")
	w.ensure(q, "")
	w.called(d, "unprepare ns/c/u-c, prepare ns/c/again")
}

// A pod that asks for extended resources gets what the scheduler's claim for them has,
// each container its own.
func TestExtendedResources(t *testing.T) {
	w := newWorld(t, claim("made", []string{"d.io"}, "p"))
	w.claims["ns/made"].OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "p", Controller: ptr.To(true)}}
	d := w.driver("d.io")
	p := pod("p", nil)
	p.Spec.Containers = []corev1.Container{{Name: "one"}, {Name: "both"}, {Name: "none"}}
	p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "made",
		RequestMappings: []corev1.ContainerExtendedResourceRequest{
			{ContainerName: "one", ResourceName: "d.io/gpu", RequestName: "one"},
			{ContainerName: "both", ResourceName: "d.io/gpu", RequestName: "one"},
			{ContainerName: "both", ResourceName: "d.io/gpu", RequestName: "two"},
		}}
	if _, err := w.m.Devices(p, &p.Spec.Containers[0]); err == nil {
		t.Error("devices before they are prepared")
	}
	w.ensure(p, "")
	w.called(d, "prepare ns/made/u-made")
	for i, want := range [][]string{{"d.io/x=made-a"}, {"d.io/x=made-a", "d.io/x=made-b"}, nil} {
		got, err := w.m.Devices(p, &p.Spec.Containers[i])
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v: %v", p.Spec.Containers[i].Name, got, want, err)
		}
	}
	w.release(p, "")
	w.called(d, "unprepare ns/made/u-made")
	// A claim of that name that was made for another pod is not this one's.
	w.claims["ns/made"].OwnerReferences[0].UID = "other"
	w.ensure(p, "resource claim made: ")
	w.called(d, "")
}

// Only a claim that the scheduler gave to the pod is prepared for it, and who refuses
// is told.
func TestNotPrepared(t *testing.T) {
	unallocated := claim("none", nil, "p")
	unallocated.Status.Allocation = nil
	w := newWorld(t, claim("c", []string{"d.io"}, "p"), claim("other", []string{"d.io"}, "q"), unallocated,
		claim("away", []string{"away.io"}, "p"), claim("hangs", []string{"hangs.io"}, "p"))
	d := w.driver("d.io")
	w.ensure(pod("p", []string{"gone"}), `resource claim gone: resourceclaims.resource.k8s.io "gone" not found`)
	w.ensure(pod("p", []string{"other"}), "resource claim other: pod p (p) is not allowed to use it")
	w.ensure(pod("p", []string{"none"}), "resource claim none: not allocated yet")
	w.ensure(pod("p", []string{"away"}), "resource claim away: DRA driver away.io is not registered")
	d.set("no such device")
	w.ensure(pod("p", []string{"c"}), "resource claim c: NodePrepareResources of driver d.io: no such device")
	if _, err := w.m.Devices(pod("p", []string{"c"}), &pod("p", []string{"c"}, "c").Spec.Containers[0]); err == nil {
		t.Error("devices that are not prepared")
	}
	d.took()
	// What was tried is undone, also where it never came to be; who was never there is not
	// waited for.
	w.release(pod("p", []string{"c", "away"}), "resource claim c: NodeUnprepareResources of driver d.io: no such device")
	w.called(d, "unprepare ns/c/u-c")
	d.set("")
	w.release(pod("p", []string{"c", "away"}), "")
	w.called(d, "unprepare ns/c/u-c")
	if len(w.disk.kept) > 0 {
		t.Errorf("left: %v", w.disk.kept)
	}
	w.disk.full = true
	w.ensure(pod("p", []string{"c"}), "no space left")
	w.called(d, "") // not without a record
}

// A driver that hangs holds up nobody else, nor the end of the agent.
func TestWedgedDriver(t *testing.T) {
	w := newWorld(t, claim("c", []string{"d.io"}, "p"), claim("hangs", []string{"hangs.io"}, "h"))
	d, hangs := w.driver("d.io"), w.driver("hangs.io")
	hangs.hang = true
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.m.Ensure(ctx, pod("h", []string{"hangs"})) }()
	for hangs.took() == "" {
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(time.Millisecond):
		}
	}
	w.ensure(pod("p", []string{"c"}), "")
	w.called(d, "prepare ns/c/u-c")
	end()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("prepared")
		}
	case <-time.After(time.Minute):
		t.Fatal("the agent does not end")
	}
}

// The agent ends at each point between two effects; the next one finishes, whether
// the machine has begun anew too or not, or undoes. Nothing is left.
func TestAgentEndsBetweenCalls(t *testing.T) {
	p := pod("p", []string{"c"}, "c")
	for at := range 8 {
		for _, next := range []string{"restart", "reboot", "undo", "reboot without an API"} {
			t.Run(fmt.Sprintf("%d %s", at, next), func(t *testing.T) {
				w := newWorld(t, claim("c", []string{"d.io", "e.io"}, "p"))
				d, e := &program{prepared: map[string]bool{}}, &program{prepared: map[string]bool{}}
				begin := func(boot string) {
					w.start(boot)
					w.register("d.io", d)
					w.register("e.io", e)
				}
				begin(boot)
				killed := &killed{disk: w.disk, after: at}
				w.m.Records = killed
				_ = w.m.Ensure(t.Context(), p)
				w.disk = killed.disk
				kept := len(w.disk.kept) > 0
				if !kept && (d.prepared["u-c"] || e.prepared["u-c"]) {
					t.Fatal("prepared without a record")
				}
				switch next {
				case "restart":
					begin(boot)
					w.ensure(p, "")
				case "reboot", "reboot without an API":
					d.prepared, e.prepared = map[string]bool{}, map[string]bool{}
					w.away = next != "reboot"
					begin("next boot")
					if w.away && !kept {
						w.ensure(p, "connection refused")
						return
					}
					w.ensure(p, "")
				case "undo":
					begin(boot)
				}
				if next != "undo" && (!d.prepared["u-c"] || !e.prepared["u-c"]) {
					t.Errorf("not prepared: %v %v", d.prepared, e.prepared)
				}
				w.release(p, "")
				if d.prepared["u-c"] || e.prepared["u-c"] || len(w.disk.kept) > 0 {
					t.Errorf("left: %v %v %v", d.prepared, e.prepared, w.disk.kept)
				}
			})
		}
	}
}

// killed is Records of an agent that is killed: what comes after some writes is lost.
type killed struct {
	*disk
	after int
}

func (k *killed) Put(key string, c *Claim) error {
	if k.after--; k.after < 0 {
		return errors.New("killed")
	}
	return k.disk.Put(key, c)
}

// Of several of a name the newest is asked; when it goes the one before.
func TestDriverIsUpdated(t *testing.T) {
	w := newWorld(t, claim("a", []string{"d.io"}, "p"), claim("b", []string{"d.io"}, "p"),
		claim("c", []string{"d.io"}, "p"))
	old, fresh := &program{prepared: map[string]bool{}}, &program{prepared: map[string]bool{}}
	first := w.register("d.io", old)
	second := w.register("d.io", fresh)
	w.ensure(pod("p", []string{"a"}), "")
	w.called(fresh, "prepare ns/a/u-a")
	w.m.Drivers.Deregister("d.io", second)
	w.ensure(pod("p", []string{"b"}), "")
	w.called(old, "prepare ns/b/u-b")
	w.m.Drivers.Deregister("d.io", first)
	w.m.Drivers.Deregister("d.io", first)
	w.ensure(pod("p", []string{"c"}), "DRA driver d.io is not registered")
	for _, version := range []string{"v1alpha3.Node", ""} {
		w.wants(w.m.Drivers.Register("d.io", first, []string{version}), "none of its gRPC services")
	}
	w.wants(w.m.Drivers.Register("Not A Name", first, []string{drav1.DRAPluginService}), "Not A Name")
}

// While a driver is updated the new one may be killed and leave its socket: the one before is
// asked as long as it is there.
func TestUpdateOfDriverIsKilled(t *testing.T) {
	w := newWorld(t, claim("a", []string{"d.io"}, "p"), claim("b", []string{"d.io"}, "p"))
	old, fresh := &program{prepared: map[string]bool{}}, &program{prepared: map[string]bool{}}
	w.register("d.io", old)
	endpoint := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", endpoint)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	s := grpc.NewServer()
	drav1.RegisterDRAPluginServer(s, fresh)
	go func() { _ = s.Serve(l) }()
	if err := w.m.Drivers.Register("d.io", endpoint, []string{drav1.DRAPluginService}); err != nil {
		t.Fatal(err)
	}
	w.ensure(pod("p", []string{"a"}), "")
	w.called(fresh, "prepare ns/a/u-a")
	s.Stop()
	lost := func() bool {
		w.m.Drivers.mu.Lock()
		defer w.m.Drivers.mu.Unlock()
		return w.m.Drivers.known["d.io"][1].lost
	}
	for end := time.Now().Add(time.Minute); !lost(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nobody notices that the driver was killed")
		}
	}
	w.ensure(pod("p", []string{"b"}), "")
	w.called(old, "prepare ns/b/u-b")
}

// A driver that comes and goes all the time does not keep the devices of others there.
func TestWithdrawnBesideFlappingDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var mu sync.Mutex
		var deleted []string
		client.PrependReactor("delete-collection", "resourceslices",
			func(a clienttesting.Action) (bool, runtime.Object, error) {
				mu.Lock()
				defer mu.Unlock()
				fields := a.(clienttesting.DeleteCollectionAction).GetListRestrictions().Fields
				name, _ := fields.RequiresExactMatch(resourcev1.ResourceSliceSelectorDriver)
				deleted = append(deleted, name)
				return true, nil, nil
			})
		programs := &sockets{open: map[string]*bufconn.Listener{}}
		d := &Drivers{Client: client, Node: "n1", Log: slog.New(slog.DiscardHandler), connect: programs.connect}
		ctx, end := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- d.Run(ctx) }()
		run := func(name string) (stop func()) {
			kill := programs.serve(name)
			if err := d.Register(name, name, []string{drav1.DRAPluginService}); err != nil {
				t.Error(err)
			}
			return func() { d.Deregister(name, name); kill() }
		}
		time.Sleep(2 * absence)
		run("leaves.io")()
		for range 6 {
			time.Sleep(absence / 3)
			run("flaps.io")()
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if got := strings.Join(deleted, " "); got != "leaves.io" {
			t.Errorf("deleted: %q", got)
		}
		end()
		<-done
	})
}

// sockets are those of drivers' programs, by path.
type sockets struct {
	mu   sync.Mutex
	open map[string]*bufconn.Listener
}

// serve has a program listen, until it is killed.
func (s *sockets) serve(path string) (kill func()) {
	l, server := bufconn.Listen(1<<16), grpc.NewServer()
	s.mu.Lock()
	s.open[path] = l
	s.mu.Unlock()
	go func() { _ = server.Serve(l) }()
	return server.Stop
}

func (s *sockets) connect(ctx context.Context, path string) (net.Conn, error) {
	s.mu.Lock()
	l := s.open[path]
	s.mu.Unlock()
	return l.DialContext(ctx)
}

// The devices of a driver that stays away are withdrawn, not of one that comes back. One that
// is killed leaves its socket.
func TestDevicesAreWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slice := func(driver string) runtime.Object {
			node := "n1"
			return &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: driver},
				Spec: resourcev1.ResourceSliceSpec{Driver: driver, NodeName: &node}}
		}
		client := fake.NewClientset(slice("stays.io"), slice("never.io"), slice("leaves.io"), slice("returns.io"),
			slice("killed.io"), slice("recovers.io"))
		deleted := map[string]bool{}
		var mu sync.Mutex
		client.PrependReactor("delete-collection", "resourceslices",
			func(a clienttesting.Action) (bool, runtime.Object, error) {
				mu.Lock()
				defer mu.Unlock()
				fields := a.(clienttesting.DeleteCollectionAction).GetListRestrictions().Fields
				name, _ := fields.RequiresExactMatch(resourcev1.ResourceSliceSelectorDriver)
				if node, _ := fields.RequiresExactMatch(resourcev1.ResourceSliceSelectorNodeName); node != "n1" {
					t.Errorf("of node %q", node)
				}
				deleted[name] = true
				return true, nil, nil
			})
		programs := &sockets{open: map[string]*bufconn.Listener{}}
		kill := map[string]func(){}
		defer func() {
			for _, f := range kill {
				f()
			}
		}()
		d := &Drivers{Client: client, Node: "n1", Log: slog.New(slog.DiscardHandler), connect: programs.connect}
		ctx, end := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- d.Run(ctx) }()
		add := func(name string) {
			kill[name] = programs.serve(name)
			if err := d.Register(name, name, []string{drav1.DRAPluginService}); err != nil {
				t.Error(err)
			}
		}
		gone := func() string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return strings.Join(slices.Sorted(maps.Keys(deleted)), " ")
		}
		for _, name := range []string{"stays.io", "leaves.io", "returns.io", "killed.io", "recovers.io"} {
			add(name)
		}
		time.Sleep(2 * absence)
		if got := gone(); got != "never.io" {
			t.Errorf("deleted: %q", got)
		}
		for _, name := range []string{"leaves.io", "returns.io"} {
			d.Deregister(name, name)
			kill[name]()
		}
		kill["killed.io"]()
		kill["recovers.io"]()
		time.Sleep(absence / 2)
		add("returns.io")
		kill["recovers.io"] = programs.serve("recovers.io")
		time.Sleep(2 * absence)
		if got := gone(); got != "killed.io leaves.io never.io" {
			t.Errorf("deleted: %q", got)
		}
		end()
		<-done
	})
}
