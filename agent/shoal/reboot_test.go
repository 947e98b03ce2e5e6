package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTurns(t *testing.T) {
	var nodes []*fleetNode
	for _, name := range []string{"c", "a", "b"} {
		n := &fleetNode{}
		n.Metadata.Name = name
		nodes = append(nodes, n)
	}
	for _, c := range []struct {
		only []string
		here string
		want []string
	}{
		{nil, "", []string{"a", "b", "c"}},
		{nil, "a", []string{"b", "c", "a"}},
		{[]string{"c", "a"}, "c", []string{"a", "c"}},
		{[]string{"c", "a"}, "elsewhere", []string{"c", "a"}},
	} {
		if diff := cmp.Diff(c.want, turns(nodes, c.only, c.here)); diff != "" {
			t.Errorf("%v, here %q: %s", c.only, c.here, diff)
		}
	}
}

// rebootAPI has one node, whose machine reboots when it is asked.
type rebootAPI struct {
	mu       sync.Mutex
	cordoned bool
	boot     string
	asked    string
	refused  func() // what follows when a budget lets nobody go; nil: all go
	did      []string
}

func (a *rebootAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case r.Method == http.MethodPatch:
		data, _ := io.ReadAll(r.Body)
		text := strings.TrimSpace(string(data))
		a.did = append(a.did, text)
		a.cordoned = a.cordoned && !strings.Contains(text, "null") || strings.Contains(text, "true}")
		if strings.Contains(text, "shoal-project.io/reboot") {
			a.asked, a.boot = text, "second"
		}
	case strings.HasSuffix(r.URL.Path, "/eviction"):
		a.refused()
		http.Error(w, `{"message":"the budget"}`, http.StatusTooManyRequests)
	case strings.HasPrefix(r.URL.Path, "/api/v1/pods"):
		pods := ""
		if a.refused != nil {
			pods = `{"metadata":{"name":"p","namespace":"n","ownerReferences":[{"kind":"ReplicaSet","controller":true}]}}`
		}
		fmt.Fprintf(w, `{"items":[%s]}`, pods)
	default:
		_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"name": "one"},
			"spec": map[string]any{"unschedulable": a.cordoned},
			"status": map[string]any{"nodeInfo": map[string]any{"bootID": a.boot},
				"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}})
	}
}

// TestRebootOne: a machine is drained, asked, and waited for; one whose pods may not go
// takes pods again, unless it took none before.
func TestRebootOne(t *testing.T) {
	const (
		cordon   = `{"spec":{"unschedulable":true}}`
		uncordon = `{"spec":{"unschedulable":null}}`
		ask      = `{"metadata":{"annotations":{"shoal-project.io/reboot":"{\"boot\":\"first\"%s}"}}}`
	)
	for _, c := range []struct {
		name             string
		cordoned, budget bool
		did              []string
	}{
		{"one that takes pods", false, false, []string{cordon, fmt.Sprintf(ask, `,\"uncordon\":true`)}},
		{"one that takes none", true, false, []string{cordon, fmt.Sprintf(ask, "")}},
		{"pods stay", false, true, []string{cordon, uncordon}},
		{"pods stay, and none come", true, true, []string{cordon}},
	} {
		a := &rebootAPI{cordoned: c.cordoned, boot: "first"}
		s := httptest.NewServer(a)
		f := newFleet("", io.Discard)
		f.client = &api{server: s.URL, http: s.Client()}
		o := &rebootOptions{drain: time.Minute, back: time.Minute}
		ctx, cancel := context.WithCancel(t.Context())
		if c.budget {
			a.refused = cancel // nobody waits any longer
		}
		err := o.one(ctx, &f, "one", false)
		cancel()
		s.Close()
		if (err != nil) != c.budget {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.did, a.did); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}
