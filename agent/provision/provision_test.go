package provision

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/shoal-project/shoal/csi"
	"github.com/shoal-project/shoal/csi/locality"
)

const gib = 1 << 30

// driver has volumes in memory, and room for a number of bytes.
type driver struct {
	mu      sync.Mutex
	room    int64
	volumes map[string]int64
	calls   []string
	err     error // of the next call
}

func (d *driver) begin(format string, args ...any) error {
	d.calls = append(d.calls, fmt.Sprintf(format, args...))
	err := d.err
	d.err = nil
	return err
}

func (d *driver) Create(_ context.Context, v csi.Create) (csi.Created, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	what := ""
	if v.Source != (csi.Source{}) {
		what = " of " + v.Source.Volume + v.Source.Snapshot
	}
	if err := d.begin("create %s %d%s", v.Name, v.Bytes, what); err != nil {
		return csi.Created{}, err
	}
	if v.Bytes > d.room {
		return csi.Created{}, status.Error(codes.ResourceExhausted, "no room")
	}
	d.room -= v.Bytes
	d.volumes[v.Name] = v.Bytes
	return csi.Created{Handle: v.Name, Bytes: v.Bytes}, nil
}

func (d *driver) Delete(_ context.Context, volume string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin("delete %s", volume); err != nil {
		return err
	}
	d.room += d.volumes[volume]
	delete(d.volumes, volume)
	return nil
}

func (d *driver) Grow(_ context.Context, volume string, bytes int64, _ csi.Use) (int64, bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin("grow %s %d", volume, bytes); err != nil {
		return 0, false, err
	}
	d.volumes[volume] = bytes
	return bytes, true, nil
}

func (d *driver) Room(context.Context, map[string]string, map[string]string) (int64, int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.room, d.room, nil
}

func (d *driver) said() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// node is a Provisioner with an API in memory; it ends with the test.
type node struct {
	*fake.Clientset
	*driver
	mu     sync.Mutex
	events []string
	full   int // how often it was told that there is no room
	// extensions are objects of other APIs, by path.
	extensions map[string]string
}

func (n *node) read(_ context.Context, prefix string, path ...string) ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := prefix + strings.Join(path, "/")
	if text, ok := n.extensions[name]; ok {
		return []byte(text), nil
	}
	return nil, fmt.Errorf("%s is not there", name)
}

func start(t *testing.T, objects ...runtime.Object) *node {
	t.Helper()
	return startWith(t, nil, objects...)
}

func startWith(t *testing.T, extensions map[string]string, objects ...runtime.Object) *node {
	t.Helper()
	n := &node{Clientset: fake.NewClientset(append(objects, class())...),
		driver: &driver{room: 10 * gib, volumes: map[string]int64{}}, extensions: extensions}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Provisioner{
		Client:  n.Clientset,
		Read:    n.read,
		Node:    "n1",
		Driver:  n.driver,
		NodeUID: func() types.UID { return "n-uid" },
		Records: &memory{},
		Full: func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.full++
		},
		Event: func(of *corev1.ObjectReference, _, reason, message string) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.events = append(n.events, reason+" "+of.Kind+" "+message)
		},
		Log: slog.New(slog.DiscardHandler),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.Run(ctx) // it has no error
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	synctest.Wait()
	return n
}

func (n *node) told(what string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.events, func(e string) bool { return strings.Contains(e, what) })
}

func class() *storagev1.StorageClass {
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: locality.Driver,
		VolumeBindingMode: &wait, MountOptions: []string{"noatime"},
		Parameters: map[string]string{ours + "fstype": "xfs", "other": "x"}}
}

func claim(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	name := "local"
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "1", Annotations: map[string]string{
			"volume.kubernetes.io/storage-provisioner": locality.Driver,
			"volume.kubernetes.io/selected-node":       "n1",
		}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &name,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func (n *node) claim(t *testing.T) *corev1.PersistentVolumeClaim {
	t.Helper()
	c, err := n.CoreV1().PersistentVolumeClaims("ns").Get(context.Background(), "data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (n *node) volume(t *testing.T) *corev1.PersistentVolume {
	t.Helper()
	pv, err := n.CoreV1().PersistentVolumes().Get(context.Background(), "pvc-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pv
}

func TestMakesVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, claim())
		pv := n.volume(t)
		if locality.VolumeNode(pv) != "n1" || pv.Labels[locality.NodeKey] != "n1" || pv.Spec.ClaimRef.UID != "1" ||
			pv.Spec.CSI.FSType != "xfs" || !slices.Equal(pv.Spec.MountOptions, []string{"noatime"}) ||
			pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete ||
			!slices.Contains(pv.Finalizers, finalizer) || pv.Spec.Capacity.Storage().Value() != gib {
			t.Errorf("got %+v", pv)
		}
		if got := n.said(); !slices.Equal(got, []string{"create pvc-1 1073741824"}) {
			t.Errorf("calls %q", got)
		}
		if !n.told("ProvisioningSucceeded PersistentVolumeClaim Successfully provisioned volume pvc-1") {
			t.Errorf("events %q", n.events)
		}
	})
}

