package volume

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// TestOwnersOfProjectedFiles: the token is the pod's user's, where all containers have the
// same; what else is in its volume stays root's.
func TestOwnersOfProjectedFiles(t *testing.T) {
	d := projectedDriver{tokens: tokens{},
		objects: objects{secrets: map[string]*corev1.Secret{"s": {Data: map[string][]byte{"k": nil}}}}}
	v := &corev1.Volume{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To(int32(0o400)),
		Sources: []corev1.VolumeProjection{
			{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}},
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
		}}}}
	p := &corev1.Pod{}
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To(int64(1000))}
	p.Spec.Containers = []corev1.Container{{Name: "c"}}
	for _, step := range []struct {
		change func()
		want   string
	}{
		{func() {}, "k: 0 -r--------, token: 1000 -rw-------, group -1"},
		{func() { p.Spec.SecurityContext.FSGroup = ptr.To(int64(5)) },
			"k: 0 -r--r-----, token: 1000 -rw-r-----, group 5"},
		{func() {
			debugger := corev1.EphemeralContainer{}
			debugger.SecurityContext = &corev1.SecurityContext{RunAsUser: ptr.To(int64(7))}
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{debugger}
		}, "k: 0 -r--r-----, token: 0 -rw-r-----, group 5"},
		{func() { p.Spec.SecurityContext.FSGroup = nil }, "k: 0 -r--------, token: 0 -r--------, group -1"},
	} {
		step.change()
		b, err := d.gather(t.Context(), p, v)
		if err != nil {
			t.Fatal(err)
		}
		k, token := b.files["k"], b.files["token"]
		got := fmt.Sprintf("k: %d %s, token: %d %s, group %d", k.user, k.mode, token.user, token.mode, b.gid)
		if got != step.want {
			t.Errorf("got %s, want %s", got, step.want)
		}
	}
}

// TestMissingKeys: events say which key is missing as upstream's do.
func TestMissingKeys(t *testing.T) {
	d := projectedDriver{objects: objects{
		configMaps: map[string]*corev1.ConfigMap{"o": {}}, secrets: map[string]*corev1.Secret{"o": {}}}}
	items := []corev1.KeyToPath{{Key: "k", Path: "p"}}
	for want, v := range map[string]corev1.VolumeSource{
		"configmap references non-existent config key: k": {ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "o"}, Items: items}},
		"references non-existent secret key: k": {Secret: &corev1.SecretVolumeSource{SecretName: "o", Items: items}},
	} {
		if _, err := d.gather(t.Context(), &corev1.Pod{}, &corev1.Volume{VolumeSource: v}); errText(err) != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
