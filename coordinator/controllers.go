package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/agent/fence"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/apiserver"
	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/coordinator/controller/apiaddress"
	"github.com/shoal-project/shoal/coordinator/controller/apiserverlease"
	"github.com/shoal-project/shoal/coordinator/controller/attachdetach"
	"github.com/shoal-project/shoal/coordinator/controller/bootstraptoken"
	"github.com/shoal-project/shoal/coordinator/controller/certificate"
	"github.com/shoal-project/shoal/coordinator/controller/clusterdns"
	"github.com/shoal-project/shoal/coordinator/controller/clusterroleaggregation"
	"github.com/shoal-project/shoal/coordinator/controller/cronjob"
	"github.com/shoal-project/shoal/coordinator/controller/daemonset"
	"github.com/shoal-project/shoal/coordinator/controller/deployment"
	"github.com/shoal-project/shoal/coordinator/controller/devicetaint"
	"github.com/shoal-project/shoal/coordinator/controller/disruption"
	"github.com/shoal-project/shoal/coordinator/controller/endpoints"
	"github.com/shoal-project/shoal/coordinator/controller/endpointslice"
	"github.com/shoal-project/shoal/coordinator/controller/endpointslicemirroring"
	"github.com/shoal-project/shoal/coordinator/controller/ephemeral"
	"github.com/shoal-project/shoal/coordinator/controller/expand"
	"github.com/shoal-project/shoal/coordinator/controller/fencing"
	"github.com/shoal-project/shoal/coordinator/controller/flowcontrol"
	"github.com/shoal-project/shoal/coordinator/controller/garbagecollector"
	"github.com/shoal-project/shoal/coordinator/controller/gossipgrant"
	"github.com/shoal-project/shoal/coordinator/controller/horizontalpodautoscaling"
	"github.com/shoal-project/shoal/coordinator/controller/job"
	"github.com/shoal-project/shoal/coordinator/controller/legacytoken"
	"github.com/shoal-project/shoal/coordinator/controller/loadbalancer"
	"github.com/shoal-project/shoal/coordinator/controller/namespace"
	"github.com/shoal-project/shoal/coordinator/controller/nodehealth"
	"github.com/shoal-project/shoal/coordinator/controller/nodeipam"
	"github.com/shoal-project/shoal/coordinator/controller/nodettl"
	"github.com/shoal-project/shoal/coordinator/controller/persistentvolume"
	"github.com/shoal-project/shoal/coordinator/controller/podgc"
	"github.com/shoal-project/shoal/coordinator/controller/policystatus"
	"github.com/shoal-project/shoal/coordinator/controller/protection"
	"github.com/shoal-project/shoal/coordinator/controller/replicaset"
	"github.com/shoal-project/shoal/coordinator/controller/resourceclaim"
	"github.com/shoal-project/shoal/coordinator/controller/resourcequota"
	"github.com/shoal-project/shoal/coordinator/controller/rootca"
	"github.com/shoal-project/shoal/coordinator/controller/serviceaccount"
	"github.com/shoal-project/shoal/coordinator/controller/servicecidr"
	"github.com/shoal-project/shoal/coordinator/controller/statefulset"
	"github.com/shoal-project/shoal/coordinator/controller/systemnamespace"
	"github.com/shoal-project/shoal/coordinator/controller/systemobjects"
	"github.com/shoal-project/shoal/coordinator/controller/taint"
	"github.com/shoal-project/shoal/coordinator/controller/tokensecret"
	"github.com/shoal-project/shoal/coordinator/controller/ttlafterfinished"
)

// runner is one part that runs while this coordinator leads.
type runner interface {
	Name() string
	// Run blocks until ctx ends or it cannot go on.
	Run(ctx context.Context) error
}

