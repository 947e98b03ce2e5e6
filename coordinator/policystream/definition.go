package policystream

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/shoal-project/shoal/agent/policyfeed"
)

// clusterPolicyYAML is the definition of ClusterNetworkPolicies as network-policy-api
// v0.2.0 publishes it (config/crd/standard); a test compares them.
//
//go:embed clusternetworkpolicies.yaml
var clusterPolicyYAML []byte

var (
	definitions = schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	clusterPolicies = schema.GroupVersionResource{
		Group: networkpolicy.GroupName, Version: networkpolicy.GroupVersion.Version, Resource: "clusternetworkpolicies"}
)

// definition has the API serve ClusterNetworkPolicies, and follows them.
type definition struct {
	custom       dynamic.Interface
	log          *slog.Logger
	informer     cache.SharedIndexInformer
	registration cache.ResourceEventHandlerRegistration
	missed       atomic.Bool // that the API serves none was told
}

func newDefinition(custom dynamic.Interface, log *slog.Logger) *definition {
	return &definition{
		custom: custom, log: log,
		informer: dynamicinformer.NewFilteredDynamicInformer(custom, clusterPolicies, metav1.NamespaceAll, 0,
			cache.Indexers{}, nil).Informer(),
	}
}

func (d *definition) follow(changed func(policyfeed.Key)) (err error) {
	err = d.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		switch {
		case !apierrors.IsNotFound(err):
			cache.DefaultWatchErrorHandler(ctx, r, err)
		case d.informer.HasSynced() && !d.missed.Swap(true): // before, the API is about to serve it
			d.log.Warn("the definition of ClusterNetworkPolicies was deleted; a coordinator that starts makes it again")
		}
	})
	if err == nil {
		d.registration, err = d.informer.AddEventHandler(handler(changed))
	}
	return err
}

// policy is one by its name; nil: there is none.
func (d *definition) policy(name string) *policyfeed.ClusterPolicy {
	obj, there, err := d.informer.GetStore().GetByKey(name)
	if !there || err != nil {
		return nil
	}
	var p networkpolicy.ClusterNetworkPolicy
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(obj.(*unstructured.Unstructured).Object, &p)
	if err != nil { // the definition is another than ours
		d.log.Warn("a ClusterNetworkPolicy cannot be read; it has no effect", "policy", name, "err", err)
		return nil
	}
	return &policyfeed.ClusterPolicy{Name: name, Spec: p.Spec}
}

// How often the API is asked whether it serves the definition: at a start, until it does.
var askAgain = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Steps: 8, Cap: 5 * time.Second, Jitter: 0.2}

// state is what the API has of the definition.
type state int

const (
	refused state = iota // it is not to be served: somebody has another, or the API takes none
	made                 // it is there, and not served yet: no policy can be
	served
)

// await asks, and makes the definition if there is none, until an answer is in accept. One
// that is refused, and the end of ctx, end it too.
func (d *definition) await(ctx context.Context, accept ...state) state {
	told, again := false, askAgain
	for {
		now, err := d.ensure(ctx)
		switch {
		case err == nil && (now == refused || slices.Contains(accept, now)):
			return now
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
			d.log.Warn("ClusterNetworkPolicies are not served, NetworkPolicies are", "err", err)
			return refused
		case err != nil && again.Steps == 0 && !told:
			told = true
			d.log.Warn("cannot have ClusterNetworkPolicies served, trying on", "err", err)
		}
		select {
		case <-ctx.Done():
			return refused
		case <-time.After(again.Step()):
		}
	}
}

// ensure makes the definition if there is none.
func (d *definition) ensure(ctx context.Context) (state, error) {
	var want unstructured.Unstructured
	if err := yaml.Unmarshal(clusterPolicyYAML, &want.Object); err != nil {
		return refused, fmt.Errorf("definition of ClusterNetworkPolicies: %w", err)
	}
	have, err := d.custom.Resource(definitions).Get(ctx, want.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = d.custom.Resource(definitions).Create(ctx, &want, metav1.CreateOptions{})
		switch {
		case apierrors.IsAlreadyExists(err): // another coordinator was faster
			err = nil
		case apierrors.IsNotFound(err): // --runtime-config turned custom resources off
			return refused, nil
		}
		if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			d.log.Debug("the definition of ClusterNetworkPolicies cannot be made, trying on", "err", err)
			err = nil // there is none: no policy can be, and nobody waits for one
		}
		return made, err
	}
	if err != nil {
		return made, err
	}
	ours := slices.ContainsFunc(list(have, "spec", "versions"), func(v map[string]any) bool {
		return v["name"] == clusterPolicies.Version && v["served"] == true
	})
	if !ours {
		d.log.Warn("ClusterNetworkPolicies have no effect: their definition is another's, without the version that is known here",
			"definition", have.GetName(), "version", clusterPolicies.Version)
		return refused, nil
	}
	if slices.ContainsFunc(list(have, "status", "conditions"), func(c map[string]any) bool {
		return c["type"] == "Established" && c["status"] == "True"
	}) {
		return served, nil
	}
	return made, nil
}

// list is a field that is a list of objects.
func list(obj *unstructured.Unstructured, path ...string) (out []map[string]any) {
	all, _, _ := unstructured.NestedSlice(obj.Object, path...) // what it is not is not there
	for _, v := range all {
		if m, ok := v.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}
