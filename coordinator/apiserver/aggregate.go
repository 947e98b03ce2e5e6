package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	crdinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/server/healthz"
	translator "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/webhook"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/ptr"
)

// priorities order the groups in discovery as upstream does.
var priorities = map[string]int32{
	"": 18000, "apps": 17800, "events.k8s.io": 17750, "authentication.k8s.io": 17700, "authorization.k8s.io": 17600,
	"autoscaling": 17500, "batch": 17400, "certificates.k8s.io": 17300, "networking.k8s.io": 17200, "policy": 17100,
	"rbac.authorization.k8s.io": 17000, "storage.k8s.io": 16800, "apiextensions.k8s.io": 16700,
	"admissionregistration.k8s.io": 16700,
	"scheduling.k8s.io":            16600, "coordination.k8s.io": 16500, "node.k8s.io": 16300, "discovery.k8s.io": 16200,
	"flowcontrol.apiserver.k8s.io": 16100, "resource.k8s.io": 16200, "metrics.k8s.io": 100,
}

// versionPriorities are those of upstream that are not builtinVersionPriority.
var versionPriorities = map[schema.GroupVersion]int32{
	{Version: "v1"}:                                        1,
	{Group: "autoscaling", Version: "v2"}:                  30,
	{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"}: 21,
	{Group: "resource.k8s.io", Version: "v1"}:              21,
}

// replaceable are the group versions that users may serve in our place, by an
// APIService as metrics-server brings it. None is made for ours: theirs can be
// created (Helm takes over no object of another), and when it goes we serve again.
var replaceable = map[schema.GroupVersion]bool{metricsv1beta1.SchemeGroupVersion: true}

// versionPriority orders the versions of a group.
func versionPriority(gv schema.GroupVersion) int32 {
	if p, ok := versionPriorities[gv]; ok {
		return p
	}
	return builtinVersionPriority
}

const (
	builtinVersionPriority = 15
	// Custom resources come after all built-in groups.
	crdGroupPriority, crdVersionPriority = 1000, 100
)

func (s *Server) newAggregator(base baseConfig, builtin *genericapiserver.GenericAPIServer,
	crds *apiextensionsapiserver.CustomResourceDefinitions) error {
	c := base(aggregatorscheme.Codecs)
	c.MergedResourceConfig = aggregatorapiserver.DefaultAPIResourceConfigSource()
	c.OpenAPIV3Config = aggregatorOpenAPI()
	c.SharedInformerFactory = s.factory
	c.RESTOptionsGetter = noStorage{}
	if s.cfg.Storage != nil {
		c.RESTOptionsGetter = s.cfg.Storage.Options(aggregatorscheme.Scheme, aggregatorscheme.Codecs)
	}
	if ask := s.cfg.StorageHealth; ask != nil {
		c.AddHealthChecks(storageCheck("etcd", ask))
		c.AddReadyzChecks(storageCheck("etcd-readiness", ask))
	}
	loopback := s.loopbackCheck()
	c.AddHealthzChecks(loopback)
	c.AddLivezChecks(loopback)
	if check := s.cfg.EncryptionHealth; check != nil { // a plugin that is away is no reason to restart: not livez
		c.HealthzChecks, c.ReadyzChecks = append(c.HealthzChecks, check), append(c.ReadyzChecks, check)
	}
	_, resolves := s.stores["/services"]
	config := &aggregatorapiserver.Config{GenericConfig: c, ExtraConfig: aggregatorapiserver.ExtraConfig{
		ProxyClientCertFile: s.cfg.FrontProxyCertFile, ProxyClientKeyFile: s.cfg.FrontProxyKeyFile,
		ServiceResolver:           s.resolver,
		RejectForwardingRedirects: true,
		// Without Services there are no remote API servers to look after.
		DisableRemoteAvailableConditionController: !resolves,
	}}
	agg, err := config.Complete().NewWithDelegate(builtin)
	if err != nil {
		return fmt.Errorf("build aggregator: %w", err)
	}
	s.aggregator = agg
	if err := s.autoRegister(agg, builtin, crds.Informers.Apiextensions().V1().CustomResourceDefinitions()); err != nil {
		return err
	}
	services := agg.APIRegistrationInformers.Apiregistration().V1().APIServices().Lister()
	s.serveOpenAPI(agg.GenericAPIServer, crds, services)
	s.serveMetrics(agg.GenericAPIServer)
	return nil
}

// autoRegister keeps an APIService for each local group version, of built-in
// groups and of CRDs.
func (s *Server) autoRegister(agg *aggregatorapiserver.APIAggregator, builtin *genericapiserver.GenericAPIServer,
	crds crdinformers.CustomResourceDefinitionInformer) error {
	client, err := clientset.NewForConfig(s.loopback)
	if err != nil {
		return fmt.Errorf("make API registration client: %w", err)
	}
	apiServices := agg.APIRegistrationInformers.Apiregistration().V1().APIServices()
	auto := autoregister.NewAutoRegisterController(apiServices, client.ApiregistrationV1())
	pending := &pendingServices{names: map[string]bool{}}
	groups := agg.GenericAPIServer.AggregatedDiscoveryGroupManager
	for _, gv := range localVersions(builtin.ListedPaths()) {
		priority, ok := priorities[gv.Group]
		if !ok {
			return fmt.Errorf("register %s: its group has no priority", gv)
		}
		groups.SetGroupVersionPriority(metav1.GroupVersion(gv), int(priority), int(versionPriority(gv)))
		if replaceable[gv] {
			continue
		}
		service := localService(gv, priority, versionPriority(gv))
		auto.AddAPIServiceToSyncOnStart(service)
		pending.names[service.Name] = true
	}
	groups.SetGroupVersionPriority(metav1.GroupVersion(apiregistrationv1.SchemeGroupVersion),
		aggregatorapiserver.APIRegistrationGroupPriority, 0)
	s.serveGroups(agg.GenericAPIServer, apiServices.Lister())
	if _, err := apiServices.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { pending.seen(obj.(*apiregistrationv1.APIService)) },
		UpdateFunc: func(_, obj any) { pending.seen(obj.(*apiregistrationv1.APIService)) },
	}); err != nil {
		return fmt.Errorf("watch API services: %w", err)
	}
	registrar, err := newCRDRegistrar(crds, auto)
	if err != nil {
		return err
	}
	err = agg.GenericAPIServer.AddPostStartHook("kube-apiserver-autoregistration",
		func(hook genericapiserver.PostStartHookContext) error {
			go func() {
				// CRDs first: an APIService that nobody claims would be removed.
				if registrar.first(hook) {
					go registrar.run(hook)
					auto.Run(5, hook.Done())
				}
			}()
			return nil
		})
	if err != nil {
		return err
	}
	return agg.GenericAPIServer.AddBootSequenceHealthChecks(healthz.NamedCheck("autoregister-completion", pending.check))
}

