package volume

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// oneVolume is behind every claim.
type oneVolume struct{ pv *corev1.PersistentVolume }

func (o oneVolume) Volume(context.Context, *corev1.Pod, *corev1.Volume) (*corev1.PersistentVolume, error) {
	return o.pv, nil
}
func (o oneVolume) KnownVolume(*corev1.Pod, *corev1.Volume) *corev1.PersistentVolume { return o.pv }

// TestClaimed covers VOL-56, VOL-66, PV-11, PV-87.
func TestClaimed(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	block := corev1.PersistentVolumeBlock
	for _, c := range []struct {
		name string
		spec corev1.PersistentVolumeSpec
		want string // error
	}{
		{"local",
			corev1.PersistentVolumeSpec{
				PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: dir}}}, ""},
		{"host",
			corev1.PersistentVolumeSpec{
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					HostPath: &corev1.HostPathVolumeSource{Path: dir}}}, ""},
		{"missing",
			corev1.PersistentVolumeSpec{
				PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/not/there"}}},
			`MountVolume.SetUp failed for volume "v" : failed to stat local volume "/not/there": stat /not/there: no such file or directory`},
		{"another kind",
			corev1.PersistentVolumeSpec{
				PersistentVolumeSource: corev1.PersistentVolumeSource{RBD: &corev1.RBDPersistentVolumeSource{}}},
			`MountVolume.SetUp failed for volume "v" : persistent volume pv: only hostPath, local, nfs, iscsi, fc and csi volumes are supported by this node yet`},
		{"device", corev1.PersistentVolumeSpec{VolumeMode: &block}, `MountVolume.SetUp failed for volume "v" : persistent volume pv: only local, iscsi, fc and csi volumes can have volumeMode Block`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &Manager{RootDir: t.TempDir(), mounts: newWorld(t),
				Claims: oneVolume{&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: c.spec}},
				Log:    slog.New(slog.DiscardHandler)}
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Spec: corev1.PodSpec{
				SecurityContext: &corev1.PodSecurityContext{FSGroup: ptr.To(int64(os.Getgid()))},
				Volumes: []corev1.Volume{
					{Name: "v",
						VolumeSource: corev1.VolumeSource{
							PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}},
			}}
			err := m.Ensure(t.Context(), p)
			if got := errText(err); got != c.want {
				t.Fatalf("got %s", got)
			}
			if err != nil {
				return
			}
			path, err := m.Path(p, "v")
			if err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(path, "f")); err != nil {
				t.Errorf("the pod does not see it: %v", err)
			}
			if err := m.Release(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(dir, "f")); err != nil {
				t.Errorf("the volume's content is gone: %v", err)
			}
		})
	}
	st, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if f, err := os.Stat(filepath.Join(dir, "f")); err != nil || st.Mode()&fs.ModeSetgid == 0 ||
		f.Mode().Perm() != 0o660 {
		t.Errorf("the group has no right: %v, %v, %v", st.Mode(), f.Mode(), err)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestGroupOfVolume: a PersistentVolume's annotation names the group that its files belong to, also
// for the next agent.
func TestGroupOfVolume(t *testing.T) {
	for value, want := range map[string]int64{"1234": 1234, "": -1, "staff": -1} {
		pv := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv", Annotations: map[string]string{annotationGroup: value}},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: t.TempDir()}}}}
		m := &Manager{RootDir: t.TempDir(), mounts: newWorld(t), Claims: oneVolume{pv},
			Log: slog.New(slog.DiscardHandler)}
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}}
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		if err := m.Ensure(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		next := &Manager{RootDir: m.RootDir, mounts: m.mounts, Claims: m.Claims, Log: m.Log}
		if err := next.Restore([]*corev1.Pod{p}); err != nil {
			t.Fatal(err)
		}
		for _, m := range []*Manager{m, next} {
			if got, ok := m.Group(p, "v"); ok != (want >= 0) || ok && got != want {
				t.Errorf("%q: %d, %v", value, got, ok)
			}
		}
		if got, ok := next.Group(p, "other"); ok {
			t.Errorf("a volume that is not there: %d", got)
		}
		if err := next.Release(t.Context(), p); err != nil {
			t.Error(err)
		}
	}
}

// TestMountOptionsOfHostPath: nothing is mounted of which they could be the options.
func TestMountOptionsOfHostPath(t *testing.T) {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.HostPath = &corev1.HostPathVolumeSource{Path: t.TempDir()}
	m := &Manager{RootDir: t.TempDir(), mounts: newWorld(t), Claims: oneVolume{pv}, Log: slog.New(slog.DiscardHandler)}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	p.Spec.Containers = []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}}
	pv.Spec.MountOptions = []string{"ro"}
	if err := m.Ensure(t.Context(), p); err == nil || !strings.Contains(err.Error(), "mount options are not supported") {
		t.Errorf("with options: %v", err)
	}
	pv.Spec.MountOptions = nil
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Errorf("without: %v", err)
	}
	pv.Spec.MountOptions = []string{"ro"} // of a pod that has it already
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Errorf("what a pod has: %v", err)
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Error(err)
	}
}

// TestAnothersVolume: a pod that names its node itself does not get what lies there at the
// path of another node's volume; what it has it keeps.
func TestAnothersVolume(t *testing.T) {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.Local = &corev1.LocalVolumeSource{Path: t.TempDir()}
	here := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}}
	pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{
		Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{here}}}
	m := &Manager{RootDir: t.TempDir(), mounts: newWorld(t), Claims: oneVolume{pv}, Log: slog.New(slog.DiscardHandler)}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	const refused = `MountVolume.NodeAffinity check failed for volume "v" : no matching NodeSelectorTerms`
	for _, step := range []struct{ node, want string }{{"b", refused}, {"a", ""}, {"b", ""}} {
		m.HeedNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{corev1.LabelHostname: step.node}}})
		if got := errText(m.Ensure(t.Context(), p)); got != step.want {
			t.Errorf("on %s: %s", step.node, got)
		}
	}
	if err := m.Release(t.Context(), p); err != nil {
		t.Error(err)
	}
}
