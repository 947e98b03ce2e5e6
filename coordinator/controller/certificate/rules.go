package certificate

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// decided requests are kept for an hour, others for a day, as upstream does.
	keepDecided = time.Hour
	keepPending = 24 * time.Hour
	// minLifetime is the shortest that is signed.
	minLifetime = 10 * time.Minute

	legacySigner = "kubernetes.io/legacy-unknown"
)

type (
	certRequest = certificatesv1.CertificateSigningRequest
	keyUsage    = certificatesv1.KeyUsage
)

var keyUsages = map[keyUsage]x509.KeyUsage{
	certificatesv1.UsageSigning:           x509.KeyUsageDigitalSignature,
	certificatesv1.UsageDigitalSignature:  x509.KeyUsageDigitalSignature,
	certificatesv1.UsageContentCommitment: x509.KeyUsageContentCommitment,
	certificatesv1.UsageKeyEncipherment:   x509.KeyUsageKeyEncipherment,
	certificatesv1.UsageKeyAgreement:      x509.KeyUsageKeyAgreement,
	certificatesv1.UsageDataEncipherment:  x509.KeyUsageDataEncipherment,
	certificatesv1.UsageCertSign:          x509.KeyUsageCertSign,
	certificatesv1.UsageCRLSign:           x509.KeyUsageCRLSign,
	certificatesv1.UsageEncipherOnly:      x509.KeyUsageEncipherOnly,
	certificatesv1.UsageDecipherOnly:      x509.KeyUsageDecipherOnly,
}

var extUsages = map[keyUsage]x509.ExtKeyUsage{
	certificatesv1.UsageAny:             x509.ExtKeyUsageAny,
	certificatesv1.UsageServerAuth:      x509.ExtKeyUsageServerAuth,
	certificatesv1.UsageClientAuth:      x509.ExtKeyUsageClientAuth,
	certificatesv1.UsageCodeSigning:     x509.ExtKeyUsageCodeSigning,
	certificatesv1.UsageEmailProtection: x509.ExtKeyUsageEmailProtection,
	certificatesv1.UsageSMIME:           x509.ExtKeyUsageEmailProtection,
	certificatesv1.UsageIPsecEndSystem:  x509.ExtKeyUsageIPSECEndSystem,
	certificatesv1.UsageIPsecTunnel:     x509.ExtKeyUsageIPSECTunnel,
	certificatesv1.UsageIPsecUser:       x509.ExtKeyUsageIPSECUser,
	certificatesv1.UsageTimestamping:    x509.ExtKeyUsageTimeStamping,
	certificatesv1.UsageOCSPSigning:     x509.ExtKeyUsageOCSPSigning,
	certificatesv1.UsageMicrosoftSGC:    x509.ExtKeyUsageMicrosoftServerGatedCrypto,
	certificatesv1.UsageNetscapeSGC:     x509.ExtKeyUsageNetscapeServerGatedCrypto,
}

// translate says in X.509's words what a certificate may be used for.
func translate(usages []keyUsage) (usage x509.KeyUsage, ext []x509.ExtKeyUsage, err error) {
	for _, u := range usages {
		if bit, ok := keyUsages[u]; ok {
			usage |= bit
		} else if e, ok := extUsages[u]; ok {
			ext = append(ext, e)
		} else {
			return 0, nil, fmt.Errorf("unrecognized usage values: %q", []keyUsage{u})
		}
	}
	slices.Sort(ext)
	return usage, slices.Compact(ext), nil
}

// signers check what each of the cluster's signers wants of a request.
var signers = map[string]func(*x509.CertificateRequest, []keyUsage) error{
	certificatesv1.KubeAPIServerClientSignerName:        checkClient,
	certificatesv1.KubeAPIServerClientKubeletSignerName: checkNodeClient,
	certificatesv1.KubeletServingSignerName:             checkNodeServing,
	legacySigner:                                        func(*x509.CertificateRequest, []keyUsage) error { return nil },
}

