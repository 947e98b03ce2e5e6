package admission

import (
	"context"
	"io"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota/validation"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/shoal-project/shoal/coordinator/quota"
)

// quotaWorkers charge quotas at once, as many namespaces' as that.
const quotaWorkers = 5

// resourceQuota charges what is created to its namespace's quotas and refuses
// what they do not cover. It is the library's plugin with our evaluators.
type resourceQuota struct {
	*resourcequota.QuotaAdmission
	quotas corelisters.ResourceQuotaLister
	synced func() bool
	// limited resources may not be used where no quota covers them (RQ-30).
	limited bool
}

// newResourceQuota takes a Configuration of resourcequota.admission.k8s.io; nil: none.
func newResourceQuota(config io.Reader) (admission.Interface, error) {
	c, err := resourcequota.LoadConfiguration(config)
	if err != nil {
		return nil, err
	}
	if errs := validation.ValidateConfiguration(c); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	plugin, err := resourcequota.NewResourceQuota(c, quotaWorkers)
	if err != nil {
		return nil, err
	}
	return &resourceQuota{QuotaAdmission: plugin, limited: len(c.LimitedResources) > 0}, nil
}

// SetExternalKubeInformerFactory takes the informer of quotas, and those that the
// evaluators read.
func (r *resourceQuota) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	r.QuotaAdmission.SetExternalKubeInformerFactory(f)
	r.SetQuotaConfiguration(generic.NewConfiguration(quota.Evaluators(nil, f), quota.Ignored()))
	r.quotas = f.Core().V1().ResourceQuotas().Lister()
	r.synced = f.Core().V1().ResourceQuotas().Informer().HasSynced
}

// Validate leaves requests alone in namespaces without quotas, which is most of
// them: a quota limits nothing before its controller has counted, and that is
// after its informer knows it. Before the first list the library asks the API.
func (r *resourceQuota) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if !r.limited && r.synced() {
		list, err := r.quotas.ResourceQuotas(a.GetNamespace()).List(labels.Everything())
		if err == nil && len(list) == 0 {
			return nil
		}
	}
	return r.QuotaAdmission.Validate(ctx, a, o)
}
