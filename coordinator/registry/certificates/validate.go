package certificates

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/pki"
)

const (
	// legacySigner is of the v1beta1 API, which is not served.
	legacySigner = "kubernetes.io/legacy-unknown"
	minLifetime  = 600 // seconds
)

var (
	decisions = []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved,
		certificatesv1.CertificateDenied}
	// final conditions are true or not there, and never go away.
	final  = append(slices.Clone(decisions), certificatesv1.CertificateFailed)
	usages = []certificatesv1.KeyUsage{
		certificatesv1.UsageAny, certificatesv1.UsageCertSign, certificatesv1.UsageClientAuth,
		certificatesv1.UsageCodeSigning, certificatesv1.UsageContentCommitment, certificatesv1.UsageCRLSign,
		certificatesv1.UsageDataEncipherment,
		certificatesv1.UsageDecipherOnly, certificatesv1.UsageDigitalSignature, certificatesv1.UsageEmailProtection,
		certificatesv1.UsageEncipherOnly, certificatesv1.UsageIPsecEndSystem, certificatesv1.UsageIPsecTunnel,
		certificatesv1.UsageIPsecUser, certificatesv1.UsageKeyAgreement, certificatesv1.UsageKeyEncipherment,
		certificatesv1.UsageMicrosoftSGC, certificatesv1.UsageNetscapeSGC, certificatesv1.UsageOCSPSigning,
		certificatesv1.UsageSMIME, certificatesv1.UsageServerAuth, certificatesv1.UsageSigning,
		certificatesv1.UsageTimestamping,
	}
)

// may is what an update is allowed beside metadata and other conditions.
type may struct {
	decide bool // add Approved or Denied
	sign   bool // set the certificate
}

func validateRequest(c, old *certRequest) (errs field.ErrorList) {
	p := field.NewPath("spec")
	if err := checkRequest(c.Spec.Request); err != nil {
		errs = append(errs, field.Invalid(p.Child("request"), c.Spec.Request, err.Error()))
	}
	if len(c.Spec.Usages) == 0 {
		errs = append(errs, field.Required(p.Child("usages"), ""))
	}
	for i, u := range c.Spec.Usages {
		if !slices.Contains(usages, u) {
			errs = append(errs, field.NotSupported(p.Child("usages").Index(i), u, usages))
		}
		if slices.Contains(c.Spec.Usages[:i], u) {
			errs = append(errs, field.Duplicate(p.Child("usages").Index(i), u))
		}
	}
	if c.Spec.SignerName == legacySigner && old == nil {
		errs = append(errs, field.Invalid(p.Child("signerName"), c.Spec.SignerName, "the legacy signerName is not allowed via this API version"))
	} else {
		errs = append(errs, validateSigner(c.Spec.SignerName, p.Child("signerName"))...)
	}
	if s := c.Spec.ExpirationSeconds; s != nil && *s < minLifetime {
		errs = append(errs, field.Invalid(p.Child("expirationSeconds"), *s, "may not specify a duration less than 600 seconds (10 minutes)"))
	}
	errs = append(errs, validateConditions(c.Status.Conditions, field.NewPath("status", "conditions"))...)
	if err := checkCertificate(c.Status.Certificate); err != nil {
		errs = append(errs, field.Invalid(field.NewPath("status", "certificate"), "<certificate data>", err.Error()))
	}
	return errs
}

// checkRequest verifies the request's own signature.
func checkRequest(data []byte) error {
	parsed, err := pki.ParseRequest(data)
	if err != nil {
		return err
	}
	return parsed.CheckSignature()
}

func checkCertificate(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	blocks := 0
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("only CERTIFICATE PEM blocks are allowed, found %q", block.Type)
		}
		if len(block.Headers) > 0 {
			return errors.New("no PEM block headers are permitted")
		}
		certs, err := x509.ParseCertificates(block.Bytes)
		if err != nil {
			return err
		}
		if len(certs) == 0 {
			return errors.New("found CERTIFICATE PEM block containing 0 certificates")
		}
		blocks, data = blocks+1, rest
	}
	if blocks == 0 {
		return errors.New("must contain at least one CERTIFICATE PEM block")
	}
	return nil
}