// controllerDeps are what the controllers are built from. Client and Informers
// may be in process or HTTP.
type controllerDeps struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	// StartInformers starts the informers asked for since the last call, for the
	// life of the process: Informers.Start with the process's context. Call it
	// after controllers; the garbage collector calls it too.
	StartInformers func()
	Metadata       metadata.Interface
	// Config is that of Client, for clients of APIs that others may serve.
	Config *rest.Config
	// PodRanges are the ranges of pods, the primary family's first.
	PodRanges []nodeipam.Range
	Told      gossip.Ranges // of several ranges; empty: nodes are told nothing
	// ServiceCIDRs are the ranges of cluster IPs, the primary family's first.
	ServiceCIDRs []string
	// VirtualAddress leads to whichever coordinator lives; not valid: there is none.
	VirtualAddress netip.Addr
	// ClusterDNS are the addresses that the agents answer names at; nil: nobody keeps them.
	ClusterDNS []string
	// SystemObjects make objects that this API server has of its own again.
	SystemObjects systemobjects.Deps
	// RootCA is the PEM bundle that pods verify the API server with.
	RootCA []byte
	// Token signs the tokens of Secrets (*token.Issuer); nil: nobody does.
	Token func(*corev1.ServiceAccount, *corev1.Secret) (string, error)
	// Dropped tells whether the key of such a token is not accepted any more.
	Dropped func(token string) bool
	// Signer signs certificate requests; nil: nobody does.
	Signer certificate.Signer
	// Lifetime is the longest of what it signs.
	Lifetime time.Duration
	// Reserved tells names and addresses that only one Node may have in a serving
	// certificate, or none ("").
	Reserved func(san string) (owner string, reserved bool)
	// KeepMounted: volumes stay at nodes that are not ready, until they are out of
	// service.
	KeepMounted bool
	// EndpointsPerSlice is how many endpoints a slice has at most, FinishedPods how many
	// finished pods stay, 0 and less: all.
	EndpointsPerSlice, FinishedPods int
	// Recyclers are the pods that empty volumes.
	Recyclers persistentvolume.Recyclers
	// Grants signs what nodes are given in the gossip; nil: nobody does.
	Grants *gossipgrant.Deps
	// Members is the gossip's view (*gossip.Group); nil: only Leases tell of nodes.
	Members nodehealth.Members
	// Ask asks members of the gossip (gossip.Group.Ask); nil: there is none.
	Ask fence.Ask
	Log *slog.Logger
}

