package volume

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/csi"
	"github.com/shoal-project/shoal/csi/csitest"
)

// TestDrivers holds each line of the table to the contract of driver.
func TestDrivers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a storage driver's mounts need root")
	}
	outlives := t.TempDir()
	persistent := func(s corev1.PersistentVolumeSource) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec:       corev1.PersistentVolumeSpec{PersistentVolumeSource: s},
		}
	}
	samples := map[string][]Source{
		"emptyDir": {
			{Volume: corev1.Volume{Name: "none"}},
			{Volume: corev1.Volume{Name: "disk",
				VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			{Volume: corev1.Volume{Name: "memory",
				VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
					Medium: corev1.StorageMediumMemory}}}},
		},
		"hostPath": {
			{Volume: corev1.Volume{Name: "pod", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
				Path: outlives, Type: ptr.To(corev1.HostPathDirectoryOrCreate)}}}},
			{Volume: claimed("claim"), Persistent: persistent(corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: outlives}})},
		},
		"projected": {
			{Volume: corev1.Volume{Name: "cm",
				VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}}},
			{Volume: corev1.Volume{Name: "secret",
				VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}},
			{Volume: corev1.Volume{Name: "labels",
				VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}}},
			{Volume: corev1.Volume{Name: "all",
				VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}}},
		},
		"local": {
			{Volume: claimed("claim"), Persistent: persistent(corev1.PersistentVolumeSource{
				Local: &corev1.LocalVolumeSource{Path: outlives}})},
		},
		"nfs": {
			{Volume: corev1.Volume{Name: "pod", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{
				Server: "files", Path: "/exports"}}}},
			{Volume: claimed("claim"), Persistent: persistent(corev1.PersistentVolumeSource{
				NFS: &corev1.NFSVolumeSource{Server: "files", Path: "/exports"}})},
		},
		"csi": {
			{Volume: claimed("claim"), Persistent: csiVolume("pv-1", corev1.ReadWriteOnce)},
		},
		"csiBlock": {{Volume: claimed("claim"), Persistent: device(csiVolume("pv-1", corev1.ReadWriteOnce))}},
		"localBlock": {{Volume: claimed("claim"), Persistent: device(persistent(corev1.PersistentVolumeSource{
			Local: &corev1.LocalVolumeSource{Path: blockDevice(t)}}))}},
		"iscsi": {
			{Volume: corev1.Volume{Name: "pod", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{
				TargetPortal: portal1, IQN: targetA}}}},
			{Volume: claimed("claim"), Persistent: iscsiDisk("pv", targetB, 1)},
		},
		"iscsiBlock": {{Volume: claimed("claim"), Persistent: device(iscsiDisk("pv", targetB, 0))}},
		"fc": {
			{Volume: corev1.Volume{Name: "pod", VolumeSource: corev1.VolumeSource{FC: &corev1.FCVolumeSource{
				WWIDs: []string{"3600"}}}}},
			{Volume: claimed("claim"), Persistent: fcDisk("pv", corev1.FCVolumeSource{WWIDs: []string{"3600"}})},
		},
		"fcBlock": {{Volume: claimed("claim"),
			Persistent: device(fcDisk("pv", corev1.FCVolumeSource{WWIDs: []string{"3600"}}))}},
		"image": {
			{Volume: corev1.Volume{Name: "image",
				VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "i"}}}},
		},
	}
	w := newWorld(t)
	m := w.manager()
	m.rows = nil // the node's
	n := iscsiNet(t)
	m.disks = n.node()
	disk := n.Targets[targetA].Disks["0"]
	for _, link := range []string{"dev/disk/by-id/scsi-3600", "dev/" + filepath.Base(disk)} {
		if err := os.Symlink(disk, n.path(link)); err != nil {
			t.Fatal(err)
		}
	}
	storage := &csitest.Driver{Name: "d", Mounts: csitest.Memory{},
		Capabilities: []csipb.NodeServiceCapability_RPC_Type{stages}}
	m.Drivers = oneDriver{&csi.Client{Driver: "d", Endpoint: storage.Serve(t)}}
	for _, d := range m.table() {
		if len(samples[d.name]) == 0 {
			t.Errorf("%s has no sample here", d.name)
		}
		for _, s := range samples[d.name] {
			t.Run(d.name+"-"+s.Volume.Name, func(t *testing.T) { holdToContract(t, w, m, d, s) })
		}
	}
	if entries, err := os.ReadDir(outlives); err != nil || len(entries) != 1 {
		t.Errorf("what outlives pods: %v, %v", entries, err)
	}
}

// device makes a persistent volume one that is a device.
func device(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	return pv
}

// blockDevice makes the name of a device, which is not opened.
func blockDevice(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))); err != nil {
		t.Skipf("this machine makes no devices: %v", err)
	}
	return path
}

