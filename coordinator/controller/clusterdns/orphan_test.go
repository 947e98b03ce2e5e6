package clusterdns

import (
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// A claim of the address is freed when its Service is this one and it is no
// younger than a request may be.
func TestOrphanIsFreed(t *testing.T) {
	const address = "10.96.0.10"
	for _, tt := range []struct {
		name   string
		parent string
		age    time.Duration
		freed  bool
	}{
		{"orphan", name, time.Minute, true},
		{"being_made", name, time.Second, false},
		{"of_another_Service", "other", time.Minute, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client := fake.NewClientset(&networkingv1.IPAddress{
				ObjectMeta: metav1.ObjectMeta{Name: address,
					UID: "u", CreationTimestamp: metav1.NewTime(time.Now().Add(-tt.age))},
				Spec: networkingv1.IPAddressSpec{
					ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: metav1.NamespaceSystem,
						Name: tt.parent}},
			})
			r := &reconciler{client: client, addresses: []string{address}}
			if err := r.freeAddresses(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, err := client.NetworkingV1().IPAddresses().Get(t.Context(), address, metav1.GetOptions{})
			if freed := err != nil; freed != tt.freed {
				t.Errorf("freed %v, want %v (%v)", freed, tt.freed, err)
			}
		})
	}
}
