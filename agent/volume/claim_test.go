package volume

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// oneVolume is behind every claim.
type oneVolume struct{ pv *v1.PersistentVolume }

func (o oneVolume) Volume(context.Context, *v1.Pod, *v1.Volume) (*v1.PersistentVolume, error) {
	return o.pv, nil
}
func (o oneVolume) KnownVolume(*v1.Pod, *v1.Volume) *v1.PersistentVolume { return o.pv }

// TestClaimed covers VOL-56, VOL-66, PV-11, PV-87.
func TestClaimed(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	block := v1.PersistentVolumeBlock
	for _, c := range []struct {
		name string
		spec v1.PersistentVolumeSpec
		want string // error
	}{
		{"local", v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: dir}}}, ""},
		{"host", v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: dir}}}, ""},
		{"missing", v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/not/there"}}},
			`MountVolume.SetUp failed for volume "v" : failed to stat local volume "/not/there": stat /not/there: no such file or directory`},
		{"another kind", v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{}}},
			`MountVolume.SetUp failed for volume "v" : persistent volume pv: only hostPath and local volumes are supported by this node yet`},
		{"device", v1.PersistentVolumeSpec{VolumeMode: &block}, `MountVolume.SetUp failed for volume "v" : volumes with volumeMode Block are not supported by this node yet`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &Manager{RootDir: t.TempDir(), Claims: oneVolume{&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: c.spec}}, Log: slog.New(slog.DiscardHandler)}
			p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Spec: v1.PodSpec{
				SecurityContext: &v1.PodSecurityContext{FSGroup: ptr.To(int64(os.Getgid()))},
				Volumes:         []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}},
			}}
			err := m.Ensure(t.Context(), p)
			if got := errText(err); got != c.want {
				t.Fatalf("got %s", got)
			}
			if err != nil {
				return
			}
			if path, err := m.Path(p, "v"); err != nil || path != dir {
				t.Errorf("got %q, %v", path, err)
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
	if f, err := os.Stat(filepath.Join(dir, "f")); err != nil || st.Mode()&fs.ModeSetgid == 0 || f.Mode().Perm() != 0o660 {
		t.Errorf("the group has no right: %v, %v, %v", st.Mode(), f.Mode(), err)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
