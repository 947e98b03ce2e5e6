package admission

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	webhookinit "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	basecompatibility "k8s.io/component-base/compatibility"

	"github.com/shoal-project/shoal/agent/fence"
)

// Config is what the plugins need of the server.
type Config struct {
	// Client and Informers are the server's own. The informers must start after
	// Chain, which asks for those it uses.
	Client     kubernetes.Interface
	Informers  informers.SharedInformerFactory
	Authorizer authorizer.Authorizer
	// Dynamic reads the parameters of admission policies; without it those two
	// plugins are left out.
	Dynamic dynamic.Interface
	// Services finds the address of a webhook's service; nil: its DNS name.
	// WebhookAuth says how to authenticate there; nil: not at all.
	Services    webhook.ServiceResolver
	WebhookAuth webhook.AuthenticationInfoResolverWrapper
	// Enable and Disable name plugins, ConfigFile is an AdmissionConfiguration.
	Enable, Disable []string
	ConfigFile      string
	// WhenIsolated is the policy of pods that name none; empty: they stay.
	WhenIsolated fence.Policy
	// PoliciesIdle tells that no node enforces network policies; nil: nobody knows.
	PoliciesIdle func() bool
	// Stop is closed when the server has drained; nil: the process's end.
	Stop <-chan struct{}
}

// immortal namespaces cannot be deleted.
var immortal = sets.New(metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic)

// notForPolicies are questions about identity and rights, which a policy that
// breaks them could not be repaired without.
var notForPolicies = []schema.GroupResource{
	{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"},
	{Group: "authentication.k8s.io", Resource: "tokenreviews"},
	{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"},
	{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"},
	{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
	{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
}

// Chain returns the plugins that run, in upstream's order. Each is timed.
func Chain(c Config) ([]admission.Interface, error) {
	if c.Stop == nil {
		c.Stop = make(chan struct{})
	}
	plugins, names, err := c.plugins()
	if err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	features := utilfeature.DefaultFeatureGate
	generic := initializer.New(c.Client, c.Dynamic, c.Informers, c.Authorizer, features,
		basecompatibility.NewEffectiveVersionFromString("1.36", "1.35", "1.35"), c.Stop,
		newMapper(c.Client.Discovery()))
	hooks := webhookinit.NewPluginInitializer(c.WebhookAuth, c.Services)
	for i, p := range plugins {
		generic.Initialize(p)
		hooks.Initialize(p)
		if p, ok := p.(initializer.WantsExcludedAdmissionResources); ok {
			p.SetExcludedAdmissionResources(notForPolicies)
		}
		if err := admission.ValidateInitialization(p); err != nil {
			return nil, fmt.Errorf("admission: %T: %w", p, err)
		}
		plugins[i] = admissionmetrics.WithControllerMetrics(p, names[i])
	}
	return plugins, nil
}

// podOf returns the pod of a request for the pods resource itself, nil for
// any other request.
func podOf(a admission.Attributes) *corev1.Pod {
	if a.GetResource().GroupResource() != corev1.Resource("pods") || a.GetSubresource() != "" {
		return nil
	}
	pod, _ := a.GetObject().(*corev1.Pod)
	return pod
}

func forbid(a admission.Attributes, format string, args ...any) error {
	return admission.NewForbidden(a, fmt.Errorf(format, args...))
}
