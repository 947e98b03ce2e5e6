package apiserver

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/emicklei/go-restful/v3"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/managedfields"
	genericapi "k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// Install builds the chain of servers with their security. It is called once,
// before OnStart and Run.
func (s *Server) Install(sec Security) error {
	registerBuildInfo()
	s.env.Authorizer, s.env.Rules = sec.Authorizer, sec.Rules
	s.env.Tokens, s.env.AuthenticateToken = sec.Tokens, sec.AuthenticateToken
	base, err := s.baseConfig(sec)
	if err != nil {
		return err
	}
	crds, err := s.newCRDServer(base)
	if err != nil {
		return fmt.Errorf("build CRD server: %w", err)
	}
	s.definitions = crds.Informers.Apiextensions().V1().CustomResourceDefinitions()
	builtin, err := s.newBuiltinServer(base, crds.GenericAPIServer)
	if err != nil {
		return fmt.Errorf("build API server: %w", err)
	}
	if err := s.newAggregator(base, builtin, crds); err != nil {
		return err
	}
	if err := s.OnStart(documentSteps()...); err != nil {
		return err
	}
	if err := s.OnStart(Step{"start-apiserver-admission-initializer", s.informed}); err != nil {
		return err
	}
	forgetRouteDocs(builtin.Handler.GoRestfulContainer)
	for path, handler := range sec.Handlers {
		s.aggregator.GenericAPIServer.Handler.NonGoRestfulMux.Handle(path, handler)
	}
	for path, handler := range sec.Streams {
		s.aggregator.GenericAPIServer.Handler.NonGoRestfulMux.Handle(path, handler)
	}
	return nil
}

// forgetRouteDocs drops what routes keep for rendering OpenAPI, some megabytes:
// the documents are static.
func forgetRouteDocs(c *restful.Container) {
	for _, ws := range c.RegisteredWebServices() {
		for _, route := range ws.Routes() {
			clear(route.ResponseErrors)
			clear(route.ParameterDocs)
		}
	}
}

// base returns a server configuration for one of the three schemes; all three
// share discovery, security and the chain.
type baseConfig func(codecs serializer.CodecFactory) *genericapiserver.RecommendedConfig

func (s *Server) baseConfig(sec Security) (baseConfig, error) {
	serving, err := s.serving()
	if err != nil {
		return nil, err
	}
	groups := aggregated.NewResourceManager("apis")
	admit := newAdmissionChain(sec.Admission)
	s.flow = s.newFlow()
	return func(codecs serializer.CodecFactory) *genericapiserver.RecommendedConfig {
		c := genericapiserver.NewRecommendedConfig(codecs)
		c.SecureServing = serving
		c.Authentication.Authenticator = sec.Authenticator
		c.Authentication.RequestHeaderConfig = sec.RequestHeader
		c.Authentication.APIAudiences = sec.Audiences
		c.Authorization.Authorizer = sec.Authorizer
		c.RuleResolver = sec.RuleResolver
		c.AuditBackend = s.cfg.AuditBackend
		c.AuditPolicyRuleEvaluator = s.cfg.AuditRules
		c.AdmissionControl = admit
		c.LoopbackClientConfig = s.loopback
		c.EffectiveVersion = effectiveVersion()
		c.ExternalAddress = s.cfg.ExternalAddress
		c.BuildHandlerChainFunc = s.chain
		c.LongRunningFunc = longRunningOr(sec.Streams)
		c.AggregatedDiscoveryGroupManager = groups
		c.FlowControl = s.flow
		c.Flagz = s.cfg.Flags
		if s.tracer != nil {
			c.TracerProvider = s.tracer
		}
		c.EnableProfiling = s.cfg.Profiling
		c.SkipOpenAPIInstallation = true // served by openAPI, from static documents
		return c
	}, nil
}

func (s *Server) serving() (*genericapiserver.SecureServingInfo, error) {
	if s.cfg.Listener == nil { // for documentation only, nothing will be served
		return &genericapiserver.SecureServingInfo{Listener: unservedListener{}}, nil
	}
	var err error
	if s.front, err = newFront(s.cfg); err != nil {
		return nil, err
	}
	return &genericapiserver.SecureServingInfo{Listener: &s.front.stage}, nil
}