// oneDriver is the storage driver of a node.
type oneDriver struct{ client *csi.Client }

func (o oneDriver) Client(string) (*csi.Client, error) { return o.client, nil }

func claimed(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}
}

func holdToContract(t *testing.T, w *world, m *Manager, d row, s Source) {
	for _, other := range m.table() {
		if got := other.Supports(s); got != (other.name == d.name) {
			t.Errorf("%s supports it: %v", other.name, got)
		}
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Name: "p", Namespace: "ns"}}
	v := m.volume(p, s, d)
	m.entry(p)
	defer m.forget(p.UID)
	if err := m.joinDisk(v); err != nil {
		t.Fatal(err)
	}
	if again := m.volume(p, s, d); again.Path != v.Path {
		t.Errorf("its path is %s, then %s", v.Path, again.Path)
	}
	if _, err := os.Lstat(m.podDir(p.UID)); !os.IsNotExist(err) {
		t.Errorf("before it is made: %v", err)
	}
	before := w.String()
	do := func(what string, f func() error) {
		t.Helper()
		for i := range 2 {
			if err := f(); err != nil {
				t.Errorf("%s, time %d: %v", what, i+1, err)
			}
		}
	}
	undo := func() {
		do("unmount", func() error { return d.Unmount(t.Context(), v) })
		do("unstage", func() error { return d.Unstage(t.Context(), v) })
	}
	undo() // of nothing
	do("stage", func() error { return d.Stage(t.Context(), v) })
	do("mount", func() error { _, err := d.Mount(t.Context(), p, v); return err })
	content := filepath.Join(v.Path, "content")
	switch {
	case s.block():
		content = v.Path
		if st, err := os.Stat(content); err != nil || st.Mode()&os.ModeDevice == 0 {
			t.Errorf("it is no device: %v, %v", st, err)
		}
	case v.Path != "":
		if err := os.WriteFile(content, nil, 0o600); err != nil {
			t.Errorf("it is not there: %v", err)
		}
	}
	undo()
	if after := w.String(); after != before {
		t.Errorf("mounts were\n%sand are\n%s", before, after)
	}
	below := strings.HasPrefix(v.Path, m.podDir(p.UID)+"/")
	if _, err := os.Lstat(content); v.Path != "" && os.IsNotExist(err) != below {
		t.Errorf("content of a volume that is mounted below the pod's directory (%v): %v", below, err)
	}
	if err := os.RemoveAll(m.podDir(p.UID)); err != nil {
		t.Error(err)
	}
}

// TestNoDriver: a volume that no driver supports is refused before anything is
// made or recorded; one whose driver is gone stays as it is.
func TestNoDriver(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Name: "p", Namespace: "ns"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{}}}}
	want := `MountVolume.SetUp failed for volume "v" : such volumes are not supported by this node yet`
	if got := errText(m.Ensure(t.Context(), p)); got != want {
		t.Errorf("got %s", got)
	}
	if got := w.records(); got != "" {
		t.Errorf("recorded:\n%s", got)
	}
	for want, source := range map[string]corev1.VolumeSource{
		"gitRepo volumes are not supported: use an init container that clones the repository": {
			GitRepo: &corev1.GitRepoVolumeSource{}},
		"flexVolume drivers are not supported: use a CSI driver": {FlexVolume: &corev1.FlexVolumeSource{}},
		"fc needs targetWWNs with a lun, or wwids":               {FC: &corev1.FCVolumeSource{}},
	} {
		p.Spec.Volumes[0].VolumeSource = source
		if got := errText(m.Ensure(t.Context(), p)); got != `MountVolume.SetUp failed for volume "v" : `+want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	gone := &Volume{Pod: Owner{UID: "u"}, Source: Source{Volume: corev1.Volume{Name: "v"}},
		Driver: "later", Path: t.TempDir()}
	if err := w.store().Put(gone.key(), gone); err != nil {
		t.Fatal(err)
	}
	m = w.manager()
	if err := m.Restore(nil); err != nil {
		t.Fatal(err)
	}
	want = `volume "v" was made by driver "later", which this agent does not have`
	if got := errText(m.Release(t.Context(), p)); got != want {
		t.Errorf("got %s", got)
	}
	if got, want := w.records(), fmt.Sprintf("u/v later %s\n", gone.Path); got != want {
		t.Errorf("records:\n%s, want\n%s", got, want)
	}
}

