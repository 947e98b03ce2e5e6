package admission

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"
	podsecurityadmission "k8s.io/pod-security-admission/admission"
	podsecurityconfig "k8s.io/pod-security-admission/admission/api"
	"k8s.io/pod-security-admission/admission/api/load"
	podsecurityapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/metrics"
	"k8s.io/pod-security-admission/policy"
)

// podSecurity holds pods to the level that their namespace's labels demand
// (PSA-1); without labels that is privileged, upstream's default.
type podSecurity struct {
	*admission.Handler
	config    *podsecurityconfig.PodSecurityConfiguration
	admission *podsecurityadmission.Admission
	client    kubernetes.Interface
	informers informers.SharedInformerFactory
}

// podSecurityMetrics are registered once a process.
var podSecurityMetrics = sync.OnceValue(func() metrics.Recorder {
	r := metrics.NewPrometheusRecorder(podsecurityapi.GetAPIVersion())
	r.MustRegister(legacyregistry.MustRegister)
	return r
})

// newPodSecurity takes the defaults of namespaces and the exemptions (PSA-9) from a
// PodSecurityConfiguration; nil: privileged, none.
func newPodSecurity(config io.Reader) (admission.Interface, error) {
	c, err := load.LoadFromReader(config)
	if err != nil {
		return nil, err
	}
	return &podSecurity{Handler: admission.NewHandler(admission.Create, admission.Update), config: c}, nil
}

// SetExternalKubeClientSet and the next two implement the initializer's interfaces.
func (p *podSecurity) SetExternalKubeClientSet(client kubernetes.Interface) { p.client = client }

// SetExternalKubeInformerFactory takes the informers of namespaces and pods.
func (p *podSecurity) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	p.informers = f
	p.SetReadyFunc(f.Core().V1().Namespaces().Informer().HasSynced)
}

// ValidateInitialization builds the checks of every version.
func (p *podSecurity) ValidateInitialization() error {
	if p.client == nil || p.informers == nil {
		return fmt.Errorf("no client or informers")
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return fmt.Errorf("pod security checks: %w", err)
	}
	core := p.informers.Core().V1()
	p.admission = &podsecurityadmission.Admission{
		Configuration:    p.config,
		Evaluator:        evaluator,
		Metrics:          podSecurityMetrics(),
		PodSpecExtractor: podsecurityadmission.DefaultPodSpecExtractor{},
		NamespaceGetter:  podsecurityadmission.NamespaceGetterFromListerAndClient(core.Namespaces().Lister(), p.client),
		PodLister:        podsecurityadmission.PodListerFromInformer(core.Pods().Lister()),
	}
	if err := p.admission.CompleteConfiguration(); err != nil {
		return err
	}
	return p.admission.ValidateConfiguration()
}

// Validate checks pods, what makes pods (with warnings only), and namespaces.
func (p *podSecurity) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !checksPods(a.GetResource().GroupResource()) {
		return nil
	}
	result := p.admission.Validate(ctx, podSecurityAttributes{a})
	for _, w := range result.Warnings {
		warning.AddWarning(ctx, "", w)
	}
	for k, v := range result.AuditAnnotations {
		audit.AddAuditAnnotation(ctx, podsecurityapi.AuditAnnotationPrefix+k, v)
	}
	if result.Allowed {
		return nil
	}
	err := admission.NewForbidden(a, errors.New("Not allowed by PodSecurity"))
	status, ok := err.(*apierrors.StatusError)
	if !ok || result.Result == nil {
		return err
	}
	if result.Result.Message != "" {
		status.ErrStatus.Message = result.Result.Message
	}
	if result.Result.Reason != "" {
		status.ErrStatus.Reason = result.Result.Reason
	}
	if result.Result.Details != nil {
		status.ErrStatus.Details = result.Result.Details
	}
	if result.Result.Code != 0 {
		status.ErrStatus.Code = result.Result.Code
	}
	return status
}

func checksPods(r schema.GroupResource) bool {
	return r == corev1.Resource("namespaces") || podsecurityadmission.DefaultPodSpecExtractor{}.HasPodSpec(r)
}

// podSecurityAttributes are a request's in the library's form; objects need no
// conversion here.
type podSecurityAttributes struct{ admission.Attributes }

// GetObject and the following implement the library's Attributes.
func (a podSecurityAttributes) GetObject() (runtime.Object, error) {
	return a.Attributes.GetObject(), nil
}

// GetOldObject returns the stored object.
func (a podSecurityAttributes) GetOldObject() (runtime.Object, error) {
	return a.Attributes.GetOldObject(), nil
}

// GetOperation returns the operation.
func (a podSecurityAttributes) GetOperation() admissionv1.Operation {
	return admissionv1.Operation(a.Attributes.GetOperation())
}

// GetUserName returns the user's name.
func (a podSecurityAttributes) GetUserName() string { return a.GetUserInfo().GetName() }
