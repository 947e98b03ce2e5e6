package main

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	typedmetricsv1beta1 "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"
	custommetrics "k8s.io/metrics/pkg/client/custom_metrics"
	externalmetrics "k8s.io/metrics/pkg/client/external_metrics"

	"github.com/shoal-project/shoal/coordinator/controller/horizontalpodautoscaling"
)

// newMetrics makes the clients of the three metrics APIs, for autoscalers. The first
// is our own unless a user brings another; the other two are always a user's.
func newMetrics(client discovery.DiscoveryInterface, config *rest.Config,
	mapper meta.RESTMapper) (horizontalpodautoscaling.Metrics, error) {
	config = rest.CopyConfig(config)
	config.ContentConfig = rest.ContentConfig{} // JSON: nobody knows who serves them
	resources, err := typedmetricsv1beta1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make resource metrics client: %w", err)
	}
	externals, err := externalmetrics.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make external metrics client: %w", err)
	}
	versions := &customVersions{AvailableAPIsGetter: custommetrics.NewAvailableAPIsGetter(client)}
	return horizontalpodautoscaling.Clients{
		Resources: resources,
		Custom:    custommetrics.NewForConfig(config, mapper, versions),
		Externals: externals,
	}, nil
}

// customVersions is the version of the custom metrics API that is served. It is
// looked up anew when somebody asks and it is old.
type customVersions struct {
	custommetrics.AvailableAPIsGetter

	mu      sync.Mutex
	learned time.Time
}

// PreferredVersion implements custommetrics.AvailableAPIsGetter.
func (v *customVersions) PreferredVersion() (schema.GroupVersion, error) {
	v.mu.Lock()
	if time.Since(v.learned) > relearn {
		v.Invalidate()
		v.learned = time.Now()
	}
	v.mu.Unlock()
	return v.AvailableAPIsGetter.PreferredVersion()
}
