package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/csi"
	"github.com/shoal-project/shoal/csi/csitest"
)

const (
	stages     = csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
	mountGroup = csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP
)

// csiWorld is what outlives an agent whose pods have volumes of a storage driver:
// beside records the driver, and an API that has the Node, CSIDrivers and
// attachments.
type csiWorld struct {
	*world
	driver *csitest.Driver
	socket string // "" while the driver is away
	close  func() // ends the driver before the test does

	mu          sync.Mutex
	objects     map[string]*storagev1.CSIDriver
	attachments map[string]*storagev1.VolumeAttachment
	node        corev1.Node
	attach      bool // what is in use is attached at once
	// mayAttach refuses to attach a volume; nil: none is refused.
	mayAttach func(name corev1.UniqueVolumeName) bool
	claim     *corev1.PersistentVolumeClaim
	states    []string // of its expansion, as they were written
	faults    []string
}

func newCSIWorld(t *testing.T, capabilities ...csipb.NodeServiceCapability_RPC_Type) *csiWorld {
	t.Helper()
	w := &csiWorld{
		world:       newWorld(t),
		driver:      &csitest.Driver{Name: "d", Capabilities: capabilities},
		objects:     map[string]*storagev1.CSIDriver{},
		attachments: map[string]*storagev1.VolumeAttachment{},
		attach:      true,
	}
	w.socket, w.close = w.driver.Start(t)
	w.driver.Before = func(_ context.Context, method, volume string) error {
		if volume != "" {
			w.check(method, volume)
		}
		return nil
	}
	t.Cleanup(func() {
		for _, fault := range w.faults {
			t.Error(fault)
		}
	})
	return w
}

// check sees whether the driver is called as it may be: with a record on the disk,
// and while the Node shows the volume as in use where that is asked for.
func (w *csiWorld) check(method, volume string) {
	all, err := w.store().All()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.faults = append(w.faults, err.Error())
	}
	known := slices.ContainsFunc(slices.Collect(maps.Values(all)), func(v *Volume) bool {
		return (v.Persistent == nil || v.Persistent.Spec.CSI != nil) && v.handle() == volume
	})
	if !known {
		w.faults = append(w.faults, fmt.Sprintf("%s of %s without a record", method, volume))
	}
	name := csi.VolumeName("d", volume)
	if w.attachments[csi.AttachmentName(volume, "d", "n")] != nil && !slices.Contains(w.node.Status.VolumesInUse, name) {
		w.faults = append(w.faults, fmt.Sprintf("%s of %s, which is not in use", method, volume))
	}
}

// step is an effect: the agent may be killed before it.
func (w *csiWorld) step() {
	w.world.mu.Lock()
	defer w.world.mu.Unlock()
	w.effect()
}

// Client implements StorageDrivers. An agent may end before each call, and after it.
func (w *csiWorld) Client(name string) (*csi.Client, error) {
	if w.socket == "" || name != "d" {
		return noDrivers{}.Client(name)
	}
	w.step()
	return &csi.Client{Driver: name, Endpoint: w.socket, Observe: func(string, string, codes.Code, time.Duration) {
		w.step()
	}}, nil
}

// CSIDriver implements Storage.
func (w *csiWorld) CSIDriver(_ context.Context, name string) (*storagev1.CSIDriver, error) {
	if w.silent {
		return nil, errors.New("the API does not answer")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.objects[name], nil
}

// Attachment implements Storage.
func (w *csiWorld) Attachment(_ context.Context, name string) (*storagev1.VolumeAttachment, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a := w.attachments[name]; a != nil {
		return a, nil
	}
	return nil, fmt.Errorf("volumeattachments %q not found", name)
}

// report is what the agent does when VolumesInUse changed: the Node's status is
// written. The cluster never detaches what is in use.
func (w *csiWorld) report(m *Manager) {
	w.step()
	w.mu.Lock()
	w.node.Status.VolumesInUse = m.VolumesInUse()
	if w.attach {
		w.node.Status.VolumesAttached = nil
		for _, name := range w.node.Status.VolumesInUse {
			if w.mayAttach != nil && !w.mayAttach(name) {
				continue
			}
			w.node.Status.VolumesAttached = append(w.node.Status.VolumesAttached, corev1.AttachedVolume{Name: name})
		}
	}
	state := w.driver.String()
	for _, a := range w.attachments {
		handle := *a.Spec.Source.PersistentVolumeName // the handle, in these tests
		given := !slices.Contains(w.node.Status.VolumesInUse, csi.VolumeName("d", handle))
		if given && strings.Contains(state, " "+handle+" ") {
			w.faults = append(w.faults, handle+" is given up while the driver has it:\n"+state)
		}
	}
	n := w.node.DeepCopy()
	w.mu.Unlock()
	m.HeedNode(n)
}

// agent is a new one.
func (w *csiWorld) agent() *Manager {
	m := w.manager()
	m.rows = nil
	m.Drivers, m.Storage, m.NodeName, m.Boot = w, w, "n", fmt.Sprint(w.boot)
	m.InUseChanged = func() { w.report(m) }
	return m
}

// csiVolume is a persistent volume of the driver; its handle is its name with an h.
func csiVolume(name string, modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.AccessModes = modes
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h-" + name, FSType: "ext4",
		VolumeAttributes: map[string]string{"class": "fast"}}
	return pv
}

func inline(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}}
}

// attachedVolume has the cluster attach a volume.
func (w *csiWorld) attachedVolume(pv *corev1.PersistentVolume, metadata map[string]string) {
	handle := pv.Spec.CSI.VolumeHandle
	w.attachments[csi.AttachmentName(handle, "d", "n")] = &storagev1.VolumeAttachment{
		Spec:   storagev1.VolumeAttachmentSpec{Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &handle}},
		Status: storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: metadata},
	}
}

