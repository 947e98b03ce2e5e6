// Package certificates declares the API group certificates.k8s.io: requests for
// X.509 certificates, which one part approves and another signs.
package certificates

import (
	"context"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// certRequest and condition are short names for the API's long ones.
type (
	certRequest = certificatesv1.CertificateSigningRequest
	condition   = certificatesv1.CertificateSigningRequestCondition
)

// Kinds lists the kinds of the group.
func Kinds() []kind.Kind {
	return []kind.Kind{signingRequest()}
}

func signingRequest() kind.Kind {
	spec := certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()
	beta := certificatesv1beta1.CertificateSigningRequestSpec{}.SwaggerDoc() // the table's
	return kind.Of[certRequest]{
		Names: kind.Names{
			GroupVersion: certificatesv1.SchemeGroupVersion, Resource: "certificatesigningrequests", Singular: "certificatesigningrequest",
			ShortNames: []string{"csr"}, ClusterScoped: true, List: &certificatesv1.CertificateSigningRequestList{},
			NameRule: func(string, bool) []string { return nil },
		},
		Create:      createRequest,
		Validate:    func(_ context.Context, c *certRequest) field.ErrorList { return validateRequest(c, nil) },
		Update:      func(_ context.Context, c, old *certRequest) { c.Spec = old.Spec },
		ResetFields: fieldpath.NewSet(fieldpath.MakePathOrDie("spec")),
		ValidateUpdate: func(_ context.Context, c, old *certRequest) field.ErrorList {
			return validateUpdate(c, old, may{})
		},
		Status: &kind.StatusOf[certRequest]{
			Copy:   func(to, from *certRequest) { to.Status = from.Status },
			Update: func(_ context.Context, c, old *certRequest) { keepDecision(c, old); stamp(c, old, metav1.Now()) },
			Validate: func(_ context.Context, c, old *certRequest) field.ErrorList {
				return validateUpdate(c, old, may{sign: true})
			},
			ResetFields: fieldpath.NewSet(fieldpath.MakePathOrDie("status", "conditions")),
		},
		Fields: func(c *certRequest) fields.Set { return fields.Set{"spec.signerName": c.Spec.SignerName} },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.AgeColumn(),
			kind.Column("SignerName", "string", beta["signerName"]),
			kind.Column("Requestor", "string", beta["request"]),
			kind.Column("RequestedDuration", "string", spec["expirationSeconds"]),
			kind.Column("Condition", "string", certificatesv1beta1.CertificateSigningRequestStatus{}.SwaggerDoc()["conditions"]),
		},
		Row: func(c *certRequest) []any {
			lifetime := "<none>"
			if s := c.Spec.ExpirationSeconds; s != nil {
				lifetime = duration.HumanDuration(time.Duration(*s) * time.Second)
			}
			return []any{c.Name, kind.Age(c.CreationTimestamp), c.Spec.SignerName, c.Spec.Username,
				lifetime, conditionCell(c)}
		},
		Subresources: func(_ *kind.Env, stores kind.Stores) map[string]rest.Storage {
			return map[string]rest.Storage{"approval": newApproval(stores["certificates.k8s.io/certificatesigningrequests"])}
		},
	}.Kind()
}

// createRequest notes who asks; nobody asks for what is approved already.
func createRequest(ctx context.Context, c *certRequest) {
	spec := &c.Spec
	spec.Username, spec.UID, spec.Groups, spec.Extra = "", "", nil, nil
	if u, ok := request.UserFrom(ctx); ok {
		spec.Username, spec.UID, spec.Groups = u.GetName(), u.GetUID(), u.GetGroups()
		if extra := u.GetExtra(); len(extra) > 0 {
			spec.Extra = map[string]certificatesv1.ExtraValue{}
			for key, values := range extra {
				spec.Extra[key] = values
			}
		}
	}
	c.Status = certificatesv1.CertificateSigningRequestStatus{Conditions: []condition{}}
}

func conditionCell(c *certRequest) string {
	has := map[certificatesv1.RequestConditionType]bool{}
	for _, c := range c.Status.Conditions {
		has[c.Type] = true
	}
	cell := "Pending"
	switch {
	case has[certificatesv1.CertificateDenied]:
		cell = "Denied"
	case has[certificatesv1.CertificateApproved]:
		cell = "Approved"
	}
	if has[certificatesv1.CertificateFailed] {
		cell += ",Failed"
	}
	if len(c.Status.Certificate) > 0 {
		cell += ",Issued"
	}
	return cell
}
