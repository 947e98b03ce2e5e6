package volume

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/csi"
)

const (
	expands   = csipb.NodeServiceCapability_RPC_EXPAND_VOLUME
	measures  = csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS
	condition = csipb.NodeServiceCapability_RPC_VOLUME_CONDITION
)

// Claim implements Storage.
func (w *csiWorld) Claim(_ context.Context, _, name string) (*corev1.PersistentVolumeClaim, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.claim == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("persistentvolumeclaims"), name)
	}
	return w.claim.DeepCopy(), nil
}

// PatchClaimStatus implements Storage.
func (w *csiWorld) PatchClaimStatus(_ context.Context, _, name string, patch []byte) (
	*corev1.PersistentVolumeClaim, error) {
	w.step()
	w.mu.Lock()
	defer w.mu.Unlock()
	old, err := json.Marshal(w.claim)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(string(patch), `"resourceVersion":"`+w.claim.ResourceVersion+`"`) {
		return nil, apierrors.NewConflict(corev1.Resource("persistentvolumeclaims"), name, fmt.Errorf("patch %s", patch))
	}
	text, err := strategicpatch.StrategicMergePatch(old, patch, corev1.PersistentVolumeClaim{})
	if err != nil {
		return nil, err
	}
	changed := &corev1.PersistentVolumeClaim{}
	if err := json.Unmarshal(text, changed); err != nil {
		return nil, err
	}
	changed.ResourceVersion += "1"
	w.claim = changed
	w.states = append(w.states, string(changed.Status.AllocatedResourceStatuses[corev1.ResourceStorage]))
	return changed.DeepCopy(), nil
}

// shown prints what the claim says.
func (w *csiWorld) shown() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	size := w.claim.Status.Capacity[corev1.ResourceStorage]
	var conditions []string
	for _, c := range w.claim.Status.Conditions {
		conditions = append(conditions, string(c.Type))
	}
	slices.Sort(conditions)
	return fmt.Sprintf("%s %q %v", size.String(), w.states, conditions)
}

// grows is a claim of 2Gi, of which 1Gi are there.
func grows(state corev1.ClaimResourceStatus) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", ResourceVersion: "1"}}
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
		{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue},
		{Type: corev1.PersistentVolumeClaimVolumeModifyVolumeError, Status: corev1.ConditionTrue}}
	if state != "" {
		c.Status.AllocatedResources = c.Spec.Resources.Requests
		c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
			corev1.ResourceStorage: state}
	}
	return c
}

// largeVolume is one of 2Gi.
func (w *csiWorld) largeVolume() *corev1.PersistentVolume {
	pv := csiVolume("pv-1", corev1.ReadWriteOnce)
	pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data"}
	w.claims["data"] = pv
	w.attachedVolume(pv, nil)
	return pv
}

