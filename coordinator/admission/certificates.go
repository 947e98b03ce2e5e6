package admission

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shoal-project/shoal/coordinator/pki"
)

var certificateRequests = schema.GroupResource{Group: certificatesv1.GroupName, Resource: "certificatesigningrequests"}

// certificateRights lets only those approve and sign certificate requests who
// may do so for the request's signer.
type certificateRights struct {
	*admission.Handler
	authorizer authorizer.Authorizer
}

func newCertificateRights() *certificateRights {
	return &certificateRights{Handler: admission.NewHandler(admission.Update)}
}

// SetAuthorizer takes the server's authorizer.
func (c *certificateRights) SetAuthorizer(a authorizer.Authorizer) { c.authorizer = a }

// ValidateInitialization says what is missing.
func (c *certificateRights) ValidateInitialization() error {
	if c.authorizer == nil {
		return fmt.Errorf("no authorizer")
	}
	return nil
}

// Validate checks writes of /approval and /status.
func (c *certificateRights) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != certificateRequests {
		return nil
	}
	request, ok1 := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	old, ok2 := a.GetOldObject().(*certificatesv1.CertificateSigningRequest)
	if !ok1 || !ok2 {
		return nil
	}
	verb := "approve"
	switch a.GetSubresource() {
	case "approval":
	case "status":
		verb = "sign"
		if bytes.Equal(request.Status.Certificate, old.Status.Certificate) &&
			equality.Semantic.DeepEqual(request.Status.Conditions, old.Status.Conditions) {
			return nil
		}
	default:
		return nil
	}
	signer := old.Spec.SignerName
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		decision, _, err := c.authorizer.Authorize(ctx, authorizer.AttributesRecord{
			User: a.GetUserInfo(), Verb: verb, Name: name, APIGroup: certificatesv1.GroupName,
			APIVersion: "*", Resource: "signers", ResourceRequest: true,
		})
		if err == nil && decision == authorizer.DecisionAllow {
			return nil
		}
	}
	return forbid(a, "user not permitted to %s requests with signerName %q", verb, signer)
}

// certificateSubjects refuses requests for client certificates that would be
// above all authorization.
type certificateSubjects struct{ *admission.Handler }

func newCertificateSubjects() *certificateSubjects {
	return &certificateSubjects{admission.NewHandler(admission.Create)}
}

// Validate checks the groups in a request.
func (*certificateSubjects) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != certificateRequests || a.GetSubresource() != "" {
		return nil
	}
	request, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok || request.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		return nil
	}
	parsed, err := pki.ParseRequest(request.Spec.Request)
	if err != nil {
		return forbid(a, "failed to parse CSR: %w", err)
	}
	if slices.Contains(parsed.Subject.Organization, user.SystemPrivilegedGroup) {
		return forbid(a,
			"use of %s signer with system:masters group is not allowed", certificatesv1.KubeAPIServerClientSignerName)
	}
	return nil
}
