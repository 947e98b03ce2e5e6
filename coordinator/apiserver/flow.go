package apiserver

import (
	"net/http"
	"runtime"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// longRunning requests have no deadline and, but for the beginning of a watch,
// no seat.
var longRunning = genericfilters.BasicLongRunningRequestCheck(
	sets.NewString("watch", "proxy"),
	sets.NewString("attach", "exec", "proxy", "log", "portforward"),
)

// longRunningOr takes the streams beside the API in.
func longRunningOr(streams map[string]http.Handler) request.LongRunningRequestCheck {
	return func(r *http.Request, info *request.RequestInfo) bool {
		return !info.IsResourceRequest && streams[info.Path] != nil || longRunning(r, info)
	}
}

// flow is API priority and fairness (KEP-1040): requests beyond the seats wait in
// the queues of their priority level, where a refusal would only have clients
// try again. Its objects are those of the cluster, read in process.
type flow struct{ flowcontrol.Interface }

const (
	// seatsPerCPU keep a processor busy while most of their requests wait for the
	// disk. More would only stand in the way of those that take no seat: the
	// scheduler's, the controllers', the leader's Lease.
	seatsPerCPU = 75
	// mostSeats is upstream's default.
	mostSeats = 600
)

// newFlow divides the seats among the priority levels. It takes its informers from
// the factory: call it before they start.
func (s *Server) newFlow() flow {
	seats := min(seatsPerCPU*max(runtime.GOMAXPROCS(0), 2), mostSeats)
	return flow{flowcontrol.New(s.factory, s.env.Client.FlowcontrolV1(), seats)}
}

// wrap makes requests to h take their turn.
func (f flow) wrap(h http.Handler, c *genericapiserver.Config) http.Handler {
	estimate := flowrequest.NewWorkEstimator(uncounted, f.GetInterestedWatchCount,
		flowrequest.DefaultWorkEstimatorConfig(), f.GetMaxSeats)
	return genericfilters.WithPriorityAndFairness(h, c.LongRunningFunc, f, estimate, c.RequestTimeout/4)
}

// uncounted has a list cost one seat whatever it lists: it comes from the watch
// cache, and counting objects in etcd for an estimate would cost an idle
// cluster more.
func uncounted(string) (storage.Stats, error) {
	return storage.Stats{}, flowrequest.ObjectCountNotFoundErr
}