type unservedListener struct{ net.Listener }

func (unservedListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6443} }

func (s *Server) newBuiltinServer(base baseConfig,
	crds *genericapiserver.GenericAPIServer) (*genericapiserver.GenericAPIServer, error) {
	c := base(s.codecs)
	c.RESTOptionsGetter = s.env.RESTOptions
	g, err := c.Complete().New("shoal", crds)
	if err != nil {
		return nil, err
	}
	converter, err := s.typeConverter()
	if err != nil {
		return nil, err
	}
	groups, err := s.groups()
	if err != nil {
		return nil, err
	}
	for _, group := range groups {
		if err := s.installGroup(g, c, group, converter); err != nil {
			return nil, fmt.Errorf("install %s: %w", group.version, err)
		}
	}
	addGroupDiscovery(g, groups)
	return g, g.AddPostStartHook("storage-readiness", g.StorageReadinessHook.Hook)
}

// group is one served group version.
type group struct {
	version  schema.GroupVersion
	storages map[string]rest.Storage
}

// groups collects the storages of all kinds that are enabled by group version.
func (s *Server) groups() ([]group, error) {
	byVersion := map[schema.GroupVersion]map[string]rest.Storage{}
	for _, k := range s.kinds {
		storages, err := k.Storages(s.env, s.stores)
		if err != nil {
			return nil, fmt.Errorf("build storages: %w", err)
		}
		names := k.KindNames()
		for _, gv := range append([]schema.GroupVersion{names.GroupVersion}, names.AlsoServed...) {
			if byVersion[gv] == nil {
				byVersion[gv] = map[string]rest.Storage{}
			}
			for name, storage := range storages {
				resource, _, _ := strings.Cut(name, "/")
				if s.enabled.on(gv.WithResource(resource)) {
					byVersion[gv][name] = storage
				}
			}
		}
	}
	out := make([]group, 0, len(byVersion))
	for gv, storages := range byVersion {
		if len(storages) == 0 {
			continue
		}
		out = append(out, group{version: gv, storages: storages})
	}
	slices.SortFunc(out, func(a, b group) int { return cmp.Compare(a.version.String(), b.version.String()) })
	return out, nil
}

// installGroup does what GenericAPIServer.InstallAPIGroup does, but for the
// OpenAPI models, which it would build again for each group.
func (s *Server) installGroup(g *genericapiserver.GenericAPIServer, c *genericapiserver.RecommendedConfig, gr group,
	converter managedfields.TypeConverter) error {
	served := map[string][]string{}
	for name := range gr.storages {
		served[name] = []string{gr.version.String()}
	}
	root := genericapiserver.APIGroupPrefix
	if gr.version.Group == "" {
		root = genericapiserver.DefaultLegacyAPIPrefix
	}
	version := &genericapi.APIGroupVersion{
		Root: root, GroupVersion: gr.version, Storage: gr.storages, AllServedVersionsByResource: served,
		OptionsExternalVersion: &schema.GroupVersion{Version: "v1"},
		Serializer:             versioned{s.codecs}, ParameterCodec: s.env.ParameterCodec,
		Typer: s.env.Scheme, Creater: s.env.Scheme, Convertor: s.env.Scheme, ConvertabilityChecker: s.env.Scheme,
		UnsafeConvertor: runtime.UnsafeObjectConvertor(s.env.Scheme), Defaulter: s.env.Scheme,
		Namer:         runtime.Namer(meta.NewAccessor()),
		TypeConverter: converter, EquivalentResourceRegistry: g.EquivalentResourceRegistry,
		Authorizer: c.Authorization.Authorizer, Admit: c.AdmissionControl,
		MinRequestTimeout: time.Duration(c.MinRequestTimeout) * time.Second, MaxRequestBodyBytes: c.MaxRequestBodyBytes,
	}
	resources, _, err := version.InstallREST(g.Handler.GoRestfulContainer)
	if err != nil {
		return err
	}
	s.addDiscovery(g, gr.version, resources)
	for name, storage := range gr.storages {
		if r, ok := storage.(rest.StorageWithReadiness); ok {
			g.StorageReadinessHook.RegisterStorage(
				metav1.GroupVersionResource{Group: gr.version.Group, Version: gr.version.Version, Resource: name}, r)
		}
	}
	return nil
}