// object makes the driver's CSIDriver.
func (w *csiWorld) object(change func(*storagev1.CSIDriverSpec)) {
	o := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "d"}}
	o.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent,
		storagev1.VolumeLifecycleEphemeral}
	o.Spec.AttachRequired = ptr.To(true)
	change(&o.Spec)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.objects["d"] = o
}

func csiPod(name string, volumes ...corev1.Volume) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("u-" + name)}}
	p.Spec.Volumes = volumes
	return p
}

// leftFiles lists files and directories that are left of volumes.
func (w *csiWorld) leftFiles() []string {
	w.t.Helper()
	var found []string
	for _, pattern := range []string{"pods/*/*", "plugins/kubernetes.io/csi/d/*",
		"plugins/kubernetes.io/csi/volumeDevices/*/*"} {
		some, err := filepath.Glob(filepath.Join(w.root, "kubelet", pattern))
		if err != nil {
			w.t.Fatal(err)
		}
		found = append(found, some...)
	}
	return found
}

// nothing checks that nothing is left of any volume.
func (w *csiWorld) nothing() {
	w.t.Helper()
	for _, pod := range []string{"u-first", "u-second"} {
		for _, dir := range []string{"volumes/kubernetes.io~csi", "volumes", ""} {
			_ = os.Remove(filepath.Join(w.root, "kubelet/pods", pod, dir))
		}
	}
	if got := w.driver.String() + w.world.records() + w.world.String(); got != "" {
		w.t.Errorf("left:\n%s", got)
	}
	if left := w.leftFiles(); len(left) > 0 {
		w.t.Errorf("left: %q", left)
	}
	if in := w.node.Status.VolumesInUse; len(in) > 0 {
		w.t.Errorf("in use: %q", in)
	}
}

// lifeOfVolume is a life of two pods that share a volume, in one of its forms.
type lifeOfVolume struct {
	// stages: the driver stages. block: the volume is a device. expands: it is larger
	// than its claim says, so that it is expanded before the first pod starts.
	stages, block, expands bool
}

// TestAgentEndsBetweenCalls: wherever an agent is killed, before a call of the
// driver, after it, or around the writing of a record, of the Node's status or of
// the claim's, the next one makes whole what is wanted and undoes the rest, also
// after a reboot; the driver never gets a call that it must not get, and the Node
// shows the volume as in use from before the first call until nothing is left.
func TestAgentEndsBetweenCalls(t *testing.T) {
	reboot := func(w *csiWorld) { w.driver.Reboot(); w.reboot() }
	for _, life := range []struct {
		name string
		lifeOfVolume
	}{
		{"staged", lifeOfVolume{stages: true}},
		{"not-staged", lifeOfVolume{}},
		{"expanded", lifeOfVolume{stages: true, expands: true}},
		{"device", lifeOfVolume{stages: true, block: true}},
		{"device-not-staged", lifeOfVolume{block: true}},
		{"device-expanded", lifeOfVolume{stages: true, block: true, expands: true}},
	} {
		for _, end := range []struct {
			name  string
			after func(*csiWorld)
			alone bool // with records alone: no API, no pod
		}{
			{"restart", func(*csiWorld) {}, false},
			{"reboot", reboot, false},
			{"restart-records-alone", func(w *csiWorld) { w.silent = true }, true},
			{"reboot-records-alone", func(w *csiWorld) { reboot(w); w.silent = true }, true},
		} {
			if end.alone && (life.expands || !life.stages) {
				continue // nobody expands it then; not staged, it is less than staged
			}
			t.Run(life.name+"-"+end.name, func(t *testing.T) {
				t.Parallel()
				for kill := 0; ; kill++ {
					if over := life.play(t, kill, end.after, end.alone); over || t.Failed() {
						if kill < 20 && !t.Failed() {
							t.Errorf("the story has %d effects only", kill)
						}
						return
					}
				}
			})
		}
	}
}

// play lets the pods live, kills the agent before an effect, and has another go on;
// true when the story came to its end before.
func (l lifeOfVolume) play(t *testing.T, kill int, after func(*csiWorld), alone bool) (over bool) {
	w := newCSIWorld(t, l.capabilities()...)
	defer w.close()
	w.object(func(s *storagev1.CSIDriverSpec) { s.PodInfoOnMount = ptr.To(true) }) // it tells which are inline
	pv := w.largeVolume()
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	if l.block {
		pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	}
	if l.expands {
		w.claim = grows(corev1.PersistentVolumeClaimNodeResizePending)
	}
	w.attachedVolume(pv, map[string]string{"device": "7"})
	first, second := csiPod("first", claimed("data"), inline("own")), csiPod("second", claimed("data"))
	w.live(kill)
	var wanted, running []*corev1.Pod
	ctx := t.Context()
	try := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	over = w.survive(func() {
		m := w.agent()
		wanted = []*corev1.Pod{first}
		try(m.Ensure(ctx, first))
		wanted, running = []*corev1.Pod{first, second}, []*corev1.Pod{first}
		try(m.Ensure(ctx, second))
		wanted, running = []*corev1.Pod{second}, []*corev1.Pod{second}
		try(m.Release(ctx, first))
		wanted, running = nil, nil
		try(m.Release(ctx, second))
	})
	if over {
		w.nothing()
		return true
	}
	w.live(-1)
	boot := w.boot
	after(w)
	m := w.agent()
	try(m.Restore(running))
	w.report(m)
	w.driver.Calls()
	for _, p := range running {
		m.resume(ctx, p)
	}
	if calls := w.driver.Calls(); w.boot != boot && len(calls) > 0 {
		t.Errorf("before a pod starts anew, its driver is called: %q", calls)
	}
	if alone {
		for _, p := range m.Pods() {
			try(m.Release(ctx, p))
		}
	} else {
		for _, p := range wanted {
			try(m.Ensure(ctx, p))
			l.whole(w, m, p)
		}
		try(m.Release(ctx, first))
		try(m.Release(ctx, second))
	}
	w.nothing()
	if t.Failed() {
		t.Errorf("killed before effect %d", kill)
	}
	return false
}