// controllers builds every controller, in no particular order: they meet in
// API objects only. Call it anew for each term of leadership.
func controllers(d controllerDeps) ([]runner, error) {
	events := record.NewBroadcaster()
	env := controller.Env{
		Client: d.Client, Informers: d.Informers, Log: d.Log,
		Recorder: func(component string) record.EventRecorder {
			return events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
		},
	}
	scales, err := newScales(d.Client.Discovery(), d.Config)
	if err != nil {
		return nil, fmt.Errorf("build controllers: %w", err)
	}
	metrics, err := newMetrics(d.Client.Discovery(), d.Config, scales.mapper)
	if err != nil {
		return nil, fmt.Errorf("build controllers: %w", err)
	}
	list := []runner{&eventWriter{events, d.Client}}
	var failed error
	add := func(loop *controller.Loop, err error) {
		if err != nil {
			failed = fmt.Errorf("build controllers: %w", err)
			return
		}
		list = append(list, loop)
	}
	add(namespace.New(env, namespace.Deps{Discovery: d.Client.Discovery(), Metadata: d.Metadata}))
	add(systemnamespace.New(env, apiserver.SystemNamespaces()))
	add(systemobjects.New(env, d.SystemObjects))
	add(serviceaccount.New(env))
	add(rootca.New(env, d.RootCA))
	if d.Token != nil {
		add(tokensecret.New(env, tokensecret.Deps{Token: d.Token, Dropped: d.Dropped, RootCA: d.RootCA}))
	}
	add(legacytoken.New(env, legacytoken.DefaultPeriod, legacytoken.DefaultInterval))
	add(clusterroleaggregation.New(env))
	add(deployment.New(env))
	add(replicaset.New(env))
	add(replicaset.NewReplication(env))
	add(daemonset.New(env))
	add(statefulset.New(env))
	add(job.New(env))
	add(cronjob.New(env))
	add(ttlafterfinished.New(env))
	add(endpointslice.New(env, d.EndpointsPerSlice))
	add(endpoints.New(env))
	add(endpointslicemirroring.New(env))
	add(bootstraptoken.NewSigner(env))
	add(bootstraptoken.NewCleaner(env))
	add(apiserverlease.New(env))
	add(policystatus.New(env, newTypeChecker(d.Client.Discovery())))
	add(nodettl.New(env))
	add(loadbalancer.New(env, loadbalancer.Deps{
		Reserved:   ownRanges(d),
		API:        d.VirtualAddress,
		APIService: types.NamespacedName{Namespace: apiaddress.Namespace, Name: apiaddress.Name},
	}))
	if d.VirtualAddress.IsValid() {
		add(apiaddress.New(env, d.VirtualAddress))
	}
	add(nodeipam.New(env, d.PodRanges, d.Told))
	add(servicecidr.New(env, d.ServiceCIDRs))
	add(servicecidr.NewRepair(env))
	if len(d.ClusterDNS) > 0 {
		add(clusterdns.New(env, d.ClusterDNS))
	}
	if d.Signer != nil {
		add(certificate.New(env, certificate.Deps{Signer: d.Signer, Lifetime: d.Lifetime, Reserved: d.Reserved}))
	}
	if d.Grants != nil {
		add(gossipgrant.New(env, *d.Grants))
	}
	add(flowcontrol.New(env))
	add(podgc.New(env, d.FinishedPods))
	add(persistentvolume.New(env, d.Recyclers))
	add(attachdetach.New(env, attachdetach.Deps{KeepMounted: d.KeepMounted}))
	add(ephemeral.New(env))
	add(expand.New(env))
	add(resourceclaim.New(env))
	add(protection.NewClaims(env))
	add(protection.NewVolumes(env))
	add(protection.NewClasses(env))
	add(taint.New(env))
	add(devicetaint.New(env))
	add(disruption.New(env, scales))
	add(disruption.NewStale(env))
	add(horizontalpodautoscaling.New(env, horizontalpodautoscaling.Deps{Scales: scales, Metrics: metrics}))
	add(nodehealth.New(env, d.Members))
	add(fencing.New(env, d.Ask))
	list = append(list, resourcequota.New(env, resourcequota.Deps{
		Discovery: d.Client.Discovery(), Metadata: d.Metadata, StartInformers: d.StartInformers,
	}))
	list = append(list, garbagecollector.New(env, garbagecollector.Deps{
		Discovery: d.Client.Discovery(), Metadata: d.Metadata, StartInformers: d.StartInformers,
	}))
	return list, failed
}

// ownRanges are what the cluster has for pods and cluster IPs.
func ownRanges(d controllerDeps) (out []netip.Prefix) {
	for _, r := range d.PodRanges {
		out = append(out, r.Prefix)
	}
	for _, text := range d.ServiceCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// newTypeChecker looks at policies' expressions with the types that the API tells
// of: those of custom resources too.
func newTypeChecker(client discovery.DiscoveryInterface) *validating.TypeChecker {
	return &validating.TypeChecker{
		SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: client},
		RestMapper:     restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client)),
	}
}

// eventWriter sends the controllers' events to the API.
type eventWriter struct {
	events record.EventBroadcaster
	client kubernetes.Interface
}

func (w *eventWriter) Name() string { return "events" }

// Run writes events until ctx ends.
func (w *eventWriter) Run(ctx context.Context) error {
	w.events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: w.client.CoreV1().Events("")})
	<-ctx.Done()
	w.events.Shutdown()
	return nil
}
