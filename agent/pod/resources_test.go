package pod

import (
	"context"
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestHugepages(t *testing.T) {
	p := testPod(v1.RestartPolicyAlways, "a")
	p.Spec.Containers[0].Resources.Limits = v1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")}
	got := map[string]uint64{}
	for _, l := range hugepages(p, &p.Spec.Containers[0], []string{"1Gi", "2Mi"}) {
		got[l.PageSize] = l.Limit
	}
	if want := map[string]uint64{"1GB": 0, "2MB": 4 << 20}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestMountsOuterFirst(t *testing.T) {
	h := &Host{RootDir: t.TempDir()}
	p := testPod(v1.RestartPolicyAlways, "a")
	c := &p.Spec.Containers[0]
	for _, path := range []string{"/data/in/deep", "/data", "/data/in/", "/b"} {
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "v", MountPath: path})
	}
	c.TerminationMessagePath = "/data/log"
	f := &Facts{Host: h, Pod: p, Container: c, Sources: Sources{Volume: func(string) (string, error) { return "", nil }}}
	mounts, _, err := f.mounts(nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range mounts {
		got = append(got, m.ContainerPath)
	}
	if want := []string{"/data", "/b", "/data/in/", "/etc/hosts", "/data/log", "/data/in/deep"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Upstream never ran tcpSocket hooks: they fail.
func TestTCPHookFails(t *testing.T) {
	h := &v1.LifecycleHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(80)}}
	if err := (&Manager{}).hook(context.Background(), nil, nil, "", h); err == nil {
		t.Error("a tcpSocket hook passed")
	}
}