func (l lifeOfVolume) capabilities() (can []csipb.NodeServiceCapability_RPC_Type) {
	if l.stages {
		can = append(can, stages)
	}
	if l.expands {
		can = append(can, expands)
	}
	return can
}

// whole checks that a pod has its volume, and in its size.
func (l lifeOfVolume) whole(w *csiWorld, m *Manager, p *corev1.Pod) {
	w.t.Helper()
	path, err := m.Path(p, "data")
	if l.block {
		path, err = os.Readlink(path)
	}
	if state := w.driver.String(); err != nil || !strings.Contains(state, "published h-pv-1 at "+path+"\n") {
		w.t.Errorf("%s has no volume at %s: %v\n%s", p.Name, path, err, state)
	}
	if !l.expands {
		return
	}
	if got := w.driver.Expanded("h-pv-1"); got != 2<<30 {
		w.t.Errorf("%s has a volume of %d bytes", p.Name, got)
	}
	if got := w.shown(); !strings.HasPrefix(got, "2Gi ") || !strings.HasSuffix(got, ` ""] [ModifyVolumeError]`) {
		w.t.Errorf("the claim of %s says %s", p.Name, got)
	}
}

// live gives the agent so many effects, a negative number for no end.
func (w *csiWorld) live(n int) {
	w.world.mu.Lock()
	defer w.world.mu.Unlock()
	w.world.left = n
}

// TestCSICalls: what a driver hears, where the volume lies, and what lies beside it.
func TestCSICalls(t *testing.T) {
	w := newCSIWorld(t, stages, mountGroup)
	w.object(func(s *storagev1.CSIDriverSpec) {
		s.PodInfoOnMount = ptr.To(true)
		s.TokenRequests = []storagev1.TokenRequest{{Audience: ""}, {Audience: "vault"}}
	})
	pv := csiVolume("pv-1", corev1.ReadWriteOnce)
	pv.Spec.MountOptions = []string{"noatime"}
	pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "other", Name: "s"}
	pv.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: "other", Name: "s"}
	w.claims["data"] = pv
	w.attachedVolume(pv, map[string]string{"device": "7"})
	own := inline("own")
	own.CSI.ReadOnly, own.CSI.FSType = ptr.To(true), ptr.To("xfs")
	own.CSI.NodePublishSecretRef = &corev1.LocalObjectReference{Name: "s"}
	p := csiPod("first", claimed("data"), own)
	p.Spec.ServiceAccountName = "sa"
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: ptr.To(int64(5))}
	m := w.agent()
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	rootDir := filepath.Join(w.root, "kubelet")
	staging := filepath.Join(rootDir, "plugins/kubernetes.io/csi/d", csi.HandleDir("h-pv-1"), "globalmount")
	mount := filepath.Join(rootDir, "pods/u-first/volumes/kubernetes.io~csi/pv-1/mount")
	inlineMount := filepath.Join(rootDir, "pods/u-first/volumes/kubernetes.io~csi/own/mount")
	handle := csi.EphemeralHandle("u-first", "own")
	want := fmt.Sprintf("staged h-pv-1 at %s\npublished %s at %s\npublished h-pv-1 at %s\n", staging, handle,
		inlineMount, mount)
	if got := w.driver.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	const token = `{"":{"token":"tok of ","expirationTimestamp":"2096-10-02T07:06:40Z"},` +
		`"vault":{"token":"tok of vault","expirationTimestamp":"2096-10-02T07:06:40Z"}}`
	about := func(ephemeral string, more map[string]string) map[string]string {
		out := map[string]string{"csi.storage.k8s.io/pod.name": "first", "csi.storage.k8s.io/pod.namespace": "ns",
			"csi.storage.k8s.io/pod.uid": "u-first", "csi.storage.k8s.io/serviceAccount.name": "sa",
			"csi.storage.k8s.io/ephemeral": ephemeral, "csi.storage.k8s.io/serviceAccount.tokens": token}
		maps.Copy(out, more)
		return out
	}
	capability := func(fsType, group string, flags ...string) *csipb.VolumeCapability {
		return &csipb.VolumeCapability{
			AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{FsType: fsType,
				MountFlags: flags, VolumeMountGroup: group}},
		}
	}
	secrets := map[string]string{"k": "v"}
	wantCall(t, w, "NodeStageVolume", &csipb.NodeStageVolumeRequest{VolumeId: "h-pv-1", StagingTargetPath: staging,
		VolumeCapability: capability("ext4", "5", "noatime"), PublishContext: map[string]string{"device": "7"},
		VolumeContext: map[string]string{"class": "fast"}, Secrets: secrets})
	wantCall(t, w, "NodePublishVolume", &csipb.NodePublishVolumeRequest{VolumeId: handle, TargetPath: inlineMount,
		VolumeCapability: capability("xfs", "5"), VolumeContext: about("true", nil), Secrets: secrets, Readonly: true})
	for path, want := range map[string]map[string]string{
		staging: {"volumeHandle": "h-pv-1", "driverName": "d"},
		mount: {"specVolID": "pv-1", "volumeHandle": "h-pv-1", "driverName": "d", "nodeName": "n",
			"volumeLifecycleMode": "Persistent", "attachmentID": csi.AttachmentName("h-pv-1", "d", "n")},
		inlineMount: {"specVolID": "own", "volumeHandle": handle, "driverName": "d", "nodeName": "n",
			"volumeLifecycleMode": "Ephemeral", "attachmentID": csi.AttachmentName(handle, "d", "n")},
	} {
		var got map[string]string
		if err := json.Unmarshal([]byte(read(t, filepath.Dir(path), "vol_data.json")), &got); err != nil ||
			!maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v: %v", path, got, want, err)
		}
	}
	// Asked again, the driver is not called again.
	w.driver.Calls()
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if calls := w.driver.Calls(); len(calls) > 0 {
		t.Errorf("called again: %q", calls)
	}
	second := csiPod("second", claimed("data"))
	if err := m.Ensure(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	wantCall(t, w, "NodePublishVolume", &csipb.NodePublishVolumeRequest{VolumeId: "h-pv-1", StagingTargetPath: staging,
		TargetPath:       strings.Replace(mount, "u-first", "u-second", 1),
		VolumeCapability: capability("ext4", "", "noatime"), PublishContext: map[string]string{"device": "7"},
		VolumeContext: map[string]string{"class": "fast", "csi.storage.k8s.io/pod.name": "second",
			"csi.storage.k8s.io/pod.namespace": "ns", "csi.storage.k8s.io/pod.uid": "u-second",
			"csi.storage.k8s.io/serviceAccount.name": "", "csi.storage.k8s.io/ephemeral": "false",
			"csi.storage.k8s.io/serviceAccount.tokens": token}, Secrets: secrets})
	for _, gone := range []*corev1.Pod{p, second} {
		if err := m.Release(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
	}
	got := strings.Replace(strings.Join(w.driver.Calls(), ", "), "NodeUnpublishVolume "+handle+", ", "", 1)
	if want := "NodePublishVolume h-pv-1, NodeUnpublishVolume h-pv-1, NodeUnpublishVolume h-pv-1, " +
		"NodeUnstageVolume h-pv-1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	w.nothing()
}

func wantCall(t *testing.T, w *csiWorld, method string, want proto.Message) {
	t.Helper()
	if got, ok := w.driver.Last(method).(proto.Message); !ok || !proto.Equal(got, want) {
		t.Errorf("%s: got\n%v\nwant\n%v", method, got, want)
	}
}

// TestDeviceCalls: what a driver hears of a volume that is a device, and where it lies.
func TestDeviceCalls(t *testing.T) {
	w := newCSIWorld(t, stages)
	w.object(func(s *storagev1.CSIDriverSpec) { s.AttachRequired = ptr.To(false) })
	pv := csiVolume("pv-1", corev1.ReadWriteOnce)
	pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	w.claims["data"] = pv
	m, p := w.agent(), csiPod("first", claimed("data"))
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(w.root, "kubelet/plugins/kubernetes.io/csi/volumeDevices")
	staging, target := filepath.Join(dir, "staging/pv-1"), filepath.Join(dir, "publish/pv-1/u-first")
	capability := &csipb.VolumeCapability{
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}},
	}
	class := map[string]string{"class": "fast"}
	wantCall(t, w, "NodeStageVolume", &csipb.NodeStageVolumeRequest{VolumeId: "h-pv-1", StagingTargetPath: staging,
		VolumeCapability: capability, VolumeContext: class})
	wantCall(t, w, "NodePublishVolume", &csipb.NodePublishVolumeRequest{VolumeId: "h-pv-1", StagingTargetPath: staging,
		TargetPath: target, VolumeCapability: capability, VolumeContext: class})
	link := filepath.Join(w.root, "kubelet/pods/u-first/volumeDevices/kubernetes.io~csi/pv-1")
	path, err := m.Path(p, "data")
	if is, linkErr := os.Readlink(link); is != target || path != link || err != nil || linkErr != nil {
		t.Errorf("the device is at %q, a link to %q: %v, %v", path, is, err, linkErr)
	}
	if got := read(t, dir, "pv-1/data/vol_data.json"); !strings.Contains(got, `"volumeHandle":"h-pv-1"`) {
		t.Errorf("beside it: %s", got)
	}
	w.refuse("NodePublishVolume", status.Error(codes.Internal, "broken"))
	other := csiPod("second", claimed("data"))
	want := `MapVolume.MapPodDevice failed for volume "pv-1" : rpc error: code = Internal desc = broken ` +
		`(driver d, call NodePublishVolume)`
	if got := errText(m.Ensure(t.Context(), other)); got != want {
		t.Errorf("got %s", got)
	}
	if err := errors.Join(m.Release(t.Context(), p), m.Release(t.Context(), other)); err != nil {
		t.Error(err)
	}
	w.nothing()
}

