package certificate

import (
	"crypto/x509/pkix"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/coordinator/pki"
)

func aNode(name string, ips ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name + ".example.com"}}
	for _, ip := range ips {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return n
}

// TestServing: what a node asks for itself is approved; all else waits.
func TestServing(t *testing.T) {
	dir := pki.Dir(t.TempDir())
	if err := dir.Ensure(pki.Cluster{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	ca, err := dir.CA()
	if err != nil {
		t.Fatal(err)
	}
	serverUsages := []keyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	for _, c := range []struct {
		name, user, subject string
		sans                []string
		change              func(c *certRequest)
		approved            bool
	}{
		{name: "own", user: "n1", subject: "n1", sans: []string{"n1", "n1.example.com", "192.0.2.1"}, approved: true},
		{name: "own_address_as_ipv6", user: "n1", subject: "n1", sans: []string{"::ffff:192.0.2.1"}, approved: true},
		{name: "key_encipherment", user: "n1", subject: "n1", sans: []string{"n1"}, approved: true,
			change: func(c *certRequest) { c.Spec.Usages = append(c.Spec.Usages, certificatesv1.UsageKeyEncipherment) }},
		{name: "no_address_of_its_own", user: "n1", subject: "n1", sans: []string{"n1", "192.0.2.7"}},
		{name: "another_node", user: "n1", subject: "n2", sans: []string{"n2"}},
		{name: "another_nodes_address", user: "n3", subject: "n3", sans: []string{"192.0.2.2"}},
		{name: "its_address_alone", user: "n3", subject: "n3", sans: []string{"192.0.2.3"}, approved: true},
		{name: "the_api_servers_address", user: "n4", subject: "n4", sans: []string{"10.96.0.1"}},
		{name: "a_wildcard", user: "n5", subject: "n5", sans: []string{"n5", "*.default.svc"}},
		{name: "a_dot_at_the_end", user: "n5", subject: "n5", sans: []string{"n5."}},
		{name: "in_capitals", user: "n5", subject: "n5", sans: []string{"N5.Example.com"}, approved: true},
		{name: "no_node", user: "n9", subject: "n9", sans: []string{"n9"}},
		{name: "no_names", user: "n1", subject: "n1"},
		{name: "client_usage", user: "n1", subject: "n1", sans: []string{"n1"},
			change: func(c *certRequest) { c.Spec.Usages = append(c.Spec.Usages, certificatesv1.UsageClientAuth) }},
		{name: "not_of_nodes", user: "n1", subject: "n1", sans: []string{"n1"},
			change: func(c *certRequest) { c.Spec.Groups = nil }},
		{name: "an_administrator", user: "n1", subject: "n1", sans: []string{"n1"},
			change: func(c *certRequest) { c.Spec.Username = "anna" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &certRequest{
				ObjectMeta: metav1.ObjectMeta{Name: "r", CreationTimestamp: metav1.Now()},
				Spec: certificatesv1.CertificateSigningRequestSpec{
					Request: ask(t,
						pkix.Name{CommonName: "system:node:" + c.subject, Organization: []string{"system:nodes"}},
						c.sans...),
					Username: "system:node:" + c.user, Groups: []string{"system:nodes", "system:authenticated"},
					SignerName: certificatesv1.KubeletServingSignerName, Usages: slices.Clone(serverUsages),
				},
			}
			if c.change != nil {
				c.change(r)
			}
			got, err := pass(t, ca, r, "")
			if err != nil {
				t.Fatal(err)
			}
			if has(got, certificatesv1.CertificateApproved) != c.approved || has(got, certificatesv1.CertificateDenied) {
				t.Errorf("approved should be %v: %+v", c.approved, got.Status.Conditions)
			}
		})
	}
}