// TestExpandedWithThePod: what is not expanded yet is, before the pod runs, where it
// is the node's turn.
func TestExpandedWithThePod(t *testing.T) {
	const gi = 1 << 30
	const (
		pending = corev1.PersistentVolumeClaimNodeResizePending
		running = corev1.PersistentVolumeClaimNodeResizeInProgress
	)
	const all = "[FileSystemResizePending ModifyVolumeError]"
	for _, c := range []struct {
		name  string
		state corev1.ClaimResourceStatus
		set   func(*csiWorld, *corev1.PersistentVolume, *corev1.Pod)
		bytes int64
		claim string
		err   string
	}{
		{name: "resizer of before", bytes: 2 * gi, claim: `2Gi [""] [ModifyVolumeError]`},
		{name: "pending", state: pending, bytes: 2 * gi, claim: `2Gi ["NodeResizeInProgress" ""] [ModifyVolumeError]`},
		{name: "in progress", state: running, bytes: 2 * gi, claim: `2Gi ["NodeResizeInProgress" ""] [ModifyVolumeError]`},
		{name: "not the node's turn", state: corev1.PersistentVolumeClaimControllerResizeInProgress,
			claim: `1Gi [] ` + all},
		{name: "infeasible before", state: corev1.PersistentVolumeClaimNodeResizeInfeasible, claim: `1Gi [] ` + all},
		{name: "read-only", state: pending, claim: `1Gi [] ` + all,
			set: func(_ *csiWorld, _ *corev1.PersistentVolume, p *corev1.Pod) {
				p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
			}},
		{name: "cannot expand", state: pending, claim: `1Gi [] ` + all,
			set: func(w *csiWorld, _ *corev1.PersistentVolume, _ *corev1.Pod) {
				w.driver.Capabilities = []csipb.NodeServiceCapability_RPC_Type{stages}
			}},
		{name: "device", state: pending, bytes: 2 * gi, claim: `2Gi ["NodeResizeInProgress" ""] [ModifyVolumeError]`,
			set: func(_ *csiWorld, pv *corev1.PersistentVolume, _ *corev1.Pod) {
				pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
			}},
		{name: "infeasible", state: pending, set: refuseExpand(codes.OutOfRange),
			claim: `1Gi ["NodeResizeInProgress" "NodeResizeInfeasible"] [FileSystemResizePending ModifyVolumeError NodeResizeError]`,
			err: `MountVolume.Setup failed while expanding volume "pv-1" : Expander.NodeExpand failed to expand the volume : ` +
				`rpc error: code = OutOfRange desc = no (driver d, call NodeExpandVolume)`},
		{name: "failed", state: pending, set: refuseExpand(codes.Internal),
			claim: `1Gi ["NodeResizeInProgress" "NodeResizeInProgress"] [FileSystemResizePending ModifyVolumeError NodeResizeError]`,
			err: `MountVolume.Setup failed while expanding volume "pv-1" : Expander.NodeExpand failed to expand the volume : ` +
				`rpc error: code = Internal desc = no (driver d, call NodeExpandVolume)`},
		{name: "in use", set: refuseExpand(codes.FailedPrecondition), claim: `1Gi [] ` + all},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			w := newCSIWorld(t, stages, expands)
			pv, p := w.largeVolume(), csiPod("first", claimed("data"))
			w.claim = grows(c.state)
			if c.set != nil {
				c.set(w, pv, p)
			}
			m := w.agent()
			if got := errText(m.Ensure(t.Context(), p)); got != c.err {
				t.Errorf("got  %s\nwant %s", got, c.err)
			}
			if got := w.driver.Expanded("h-pv-1"); got != c.bytes {
				t.Errorf("expanded to %d", got)
			}
			if got := w.shown(); got != c.claim {
				t.Errorf("the claim says  %s\nand has to say %s", got, c.claim)
			}
			if c.err == "" && c.bytes > 0 {
				last := w.driver.Last("NodeExpandVolume").(*csipb.NodeExpandVolumeRequest)
				if !strings.Contains(w.driver.String(), "published h-pv-1 at "+last.VolumePath+"\n") ||
					!strings.Contains(w.driver.String(), "staged h-pv-1 at "+last.StagingTargetPath+"\n") {
					t.Errorf("expanded at %v, but:\n%s", last, w.driver)
				}
			}
			if err := m.Release(t.Context(), p); err != nil {
				t.Error(err)
			}
			w.nothing()
		})
	}
}

func refuseExpand(code codes.Code) func(*csiWorld, *corev1.PersistentVolume, *corev1.Pod) {
	return func(w *csiWorld, _ *corev1.PersistentVolume, _ *corev1.Pod) {
		w.refuse("NodeExpandVolume", status.Error(code, "no"))
	}
}