// TestUnused: what no container has is not touched.
func TestUnused(t *testing.T) {
	w := newCSIWorld(t, stages)
	w.object(func(*storagev1.CSIDriverSpec) {})
	p := csiPod("first", claimed("none"), inline("own"), inline("seen"))
	p.Spec.Containers = []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "seen"}}}}
	w.driver.Capabilities = nil
	m := w.agent()
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	want := "NodePublishVolume " + csi.EphemeralHandle("u-first", "seen")
	if got := strings.Join(w.driver.Calls(), ", "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.nothing()
}

// TestModeMismatch: a device is not mounted, and a file system is no device.
func TestModeMismatch(t *testing.T) {
	w := newCSIWorld(t)
	device, files := csiVolume("pv-1", corev1.ReadWriteOnce), csiVolume("pv-2", corev1.ReadWriteOnce)
	device.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	w.claims["device"], w.claims["files"] = device, files
	for name, want := range map[string]string{
		"device": `MountVolume.SetUp failed for volume "pv-1" : volume device has volumeMode Block, but is specified in volumeMounts`,
		"files": `MountVolume.SetUp failed for volume "pv-2" : volume files has volumeMode Filesystem, ` +
			`but is specified in volumeDevices`,
	} {
		p := csiPod("first", claimed(name))
		p.Spec.Containers = []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: "device"}},
			VolumeDevices: []corev1.VolumeDevice{{Name: "files"}}}}
		if got := errText(w.agent().Ensure(t.Context(), p)); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// TestTokensInSecrets: where the CSIDriver says so.
