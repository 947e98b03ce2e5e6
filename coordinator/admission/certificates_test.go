package admission

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/util/cert"
)

// TestNodeCertificateRequests: a node asks for kubelets' certificates in its own
// name only, with upstream's words.
func TestNodeCertificateRequests(t *testing.T) {
	p, _ := connect(t, newNodeRestriction())
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	node := &user.DefaultInfo{Name: "system:node:mynode", Groups: []string{"system:nodes"}}
	for name, c := range map[string]struct {
		subject, signer string
		who             user.Info
		bad             bool
		want            string
	}{
		"serving": {subject: "system:node:mynode", signer: certificatesv1.KubeletServingSignerName, who: node},
		"client": {subject: "system:node:mynode", signer: certificatesv1.KubeAPIServerClientKubeletSignerName,
			who: node},
		"another_signer": {subject: "anna", signer: certificatesv1.KubeAPIServerClientSignerName, who: node},
		"another_serving": {subject: "system:node:othernode", signer: certificatesv1.KubeletServingSignerName,
			who: node, want: "can only create a node CSR with CN=system:node:mynode"},
		"another_client": {subject: "system:node:othernode",
			signer: certificatesv1.KubeAPIServerClientKubeletSignerName, who: node, want: "can only create a node CSR with CN=system:node:mynode"},
		"damaged": {subject: "system:node:mynode", signer: certificatesv1.KubeletServingSignerName, who: node,
			bad: true, want: "unable to parse csr: "},
		"no_node": {subject: "system:node:othernode", signer: certificatesv1.KubeletServingSignerName,
			who: &user.DefaultInfo{Name: "anna"}},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := cert.MakeCSR(key, &pkix.Name{CommonName: c.subject, Organization: []string{"system:nodes"}},
				nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.bad {
				data = []byte("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n")
			}
			check(t,
				admit(p,
					request{user: c.who, resource: "certificatesigningrequests", group: "certificates.k8s.io", name: "r",
						obj: &certificatesv1.CertificateSigningRequest{
							Spec: certificatesv1.CertificateSigningRequestSpec{Request: data, SignerName: c.signer}}}),
				c.want)
		})
	}
}
