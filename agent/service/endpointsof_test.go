package service

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Which endpoints a pod is, is held for those of this node alone, whether they are ready or not.
func TestEndpointsOf(t *testing.T) {
	s := NewSource(Config{Node: "here"})
	sl := slice("web-1", "10.1.1.1@here ending", "10.1.1.2@there ready", "10.1.1.3@here ready")
	for i, name := range []string{"a", "a", "ab"} {
		sl.Endpoints[i].TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: name}
	}
	names := slice("names", "10.1.1.1@here ready")
	names.Labels[corev1.IsHeadlessService] = ""
	names.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: "a"}
	s.mu.Lock()
	s.putSlice(sl)
	s.putSlice(names)
	s.mu.Unlock()
	web := Key{"ns", "web"}
	for pod, want := range map[string]string{"a": "10.1.1.1:80", "ab": "10.1.1.3:80"} {
		got := s.EndpointsOf(Key{"ns", pod})
		if !slices.Equal(got, []EndpointOf{{web, netip.MustParseAddrPort(want)}}) {
			t.Errorf("pod %s is %v, want %s", pod, got, want)
		}
	}
	for _, pod := range []Key{{"ns", "b"}, {"other", "a"}} {
		if got := s.EndpointsOf(pod); got != nil {
			t.Errorf("pod %s is %v", pod, got)
		}
	}
}

func TestCarries(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}
	svc.Spec.ClusterIP = "10.96.0.1"
	svc.Spec.Ports = []corev1.ServicePort{{Name: "p", Port: 80, NodePort: 30080}}
	one := EndpointOf{Key{"ns", "web"}, netip.MustParseAddrPort("10.1.1.1:80")}
	for _, c := range []struct {
		name, first, second string
		local, want         bool
	}{
		{"ready", "10.1.1.1@n ready", "10.1.1.2@m ready", false, true},
		{"it ends, another is there", "10.1.1.1@n ending", "10.1.1.2@m ready", false, false},
		{"it ends, and no other is there", "10.1.1.1@n ending", "10.1.1.2@m notready", false, false},
		{"its node ends", "10.1.1.1@down ready", "10.1.1.2@m ready", false, false},
		{"its node ends, and the other's", "10.1.1.1@down ready", "10.1.1.2@down ready", false, false},
		{"not ready", "10.1.1.1@n notready", "10.1.1.2@m ready", false, false},
		{"for those from outside alone, on its node", "10.1.1.1@n ready hint=m/", "10.1.1.2@m ready hint=m/", true, true},
	} {
		svc := svc.DeepCopy()
		view := View{Node: "m", Down: map[string]bool{"down": true}}
		if c.local {
			svc.Spec.ExternalTrafficPolicy, view.Node = corev1.ServiceExternalTrafficPolicyLocal, "n"
		}
		sl := slice("web-1", c.first, c.second)
		tables := NewTables(BuildOne(svc, []*discoveryv1.EndpointSlice{sl}, view))
		if got := tables.Carries(one); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if NewTables().Carries(one) {
		t.Error("a Service that is not there leads somewhere")
	}
}
