package launch

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SEC: seccompDefault (KEP-2413). What the container says counts, then the
// pod, then the node.
func TestSeccompDefault(t *testing.T) {
	name := "p.json"
	unconfined := &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
	local := &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &name}
	for what, c := range map[string]struct {
		container, pod *corev1.SeccompProfile
		off            bool
		want           criv1.SecurityProfile_ProfileType
	}{
		"nothing said":              {want: criv1.SecurityProfile_RuntimeDefault},
		"nothing said, and off":     {off: true, want: criv1.SecurityProfile_Unconfined},
		"the pod is unconfined":     {pod: unconfined, want: criv1.SecurityProfile_Unconfined},
		"the container is":          {container: unconfined, want: criv1.SecurityProfile_Unconfined},
		"the container is, not all": {container: unconfined, pod: local, want: criv1.SecurityProfile_Unconfined},
		"a file":                    {pod: local, want: criv1.SecurityProfile_Localhost},
	} {
		f := &Facts{Host: &Host{SeccompDefault: !c.off, RootDir: "/root"},
			Container: &corev1.Container{}, Pod: &corev1.Pod{}}
		f.Container.SecurityContext = &corev1.SecurityContext{SeccompProfile: c.container}
		f.Pod.Spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: c.pod}
		draft := newContainer(f)
		if err := containerSecurity(draft); err != nil {
			t.Fatal(err)
		}
		got := draft.config.Linux.SecurityContext.Seccomp
		if got.ProfileType != c.want {
			t.Errorf("%s: %v", what, got)
		}
		if c.want == criv1.SecurityProfile_Localhost && got.LocalhostRef != "/root/seccomp/p.json" {
			t.Errorf("%s: %v", what, got)
		}
	}
}
