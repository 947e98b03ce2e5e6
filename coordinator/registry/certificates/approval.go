package certificates

import (
	"context"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// approvalREST serves /approval: the conditions, and nothing else.
type approvalREST struct{ store *genericregistry.Store }

var _ rest.Patcher = &approvalREST{}

func newApproval(main *genericregistry.Store) *approvalREST {
	store := *main
	strategy := approvalStrategy{main.UpdateStrategy}
	store.UpdateStrategy, store.ResetFieldsStrategy = strategy, strategy
	return &approvalREST{&store}
}

func (r *approvalREST) New() runtime.Object { return r.store.New() }

// Destroy leaves the store to the main resource.
func (r *approvalREST) Destroy() {}

func (r *approvalREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

func (r *approvalREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool,
	options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, create, update, false, options)
}

func (r *approvalREST) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, obj, options)
}

// GetResetFields names what a write to /approval loses.
func (r *approvalREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.ResetFieldsStrategy.GetResetFields()
}

type approvalStrategy struct{ rest.RESTUpdateStrategy }

func (approvalStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	c, o := obj.(*certRequest), old.(*certRequest)
	stamp(c, o, metav1.Now())
	conditions := c.Status.Conditions
	c.Spec, c.Status = o.Spec, o.Status
	c.Status.Conditions = conditions
}

func (approvalStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validateUpdate(obj.(*certRequest), old.(*certRequest), may{decide: true})
}

func (approvalStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func (approvalStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	set := fieldpath.NewSet(fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("status", "certificate"))
	return map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(certificatesv1.SchemeGroupVersion.String()): set}
}

// keepDecision gives c the old conditions Approved and Denied, where it has as
// many of them; where not, validation refuses it.
func keepDecision(c, old *certRequest) {
	for _, t := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved,
		certificatesv1.CertificateDenied} {
		was := ofType(old, t)
		if len(was) != len(ofType(c, t)) {
			continue
		}
		for i := range c.Status.Conditions {
			if c.Status.Conditions[i].Type == t {
				c.Status.Conditions[i], was = was[0], was[1:]
			}
		}
	}
}

func ofType(c *certRequest, t certificatesv1.RequestConditionType) (out []condition) {
	for _, cond := range c.Status.Conditions {
		if cond.Type == t {
			out = append(out, cond)
		}
	}
	return out
}

// stamp fills in the times of conditions.
func stamp(c, old *certRequest, now metav1.Time) {
	for i := range c.Status.Conditions {
		cond := &c.Status.Conditions[i]
		if cond.LastUpdateTime.IsZero() {
			cond.LastUpdateTime = now
		}
		if !cond.LastTransitionTime.IsZero() {
			continue
		}
		cond.LastTransitionTime = now
		same := slices.IndexFunc(old.Status.Conditions, func(o condition) bool {
			return o.Type == cond.Type && o.Status == cond.Status && !o.LastTransitionTime.IsZero()
		})
		if same >= 0 {
			cond.LastTransitionTime = old.Status.Conditions[same].LastTransitionTime
		}
	}
}