func TestTokensInSecrets(t *testing.T) {
	w := newCSIWorld(t)
	w.object(func(s *storagev1.CSIDriverSpec) {
		s.TokenRequests = []storagev1.TokenRequest{{Audience: "vault"}}
		s.ServiceAccountTokenInSecrets = ptr.To(true)
	})
	m, p := w.agent(), csiPod("first", inline("own"))
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	got := w.driver.Last("NodePublishVolume").(*csipb.NodePublishVolumeRequest)
	if len(got.VolumeContext) > 0 || !strings.Contains(got.Secrets["csi.storage.k8s.io/serviceAccount.tokens"],
		"tok of vault") {
		t.Errorf("got %v", got)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.nothing()
}

// TestCSIErrors: each says what failed, of which volume and driver; what came of
// the call is undone when the pod goes, and at once where the driver says that it
// is over.
func TestCSIErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		set    func(*csiWorld, *corev1.PersistentVolume)
		want   string
		undone string // calls that undo it
	}{
		{"no-secret", func(_ *csiWorld, pv *corev1.PersistentVolume) {
			pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "none"}
		}, `MountVolume.MountDevice failed for volume "pv-1" : fetching NodeStageSecretRef ns/none failed: ` +
			`kubernetes.io/csi: failed to find the secret none in the namespace ns with error: secrets "none" not found`,
			""},
		{"stage-final", func(w *csiWorld, _ *corev1.PersistentVolume) {
			w.refuse("NodeStageVolume", status.Error(codes.Internal, "broken"))
		}, `MountVolume.MountDevice failed for volume "pv-1" : rpc error: code = Internal desc = broken ` +
			`(driver d, call NodeStageVolume)`, ""},
		{"stage-uncertain", func(w *csiWorld, _ *corev1.PersistentVolume) {
			w.refuse("NodeStageVolume", status.Error(codes.DeadlineExceeded, "slow"))
		}, `MountVolume.MountDevice failed for volume "pv-1" : rpc error: code = DeadlineExceeded desc = slow ` +
			`(driver d, call NodeStageVolume)`,
			"NodeUnstageVolume h-pv-1"},
		{"publish-final", func(w *csiWorld, _ *corev1.PersistentVolume) {
			w.refuse("NodePublishVolume", status.Error(codes.InvalidArgument, "no such flag"))
		}, `MountVolume.SetUp failed for volume "pv-1" : rpc error: code = InvalidArgument desc = no such flag ` +
			`(driver d, call NodePublishVolume)`,
			"NodeUnstageVolume h-pv-1"},
		{"publish-uncertain", func(w *csiWorld, _ *corev1.PersistentVolume) {
			w.refuse("NodePublishVolume", status.Error(codes.Aborted, "busy"))
		}, `MountVolume.SetUp failed for volume "pv-1" : rpc error: code = Aborted desc = busy ` +
			`(driver d, call NodePublishVolume)`,
			"NodeUnpublishVolume h-pv-1, NodeUnstageVolume h-pv-1"},
		{"not-persistent", func(w *csiWorld, _ *corev1.PersistentVolume) {
			w.object(func(s *storagev1.CSIDriverSpec) {
				s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
			})
		}, `MountVolume.SetUp failed for volume "pv-1" : kubernetes.io/csi: mounter.SetupAt failed to check volume ` +
			`lifecycle mode: volume mode "Persistent" not supported by driver d (only supports ["Ephemeral"])`,
			"NodeUnstageVolume h-pv-1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newCSIWorld(t, stages)
			pv := csiVolume("pv-1", corev1.ReadWriteOnce)
			w.claims["data"] = pv
			w.attachedVolume(pv, nil)
			c.set(w, pv)
			m, p := w.agent(), csiPod("first", claimed("data"))
			if got := errText(m.Ensure(t.Context(), p)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			w.driver.Calls()
			if err := m.Release(t.Context(), p); err != nil {
				t.Error(err)
			}
			if got := strings.Join(w.driver.Calls(), ", "); got != c.undone {
				t.Errorf("undone by %q, want %q", got, c.undone)
			}
			w.nothing()
		})
	}
	w := newCSIWorld(t)
	m, p := w.agent(), csiPod("first", inline("own"))
	want := `MountVolume.SetUp failed for volume "own" : kubernetes.io/csi: mounter.SetupAt failed to check volume ` +
		`lifecycle mode: volume mode "Ephemeral" not supported by driver d (no CSIDriver object)`
	if got := errText(m.Ensure(t.Context(), p)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Error(err)
	}
	w.nothing()
}

// TestDriverRegistersLate: a pod whose driver is not there is told so, and goes on
// when it registers; its end does not wait for that.
func TestDriverRegistersLate(t *testing.T) {
	const away = "driver name d not found in the list of registered CSI drivers"
	for _, c := range []struct {
		name   string
		volume corev1.Volume
		block  bool
		want   string
	}{
		{"mounted", claimed("data"), false, `FailedMount MountVolume.MountDevice failed for volume "pv-1" : ` +
			"kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: " + away},
		{"inline", inline("own"), false, `FailedMount MountVolume.SetUp failed for volume "own" : ` +
			"kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: " + away},
		{"device", claimed("data"), true, `FailedMapVolume MapVolume.SetUpDevice failed for volume "pv-1" : ` +
			"kubernetes.io/csi: blockMapper.SetUpDevice failed to get CSI client: " + away},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newCSIWorld(t, stages)
			w.object(func(s *storagev1.CSIDriverSpec) { s.AttachRequired, s.PodInfoOnMount = ptr.To(false), ptr.To(true) })
			pv := csiVolume("pv-1", corev1.ReadWriteMany)
			if c.block {
				pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
			}
			w.claims["data"] = pv
			socket := w.socket
			w.socket = ""
			m, told := w.agent(), make(chan string, 8)
			m.Event = func(_ *corev1.Pod, _, _, reason, message string) { told <- reason + " " + message }
			first, second := csiPod("first", c.volume), csiPod("second", c.volume)
			ctx, end := context.WithCancel(t.Context())
			defer end()
			started, ended := make(chan error, 1), make(chan error, 1)
			go func() { started <- m.Ensure(t.Context(), first) }()
			go func() { ended <- m.Ensure(ctx, second) }()
			for range 2 {
				if got := await(t, told); got != c.want {
					t.Errorf("got  %s\nwant %s", got, c.want)
				}
			}
			end()
			if err := await(t, ended); !errors.Is(err, context.Canceled) {
				t.Errorf("a pod that ends: %v", err)
			}
			w.socket = socket
			m.DriversChanged()
			if err := await(t, started); err != nil {
				t.Error(err)
			}
			if err := errors.Join(m.Release(t.Context(), first), m.Release(t.Context(), second)); err != nil {
				t.Error(err)
			}
			w.nothing()
		})
	}
}

