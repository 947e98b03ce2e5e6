package apiserver

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapiserver "k8s.io/apiserver/pkg/server"
	etcdmetrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/prometheus/compatversion"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // requests of this process's clients
)

// registerBuildInfo puts on the metrics page what /version says, and the features
// of the library.
var registerBuildInfo = sync.OnceFunc(func() {
	info := metrics.NewGaugeVec(&metrics.GaugeOpts{
		Name: "kubernetes_build_info",
		Help: "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, " +
			"build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
		StabilityLevel: metrics.BETA,
	}, []string{"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler",
		"platform"})
	legacyregistry.MustRegister(info)
	v := version{}.Info()
	utilfeature.DefaultMutableFeatureGate.AddMetrics()
	effective := effectiveVersion()
	compatversion.RecordCompatVersionInfo(context.Background(), basecompatibility.DefaultKubeComponent,
		strings.TrimPrefix(v.GitVersion, "v"), effective.EmulationVersion().String(),
		effective.MinCompatibilityVersion().String())
	info.WithLabelValues(v.Major, v.Minor, v.GitVersion, v.GitCommit, v.GitTreeState, v.BuildDate, v.GoVersion,
		v.Compiler, v.Platform).Set(1)
})

// metricsPage shows what this process measures, but families of these names: of the
// libraries' some are made, and counted, before a configuration is read.
func metricsPage(disabled []string) http.Handler {
	if len(disabled) == 0 {
		return legacyregistry.Handler()
	}
	return metrics.HandlerFor(without{legacyregistry.DefaultGatherer, sets.New(disabled...)},
		metrics.HandlerOpts{ProcessStartTime: legacyregistry.GetProcessStart()})
}

// without is what is gathered but some families.
type without struct {
	metrics.Gatherer
	names sets.Set[string]
}

func (g without) Gather() ([]*dto.MetricFamily, error) {
	all, err := g.Gatherer.Gather()
	return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return g.names.Has(f.GetName()) }), err
}

// countPatience is how long the store may take to count, for one page of metrics.
const countPatience = 2 * time.Second

// serveMetrics has the metrics page tell how many objects are stored. They are
// counted when it is asked for: upstream counts each minute.
func (s *Server) serveMetrics(g *genericapiserver.GenericAPIServer) {
	page := metricsPage(s.cfg.DisabledMetrics)
	mux := g.Handler.NonGoRestfulMux
	mux.Unregister("/metrics")
	mux.Handle("/metrics", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.countObjects(r.Context())
		page.ServeHTTP(w, r)
	}))
}

func (s *Server) countObjects(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, countPatience)
	defer cancel()
	for _, store := range s.stores {
		stats, err := store.Storage.Stats(ctx)
		etcdmetrics.UpdateStoreStats(store.DefaultQualifiedResource, stats, err)
	}
}
