package endpointslicemirroring

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlan(t *testing.T) {
	e := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "ns", Labels: map[string]string{"a": "b"},
			Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "x"}},
		Subsets: []corev1.EndpointSubset{{
			Ports:             []corev1.EndpointPort{{Name: "sql", Port: 5432, Protocol: "TCP"}},
			Addresses:         []corev1.EndpointAddress{{IP: "192.0.2.1"}, {IP: "2001:db8::1"}, {IP: "nonsense"}},
			NotReadyAddresses: []corev1.EndpointAddress{{IP: "192.0.2.2"}},
		}},
	}
	m, err := plan(e)
	if err != nil || len(m.slices) != 2 || m.invalid != 1 {
		t.Fatalf("mirror %+v, %v", m, err)
	}
	for _, s := range m.slices {
		if s.Labels[discoveryv1.LabelServiceName] != "db" || s.Labels[discoveryv1.LabelManagedBy] != managedBy ||
			s.Labels["a"] != "b" || len(s.Annotations) != 0 || *s.Ports[0].Port != 5432 {
			t.Errorf("slice %+v", s)
		}
		if s.AddressType == discoveryv1.AddressTypeIPv4 && (len(s.Endpoints) != 2 || *s.Endpoints[1].Conditions.Ready) {
			t.Errorf("IPv4 %+v", s.Endpoints)
		}
	}
	again, _ := plan(e)
	if again.slices[0].Name != m.slices[0].Name || m.slices[0].Name == m.slices[1].Name {
		t.Error("names are not stable or not distinct")
	}
}

func TestMirrored(t *testing.T) {
	byHand, selecting := &corev1.Service{}, &corev1.Service{Spec: corev1.ServiceSpec{Selector: map[string]string{"a": "b"}}}
	skip := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"}}}
	lock := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{leaderAnnotation: "{}"}}}
	if !mirrored(&corev1.Endpoints{}, byHand) || mirrored(&corev1.Endpoints{}, selecting) || mirrored(skip, byHand) ||
		mirrored(lock, byHand) || mirrored(nil, byHand) || mirrored(lock, nil) {
		t.Error("wrong Endpoints are mirrored")
	}
}

// TestPlanJoinsSubsets: subsets with the same ports are one slice, whose limits hold for all of
// them; an address that is there twice is once in it, not ready if one says so.
func TestPlanJoinsSubsets(t *testing.T) {
	ports := []corev1.EndpointPort{{Port: 80, Protocol: "TCP"}}
	e := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "ns"}, Subsets: []corev1.EndpointSubset{
		{Ports: ports, Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}, {IP: "192.0.2.2"}, {IP: "192.0.2.2"}}},
		{Ports: ports, Addresses: []corev1.EndpointAddress{{IP: "::ffff:192.0.2.3"}, {IP: "192.000.002.004"}},
			NotReadyAddresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}}},
	}}
	m, err := plan(e)
	if err != nil || len(m.slices) != 1 || m.invalid+m.skipped != 0 {
		t.Fatalf("mirror %+v, %v", m, err)
	}
	var got []string
	for _, p := range m.slices[0].Endpoints {
		got = append(got, fmt.Sprint(p.Addresses[0], " ", *p.Conditions.Ready))
	}
	if want := "192.0.2.1 false, 192.0.2.2 true, 192.0.2.3 true, 192.0.2.4 true"; strings.Join(got, ", ") != want {
		t.Errorf("got %s", strings.Join(got, ", "))
	}
	for i := range e.Subsets {
		e.Subsets[i] = corev1.EndpointSubset{Ports: ports}
		for k := range 600 {
			e.Subsets[i].Addresses = append(e.Subsets[i].Addresses,
				corev1.EndpointAddress{IP: fmt.Sprintf("10.%d.%d.%d", i, k/200, k%200)})
		}
	}
	if m, err = plan(e); err != nil || len(m.slices) != 1 || len(m.slices[0].Endpoints) != perSubset || m.skipped != 200 {
		t.Errorf("of 1200 addresses %d are skipped, %v", m.skipped, err)
	}
}