// await is what a channel brings, within a time that only what hangs takes.
func await[T any](t *testing.T, from <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(time.Minute):
		t.Fatal("nothing comes")
	}
	return got
}

// TestWedgedDriver: calls that hang for ever keep no other volume, pod or driver
// waiting, nor the end of their pods and of the agent.
func TestWedgedDriver(t *testing.T) {
	w := newCSIWorld(t, stages)
	w.object(func(s *storagev1.CSIDriverSpec) { s.AttachRequired = ptr.To(false) })
	for _, name := range []string{"pv-1", "pv-2"} {
		w.claims[name] = csiVolume(name, corev1.ReadWriteMany)
	}
	check, called := w.driver.Before, make(chan string, 8)
	w.driver.Before = func(ctx context.Context, method, volume string) error {
		if volume == "h-pv-1" && method == "NodeStageVolume" {
			called <- method
			<-ctx.Done() // until the agent gives up
			return ctx.Err()
		}
		return check(ctx, method, volume)
	}
	m := w.agent()
	wedged, sharing, other := csiPod("wedged", claimed("pv-1")), csiPod("sharing", claimed("pv-1")),
		csiPod("other", claimed("pv-2"))
	ctx, end := context.WithCancel(t.Context())
	defer end()
	shared, endShared := context.WithCancel(t.Context())
	defer endShared()
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- m.Ensure(ctx, wedged) }()
	await(t, called)
	go func() { second <- m.Ensure(shared, sharing) }()
	if err := errors.Join(m.Ensure(t.Context(), other), m.Release(t.Context(), other)); err != nil {
		t.Errorf("a pod with another volume: %v", err)
	}
	endShared()
	if err := await(t, second); !errors.Is(err, context.Canceled) {
		t.Errorf("a pod with the same volume ends: %v", err)
	}
	if err := m.Release(t.Context(), sharing); err != nil {
		t.Error(err)
	}
	end()
	if err := await(t, first); err == nil {
		t.Error("the pod has its volume")
	}
	if err := m.Release(t.Context(), wedged); err != nil {
		t.Error(err)
	}
	w.nothing()
}