func (s *Server) addDiscovery(g *genericapiserver.GenericAPIServer, gv schema.GroupVersion,
	resources []apidiscoveryv2.APIResourceDiscovery) {
	doc := apidiscoveryv2.APIVersionDiscovery{Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
		Version: gv.Version, Resources: resources}
	if gv.Group == "" {
		g.AggregatedLegacyDiscoveryGroupManager.AddGroupVersion(gv.Group, doc)
		addresses := discovery.DefaultAddresses{DefaultAddress: g.ExternalAddress}
		legacy := discovery.NewLegacyRootAPIHandler(addresses, g.Serializer, genericapiserver.DefaultLegacyAPIPrefix)
		wrapped := aggregated.WrapAggregatedDiscoveryToHandler(legacy, g.AggregatedLegacyDiscoveryGroupManager,
			g.AggregatedLegacyDiscoveryGroupManager)
		g.Handler.GoRestfulContainer.Add(
			wrapped.GenerateWebService(genericapiserver.DefaultLegacyAPIPrefix, metav1.APIVersions{}))
		return
	}
	g.AggregatedDiscoveryGroupManager.AddGroupVersion(gv.Group, doc)
}

// addGroupDiscovery serves the list of each group's versions, the newest first.
func addGroupDiscovery(g *genericapiserver.GenericAPIServer, groups []group) {
	byName := map[string][]metav1.GroupVersionForDiscovery{}
	for _, gr := range slices.Backward(groups) {
		if gv := gr.version; gv.Group != "" {
			byName[gv.Group] = append(byName[gv.Group],
				metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		apiGroup := metav1.APIGroup{Name: name, Versions: byName[name], PreferredVersion: byName[name][0]}
		g.DiscoveryGroupManager.AddGroup(apiGroup)
		g.Handler.GoRestfulContainer.Add(discovery.NewAPIGroupHandler(g.Serializer, apiGroup).WebService())
	}
}

func (s *Server) newCRDServer(base baseConfig) (*apiextensionsapiserver.CustomResourceDefinitions, error) {
	c := base(apiextensionsapiserver.Codecs)
	c.AdmissionControl = soundDefinitions{c.AdmissionControl}
	c.MergedResourceConfig = apiextensionsapiserver.DefaultAPIResourceConfigSource()
	c.OpenAPIV3Config = crdOpenAPI()
	config := &apiextensionsapiserver.Config{GenericConfig: c, ExtraConfig: apiextensionsapiserver.ExtraConfig{
		MasterCount:     1,
		ServiceResolver: s.resolver,
	}}
	if s.cfg.Storage != nil {
		c.RESTOptionsGetter = s.cfg.Storage.Options(apiextensionsapiserver.Scheme, apiextensionsapiserver.Codecs)
		config.ExtraConfig.CRDRESTOptionsGetter = s.cfg.Storage.CustomOptions()
	} else {
		c.RESTOptionsGetter, config.ExtraConfig.CRDRESTOptionsGetter = noStorage{}, noStorage{}
	}
	config.ExtraConfig.AuthResolverWrapper = s.WebhookAuth()
	return config.Complete().New(
		genericapiserver.NewEmptyDelegateWithCustomHandler(notFound(apiextensionsapiserver.Codecs)))
}

// KindNames lists what is served, for documentation and tests.
func KindNames(kinds []kind.Kind) []string {
	out := make([]string, 0, len(kinds))
	for _, k := range kinds {
		n := k.KindNames()
		out = append(out, path.Join(n.GroupVersion.Group, n.GroupVersion.Version, n.Resource))
	}
	slices.Sort(out)
	return out
}