// localVersions finds the group versions in the paths that a server lists.
func localVersions(paths []string) []schema.GroupVersion {
	var out []schema.GroupVersion
	for _, p := range paths {
		parts := strings.Split(p, "/")
		switch {
		case p == "/api/v1":
			out = append(out, schema.GroupVersion{Version: "v1"})
		case len(parts) == 4 && parts[1] == "apis":
			out = append(out, schema.GroupVersion{Group: parts[2], Version: parts[3]})
		}
	}
	return out
}

func localService(gv schema.GroupVersion, group, version int32) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
		Spec: apiregistrationv1.APIServiceSpec{Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: group,
			VersionPriority: version},
	}
}

// pendingServices are the local API services not yet seen available.
type pendingServices struct {
	mu    sync.Mutex
	names map[string]bool
}

func (p *pendingServices) seen(s *apiregistrationv1.APIService) {
	for _, c := range s.Status.Conditions {
		if c.Type == apiregistrationv1.Available && c.Status == apiregistrationv1.ConditionTrue {
			p.mu.Lock()
			delete(p.names, s.Name)
			p.mu.Unlock()
		}
	}
}

func (p *pendingServices) check(*http.Request) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.names {
		return fmt.Errorf("missing APIService: %s", name)
	}
	return nil
}

// crdRegistrar asks for an APIService for each served version of each CRD. It
// looks at all CRDs whenever one changes.
type crdRegistrar struct {
	informer crdinformers.CustomResourceDefinitionInformer
	auto     autoregister.AutoAPIServiceRegistration
	changed  chan struct{}
	claimed  map[string]bool
}

