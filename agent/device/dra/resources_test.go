package dra

import (
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// The pod resources API tells of the claims of a container, each device with its own CDI
// names; of claims that it does not ask for, and that are not prepared, nothing.
func TestResources(t *testing.T) {
	w := newWorld(t, claim("c", []string{"d.io"}, "p"), claim("other", []string{"d.io"}, "p"))
	w.driver("d.io")
	p := pod("p", []string{"c", "other"}, "c/one", "c/two")
	if got := w.m.Resources(p, &p.Spec.Containers[0]); len(got) > 0 {
		t.Errorf("before it is prepared: %v", got)
	}
	w.ensure(p, "")
	want := &podresourcesv1.DynamicResource{}
	if err := prototext.Unmarshal([]byte(`claim_name: "c" claim_namespace: "ns"
claim_resources: {cdi_devices: {name: "d.io/x=c-a"} driver_name: "d.io" pool_name: "n1" device_name: "a"}
claim_resources: {cdi_devices: {name: "d.io/x=c-b"} driver_name: "d.io" pool_name: "n1" device_name: "b"}`),
		want); err != nil {
		t.Fatal(err)
	}
	got := w.m.Resources(p, &p.Spec.Containers[0])
	if len(got) != 1 || !proto.Equal(got[0], want) {
		t.Errorf("%v, want %v", got, want)
	}
	p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "other",
		RequestMappings: []corev1.ContainerExtendedResourceRequest{{ResourceName: "d.io/gpu", RequestName: "one"}}}
	if got := w.m.Resources(p, &p.Spec.Containers[0]); len(got) != 2 || got[1].GetClaimName() != "other" {
		t.Errorf("%v", got)
	}
}
