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
	stored := map[string]int64{"configmaps": 100_000, "pods": 12_000, "widgets.example.com": 3}
	counted := 0
	c := &counts{last: map[string]*counting{}}
	c.count = func(_ context.Context, gr schema.GroupResource) (int64, bool, error) {
		counted++
		if gr.Resource == "secrets" {
			return 0, true, errors.New("the store is away")
		}
		n, known := stored[gr.String()]
		return n, known, nil
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
		{"", "pods", "list", "", 3},
		{"example.com", "widgets", "list", "", 1},
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
	if counted != 6 || len(c.last) != 4 {
		t.Errorf("%d counts, %d remembered: want 6, one for each name, and 4 of what is stored", counted, len(c.last))
	}
	stored["configmaps"] = 1
	c.last["configmaps"].at = time.Now().Add(-time.Minute)
	if s, err := c.stats("configmaps"); err != nil || s.ObjectCount != 1 {
		t.Errorf("a minute later: %+v, %v", s, err)
	}
}
