package hollow

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// certificateWait is how long a hollow node waits for its certificate.
const certificateWait = time.Minute

// RequestCertificate gets a client certificate for a hollow node, which has none
// of its own: the administrator whose client it is asks in the node's name, and
// approves. Both are PEM.
func RequestCertificate(ctx context.Context, admin kubernetes.Interface, node string) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, certificateWait)
	defer cancel()
	cert, err = requestCertificate(ctx, admin, node, private)
	return cert, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), err
}

func requestCertificate(
	ctx context.Context, client kubernetes.Interface, node string, key *ecdsa.PrivateKey,
) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
	}, key)
	if err != nil {
		return nil, err
	}
	api := client.CertificatesV1().CertificateSigningRequests()
	csr, err := api.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "hollow-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	for {
		if len(csr.Status.Certificate) > 0 {
			return csr.Status.Certificate, nil
		}
		if len(csr.Status.Conditions) == 0 {
			csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
				Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "HollowNode", Message: "a load test's node"}}
			_, err := api.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
			if err != nil && !apierrors.IsConflict(err) { // a conflict: the coordinator approved it
				return nil, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("request %s is not signed: %w", csr.Name, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
		if csr, err = api.Get(ctx, csr.Name, metav1.GetOptions{}); err != nil {
			return nil, err
		}
	}
}
