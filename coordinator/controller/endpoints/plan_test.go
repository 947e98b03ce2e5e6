package endpoints

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func pod(n int, ready corev1.ConditionStatus) *corev1.Pod {
	ip := fmt.Sprintf("10.1.0.%d", n)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", n), UID: types.UID(ip)},
		Spec: corev1.PodSpec{NodeName: "n",
			Containers: []corev1.Container{
				{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: "TCP"}}}}},
		Status: corev1.PodStatus{
			PodIP: ip, PodIPs: []corev1.PodIP{{IP: "fd00::1"}, {IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
		},
	}
}

func TestSubsets(t *testing.T) {
	s := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
		{Name: "a", Port: 80, Protocol: "TCP", TargetPort: intstr.FromString("http")},
		{Name: "b", Port: 81, Protocol: "TCP", TargetPort: intstr.FromInt32(9090)},
	}}}
	pods := []*corev1.Pod{pod(2, "True"), pod(1, "True"), pod(3, "False")}
	got := subsets(s, pods)
	if len(got) != 1 || len(got[0].Ports) != 2 || len(got[0].Addresses) != 2 || got[0].Addresses[0].IP != "10.1.0.1" ||
		len(got[0].NotReadyAddresses) != 1 || got[0].Ports[0].Port != 8080 {
		t.Errorf("subsets %+v", got)
	}
	s.Spec.PublishNotReadyAddresses = true
	if got := subsets(s, pods); len(got[0].Addresses) != 3 {
		t.Errorf("publishNotReadyAddresses: %+v", got)
	}
	headless := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}}
	if got := subsets(headless, pods); len(got) != 1 || len(got[0].Ports) != 0 {
		t.Errorf("headless without ports: %+v", got)
	}
	if _, is := labelsOf(headless)[corev1.IsHeadlessService]; !is {
		t.Error("headless label is missing")
	}
}

func TestTruncate(t *testing.T) {
	list := []corev1.EndpointSubset{
		{Addresses: make([]corev1.EndpointAddress, 900), NotReadyAddresses: make([]corev1.EndpointAddress, 200)}}
	if !truncate(list) || len(list[0].Addresses) != 900 || len(list[0].NotReadyAddresses) != 100 {
		t.Errorf("%d and %d left", len(list[0].Addresses), len(list[0].NotReadyAddresses))
	}
}
