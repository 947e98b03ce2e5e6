package admission

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

func placedNode(name string, labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi")}}}
}

// A resize that the node could never make is refused; one that has to wait is not.
func TestPodResizeValidator(t *testing.T) {
	p, _ := connect(t, newPodResize(), placedNode("n", nil),
		placedNode("w", map[string]string{corev1.LabelOSStable: "windows"}))
	pod := func(node string, generation int64, cpu, memory string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: generation},
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}}}}}}
	}
	for what, tt := range map[string]struct {
		resource string
		now      *corev1.Pod
		message  string
		cause    metav1.CauseType
	}{
		"fits":           {"pods/resize", pod("n", 2, "2", "1Gi"), "", ""},
		"not on a node":  {"pods/resize", pod("", 2, "9", "1Gi"), "", ""},
		"nothing new":    {"pods/resize", pod("n", 1, "9", "1Gi"), "", ""},
		"no resize":      {"pods", pod("n", 2, "9", "1Gi"), "", ""},
		"unknown node":   {"pods/resize", pod("gone", 2, "1", "1Gi"), `node "gone" not found`, ""},
		"other platform": {"pods/resize", pod("w", 2, "1", "1Gi"), `node "w" is "windows"`, "UnsupportedPlatform"},
		"too much": {"pods/resize", pod("n", 2, "2500m", "2Gi"), "node didn't have enough allocatable resources: " +
			"cpu, requested: 2500, allocatable: 2000; memory, requested: 2147483648, allocatable: 1073741824",
			"NodeCapacity"},
	} {
		err := admit(p, request{resource: tt.resource, namespace: "ns", name: "p", operation: admission.Update,
			obj: tt.now, old: pod(tt.now.Spec.NodeName, 1, "1", "1Gi")})
		if tt.message == "" {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			continue
		}
		status := new(apierrors.StatusError)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tt.message) || !errors.As(err, &status) {
			t.Errorf("%s: %v", what, err)
			continue
		}
		causes := status.ErrStatus.Details.Causes
		if (tt.cause != "") != (len(causes) == 1) || tt.cause != "" && causes[0].Type != tt.cause {
			t.Errorf("%s: causes %v", what, causes)
		}
	}
}

// A change that the node does not declare to be able to make is refused.
func TestNodeDeclaredFeatureValidator(t *testing.T) {
	newer := placedNode("newer", nil)
	newer.Status.DeclaredFeatures = []string{"InPlacePodLevelResourcesVerticalScaling", "Other"}
	p, _ := connect(t, newNodeFeatures(), placedNode("older", nil), newer)
	pod := func(node string, generation int64, cpu string) *corev1.Pod {
		asks := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: generation}, Spec: corev1.PodSpec{
			NodeName: node, InitContainers: []corev1.Container{{Name: "i"}},
			Resources: &corev1.ResourceRequirements{Requests: asks}}}
	}
	shorter := pod("older", 2, "2")
	shorter.Spec.InitContainers = nil
	for what, tt := range map[string]struct {
		resource string
		now      *corev1.Pod
		message  string
	}{
		"declared":         {"pods/resize", pod("newer", 2, "2"), ""},
		"nothing asked":    {"pods/resize", pod("older", 2, "1"), ""},
		"nothing new":      {"pods/resize", pod("older", 1, "2"), ""},
		"not on a node":    {"pods/resize", pod("", 2, "2"), ""},
		"another part":     {"pods/status", pod("older", 2, "2"), ""},
		"fewer containers": {"pods", shorter, ""},
		"unknown node":     {"pods/resize", pod("gone", 2, "2"), `node "gone" not found`},
		"not declared": {"pods/resize", pod("older", 2, "2"), "pod update requires features " +
			`InPlacePodLevelResourcesVerticalScaling which are not available on node "older"`},
	} {
		err := admit(p, request{resource: tt.resource, namespace: "ns", name: "p", operation: admission.Update,
			obj: tt.now, old: pod(tt.now.Spec.NodeName, 1, "1")})
		if tt.message == "" && err != nil ||
			tt.message != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tt.message)) {
			t.Errorf("%s: %v, want %q", what, err, tt.message)
		}
	}
}

// A pod has its node's zone and region as labels; others of the node's are not copied.
func TestPodTopologyLabels(t *testing.T) {
	p, _ := connect(t, newTopologyLabels(), placedNode("plain", nil), placedNode("n",
		map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r", "other": "x"}))
	bind := func(kind, node string) (request, *metav1.ObjectMeta) {
		b := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"a": "b"}},
			Target: corev1.ObjectReference{Kind: kind, Name: node}}
		return request{resource: "pods/binding", namespace: "ns", name: "p", obj: b}, &b.ObjectMeta
	}
	create := func(node string) (request, *metav1.ObjectMeta) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{
			"a": "b", corev1.LabelTopologyZone: "wrong"}}, Spec: corev1.PodSpec{NodeName: node}}
		return request{resource: "pods", namespace: "ns", name: "p", obj: pod}, &pod.ObjectMeta
	}
	check := func(what string, r request, meta *metav1.ObjectMeta, want string) {
		t.Helper()
		if err := admit(p, r); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := labelsText(meta.Labels); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	const both = "a=b,topology.kubernetes.io/region=r,topology.kubernetes.io/zone=z"
	r, meta := bind("Node", "n")
	check("binding", r, meta, both)
	r, meta = bind("Node", "plain")
	check("binding to a node without a zone", r, meta, "a=b")
	r, meta = bind("Node", "gone")
	check("binding to no node", r, meta, "a=b")
	r, meta = bind("Pod", "n")
	check("binding to something else", r, meta, "a=b")
	r, meta = create("n")
	check("pod on a node", r, meta, both)
	r, meta = create("")
	check("pod without a node", r, meta, "a=b,topology.kubernetes.io/zone=wrong")
}

func labelsText(labels map[string]string) string {
	return metav1.FormatLabelSelector(metav1.SetAsLabelSelector(labels))
}
