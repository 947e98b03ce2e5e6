package gossipgrant

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/pki"
)

func authority(t *testing.T) *pki.Authority {
	t.Helper()
	d := pki.Dir(t.TempDir())
	if err := d.Ensure(pki.Cluster{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	ca, err := d.CA()
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func certificateOf(t *testing.T, ca *pki.Authority, s pki.Spec) string {
	t.Helper()
	certPEM, _, err := ca.Issue(s, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(certPEM)
	return base64.StdEncoding.EncodeToString(block.Bytes)
}

func node(name, cert string, age time.Duration, cidrs ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-age)),
		Annotations: map[string]string{gossip.CertificateAnnotation: cert}}}
	n.Spec.PodCIDRs = cidrs
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name},
		{Type: corev1.NodeInternalIP, Address: "192.0.2.7"}}
	return n
}

var cluster = ranges{[]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}

// TestPlan: a Node that its agent wrote gives it nothing that is another's.
func TestPlan(t *testing.T) {
	ca := authority(t)
	trusted := []*x509.Certificate{ca.Cert}
	cert := certificateOf(t, ca, pki.Spec{User: "system:node:n", Groups: []string{"system:nodes"}})
	old := node("old", "", time.Hour, "10.244.5.0/24")
	for _, tt := range []struct {
		name  string
		cidrs []string
		want  string
	}{
		{"its own", []string{"10.244.3.0/24"}, "[10.244.3.0/24]"},
		{"half the world", []string{"0.0.0.0/1"}, "[]"},
		{"all pods", []string{"10.244.0.0/16"}, "[]"},
		{"an older node's", []string{"10.244.5.128/25", "10.244.6.0/24"}, "[10.244.6.0/24]"},
		{"Services", []string{"10.96.0.0/24"}, "[]"},
	} {
		got, err := plan(node("n", cert, time.Minute, tt.cidrs...), []*corev1.Node{old}, trusted, cluster, time.Now())
		if err != nil || fmt.Sprint(got.PodCIDRs) != tt.want || fmt.Sprint(got.NodeIPs) != "[192.0.2.7]" {
			t.Errorf("%s: %v %v, %v", tt.name, got.PodCIDRs, got.NodeIPs, err)
		}
	}
	elder, err := plan(node("n", cert, 2*time.Hour, "10.244.5.0/24"), []*corev1.Node{old}, trusted, cluster, time.Now())
	if err != nil || len(elder.PodCIDRs) != 1 {
		t.Errorf("the older node lost its range: %v, %v", elder, err)
	}
	n := node("n", cert, 0)
	for _, a := range []string{"127.0.0.1", "10.96.0.10", "10.244.5.1", "0.0.0.0", "224.0.0.1"} {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	if got, err := plan(n, nil, trusted, cluster, time.Now()); err != nil || len(got.NodeIPs) != 1 {
		t.Errorf("addresses %v, %v", got.NodeIPs, err)
	}
}

func TestWhoseCertificate(t *testing.T) {
	ca := authority(t)
	trusted := []*x509.Certificate{ca.Cert}
	nodes := []string{"system:nodes"}
	for name, tt := range map[string]struct{ cert, want string }{
		"another node's":        {certificateOf(t, ca, pki.Spec{User: "system:node:m", Groups: nodes}), "is that of"},
		"a user's of that name": {certificateOf(t, ca, pki.Spec{User: "system:node:n"}), "is that of"},
		"a serving one":         {certificateOf(t, ca, pki.Spec{User: "system:node:n", Groups: nodes, Server: true}), "usage"},
		"another CA's":          {certificateOf(t, authority(t), pki.Spec{User: "system:node:n", Groups: nodes}), "unknown authority"},
		"one that ended": {
			certificateOf(t, ca, pki.Spec{User: "system:node:n", Groups: nodes, Lifetime: -time.Minute}), "expired"},
		"no base64":              {"%", "not base64"},
		"no certificate":         {"AAAA", "annotation"},
		"more than there can be": {strings.Repeat("A", maxCertificate+1), "longer"},
	} {
		if _, err := plan(node("n", tt.cert, 0), nil, trusted, cluster, time.Now()); err == nil ||
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzCertificate: the annotation is what an agent writes.
func FuzzCertificate(f *testing.F) {
	f.Add("AAAA")
	f.Add(base64.StdEncoding.EncodeToString([]byte{0x30, 0x82, 0x01, 0x02}))
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := certificate(node("n", text, 0), []*x509.Certificate{{}}, time.Now()); err == nil {
			t.Error("a certificate of nobody was believed")
		}
	})
}
