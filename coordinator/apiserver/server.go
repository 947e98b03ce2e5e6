package apiserver

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	crdinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/tracing"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// Storage gives the storage options of resources; store.Store is the one.
type Storage interface {
	Options(scheme *runtime.Scheme, codecs serializer.CodecFactory) generic.RESTOptionsGetter
	CustomOptions() generic.RESTOptionsGetter
	// Count is how many objects of a resource are stored, and how many bytes one has on
	// average, 0 where that is not known; known whether there is such a resource.
	Count(ctx context.Context, resource schema.GroupResource) (n, size int64, known bool, err error)
}

// Config is what the server is made of.
type Config struct {
	Kinds   []kind.Kind
	Storage Storage
	// Env is what kinds need; Scheme, ParameterCodec, RESTOptions and Client are
	// filled in by New, what Security holds by Install.
	Env kind.Env
	// Listener is where TLS is served. CertFile and KeyFile are read again when
	// they change, and so is ClientCAFile.
	Listener                        net.Listener
	CertFile, KeyFile, ClientCAFile string
	// Monitors are where metrics and health alone are served, with the same
	// certificate, to whom the API would serve them.
	Monitors []net.Listener
	// FrontProxyCAFile, FrontProxyCertFile and FrontProxyKeyFile identify this
	// server to aggregated API servers; empty: no aggregation to remote servers.
	FrontProxyCAFile, FrontProxyCertFile, FrontProxyKeyFile string
	// EncryptionHealth tells of the KMS plugins of the storage; nil: none.
	EncryptionHealth healthz.HealthChecker
	// StorageHealth fails when the storage does not answer; nil: it is not asked.
	StorageHealth func(context.Context) error
	// RuntimeConfig turns built-in APIs off, in the form of upstream's --runtime-config.
	RuntimeConfig map[string]string
	// Profiling serves /debug/pprof.
	Profiling bool
	// DisabledMetrics are the names of metrics that the page does not show.
	DisabledMetrics []string
	// TracingConfigFile is a TracingConfiguration of apiserver.config.k8s.io; empty:
	// nothing is traced.
	TracingConfigFile string
	// Flags are what /flagz shows; nil: nothing.
	Flags flagz.Reader
	// ExternalAddress is host:port as clients see it.
	ExternalAddress string
	// AuditBackend records what AuditRules say; nil: nothing is recorded.
	AuditBackend audit.Backend
	AuditRules   audit.PolicyRuleEvaluator
	Log          *slog.Logger
}

// Security decides who may do what. It is made after New, since it reads
// objects through the server's own informers.
type Security struct {
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
	// RequestHeader is the front proxy configuration; nil: none.
	RequestHeader *authenticatorfactory.RequestHeaderConfig
	Audiences     authenticator.Audiences
	RuleResolver  authorizer.RuleResolver
	// Admission runs in this order.
	Admission []admission.Interface
	// The next ones complete kind.Env.
	Rules             kind.RuleResolver
	Tokens            kind.TokenIssuer
	AuthenticateToken authenticator.Token
	// Handlers are served at their paths beside the API (OpenID discovery).
	Handlers map[string]http.Handler
	// Streams are Handlers whose answers go on, as a watch's do.
	Streams map[string]http.Handler
}

// Server is the API server of one coordinator.
type Server struct {
	cfg      Config
	env      *kind.Env
	codecs   serializer.CodecFactory
	kinds    []kind.Kind
	stores   kind.Stores
	loopback *rest.Config
	local    *localTransport
	factory  informers.SharedInformerFactory

	enabled       *enablement
	tracer        tracing.TracerProvider // nil: nothing is traced
	front         *front
	flow          flow
	resolver      webhook.ServiceResolver
	discoveryDone chan struct{}
	aggregator    *aggregatorapiserver.APIAggregator
	definitions   crdinformers.CustomResourceDefinitionInformer
}

// New builds the stores of all kinds. Their watch caches begin to fill; nothing
// is served yet, but Client and Informers can be handed out.
func New(cfg Config) (*Server, error) {
	scheme, err := kind.NewScheme(cfg.Kinds)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, kinds: cfg.Kinds, codecs: newCodecs(scheme), local: newLocalTransport(),
		discoveryDone: make(chan struct{})}
	if s.enabled, err = newEnablement(cfg.Kinds, cfg.RuntimeConfig); err != nil {
		return nil, err
	}
	if s.tracer, err = newTracer(cfg.TracingConfigFile, cfg.ExternalAddress); err != nil {
		return nil, err
	}
	if s.loopback, err = newLoopback(s.local); err != nil {
		return nil, err
	}
	if s.tracer != nil {
		s.loopback.Wrap(tracing.WrapperFor(s.tracer))
	}
	env := cfg.Env
	s.env = &env
	env.Scheme = scheme
	env.ParameterCodec = runtime.NewParameterCodec(scheme)
	if cfg.Storage != nil {
		env.RESTOptions = cfg.Storage.Options(scheme, s.codecs)
	} else {
		env.RESTOptions = noStorage{}
	}
	if env.Client, err = kubernetes.NewForConfig(s.loopback); err != nil {
		return nil, fmt.Errorf("make loopback client: %w", err)
	}
	if s.stores, err = buildStores(&env, cfg.Kinds); err != nil {
		return nil, err
	}
	s.factory = newInformerFactory(env.Client, cfg.Kinds, s.stores)
	if s.resolver, err = s.newServiceResolver(); err != nil {
		return nil, err
	}
	return s, nil
}

