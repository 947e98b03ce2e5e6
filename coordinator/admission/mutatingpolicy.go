package admission

import (
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	admissionlisters "k8s.io/client-go/listers/admissionregistration/v1"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/tools/cache"
)

// mutatingPolicies is the library's plugin, whose schema watcher sleeps while
// there are no policies.
type mutatingPolicies struct {
	*mutatingpolicy.Plugin
	schema *schemasOnDemand
}

func newMutatingPolicies(stop <-chan struct{}, config io.Reader) (admission.Interface, error) {
	plugin, err := mutatingpolicy.NewPlugin(config)
	if err != nil {
		return nil, err
	}
	return &mutatingPolicies{Plugin: plugin, schema: &schemasOnDemand{stop: stop, made: make(chan struct{}, 1)}}, nil
}

// SetExternalKubeClientSet hands on a client whose OpenAPI waits for a policy.
func (m *mutatingPolicies) SetExternalKubeClientSet(client kubernetes.Interface) {
	m.Plugin.SetExternalKubeClientSet(lazyClient{client, m.schema})
}

// SetExternalKubeInformerFactory takes the informer of policies.
func (m *mutatingPolicies) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	policies := f.Admissionregistration().V1().MutatingAdmissionPolicies()
	m.schema.policies = policies.Lister()
	// The error is of an informer that has stopped, which one just made has not.
	_, _ = policies.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { m.schema.wake() }})
	m.Plugin.SetExternalKubeInformerFactory(f)
}

// lazyClient is a client with another OpenAPI.
type lazyClient struct {
	kubernetes.Interface
	schema *schemasOnDemand
}

func (c lazyClient) Discovery() discovery.DiscoveryInterface {
	return lazyDiscovery{c.Interface.Discovery(), c.schema}
}

type lazyDiscovery struct {
	discovery.DiscoveryInterface
	schema *schemasOnDemand
}

func (d lazyDiscovery) OpenAPIV3() openapi.Client {
	d.schema.client = d.DiscoveryInterface.OpenAPIV3()
	return d.schema
}

// schemasOnDemand answers the plugin, which asks every five seconds for the list
// of schemas, only once a policy exists: until then the call waits.
type schemasOnDemand struct {
	client   openapi.Client
	policies admissionlisters.MutatingAdmissionPolicyLister
	stop     <-chan struct{}
	made     chan struct{}
}

func (s *schemasOnDemand) wake() {
	select {
	case s.made <- struct{}{}:
	default:
	}
}

// Paths lists the schemas by path.
func (s *schemasOnDemand) Paths() (map[string]openapi.GroupVersion, error) {
	for {
		list, err := s.policies.List(labels.Everything())
		if err != nil {
			return nil, fmt.Errorf("list mutating policies: %w", err)
		}
		if len(list) > 0 {
			return s.client.Paths()
		}
		select {
		case <-s.made:
		case <-s.stop:
			return nil, nil // nobody asks again
		}
	}
}