// TestAttachmentLimit: a volume that is one too many for the node has its pod fail,
// and the driver asked how many there can be; without a driver that wants that, the
// pod waits on.
func TestAttachmentLimit(t *testing.T) {
	for _, c := range []struct {
		name   string
		period *int64
		code   codes.Code
		reason string
	}{
		{"exhausted", ptr.To(int64(60)), codes.ResourceExhausted, "VolumeAttachmentLimitExceeded"},
		{"another-error", ptr.To(int64(60)), codes.Internal, "FailedMount"},
		{"not-asked-again", nil, codes.ResourceExhausted, "FailedMount"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &csiWorld{world: newWorld(t), objects: map[string]*storagev1.CSIDriver{},
					attachments: map[string]*storagev1.VolumeAttachment{}}
				w.object(func(s *storagev1.CSIDriverSpec) { s.NodeAllocatableUpdatePeriodSeconds = c.period })
				pv := csiVolume("pv-1", corev1.ReadWriteOnce)
				w.claims["data"] = pv
				w.attachedVolume(pv, nil)
				for _, a := range w.attachments {
					a.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{
						Message: "too many", ErrorCode: ptr.To(int32(c.code))}}
				}
				m, p := w.manager(), csiPod("first", claimed("data"))
				asked := ""
				m.rows, m.Storage, m.NodeName = nil, w, "n"
				m.Exhausted = func(_ context.Context, driver string) { asked = driver }
				err := m.Ensure(t.Context(), p)
				failed := new(Error)
				if !errors.As(err, &failed) {
					t.Fatalf("got %v", err)
				}
				rejects := c.reason == "VolumeAttachmentLimitExceeded"
				if failed.Reason() != c.reason || failed.Rejects() != rejects || (asked == "d") != rejects {
					t.Errorf("%s, the pod is rejected: %v, asked: %q", failed.Reason(), failed.Rejects(), asked)
				}
				want := "unmounted volumes=[data], unattached volumes=[data], failed to process volumes=[]: " +
					"context deadline exceeded"
				const limit = "Node has reached its volume attachment limit, rejecting pod. "
				if !strings.HasSuffix(failed.Error(), want) || strings.HasPrefix(failed.Error(), limit) != rejects {
					t.Errorf("got %v", failed)
				}
				if err := m.Release(t.Context(), p); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// refuse has the driver refuse a method.
func (w *csiWorld) refuse(method string, err error) {
	check := w.driver.Before
	w.driver.Before = func(ctx context.Context, m, volume string) error {
		if m == method {
			return err
		}
		return check(ctx, m, volume)
	}
}

// TestDriverIsAwayAtTheEnd: a volume stays recorded and in use until its driver is
// back and has undone it.
func TestDriverIsAwayAtTheEnd(t *testing.T) {
	w := newCSIWorld(t, stages)
	pv := csiVolume("pv-1", corev1.ReadWriteOnce)
	w.claims["data"] = pv
	w.attachedVolume(pv, nil)
	m, p := w.agent(), csiPod("first", claimed("data"))
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	socket := w.socket
	w.socket = ""
	want := `UnmountVolume.TearDown failed for volume "pv-1" : kubernetes.io/csi: Unmounter.TearDownAt failed: ` +
		"driver name d not found in the list of registered CSI drivers"
	if got := errText(m.Release(t.Context(), p)); got != want {
		t.Errorf("got %s", got)
	}
	if got := m.VolumesInUse(); len(got) != 1 || got[0] != "kubernetes.io/csi/d^h-pv-1" {
		t.Errorf("in use: %q", got)
	}
	w.socket = socket
	if err := m.Release(t.Context(), p); err != nil {
		t.Error(err)
	}
	w.nothing()
}

// TestOnePodAlone: a volume of one pod is refused to another until it is gone.
func TestOnePodAlone(t *testing.T) {
	w := newCSIWorld(t, stages)
	pv := csiVolume("pv-1", corev1.ReadWriteOncePod)
	w.claims["data"] = pv
	w.attachedVolume(pv, nil)
	m, first, second := w.agent(), csiPod("first", claimed("data")), csiPod("second", claimed("data"))
	if err := m.Ensure(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	want := `MountVolume.SetUp failed for volume "pv-1" : volume uses the ReadWriteOncePod access mode and is already ` +
		`in use by another pod`
	if got := errText(m.Ensure(t.Context(), second)); got != want {
		t.Errorf("got %s", got)
	}
	if err := m.Release(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if err := m.Ensure(t.Context(), second); err != nil {
		t.Error(err)
	}
	if err := m.Release(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	w.nothing()
}

// TestRepublished: as often as its driver wants that, not more, and an error leaves
// the pod what it has.
func TestRepublished(t *testing.T) {
	w := newCSIWorld(t)
	w.object(func(s *storagev1.CSIDriverSpec) { s.RequiresRepublish = ptr.To(true) })
	m, p := w.agent(), csiPod("first", inline("own"))
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	count := func() int {
		n := 0
		for _, call := range w.driver.Calls() {
			if strings.HasPrefix(call, "NodePublishVolume ") {
				n++
			}
		}
		return n
	}
	if n := count(); n != 1 {
		t.Errorf("published %d times", n)
	}
	v := m.recorded(p.UID, "own")
	if wait := time.Until(v.CSI.next); wait <= 0 || wait > republishEach {
		t.Errorf("again in %v", wait)
	}
	if err := m.update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 0 {
		t.Errorf("published again %d times before it is due", n)
	}
	v.CSI.next = time.Now()
	if err := m.update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 1 {
		t.Errorf("published again %d times when it is due", n)
	}
	w.refuse("NodePublishVolume", status.Error(codes.Internal, "broken"))
	v.CSI.next = time.Now()
	if err := m.update(t.Context(), p); err == nil {
		t.Error("no error")
	}
	if _, err := os.Stat(v.Path); err != nil {
		t.Errorf("the pod lost its volume: %v", err)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.nothing()
}

// TestAwaitAttached: a volume is used when the Node shows it as in use and as
// attached, and the attachment says so too.
func TestAwaitAttached(t *testing.T) {
	const handle = "h-pv-1"
	name := csi.VolumeName("d", handle)
	inUse := func(attached bool) *corev1.Node {
		n := &corev1.Node{Status: corev1.NodeStatus{VolumesInUse: []corev1.UniqueVolumeName{name}}}
		if attached {
			n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: name}}
		}
		return n
	}
	notInUse := inUse(true)
	notInUse.Status.VolumesInUse = nil
	attachment := func(change func(*storagev1.VolumeAttachment)) func(*csiWorld, *Manager) {
		return func(w *csiWorld, m *Manager) {
			a := &storagev1.VolumeAttachment{}
			change(a)
			w.attachments[csi.AttachmentName(handle, "d", "n")] = a
			m.HeedNode(inUse(true))
		}
	}
	for _, c := range []struct {
		name string
		do   func(*csiWorld, *Manager)
		want string
	}{
		{"attached", attachment(func(a *storagev1.VolumeAttachment) {
			a.Status.Attached, a.Status.AttachmentMetadata = true, map[string]string{"device": "7"}
		}), " map[device:7]"},
		{"not attached", attachment(func(*storagev1.VolumeAttachment) {}),
			`MountVolume.WaitForAttach failed for volume "pv-1" : volume h-pv-1 is not attached for volume attachment ` +
				csi.AttachmentName(handle, "d", "n") + " map[]"},
		{"error", attachment(func(a *storagev1.VolumeAttachment) {
			a.Status.AttachError = &storagev1.VolumeError{Message: "full"}
		}), `MountVolume.WaitForAttach failed for volume "pv-1" : full map[]`},
		{"deleted", attachment(func(a *storagev1.VolumeAttachment) {
			a.DeletionTimestamp, a.Status.Attached = &metav1.Time{Time: time.Now()}, true
		}), `MountVolume.WaitForAttach failed for volume "pv-1" : volume attachment is being deleted map[]`},
		{"no attachment", func(_ *csiWorld, m *Manager) { m.HeedNode(inUse(true)) },
			`MountVolume.WaitForAttach failed for volume "pv-1" : volume h-pv-1 has GET error for volume attachment ` +
				csi.AttachmentName(handle, "d", "n") + `: volumeattachments "` + csi.AttachmentName(handle, "d", "n") +
				`" not found map[]`},
		{"nobody attaches", func(_ *csiWorld, m *Manager) { m.HeedNode(inUse(false)) },
			"Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[data], " +
				"failed to process volumes=[]: context deadline exceeded map[]"},
		{"not in use", func(_ *csiWorld, m *Manager) { m.HeedNode(notInUse) },
			"Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[data], " +
				"failed to process volumes=[]: context deadline exceeded map[]"},
		{"need not be attached any more", func(w *csiWorld, m *Manager) {
			w.object(func(s *storagev1.CSIDriverSpec) { s.AttachRequired = ptr.To(false) })
			m.Attachable()
		}, " map[]"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &csiWorld{world: newWorld(t), objects: map[string]*storagev1.CSIDriver{},
					attachments: map[string]*storagev1.VolumeAttachment{}}
				w.claims["data"] = csiVolume("pv-1", corev1.ReadWriteOnce)
				m := &Manager{Storage: w, Claims: w, NodeName: "n", RootDir: w.root, Log: slog.New(slog.DiscardHandler)}
				p := csiPod("first", claimed("data"))
				s, err := m.resolve(t.Context(), p, &p.Spec.Volumes[0])
				if err != nil {
					t.Fatal(err)
				}
				v := m.volume(p, s, row{name: csiRow, driver: csiDriver{}})
				m.entry(p)
				if err := errors.Join(m.describe(t.Context(), p, v), m.keep(v)); err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- m.awaitAttached(t.Context(), v) }()
				synctest.Wait()
				select {
				case err := <-done:
					t.Fatalf("it did not wait: %v", err)
				default:
				}
				c.do(w, m)
				err = <-done
				text := ""
				if err != nil {
					text = m.named(p, &p.Spec.Volumes[0], err).Error()
				}
				if got := fmt.Sprint(text, " ", v.CSI.PublishContext); got != c.want {
					t.Errorf("got  %s\nwant %s", got, c.want)
				}
			})
		})
	}
}