func newCRDRegistrar(informer crdinformers.CustomResourceDefinitionInformer,
	auto autoregister.AutoAPIServiceRegistration) (*crdRegistrar, error) {
	r := &crdRegistrar{informer: informer, auto: auto, changed: make(chan struct{}, 1), claimed: map[string]bool{}}
	poke := func() {
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}
	_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { poke() }, UpdateFunc: func(any, any) { poke() }, DeleteFunc: func(any) { poke() },
	})
	if err != nil {
		return nil, fmt.Errorf("watch CRDs: %w", err)
	}
	return r, nil
}

// first claims the CRDs that exist at start; false when ctx ended.
func (r *crdRegistrar) first(ctx context.Context) bool {
	if !cache.WaitForCacheSync(ctx.Done(), r.informer.Informer().HasSynced) {
		return false
	}
	r.claim()
	return true
}

func (r *crdRegistrar) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.changed:
			r.claim()
		}
	}
}

func (r *crdRegistrar) claim() {
	crds, err := r.informer.Lister().List(labels.Everything())
	if err != nil {
		return // a lister on an index fails for wrong types only
	}
	wanted := map[string]*apiregistrationv1.APIService{}
	for _, crd := range crds {
		for _, v := range crd.Spec.Versions {
			if v.Served {
				service := localService(schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name},
					crdGroupPriority, crdVersionPriority)
				wanted[service.Name] = service
			}
		}
	}
	for name, service := range wanted {
		if !r.claimed[name] {
			r.auto.AddAPIServiceToSync(service)
			r.claimed[name] = true
		}
	}
	for name := range r.claimed {
		if wanted[name] == nil {
			r.auto.RemoveAPIServiceToSync(name)
			delete(r.claimed, name)
		}
	}
}

// newServiceResolver finds where a Service's pods answer, so that webhooks and
// aggregated API servers need no Service proxy on this machine.
func (s *Server) newServiceResolver() (webhook.ServiceResolver, error) {
	r := clusterResolver{own: "https://" + s.cfg.ExternalAddress}
	if s.stores["/services"] == nil || s.stores["discovery.k8s.io/endpointslices"] == nil {
		return r, nil
	}
	slices, err := translator.NewEndpointSliceIndexerGetter(s.factory.Discovery().V1().EndpointSlices())
	if err != nil {
		return nil, fmt.Errorf("index endpoint slices: %w", err)
	}
	r.services, r.slices = s.factory.Core().V1().Services().Lister(), slices
	return r, nil
}

type clusterResolver struct {
	own      string
	services corelisters.ServiceLister
	slices   translator.EndpointSliceGetter
}

// ResolveEndpoint returns the URL of one endpoint of a Service's port, as the Service
// proxy would choose it: a ready one or, where none is, one that is terminating and
// still serves. A Service of type ExternalName is at its name.
func (r clusterResolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if namespace == metav1.NamespaceDefault && name == "kubernetes" {
		return url.Parse(r.own)
	}
	if r.services == nil {
		return nil, fmt.Errorf("service %s/%s: Services are not served here", namespace, name)
	}
	service, err := r.services.Services(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return translator.ResolveCluster(r.services, namespace, name, port)
	}
	ready, err := translator.ResolveEndpoint(r.services, r.slices, namespace, name, port)
	if err == nil {
		return ready, nil
	}
	if last, none := translator.ResolveEndpoint(r.services, terminating{r.slices}, namespace, name, port); none == nil {
		return last, nil
	}
	return nil, err
}

// terminating finds a Service's slices with those endpoints alone that are terminating
// and still serve, as ready ones.
type terminating struct{ translator.EndpointSliceGetter }

// GetEndpointSlices implements translator.EndpointSliceGetter.
func (t terminating) GetEndpointSlices(namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
	found, err := t.EndpointSliceGetter.GetEndpointSlices(namespace, service)
	out := make([]*discoveryv1.EndpointSlice, 0, len(found))
	for _, slice := range found {
		last := *slice // what informers hold may not be modified
		last.Endpoints = nil
		for _, e := range slice.Endpoints {
			if ptr.Deref(e.Conditions.Terminating, false) && ptr.Deref(e.Conditions.Serving, false) {
				e.Conditions.Ready = ptr.To(true)
				last.Endpoints = append(last.Endpoints, e)
			}
		}
		out = append(out, &last)
	}
	return out, err
}

// WebhookAuth says how this server identifies itself to webhooks.
func (s *Server) WebhookAuth() webhook.AuthenticationInfoResolverWrapper {
	return webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, (*egressselector.EgressSelector)(nil), s.loopback,
		s.tracerProvider())
}