// TestNotReady: nobody is told a path before there is something.
func TestNotReady(t *testing.T) {
	m := &Manager{RootDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	p := &corev1.Pod{}
	p.Spec.Volumes = []corev1.Volume{{Name: "v"}}
	for name, want := range map[string]string{"v": `volume "v" is not ready`, "w": `volume "w" is not in the pod`} {
		if _, err := m.Path(p, name); errText(err) != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestEmptyDirAppearsWhole: a directory, or what is mounted on it, has the
// pod's mode and group from the first moment on, whatever a crash left; later
// they are the pod's.
func TestEmptyDirAppearsWhole(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a tmpfs needs root")
	}
	m := &Manager{RootDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	t.Cleanup(func() {
		if err := UnmountUnder(m.RootDir); err != nil {
			t.Error(err)
		}
	})
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: ptr.To(int64(4711))}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("1Mi"))}}},
	}
	for _, left := range []string{".new-disk/deep", "memory"} {
		if err := os.MkdirAll(filepath.Join(m.podDir("u"), "volumes/kubernetes.io~empty-dir", left), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, mode := range []os.FileMode{os.ModeDir | os.ModeSetgid | 0o777, os.ModeDir | 0o700} {
		if err := m.Ensure(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		for _, v := range p.Spec.Volumes {
			path, err := m.Path(p, v.Name)
			if err != nil {
				t.Fatal(err)
			}
			st, err := os.Stat(path)
			want := mode
			if v.Name == "memory" && mode.Perm() == 0o777 {
				want |= os.ModeSticky // as a tmpfs is by itself
			}
			if err != nil || st.Mode() != want || st.Sys().(*syscall.Stat_t).Gid != 4711 {
				t.Errorf("%s: %v %v, want %v", v.Name, st, err, want)
			}
			if err := os.Chmod(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(m.podDir("u"), "*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// sizes is a mounter that writes down how large memory is.
type sizes struct {
	hollowMounter
	last int64
}

func (s *sizes) Tmpfs(_ string, o tmpfsOptions) error {
	s.last = o.size
	return nil
}

// TestEmptyDirInMemoryHasASize: no larger than its limit, nor than its pod, or all pods of the
// node, may take of memory.
func TestEmptyDirInMemoryHasASize(t *testing.T) {
	limited := func(memory string) corev1.ResourceRequirements {
		r := corev1.ResourceRequirements{}
		if memory != "" {
			r.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
		}
		return r
	}
	for _, c := range []struct {
		pod, init, a, b, limit string
		node, want             int64
	}{
		{want: 0},
		{limit: "8Mi", want: 8},
		{limit: "0", want: 0},
		{a: "64Mi", b: "32Mi", want: 96},
		{a: "64Mi", b: "32Mi", limit: "200Mi", want: 96},
		{a: "64Mi", b: "32Mi", limit: "8Mi", want: 8},
		{a: "64Mi", limit: "200Mi", want: 200}, // b has no limit, nor has the pod
		{a: "64Mi", b: "32Mi", init: "128Mi", want: 128},
		{pod: "50Mi", a: "10Mi", want: 50},
		{node: 100, want: 100},
		{node: 100, limit: "0", want: 100},
		{node: 100, limit: "8Mi", want: 8},
		{node: 100, limit: "200Mi", want: 100},
		{node: 100, a: "64Mi", want: 100}, // as b has no limit
		{node: 100, a: "64Mi", b: "32Mi", want: 96},
		{node: 50, a: "64Mi", b: "32Mi", limit: "60Mi", want: 50},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
		p.Spec.Containers = []corev1.Container{{Name: "a", Resources: limited(c.a)}, {Name: "b", Resources: limited(c.b)}}
		if c.init != "" {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: limited(c.init)}}
		}
		if c.pod != "" {
			p.Spec.Resources = ptr.To(limited(c.pod))
		}
		src := &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}
		if c.limit != "" {
			src.SizeLimit = ptr.To(resource.MustParse(c.limit))
		}
		mounts := &sizes{}
		v := &Volume{Path: filepath.Join(t.TempDir(), "v")}
		v.Volume.EmptyDir = src
		d := emptyDirDriver{mounts: mounts, memory: c.node << 20}
		if _, err := d.Mount(t.Context(), p, v); err != nil || mounts.last != c.want<<20 {
			t.Errorf("%+v: %d MiB, %v", c, mounts.last>>20, err)
		}
	}
}

// TestSubPathsThatLeadOut are told in upstream's words, also where they would lead back in.
func TestSubPathsThatLeadOut(t *testing.T) {
	for sub, want := range map[string]string{
		"/abs":   "error SubPath `/abs` must not be an absolute path",
		"..":     "unable to provision SubPath `..`: must not contain '..'",
		"a/../b": "unable to provision SubPath `a/../b`: must not contain '..'",
	} {
		if err := bindSubPath(t.TempDir(), sub, filepath.Join(t.TempDir(), "target")); errText(err) != want {
			t.Errorf("%s: %v", sub, err)
		}
	}
}