// TestInUseWhileRecorded: a volume that was attached is in use until it is undone,
// also when its driver says in the middle of that that it need not be attached.
func TestInUseWhileRecorded(t *testing.T) {
	w := newCSIWorld(t, stages)
	pv := csiVolume("pv-1", corev1.ReadWriteOnce)
	w.claims["data"] = pv
	w.attachedVolume(pv, nil)
	p := csiPod("first", claimed("data"))
	if err := w.agent().Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.object(func(s *storagev1.CSIDriverSpec) { s.AttachRequired = ptr.To(false) })
	w.mayAttach = func(corev1.UniqueVolumeName) bool { return false }
	m := w.agent()
	if err := errors.Join(m.Restore([]*corev1.Pod{p}), m.Ensure(t.Context(), p)); err != nil {
		t.Fatal(err)
	}
	if got := w.node.Status.VolumesInUse; len(got) != 1 {
		t.Errorf("in use: %q", got)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.nothing()
}

// TestWaitingForAttachment: a pod's end interrupts it, and a change of its labels
// is neither waited for nor lost.
func TestWaitingForAttachment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &csiWorld{world: newWorld(t), objects: map[string]*storagev1.CSIDriver{},
			attachments: map[string]*storagev1.VolumeAttachment{}}
		w.claims["data"] = csiVolume("pv-1", corev1.ReadWriteOnce)
		m := w.manager()
		m.rows, m.Storage, m.NodeName = nil, w, "n"
		p := csiPod("first", claimed("data"))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Ensure(ctx, p) }()
		synctest.Wait()
		labelled := p.DeepCopy()
		labelled.Labels = map[string]string{"a": "b"}
		if err := m.update(t.Context(), labelled); err != nil {
			t.Error(err)
		}
		later := func() (*corev1.Pod, time.Time) {
			m.mu.Lock()
			defer m.mu.Unlock()
			e := m.pods[p.UID]
			return e.newer, e.due
		}
		// It is not tried again and again while it cannot be done.
		if newer, due := later(); newer != labelled || !due.IsZero() {
			t.Errorf("kept for later: %v, due %v", newer, due)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if newer, due := later(); newer != labelled || due.IsZero() {
			t.Errorf("when it can be done: %v, due %v", newer, due)
		}
		// The pod's worker does not wait for a storage driver.
		again := labelled.DeepCopy()
		if err := m.Refresh(t.Context(), again); err != nil {
			t.Error(err)
		}
		if newer, _ := later(); newer != again {
			t.Errorf("left to Run: %v", newer)
		}
		if err := m.Release(t.Context(), p); err != nil {
			t.Error(err)
		}
		if got := w.world.records(); got != "" {
			t.Errorf("left: %s", got)
		}
	})
}

// TestGivenToGroup: whose files are given to the pod's group by the node.
func TestGivenToGroup(t *testing.T) {
	for _, c := range []struct {
		policy   storagev1.FSGroupPolicy // "" without a CSIDriver
		fsType   string
		mode     corev1.PersistentVolumeAccessMode // "" for a volume of the pod's own
		readOnly bool
		want     bool
	}{
		{storagev1.NoneFSGroupPolicy, "ext4", corev1.ReadWriteOnce, false, false},
		{storagev1.FileFSGroupPolicy, "", corev1.ReadWriteMany, false, true},
		{storagev1.FileFSGroupPolicy, "ext4", corev1.ReadWriteOnce, true, false},
		{storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, "ext4", corev1.ReadWriteOnce, false, true},
		{storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, "ext4", corev1.ReadWriteOncePod, false, true},
		{storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, "", corev1.ReadWriteOnce, false, false},
		{storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, "ext4", corev1.ReadWriteMany, false, false},
		{storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, "ext4", "", false, true},
		{"", "ext4", corev1.ReadWriteOnce, false, true},
		{"", "", corev1.ReadWriteOnce, false, false},
	} {
		v := &Volume{CSI: &CSI{}, Source: Source{Volume: inline("own")}}
		if c.mode != "" {
			v.Source = Source{Volume: claimed("data"), Persistent: csiVolume("pv-1", c.mode)}
		}
		if c.policy != "" {
			v.CSI.Spec = &storagev1.CSIDriverSpec{FSGroupPolicy: &c.policy}
		}
		if got := v.givenToGroup(&csiSource{fsType: c.fsType, readOnly: c.readOnly}); got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}