// TestLeavesAlone are claims that are not for this node to serve.
func TestLeavesAlone(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim){
		"other node": func(c *corev1.PersistentVolumeClaim) { c.Annotations["volume.kubernetes.io/selected-node"] = "n2" },
		"other driver": func(c *corev1.PersistentVolumeClaim) {
			c.Annotations["volume.kubernetes.io/storage-provisioner"] = "x"
		},
		"no node": func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, "volume.kubernetes.io/selected-node") },
		"ends":    func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{Time: time.Now()} },
		"bound": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeName, c.Status.Phase = "x", corev1.ClaimBound
		},
		"selector": func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := start(t, claim(change, func(c *corev1.PersistentVolumeClaim) { c.Finalizers = []string{"x"} }))
				if got := n.said(); len(got) > 0 {
					t.Errorf("calls %q", got)
				}
				if asked := name == "selector"; asked != n.told("ProvisioningFailed") {
					t.Errorf("events %q", n.events)
				}
			})
		})
	}
}

func TestTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t)
		n.driver.mu.Lock()
		n.err = status.Error(codes.Unavailable, "not now")
		n.driver.mu.Unlock()
		if _, err := n.CoreV1().PersistentVolumeClaims("ns").Create(context.Background(), claim(),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !n.told(`failed to provision volume with StorageClass "local": rpc error: code = Unavailable desc = not now`) {
			t.Errorf("events %q", n.events)
		}
		time.Sleep(2 * firstPause)
		synctest.Wait()
		n.volume(t)
	})
}

// TestGivesBack has a claim that is too large for the node: the scheduler is told
// first how much room there is, then it may choose again.
func TestGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, claim(func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("11Gi")
		}))
		if node, ok := n.claim(t).Annotations["volume.kubernetes.io/selected-node"]; ok {
			t.Errorf("it is still for node %q", node)
		}
		list, err := n.StorageV1().CSIStorageCapacities("kube-system").List(context.Background(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || locality.CapacityNode(&list.Items[0]) != "n1" ||
			list.Items[0].Capacity.Value() != 10*gib || list.Items[0].OwnerReferences[0].UID != "n-uid" {
			t.Errorf("got %+v, %v", list, err)
		}
	})
}

func TestTellsRoom(t *testing.T) {
	room := func(n *node) (out []int64) {
		list, err := n.StorageV1().CSIStorageCapacities("kube-system").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			out = append(out, list.Items[i].Capacity.Value())
		}
		return out
	}
	synctest.Test(t, func(t *testing.T) {
		n := start(t, claim())
		if got := room(n); !slices.Equal(got, []int64{9 * gib}) {
			t.Errorf("after a volume: %d", got)
		}
		set := func(bytes int64) {
			n.driver.mu.Lock()
			n.room = bytes
			n.driver.mu.Unlock()
			time.Sleep(roomEach + time.Second)
			synctest.Wait()
		}
		set(9*gib - 1<<20)
		if got := room(n); !slices.Equal(got, []int64{9 * gib}) {
			t.Errorf("a little is told: %d", got)
		}
		set(4 * gib)
		if got := room(n); !slices.Equal(got, []int64{4 * gib}) {
			t.Errorf("others wrote: %d", got)
		}
		n.mu.Lock()
		if n.full > 0 {
			t.Errorf("full %d times", n.full)
		}
		n.mu.Unlock()
		set(0)
		n.mu.Lock()
		if n.full != 1 {
			t.Errorf("without room: told %d times", n.full)
		}
		n.mu.Unlock()
		classes := n.StorageV1().StorageClasses()
		if err := classes.Delete(context.Background(), "local", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := room(n); len(got) > 0 {
			t.Errorf("without the class: %d", got)
		}
	})
}

