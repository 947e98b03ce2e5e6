package launch

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/selinux"
)

// TestSELinux: containers of a pod share a level, whether it asks for one or not, and the
// volumes are relabelled that have to be; on a node without SELinux nothing is.
func TestSELinux(t *testing.T) {
	type options = corev1.SELinuxOptions
	type want = criv1.SELinuxOption
	level := selinux.Level("uid")
	for name, c := range map[string]struct {
		off            bool
		pod, container *options
		want           *want
	}{
		"nothing said": {},
		"a level":      {pod: &options{Level: "s0:c1"}, want: &want{Level: "s0:c1"}},
		"no level":     {pod: &options{Type: "x_t"}, want: &want{Type: "x_t", Level: level}},
		"the container's": {
			pod: &options{Level: "s0"}, container: &options{Type: "y_t"}, want: &want{Type: "y_t", Level: level}},
		"a node without labels": {off: true, pod: &options{Type: "x_t"}, want: &want{Type: "x_t"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := &Facts{Host: &Host{SELinux: !c.off}, Container: &corev1.Container{}, Pod: &corev1.Pod{}}
			f.Pod.UID = "uid"
			f.Pod.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxOptions: c.pod}
			f.Container.SecurityContext = &corev1.SecurityContext{SELinuxOptions: c.container}
			f.Container.VolumeMounts = []corev1.VolumeMount{
				{Name: "own", MountPath: "/own"}, {Name: "host", MountPath: "/host"},
			}
			f.Volume = func(name string) (string, error) { return "/volumes/" + name, nil }
			f.Relabel = func(name string) bool { return name == "own" }
			draft := newContainer(f)
			if err := containerSecurity(draft); err != nil {
				t.Fatal(err)
			}
			if got := draft.config.Linux.SecurityContext.SelinuxOptions; got.String() != c.want.String() {
				t.Errorf("%v, not %v", got, c.want)
			}
			if err := volumes(draft); err != nil {
				t.Fatal(err)
			}
			for _, m := range draft.config.Mounts {
				if want := !c.off && m.HostPath == "/volumes/own"; m.SelinuxRelabel != want {
					t.Errorf("%s: relabel %t", m.HostPath, m.SelinuxRelabel)
				}
			}
		})
	}
}