// TestExpandedWhileMounted: the claim is looked at each minute, and the events tell.
func TestExpandedWhileMounted(t *testing.T) {
	w := newCSIWorld(t, stages, expands)
	w.largeVolume()
	w.claim = grows("")
	w.claim.Status.Capacity = w.claim.Spec.Resources.Requests
	m, p := w.agent(), csiPod("first", claimed("data"))
	var events []string
	m.Event = func(_ *corev1.Pod, _, kind, reason, message string) {
		events = append(events, kind+" "+reason+" "+message)
	}
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.claim = grows(corev1.PersistentVolumeClaimNodeResizePending)
	w.mu.Unlock()
	v := m.recorded(p.UID, "data")
	for _, c := range []struct {
		looked time.Time
		want   int64
	}{{time.Now(), 0}, {time.Now().Add(-growthEach), 2 << 30}} {
		v.CSI.looked = c.looked
		if err := m.update(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if got := w.driver.Expanded("h-pv-1"); got != c.want {
			t.Errorf("expanded to %d, want %d", got, c.want)
		}
	}
	want := `Normal FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume "pv-1" n`
	if len(events) != 1 || events[0] != want {
		t.Errorf("events %q", events)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Error(err)
	}
	w.nothing()
}

// TestMeasured: volumes of storage drivers by these, once a minute; others by the
// kernel. A driver that does not answer holds up nobody for long.
func TestMeasured(t *testing.T) {
	w := newCSIWorld(t, stages, measures, condition)
	w.driver.Stats = &csipb.NodeGetVolumeStatsResponse{
		Usage: []*csipb.VolumeUsage{{Unit: csipb.VolumeUsage_BYTES, Total: 10, Used: 4, Available: 6},
			{Unit: csipb.VolumeUsage_INODES, Total: 3, Used: 1, Available: 2}},
		VolumeCondition: &csipb.VolumeCondition{Abnormal: true, Message: "worn out"},
	}
	w.largeVolume()
	local := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "local"}}
	local.Spec.Local = &corev1.LocalVolumeSource{Path: t.TempDir()}
	local.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "here"}
	w.claims["here"] = local
	w.object(func(s *storagev1.CSIDriverSpec) { s.PodInfoOnMount = ptr.To(true) })
	m, p := w.agent(), csiPod("first", claimed("data"), claimed("here"), inline("own"))
	t.Cleanup(m.asking.Wait)
	m.Log = slog.New(slog.DiscardHandler)
	var events []string // of one volume after another
	m.Event = func(_ *corev1.Pod, _, kind, reason, message string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		events = append(events, kind+" "+reason+" "+message)
	}
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.driver.Calls()
	m.Measure(t.Context())
	m.asking.Wait() // a driver may take longer than an answer waits
	for _, one := range m.Measure(t.Context()) {
		if one.Abnormal != nil {
			t.Errorf("nobody asked for the health of %s", one.Name)
		}
	}
	w.mu.Lock()
	if len(events) > 0 {
		t.Errorf("events %q", events)
	}
	w.mu.Unlock()
	m.TellHealth("another")
	m.TellHealth("d")
	slices.Sort(events)
	want := []string{"Warning VolumeConditionAbnormal Volume data: worn out",
		"Warning VolumeConditionAbnormal Volume own: worn out"}
	if !slices.Equal(events, want) {
		t.Errorf("events %q", events)
	}
	events = nil
	m.Health, m.samples = true, nil
	w.driver.Calls()
	m.Measure(t.Context())
	m.asking.Wait()
	for range 2 {
		got := map[string]Measured{}
		for _, one := range m.Measure(t.Context()) {
			got[one.Claim] = one
		}
		if own, has := got[""]; !has || own.Name != "own" || own.Use == nil {
			t.Errorf("a volume of the pod's own: %+v", own)
		}
		data := got["data"]
		use := host.FileSystem{Bytes: 10, Used: 4, Available: 6, Inodes: 3, InodesFree: 2}
		if data.Use == nil || *data.Use != use || data.Abnormal == nil || !*data.Abnormal ||
			data.Pod.Name != "first" || data.Name != "data" {
			t.Errorf("got %+v", data)
		}
		if here := got["here"]; here.Use == nil || here.Use.Bytes == 0 || here.Abnormal != nil {
			t.Errorf("got %+v", here)
		}
	}
	if calls := w.driver.Calls(); len(calls) != 2 {
		t.Errorf("measured by %q", calls)
	}
	slices.Sort(events)
	if !slices.Equal(events, want) {
		t.Errorf("events %q", events)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Error(err)
	}
	if left := m.Measure(t.Context()); len(left) != 0 || len(m.samples) != 0 {
		t.Errorf("left: %v", left)
	}
	w.nothing()
}

// askedDrivers count how often one is looked for.
type askedDrivers struct{ n atomic.Int32 }

func (d *askedDrivers) Client(name string) (*csi.Client, error) {
	d.n.Add(1)
	return noDrivers{}.Client(name)
}