// maxSignerPath is the length of a namespace, a dot and a resource's name.
const maxSignerPath = validation.DNS1123SubdomainMaxLength + validation.DNS1123LabelMaxLength + 1

func validateSigner(name string, p *field.Path) (errs field.ErrorList) {
	if name == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	domain, rest, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(rest, "/") {
		return field.ErrorList{field.Invalid(p, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")}
	}
	if len(domain) > validation.DNS1123SubdomainMaxLength {
		errs = append(errs, field.TooLong(p, "", validation.DNS1123SubdomainMaxLength))
	}
	labels := strings.Split(domain, ".")
	errs = append(errs, validateLabels(labels, domain, validation.IsDNS1123Label, p)...)
	if len(labels) < 2 {
		errs = append(errs, field.Invalid(p, domain, "should be a domain with at least two segments separated by dots"))
	}
	errs = append(errs, validateLabels(strings.Split(rest, "."), rest, validation.IsDNS1123Subdomain, p)...)
	if most := validation.DNS1123SubdomainMaxLength + maxSignerPath + 1; len(name) > most {
		errs = append(errs, field.TooLong(p, "", most))
	}
	return errs
}

// validateLabels reports the first label that rule refuses.
func validateLabels(labels []string, value string, rule func(string) []string, p *field.Path) (errs field.ErrorList) {
	for _, label := range labels {
		for _, msg := range rule(label) {
			errs = append(errs, field.Invalid(p, value, fmt.Sprintf("validating label %q: %s", label, msg)))
		}
		if len(errs) > 0 {
			return errs
		}
	}
	return nil
}

func validateConditions(list []condition, p *field.Path) (errs field.ErrorList) {
	seen := map[certificatesv1.RequestConditionType]bool{}
	for i, c := range list {
		at := p.Index(i)
		if c.Type == "" {
			errs = append(errs, field.Required(at.Child("type"), ""))
		}
		known := []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
		if slices.Contains(final, c.Type) {
			known = []corev1.ConditionStatus{corev1.ConditionTrue}
		}
		if c.Status == "" {
			errs = append(errs, field.Required(at.Child("status"), ""))
		} else if !slices.Contains(known, c.Status) {
			errs = append(errs, field.NotSupported(at.Child("status"), c.Status, known))
		}
		if c.Type == certificatesv1.CertificateApproved && seen[certificatesv1.CertificateDenied] ||
			c.Type == certificatesv1.CertificateDenied && seen[certificatesv1.CertificateApproved] {
			errs = append(errs, field.Invalid(p, c.Type, "Approved and Denied conditions are mutually exclusive"))
		}
		if seen[c.Type] {
			errs = append(errs, field.Duplicate(at.Child("type"), c.Type))
		}
		seen[c.Type] = true
	}
	return errs
}

func validateUpdate(c, old *certRequest, may may) field.ErrorList {
	errs, p := validateRequest(c, old), field.NewPath("status", "conditions")
	for _, t := range final {
		if len(ofType(c, t)) < len(ofType(old, t)) {
			errs = append(errs, field.Forbidden(p, fmt.Sprintf("updates may not remove a condition of type %q", t)))
		}
	}
	for _, t := range decisions {
		is, was := ofType(c, t), ofType(old, t)
		switch {
		case may.decide || len(is) < len(was):
		case len(is) > len(was):
			errs = append(errs, field.Forbidden(p, fmt.Sprintf("updates may not add a condition of type %q", t)))
		case !equality.Semantic.DeepEqual(is, was):
			errs = append(errs,
				field.Forbidden(p, fmt.Sprintf("updates may not modify a condition of type %q\n%v", t, diff.Diff(was, is))))
		}
	}
	if bytes.Equal(c.Status.Certificate, old.Status.Certificate) {
		return errs
	}
	at := field.NewPath("status", "certificate")
	switch {
	case !may.sign:
		errs = append(errs, field.Forbidden(at, "updates may not set certificate content"))
	case len(old.Status.Certificate) > 0:
		errs = append(errs, field.Forbidden(at, "updates may not modify existing certificate content"))
	}
	return errs
}
