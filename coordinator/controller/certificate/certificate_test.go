package certificate

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/coordinator/pki"
)

var nodeClient = []keyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature}

func ask(t *testing.T, subject pkix.Name, sans ...string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var dns []string
	var ips []net.IP
	for _, san := range sans {
		if ip := net.ParseIP(san); ip != nil {
			ips = append(ips, ip)
		} else {
			dns = append(dns, san)
		}
	}
	data, err := cert.MakeCSR(key, &subject, dns, ips)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func conditions(types ...certificatesv1.RequestConditionType) (out []certificatesv1.CertificateSigningRequestCondition) {
	for _, t := range types {
		out = append(out,
			certificatesv1.CertificateSigningRequestCondition{Type: t, Status: corev1.ConditionTrue,
				LastUpdateTime: metav1.Now()})
	}
	return out
}

// One pass over a request: approved, signed, failed, left alone or deleted.
func TestSteps(t *testing.T) {
	dir := pki.Dir(t.TempDir())
	if err := dir.Ensure(pki.Cluster{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	ca, err := dir.CA()
	if err != nil {
		t.Fatal(err)
	}
	node := pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}}
	for name, c := range map[string]struct {
		request certRequest
		allowed string // the subresource that the asker may create
		check   func(t *testing.T, c *certRequest)
	}{
		"node_renews": {
			certRequest{
				Spec: certificatesv1.CertificateSigningRequestSpec{Request: ask(t, node),
					Username: "system:node:n1", SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
					Usages: nodeClient}},
			"selfnodeclient",
			func(t *testing.T, c *certRequest) {
				if len(c.Status.Conditions) != 1 || c.Status.Conditions[0].Message != "Auto approving self kubelet client certificate after SubjectAccessReview." {
					t.Errorf("%+v", c.Status)
				}
			},
		},
		"bootstraps": {
			certRequest{
				Spec: certificatesv1.CertificateSigningRequestSpec{Request: ask(t, node),
					Username: "system:bootstrap:abc", SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
					Usages: nodeClient}},
			"nodeclient",
			func(t *testing.T, c *certRequest) {
				if len(c.Status.Conditions) != 1 || c.Status.Conditions[0].Reason != "AutoApproved" {
					t.Errorf("%+v", c.Status)
				}
			},
		},
		"another_node": {
			certRequest{
				Spec: certificatesv1.CertificateSigningRequestSpec{Request: ask(t, node),
					Username: "system:node:n2", SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
					Usages: nodeClient}},
			"selfnodeclient",
			func(t *testing.T, c *certRequest) {
				if len(c.Status.Conditions) != 0 {
					t.Errorf("%+v", c.Status)
				}
			},
		},
		"signs": {
			certRequest{
				Spec: certificatesv1.CertificateSigningRequestSpec{
					Request:    ask(t, pkix.Name{CommonName: "anna", Organization: []string{"g"}}),
					SignerName: certificatesv1.KubeAPIServerClientSignerName,
					Usages:     []keyUsage{certificatesv1.UsageClientAuth}, ExpirationSeconds: ptr.To[int32](3600),
				},
				Status: certificatesv1.CertificateSigningRequestStatus{
					Conditions: conditions(certificatesv1.CertificateApproved)},
			},
			"",
			func(t *testing.T, c *certRequest) {
				block, _ := pem.Decode(c.Status.Certificate)
				if block == nil {
					t.Fatal("no certificate")
				}
				got, err := x509.ParseCertificate(block.Bytes)
				if err != nil || got.CheckSignatureFrom(ca.Cert) != nil || got.Subject.CommonName != "anna" ||
					got.Subject.Organization[0] != "g" {
					t.Errorf("%v %+v", err, got)
				}
				if left := time.Until(got.NotAfter); left > time.Hour || left < 59*time.Minute || got.IsCA ||
					got.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
					t.Errorf("ends in %s, %+v", left, got)
				}
			},
		},
		"fails": {
			certRequest{
				Spec: certificatesv1.CertificateSigningRequestSpec{
					Request: ask(t, node), SignerName: certificatesv1.KubeletServingSignerName,
					Usages: []keyUsage{certificatesv1.UsageServerAuth},
				},
				Status: certificatesv1.CertificateSigningRequestStatus{
					Conditions: conditions(certificatesv1.CertificateApproved)},
			},
			"",
			func(t *testing.T, c *certRequest) {
				if n := len(c.Status.Conditions); n != 2 || c.Status.Conditions[1].Message != "DNS or IP subjectAltName is required" {
					t.Errorf("%+v", c.Status)
				}
			},
		},
		"others": {
			certRequest{
				Spec: certificatesv1.CertificateSigningRequestSpec{Request: ask(t, node),
					SignerName: "example.com/x", Usages: nodeClient},
				Status: certificatesv1.CertificateSigningRequestStatus{
					Conditions: conditions(certificatesv1.CertificateApproved)},
			},
			"",
			func(t *testing.T, c *certRequest) {
				if len(c.Status.Certificate) > 0 || len(c.Status.Conditions) != 1 {
					t.Errorf("%+v", c.Status)
				}
			},
		},
		"old": {
			certRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(time.Now().Add(-25 * time.Hour))}},
			"",
			func(t *testing.T, c *certRequest) {
				if c != nil {
					t.Errorf("still there: %+v", c)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.request
			r.Name = "r"
			if r.CreationTimestamp.IsZero() {
				r.CreationTimestamp = metav1.Now()
			}
			got, err := pass(t, ca, &r, c.allowed)
			if err != nil {
				t.Fatal(err)
			}
			c.check(t, got)
		})
	}
}

