package launch

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SEC: seccompDefault (KEP-2413). What the container says counts, then the
// pod, then the node.
func TestSeccompDefault(t *testing.T) {
	name := "p.json"
	unconfined := &v1.SeccompProfile{Type: v1.SeccompProfileTypeUnconfined}
	local := &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost, LocalhostProfile: &name}
	for what, c := range map[string]struct {
		container, pod *v1.SeccompProfile
		off            bool
		want           runtimeapi.SecurityProfile_ProfileType
	}{
		"nothing said":              {want: runtimeapi.SecurityProfile_RuntimeDefault},
		"nothing said, and off":     {off: true, want: runtimeapi.SecurityProfile_Unconfined},
		"the pod is unconfined":     {pod: unconfined, want: runtimeapi.SecurityProfile_Unconfined},
		"the container is":          {container: unconfined, want: runtimeapi.SecurityProfile_Unconfined},
		"the container is, not all": {container: unconfined, pod: local, want: runtimeapi.SecurityProfile_Unconfined},
		"a file":                    {pod: local, want: runtimeapi.SecurityProfile_Localhost},
	} {
		f := &Facts{Host: &Host{SeccompDefault: !c.off, RootDir: "/root"}, Container: &v1.Container{}, Pod: &v1.Pod{}}
		f.Container.SecurityContext = &v1.SecurityContext{SeccompProfile: c.container}
		f.Pod.Spec.SecurityContext = &v1.PodSecurityContext{SeccompProfile: c.pod}
		draft := newContainer(f)
		if err := containerSecurity(draft); err != nil {
			t.Fatal(err)
		}
		got := draft.config.Linux.SecurityContext.Seccomp
		if got.ProfileType != c.want {
			t.Errorf("%s: %v", what, got)
		}
		if c.want == runtimeapi.SecurityProfile_Localhost && got.LocalhostRef != "/root/seccomp/p.json" {
			t.Errorf("%s: %v", what, got)
		}
	}
}
