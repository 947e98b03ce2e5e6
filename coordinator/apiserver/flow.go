package apiserver

import (
	"context"
	"net/http"
	"runtime"
	"sync"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
type flow struct {
	flowcontrol.Interface
	counts *counts
}

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
	return flow{
		flowcontrol.New(s.factory, s.env.Client.FlowcontrolV1(), seats),
		&counts{count: s.cfg.Storage.Count, last: map[string]*counting{}},
	}
}

// wrap makes requests to h take their turn.
func (f flow) wrap(h http.Handler, c *genericapiserver.Config) http.Handler {
	estimate := flowrequest.NewWorkEstimator(f.counts.stats, f.GetInterestedWatchCount,
		flowrequest.DefaultWorkEstimatorConfig(), f.GetMaxSeats)
	return genericfilters.WithPriorityAndFairness(h, c.LongRunningFunc, f, estimate, c.RequestTimeout/4)
}

const (
	// The library counts a seat for each 100,000 bytes that a list holds in memory, up to ten.
	// Lists come from the watch cache, which holds the objects anyway, and are encoded object
	// by object: what a list adds is a few hundred bytes for each, and the work. So an object
	// weighs a hundredth of its size, and weighed bytes at least: a seat is 5,000 objects or
	// 10 MB.
	weighed, sizePart = 20, 100
	// counted is how long a count is believed, countWait how long it may take.
	counted, countWait = 30 * time.Second, time.Second
)

// counts are how many objects are stored of the resources that are listed: some readers of a
// large one at a time, not as many as there are seats, or their answers take the memory of
// the machine. They are counted when somebody lists: upstream counts each minute, also while
// nobody asks.
type counts struct {
	count func(context.Context, schema.GroupResource) (n, size int64, known bool, err error)

	mu   sync.Mutex
	last map[string]*counting
}

// counting is the count of one resource.
type counting struct {
	mu    sync.Mutex // held while it is counted: who comes meanwhile waits
	at    time.Time
	stats storage.Stats
	err   error
}

// stats is what flow control asks for each list, by "resource.group".
func (c *counts) stats(resource string) (storage.Stats, error) {
	one := c.of(resource)
	one.mu.Lock()
	defer one.mu.Unlock()
	if !one.at.IsZero() && time.Since(one.at) < counted {
		return one.stats, one.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), countWait)
	defer cancel()
	n, size, known, err := c.count(ctx, storedAs(schema.ParseGroupResource(resource)))
	one.at, one.err = time.Now(), nil
	one.stats = storage.Stats{ObjectCount: n, EstimatedAverageObjectSizeBytes: max(weighed, size/sizePart)}
	if !known || err != nil { // one seat, as for what another server has
		one.stats, one.err = storage.Stats{}, flowrequest.ObjectCountNotFoundErr
	}
	if !known { // requests may name anything
		c.mu.Lock()
		delete(c.last, resource)
		c.mu.Unlock()
	}
	return one.stats, one.err
}

func (c *counts) of(resource string) *counting {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.last[resource]
	if one == nil {
		one = &counting{}
		c.last[resource] = one
	}
	return one
}

// storedAs is the resource that holds the objects of another: events are of two groups.
func storedAs(gr schema.GroupResource) schema.GroupResource {
	if gr.Group == eventsv1.GroupName {
		gr.Group = ""
	}
	return gr
}
