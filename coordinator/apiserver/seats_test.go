package apiserver

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// TestSeatsOfLists: lists of many objects take up to ten seats, others one, and what is asked
// for again is not counted again.
func TestSeatsOfLists(t *testing.T) {
	stored := map[string]int64{"configmaps": 100_000, "pods": 12_000, "events": 20_000, "widgets.example.com": 3,
		"huge.example.com": 1500, "large.example.com": 100}
	sizes := map[string]int64{"pods": 4_000, "huge.example.com": 1_000_000, "large.example.com": 300_000}
	counted := 0
	c := &counts{last: map[string]*counting{}}
	c.count = func(_ context.Context, gr schema.GroupResource) (int64, int64, bool, error) {
		counted++
		if gr.Resource == "secrets" {
			return 0, 0, true, errors.New("the store is away")
		}
		n, known := stored[gr.String()]
		return n, sizes[gr.String()], known, nil
	}
	estimate := flowrequest.NewWorkEstimator(c.stats, func(*request.RequestInfo) int { return 0 },
		flowrequest.DefaultWorkEstimatorConfig(), func(string) uint64 { return 10 })
	for _, tt := range []struct {
		group, resource, verb, query string
		want                         uint64
	}{
		{"", "configmaps", "list", "", 10},
		{"", "configmaps", "list", "resourceVersion=0", 10},
		{"", "configmaps", "list", "limit=500", 1},
		{"", "configmaps", "watch", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan", 10},
		{"", "configmaps", "watch", "resourceVersion=7", 1},
		{"", "pods", "list", "", 5},
		{"example.com", "huge", "list", "", 10},
		{"example.com", "huge", "list", "limit=100", 10},
		{"example.com", "huge", "list", "limit=10", 1},
		{"example.com", "large", "list", "", 3},
		{"example.com", "widgets", "list", "", 1},
		{"events.k8s.io", "events", "list", "", 4},
		{"", "secrets", "list", "", 1},
		{"", "secrets", "list", "", 1},
		{"metrics.k8s.io", "pods", "list", "", 1},
		{"", "anything", "list", "", 1},
	} {
		r := httptest.NewRequest(http.MethodGet, "/?"+tt.query, nil)
		r = r.WithContext(request.WithRequestInfo(r.Context(), &request.RequestInfo{
			IsResourceRequest: true, Verb: tt.verb, APIGroup: tt.group, APIVersion: "v1", Resource: tt.resource}))
		if got := estimate.EstimateWork(r, "schema", "level").InitialSeats; got != tt.want {
			t.Errorf("%s %s?%s takes %d seats, want %d", tt.verb, tt.resource, tt.query, got, tt.want)
		}
	}
	if counted != 9 || len(c.last) != 7 {
		t.Errorf("%d counts, %d remembered: want 9, one for each name, and 7 of what is stored", counted, len(c.last))
	}
	stored["configmaps"] = 1
	c.last["configmaps"].at = time.Now().Add(-time.Minute)
	if s, err := c.stats("configmaps"); err != nil || s.ObjectCount != 1 {
		t.Errorf("a minute later: %+v, %v", s, err)
	}
}