func checkClient(_ *x509.CertificateRequest, usages []keyUsage) error {
	for _, u := range usages {
		switch u {
		case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth:
		default:
			return fmt.Errorf("invalid usage for client certificate: %s", u)
		}
	}
	if !slices.Contains(usages, certificatesv1.UsageClientAuth) {
		return fmt.Errorf("missing required usage for client certificate: %s", certificatesv1.UsageClientAuth)
	}
	return nil
}

func checkNodeClient(r *x509.CertificateRequest, usages []keyUsage) error {
	switch {
	case !ofNodes(r):
		return errors.New("subject organization is not system:nodes")
	case len(r.DNSNames) > 0:
		return errors.New("DNS subjectAltNames are not allowed")
	case len(r.EmailAddresses) > 0:
		return errors.New("Email subjectAltNames are not allowed")
	case len(r.IPAddresses) > 0:
		return errors.New("IP subjectAltNames are not allowed")
	case len(r.URIs) > 0:
		return errors.New("URI subjectAltNames are not allowed")
	case !strings.HasPrefix(r.Subject.CommonName, "system:node:"):
		return errors.New("subject common name does not begin with system:node:")
	}
	return checkNodeUsages(usages, certificatesv1.UsageClientAuth)
}

func checkNodeServing(r *x509.CertificateRequest, usages []keyUsage) error {
	switch {
	case !ofNodes(r):
		return errors.New("subject organization is not system:nodes")
	case len(r.DNSNames) == 0 && len(r.IPAddresses) == 0:
		return errors.New("DNS or IP subjectAltName is required")
	case len(r.EmailAddresses) > 0:
		return errors.New("Email subjectAltNames are not allowed")
	case len(r.URIs) > 0:
		return errors.New("URI subjectAltNames are not allowed")
	}
	if err := checkNodeUsages(usages, certificatesv1.UsageServerAuth); err != nil {
		return err
	}
	if !strings.HasPrefix(r.Subject.CommonName, "system:node:") {
		return errors.New("subject common name does not begin with system:node:")
	}
	return nil
}

func ofNodes(r *x509.CertificateRequest) bool {
	return slices.Equal(r.Subject.Organization, []string{"system:nodes"})
}

// checkNodeUsages wants signatures and auth, and leaves key encipherment, which
// only RSA keys can do, to the node.
func checkNodeUsages(usages []keyUsage, auth keyUsage) error {
	want := []keyUsage{auth, certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment}
	slices.Sort(want)
	have := slices.Compact(slices.Sorted(slices.Values(usages)))
	without := slices.DeleteFunc(slices.Clone(want),
		func(u keyUsage) bool { return u == certificatesv1.UsageKeyEncipherment })
	if slices.Equal(have, want) || slices.Equal(have, without) {
		return nil
	}
	return fmt.Errorf("usages did not match %v", want)
}

// lifetime is what a request wants, within what is given.
func lifetime(seconds *int32, most time.Duration) time.Duration {
	if seconds == nil {
		return most
	}
	return min(max(time.Duration(*seconds)*time.Second, minLifetime), most)
}

func has(c *certRequest, t certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(c.Status.Conditions,
		func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == t })
}

// end is when a request is to be deleted.
func end(c *certRequest) time.Time {
	issued := len(c.Status.Certificate) > 0
	if len(c.Status.Conditions) == 0 {
		return c.CreationTimestamp.Add(keepPending)
	}
	var at time.Time
	sooner := func(from metav1.Time, keep time.Duration) {
		if t := from.Add(keep); !from.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	for _, cond := range c.Status.Conditions {
		switch {
		case cond.Type == certificatesv1.CertificateDenied, cond.Type == certificatesv1.CertificateFailed:
			sooner(cond.LastUpdateTime, keepDecided)
		case cond.Type == certificatesv1.CertificateApproved && issued:
			sooner(cond.LastUpdateTime, keepDecided)
			sooner(expiry(c.Status.Certificate), 0)
		case cond.Type == certificatesv1.CertificateApproved:
			sooner(cond.LastUpdateTime, keepPending)
		}
	}
	return at
}

// expiry is when a certificate ends; zero for what is none.
func expiry(data []byte) metav1.Time {
	block, _ := pem.Decode(data)
	if block == nil {
		return metav1.Time{}
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return metav1.Time{}
	}
	return metav1.NewTime(cert.NotAfter)
}