// TestHealthIsWatched: with Health drivers are asked each minute, without it never,
// unless somebody reads measurements.
func TestHealthIsWatched(t *testing.T) {
	for _, health := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			drivers := &askedDrivers{}
			m := &Manager{RootDir: t.TempDir(), Drivers: drivers, Health: health, Log: slog.New(slog.DiscardHandler)}
			p := csiPod("first", inline("own"))
			m.entry(p)
			v := &Volume{Pod: Owner{UID: p.UID}, Source: Source{Volume: inline("own")}, Driver: csiRow, Path: "/v",
				CSI: &CSI{}}
			if err := m.keep(v); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- m.Run(ctx) }()
			time.Sleep(3*measuredFor + time.Second)
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			m.asking.Wait()
			if n := drivers.n.Load(); health != (n == 3) || !health && n > 0 {
				t.Errorf("health %v: asked %d times", health, n)
			}
		})
	}
}

// TestExpandedOnEachNode: a ReadWriteMany volume that another node has expanded is
// expanded on this one too, over a restart of the agent; others are not.
func TestExpandedOnEachNode(t *testing.T) {
	for _, c := range []struct {
		name string
		mode corev1.PersistentVolumeAccessMode
		set  func(*corev1.PersistentVolumeClaim)
		want int64
	}{
		{name: "many", mode: corev1.ReadWriteMany, want: 2 << 30},
		{name: "one-node", mode: corev1.ReadWriteOnce},
		{name: "not-required", mode: corev1.ReadWriteMany, set: func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{noNodeExpansion: "true"}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newCSIWorld(t, stages, expands)
			pv := w.largeVolume()
			pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{c.mode}
			small := resource.MustParse("1Gi")
			w.claim = grows("")
			w.claim.Spec.Resources.Requests[corev1.ResourceStorage] = small
			p := csiPod("first", claimed("data"))
			if err := w.agent().Ensure(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			w.mu.Lock()
			large := resource.MustParse("2Gi")
			w.claim.Spec.Resources.Requests[corev1.ResourceStorage] = large
			w.claim.Status.Capacity[corev1.ResourceStorage] = large
			if c.set != nil {
				c.set(w.claim)
			}
			w.mu.Unlock()
			m := w.agent()
			if err := m.Restore([]*corev1.Pod{p}); err != nil {
				t.Fatal(err)
			}
			w.report(m)
			for range 2 { // once
				m.resume(t.Context(), p)
				m.recorded(p.UID, "data").CSI.looked = time.Time{}
			}
			n := 0
			for _, call := range w.driver.Calls() {
				if strings.HasPrefix(call, "NodeExpandVolume ") {
					n++
				}
			}
			if got := w.driver.Expanded("h-pv-1"); got != c.want || n > 1 {
				t.Errorf("expanded to %d by %d calls", got, n)
			}
			if err := m.Release(t.Context(), p); err != nil {
				t.Error(err)
			}
			w.nothing()
		})
	}
}

// TestExpansionIsGivenUp: once the driver has refused an expansion for good and the
// claim asks for less, the next refusal makes it the resizer's again.
func TestExpansionIsGivenUp(t *testing.T) {
	w := newCSIWorld(t, stages, expands)
	w.largeVolume()
	w.claim = grows("")
	w.claim.Status.Capacity = w.claim.Spec.Resources.Requests
	m, p := w.agent(), csiPod("first", claimed("data"))
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.claim = grows(corev1.PersistentVolumeClaimNodeResizePending)
	w.mu.Unlock()
	v := m.recorded(p.UID, "data")
	for _, c := range []struct {
		wants, state string
	}{
		{"2Gi", "NodeResizeInProgress"}, {"2Gi", "NodeResizeInProgress"}, {"1536Mi", "NodeResizeInfeasible"},
	} {
		w.mu.Lock()
		w.claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(c.wants)
		w.mu.Unlock()
		w.refuse("NodeExpandVolume", status.Error(codes.PermissionDenied, "no"))
		v.CSI.looked = time.Time{}
		if err := m.update(t.Context(), p); err == nil {
			t.Fatal("no error")
		}
		w.mu.Lock()
		state := w.claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
		w.mu.Unlock()
		if string(state) != c.state {
			t.Errorf("claim of %s: %s, want %s", c.wants, state, c.state)
		}
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Error(err)
	}
	w.nothing()
}
