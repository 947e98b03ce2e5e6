package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
)

func newRequest(t *testing.T) *certRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	data, err := cert.MakeCSR(key, &pkix.Name{CommonName: "anna"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &certRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		Request: data, SignerName: "example.com/x", Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
	}}
}

func expect(t *testing.T, name string, errs field.ErrorList, want string) {
	t.Helper()
	if want == "" && len(errs) > 0 || want != "" &&
		(len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), want)) {
		t.Errorf("%s: %v, want %q", name, errs, want)
	}
}

// The messages are v1.36's.
func TestValidateRequest(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*certRequest)
		want   string
	}{
		"good":      {func(*certRequest) {}, ""},
		"garbage":   {func(c *certRequest) { c.Spec.Request = []byte("x") }, "PEM block type must be CERTIFICATE REQUEST"},
		"no_usages": {func(c *certRequest) { c.Spec.Usages = nil }, "spec.usages: Required value"},
		"odd_usage": {func(c *certRequest) { c.Spec.Usages = []certificatesv1.KeyUsage{"x"} }, `spec.usages[0]: Unsupported value: "x"`},
		"legacy":    {func(c *certRequest) { c.Spec.SignerName = legacySigner }, "the legacy signerName is not allowed via this API version"},
		"no_path":   {func(c *certRequest) { c.Spec.SignerName = "example.com" }, "must be a fully qualified domain and path of the form 'example.com/signer-name'"},
		"no_domain": {func(c *certRequest) { c.Spec.SignerName = "example/x" }, "should be a domain with at least two segments separated by dots"},
		"short":     {func(c *certRequest) { c.Spec.ExpirationSeconds = ptr.To[int32](599) }, "may not specify a duration less than 600 seconds (10 minutes)"},
	} {
		r := newRequest(t)
		c.change(r)
		expect(t, name, validateRequest(r, nil), c.want)
	}
}

func TestUpdates(t *testing.T) {
	decided := condition{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}
	denied := condition{Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue}
	certPEM, _, err := cert.GenerateSelfSignedCertKey("a.example.com", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		may    may
		change func(c, old *certRequest)
		want   string
	}{
		"approve":         {may{decide: true}, func(c, _ *certRequest) { c.Status.Conditions = []condition{decided} }, ""},
		"approve_elsehow": {may{sign: true}, func(c, _ *certRequest) { c.Status.Conditions = []condition{decided} }, `updates may not add a condition of type "Approved"`},
		"both": {may{decide: true},
			func(c, _ *certRequest) { c.Status.Conditions = []condition{decided, denied} }, "Approved and Denied conditions are mutually exclusive"},
		"remove": {may{decide: true},
			func(_, old *certRequest) { old.Status.Conditions = []condition{denied} }, `updates may not remove a condition of type "Denied"`},
		"sign":             {may{sign: true}, func(c, _ *certRequest) { c.Status.Certificate = certPEM }, ""},
		"sign_in_approval": {may{decide: true}, func(c, _ *certRequest) { c.Status.Certificate = certPEM }, "updates may not set certificate content"},
		"sign_again": {may{sign: true},
			func(c, old *certRequest) { c.Status.Certificate, old.Status.Certificate = certPEM, []byte("y") }, "updates may not modify existing certificate content"},
		"no_certificate": {may{sign: true}, func(c, _ *certRequest) { c.Status.Certificate = []byte("x") }, "must contain at least one CERTIFICATE PEM block"},
	} {
		old := newRequest(t)
		r := old.DeepCopy()
		c.change(r, old)
		expect(t, name, validateUpdate(r, old, c.may), c.want)
	}
}

func TestConditionsKeep(t *testing.T) {
	old, r := newRequest(t), newRequest(t)
	approved := condition{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "first"}
	old.Status.Conditions = []condition{approved}
	approved.Reason = "second"
	r.Status.Conditions = []condition{{Type: "x", Status: corev1.ConditionTrue}, approved}
	keepDecision(r, old)
	if r.Status.Conditions[1].Reason != "first" || conditionCell(r) != "Approved" {
		t.Errorf("%+v", r.Status.Conditions)
	}
	ctx := request.WithUser(context.Background(),
		&user.DefaultInfo{Name: "anna", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}})
	r.Spec.Username = "root"
	createRequest(ctx, r)
	if r.Spec.Username != "anna" || r.Spec.Groups[0] != "g" || r.Spec.Extra["k"][0] != "v" ||
		len(r.Status.Conditions) != 0 {
		t.Errorf("%+v", r)
	}
}

// FuzzCertificate: a signer writes certificates into a request's status, and
// whoever reads them there parses what was let through.
func FuzzCertificate(f *testing.F) {
	good, _, err := cert.GenerateSelfSignedCertKey("a.example.com", nil, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(append([]byte("text before\n"), good...))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nA: b\n\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 || checkCertificate(data) != nil {
			return
		}
		if certs, err := cert.ParseCertsPEM(data); err != nil || len(certs) == 0 {
			t.Errorf("%q was taken: %v", data, err)
		}
	})
}
