package volume

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/selinux"
)

// ofOptions is a policy whose default user, role and type are u, r and t.
func ofOptions(o selinux.Options) (selinux.Labels, error) {
	if o.Type == "unknown" {
		return selinux.Labels{}, fmt.Errorf("the policy does not know %s", o.Type)
	}
	return selinux.Labels{Process: "u:r:t:" + o.Level, File: "u:object_r:f:" + o.Level}, nil
}

// labelledPod has containers that mount the claim and ask for levels; "" asks for none.
func labelledPod(policy corev1.PodSELinuxChangePolicy, levels ...string) *corev1.Pod {
	p := csiPod("first", claimed("data"))
	p.Spec.SecurityContext = &corev1.PodSecurityContext{}
	if policy != "" {
		p.Spec.SecurityContext.SELinuxChangePolicy = &policy
	}
	for i, level := range levels {
		c := corev1.Container{Name: fmt.Sprint("c", i), VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/d"}}}
		if level != "" {
			c.SecurityContext = &corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: level}}
			if level == "unknown" {
				c.SecurityContext.SELinuxOptions.Type = level
			}
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

// TestMountedWithLabel: a volume that one pod alone can have is mounted with the label
// that its containers agree on, if the driver can do that; else its files are relabelled.
func TestMountedWithLabel(t *testing.T) {
	const context = `context="u:object_r:f:s0:c1,c2"`
	for name, c := range map[string]struct {
		mode     corev1.PersistentVolumeAccessMode
		cannot   bool // the driver
		off      bool // SELinux
		pod      *corev1.Pod
		flag     string
		relabels bool
		fails    string
	}{
		"one container": {pod: labelledPod("", "s0:c1,c2"), flag: context},
		"two that agree, by the default policy": {
			pod: labelledPod(corev1.SELinuxChangePolicyMountOption, "s0:c1,c2", "s0:c1,c2"), flag: context},
		"two that do not": {pod: labelledPod("", "s0:c1,c2", "s0:c3"), fails: "containers of the pod ask for several"},
		"file by file, wished": {
			pod: labelledPod(corev1.SELinuxChangePolicyRecursive, "s0:c1,c2", "s0:c3"), relabels: true},
		"one that asks for no label": {pod: labelledPod("", "s0:c1,c2", ""), relabels: true},
		"other pods may have it":     {mode: corev1.ReadWriteOnce, pod: labelledPod("", "s0:c1,c2"), relabels: true},
		"a driver that cannot":       {cannot: true, pod: labelledPod("", "s0:c1,c2"), relabels: true},
		"no SELinux":                 {off: true, pod: labelledPod("", "s0:c1,c2")},
		"unknown to the policy":      {pod: labelledPod("", "unknown"), fails: "the policy does not know"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newCSIWorld(t, stages)
			w.object(func(s *storagev1.CSIDriverSpec) {
				s.AttachRequired, s.SELinuxMount = ptr.To(false), ptr.To(!c.cannot)
			})
			if c.mode == "" {
				c.mode = corev1.ReadWriteOncePod
			}
			pv := csiVolume("pv-1", c.mode)
			pv.Spec.MountOptions = []string{"noatime"}
			w.claims["data"] = pv
			m := w.agent()
			if !c.off {
				m.Labels = ofOptions
			}
			err := m.Ensure(t.Context(), c.pod)
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("error %v", err)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			want := []string{"noatime"}
			if c.flag != "" {
				want = append(want, c.flag)
			}
			for _, call := range []string{"NodeStageVolume", "NodePublishVolume"} {
				request, ok := w.driver.Last(call).(interface {
					GetVolumeCapability() *csipb.VolumeCapability
				})
				if ok == (c.fails != "") {
					t.Fatalf("%s was called: %t", call, ok)
				}
				if !ok {
					continue
				}
				if got := request.GetVolumeCapability().GetMount().GetMountFlags(); !slices.Equal(got, want) {
					t.Errorf("%s with %q, not %q", call, got, want)
				}
			}
			if got := m.Relabel(c.pod, "data"); got != c.relabels && c.fails == "" {
				t.Errorf("relabel %t", got)
			}
			// The next agent does not relabel what is mounted so.
			next := w.agent()
			next.Labels = m.Labels
			if err := next.Restore([]*corev1.Pod{c.pod}); err != nil {
				t.Fatal(err)
			}
			if got := next.Relabel(c.pod, "data"); got != c.relabels && c.fails == "" {
				t.Errorf("relabel %t after a restart", got)
			}
			if err := next.Release(t.Context(), c.pod); err != nil {
				t.Fatal(err)
			}
			w.nothing()
		})
	}
}