// TestGrows is what a claim says at each step of its expansion.
func TestGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, claim())
		set := func(change func(*corev1.PersistentVolumeClaim)) {
			c := n.claim(t)
			change(c)
			if _, err := n.CoreV1().PersistentVolumeClaims("ns").Update(context.Background(), c,
				metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		set(func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeName, c.Status.Phase = "pvc-1", corev1.ClaimBound
			c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		})
		set(func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
		})
		c := n.claim(t)
		if got := n.volume(t).Spec.Capacity.Storage().String(); got != "2Gi" {
			t.Errorf("the volume has %s", got)
		}
		state := c.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
		if state != corev1.PersistentVolumeClaimNodeResizePending || len(c.Status.Conditions) != 1 ||
			c.Status.Conditions[0].Type != corev1.PersistentVolumeClaimFileSystemResizePending {
			t.Errorf("got %+v", c.Status)
		}
		n.driver.mu.Lock()
		n.err = status.Error(codes.OutOfRange, "too large")
		n.driver.mu.Unlock()
		set(func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("200Gi")
		})
		c = n.claim(t)
		if c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] !=
			corev1.PersistentVolumeClaimControllerResizeInfeasible || len(c.Status.Conditions) != 1 ||
			!strings.Contains(c.Status.Conditions[0].Message, "too large") {
			t.Errorf("got %+v", c.Status)
		}
		want := []string{"create pvc-1 1073741824", "grow pvc-1 2147483648", "grow pvc-1 214748364800"}
		if got := n.said(); !slices.Equal(got, want) {
			t.Errorf("calls %q", got)
		}
	})
}

// TestReclaims is what becomes of volumes that no claim has any more.
func TestReclaims(t *testing.T) {
	now := metav1.Time{Time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	for name, tt := range map[string]struct {
		phase   corev1.PersistentVolumePhase
		reclaim corev1.PersistentVolumeReclaimPolicy
		ends    bool
		calls   []string
		free    bool // it has no finalizer
		left    bool // the volume's object, with its finalizer
	}{
		"bound":           {phase: corev1.VolumeBound, reclaim: "Delete", left: true},
		"bound, ends":     {phase: corev1.VolumeBound, reclaim: "Delete", ends: true, left: true},
		"released":        {phase: corev1.VolumeReleased, reclaim: "Delete", calls: []string{"delete pvc-1"}},
		"released, ends":  {phase: corev1.VolumeReleased, reclaim: "Delete", ends: true, calls: []string{"delete pvc-1"}},
		"retained":        {phase: corev1.VolumeReleased, reclaim: "Retain"},
		"retained, bound": {phase: corev1.VolumeBound, reclaim: "Retain"},
		"retained, ends":  {phase: corev1.VolumeReleased, reclaim: "Retain", ends: true},
		"not to be retained any more": {phase: corev1.VolumeReleased, reclaim: "Delete", free: true,
			calls: []string{"delete pvc-1"}},
		"not retained, bound": {phase: corev1.VolumeBound, reclaim: "Delete", free: true, left: true},
		"reserved":            {phase: corev1.VolumeAvailable, reclaim: "Delete", left: true},
		"deleted":             {phase: corev1.VolumeReleased, reclaim: "Delete", free: true, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pv := newVolume(claim(), class(), csi.Create{Name: "pvc-1"}, csi.Created{Handle: "pvc-1"}, "n1")
				pv.Status.Phase, pv.Spec.PersistentVolumeReclaimPolicy = tt.phase, tt.reclaim
				if tt.ends {
					pv.DeletionTimestamp = &now
				}
				if tt.free {
					pv.Finalizers = nil
				}
				n := start(t, pv)
				if got := n.said(); !slices.Equal(got, tt.calls) {
					t.Errorf("calls %q, want %q", got, tt.calls)
				}
				list, err := n.CoreV1().PersistentVolumes().List(context.Background(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				kept := slices.ContainsFunc(list.Items, func(pv corev1.PersistentVolume) bool {
					return slices.Contains(pv.Finalizers, finalizer)
				})
				if kept != tt.left {
					t.Errorf("left %t, want %t: %v", kept, tt.left, list.Items)
				}
			})
		})
	}
}

func TestRequestKeepsClassParameters(t *testing.T) {
	call, err := request(claim(), class(), "n1")
	if err != nil || !maps.Equal(call.Parameters, map[string]string{"other": "x"}) {
		t.Errorf("got %v, %v", call.Parameters, err)
	}
	other := class()
	other.Provisioner = "x.example.com"
	if _, err := request(claim(), other, "n1"); err == nil {
		t.Error("the class of another driver is taken")
	}
}