func pass(t *testing.T, ca *pki.Authority, r *certRequest, allowed string) (*certRequest, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client := fake.NewClientset(r, aNode("n1", "192.0.2.1"), aNode("n2", "192.0.2.2"),
		aNode("n3", "192.0.2.3", "192.0.2.2"), aNode("n4", "10.96.0.1"),
		aNode("n5", "*.default.svc", "n5."))
	client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		review.Status.Allowed = review.Spec.ResourceAttributes.Subresource == allowed
		return true, review, nil
	})
	factory := informers.NewSharedInformerFactory(client, 0)
	loop, err := New(controller.Env{Client: client, Informers: factory, Log: slog.New(slog.DiscardHandler)},
		Deps{Signer: ca, Lifetime: pki.CertLifetime, Reserved: func(san string) (string, bool) {
			return "n1", san == "192.0.2.1" || san == "192.0.2.9" || san == "10.96.0.1"
		}})
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if _, err := loop.Reconciler.Reconcile(ctx, r.Name); err != nil {
		return nil, err
	}
	got, err := client.CertificatesV1().CertificateSigningRequests().Get(ctx, r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return got, err
}

func TestEnd(t *testing.T) {
	made := metav1.NewTime(time.Now().Truncate(time.Second))
	r := &certRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: made}}
	for _, c := range []struct {
		of   certificatesv1.RequestConditionType
		cert string
		want time.Duration
	}{
		{"", "", 24 * time.Hour},
		{certificatesv1.CertificateDenied, "", time.Hour},
		{certificatesv1.CertificateFailed, "", time.Hour},
		{certificatesv1.CertificateApproved, "", 24 * time.Hour},
		{certificatesv1.CertificateApproved, "x", time.Hour},
	} {
		r.Status.Conditions, r.Status.Certificate = nil, []byte(c.cert)
		if c.of != "" {
			r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: c.of, LastUpdateTime: made}}
		}
		if got := end(r).Sub(made.Time); got != c.want {
			t.Errorf("%s %q: %s, want %s", c.of, c.cert, got, c.want)
		}
	}
}

func TestUsages(t *testing.T) {
	if err := checkClient(nil, []keyUsage{certificatesv1.UsageServerAuth}); err == nil ||
		!strings.Contains(err.Error(), "invalid usage for client certificate: server auth") {
		t.Error(err)
	}
	if err := checkNodeUsages([]keyUsage{"x"}, certificatesv1.UsageClientAuth); err == nil || err.Error() != "usages did not match [client auth digital signature key encipherment]" {
		t.Error(err)
	}
	if usage, ext, err := translate(
		[]keyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}); err != nil ||
		usage != x509.KeyUsageDigitalSignature || len(ext) != 1 {
		t.Error(usage, ext, err)
	}
}