// newCodecs encode lists object by object, as v1.36 does: the whole answer is never in memory,
// however many clients read it, and however slowly.
func newCodecs(scheme *runtime.Scheme) serializer.CodecFactory {
	return serializer.NewCodecFactory(scheme,
		serializer.WithStreamingCollectionEncodingToJSON(), serializer.WithStreamingCollectionEncodingToProtobuf())
}

func buildStores(env *kind.Env, kinds []kind.Kind) (kind.Stores, error) {
	stores := kind.Stores{}
	for _, k := range kinds {
		store, err := k.NewStore(env)
		if err != nil {
			return nil, err
		}
		if store != nil {
			names := k.KindNames()
			stores[names.GroupVersion.Group+"/"+names.Resource] = store
		}
	}
	return stores, nil
}

// newLoopback makes the client configuration of requests that stay inside the
// process: a random token stands for system:apiserver in system:masters.
func newLoopback(local http.RoundTripper) (*rest.Config, error) {
	token := make([]byte, 24)
	if _, err := rand.Read(token); err != nil {
		return nil, fmt.Errorf("make loopback token: %w", err)
	}
	return &rest.Config{
		Host: "http://shoal.internal", Transport: local, BearerToken: hex.EncodeToString(token), QPS: -1,
		ContentConfig:      rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json"},
		DisableCompression: true,
	}, nil
}

// Client writes and reads through the whole handler chain, in process, as
// system:apiserver. It works once the server runs.
func (s *Server) Client() kubernetes.Interface { return s.env.Client }

// Loopback is the configuration behind Client, in protobuf. Callers copy it
// before a change.
func (s *Server) Loopback() *rest.Config { return rest.CopyConfig(s.loopback) }

// Informers read the watch caches in process; what they hand out is shared and
// must not be modified. Informers exist as they are asked for.
func (s *Server) Informers() informers.SharedInformerFactory { return s.factory }

// Services finds where a Service's pods answer, for webhooks.
func (s *Server) Services() webhook.ServiceResolver { return s.resolver }

// Dynamic returns a client for objects of any kind, custom ones too.
func (s *Server) Dynamic() (dynamic.Interface, error) {
	return dynamic.NewForConfig(s.jsonLoopback())
}

// Definitions follows CustomResourceDefinitions as the API does that serves them, once it
// is installed.
func (s *Server) Definitions() cache.SharedIndexInformer { return s.definitions.Informer() }

// Gateways is a client of the Gateway API, in process as Client.
func (s *Server) Gateways() (gatewayclient.Interface, error) {
	return gatewayclient.NewForConfig(s.jsonLoopback())
}

// Metadata returns a client for the metadata of objects of any kind.
func (s *Server) Metadata() (metadata.Interface, error) {
	return metadata.NewForConfig(s.Loopback())
}

func (s *Server) jsonLoopback() *rest.Config {
	c := s.Loopback()
	c.ContentConfig = rest.ContentConfig{}
	return c
}

// Store is a kind's main store by "group/resource", for tests.
func (s *Server) Store(key string) *genericregistry.Store { return s.stores[key] }

// Env is what kinds were given, for tests.
func (s *Server) Env() *kind.Env { return s.env }

// Run serves until ctx ends, and returns when requests in flight are answered.
func (s *Server) Run(ctx context.Context) error {
	if s.aggregator == nil {
		return errors.New("run API server: nothing is installed")
	}
	g := s.aggregator.GenericAPIServer
	// Requests are waited for before; watches are cut: clients resume them.
	g.ShutdownTimeout = 100 * time.Millisecond
	go s.signalDiscovery(ctx, g)
	// The aggregator's own PrepareRun would only add its OpenAPI merging.
	prepared := g.PrepareRun()
	s.local.serve(g.Handler)
	err := s.front.serveUntil(ctx, g.Handler, prepared.RunWithContext)
	s.closeStores()
	return err
}

// Close ends the watch caches of a server that is not run.
func (s *Server) Close() {
	if s.aggregator != nil {
		s.aggregator.GenericAPIServer.Destroy()
	}
	s.closeStores()
}

func (s *Server) closeStores() {
	for _, store := range s.stores {
		store.Destroy()
	}
}

// signalDiscovery lets paths that are not known be 404 once all are known.
func (s *Server) signalDiscovery(ctx context.Context, g *genericapiserver.GenericAPIServer) {
	for _, done := range g.MuxAndDiscoveryCompleteSignals() {
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
	close(s.discoveryDone)
}
