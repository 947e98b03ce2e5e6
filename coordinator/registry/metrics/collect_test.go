package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// busy is a node that uses a quarter of a core. It counts how often it is asked.
type busy struct {
	begin time.Time
	asked atomic.Int32
	fails atomic.Bool
	// measures is how often it looks itself; 0: whenever it is asked.
	measures time.Duration
}

func (b *busy) RoundTrip(r *http.Request) (*http.Response, error) {
	b.asked.Add(1)
	if b.fails.Load() {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	now := time.Now()
	if b.measures > 0 {
		now = now.Truncate(b.measures)
	}
	used := int64(now.Sub(b.begin)) / 4
	body := fmt.Sprintf(`{"node":{"cpu":{"time":%q,"usageCoreNanoSeconds":%d},"memory":{"workingSetBytes":64}}}`,
		now.Format(time.RFC3339), used) // whole seconds, as an agent tells
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body))}, nil
}

func nodeAt(name, ip string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}}}
}

// question asks for one node and tells its CPU, in millicores; -1: not known.
func question(ctx context.Context, c *collector, n *corev1.Node) int {
	u, ok := c.collect(ctx, []*corev1.Node{n})[n.Name].nodeUsage()
	if !ok {
		return -1
	}
	return int(u.nanoCores / 1e6)
}

// A node is asked when somebody asks, twice the first time, and not more often than
// its answers get old.
func TestCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(700 * time.Millisecond) // no clock is at a whole second
		b := &busy{begin: time.Now()}
		c := &collector{transport: func(string) http.RoundTripper { return b }}
		n := nodeAt("n", "10.0.0.1")
		for i, step := range []struct {
			after time.Duration
			asked int32 // all in all
			takes time.Duration
		}{
			{0, 2, pause},                       // a first question: a second sample a moment later
			{keep / 2, 2, 0},                    // the answer serves
			{keep, 3, 0},                        // it is old
			{maxWindow / 2, 4, 0},               // a longer window
			{maxWindow + time.Second, 6, pause}, // what was known is of another time
		} {
			time.Sleep(step.after)
			begin := time.Now()
			if got := question(t.Context(), c, n); got != 250 {
				t.Errorf("question %d: %d millicores", i, got)
			}
			if took := time.Since(begin); took != step.takes || b.asked.Load() != step.asked {
				t.Errorf("question %d took %v and asked %d times, want %v and %d", i, took, b.asked.Load(),
					step.takes, step.asked)
			}
		}
		time.Sleep(10 * maxWindow)
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.nodes) != 0 || c.forget != nil || b.asked.Load() != 6 {
			t.Errorf("when nobody asks, %d nodes are kept, and were asked %d times", len(c.nodes), b.asked.Load())
		}
	})
}

// One that does not answer holds nobody up for long, and not again soon.
func TestCollectFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good, bad := &busy{begin: time.Now()}, &busy{begin: time.Now()}
		bad.fails.Store(true)
		c := &collector{transport: func(node string) http.RoundTripper {
			if node == "bad" {
				return bad
			}
			return good
		}}
		nodes := []*corev1.Node{nodeAt("bad", "10.0.0.1"), nodeAt("good", "10.0.0.2"), {ObjectMeta: metav1.ObjectMeta{
			Name: "without address"}}}
		begin := time.Now()
		if got := c.collect(t.Context(), nodes); len(got) != 1 || time.Since(begin) != patience {
			t.Errorf("%d nodes after %v", len(got), time.Since(begin))
		}
		begin = time.Now()
		if got := c.collect(t.Context(), nodes); len(got) != 1 || time.Since(begin) != 0 {
			t.Errorf("soon after: %d nodes after %v", len(got), time.Since(begin))
		}
		bad.fails.Store(false)
		time.Sleep(keep)
		if got := c.collect(t.Context(), nodes); len(got) != 2 {
			t.Errorf("when it answers again: %d nodes", len(got))
		}
	})
}

// Whoever asks at the same time shares an answer; a client that goes away is not
// the node's failure.
func TestCollectShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &busy{begin: time.Now()}
		c := &collector{transport: func(string) http.RoundTripper { return b }}
		n := nodeAt("n", "10.0.0.1")
		impatient, leave := context.WithCancel(t.Context())
		first := make(chan int, 1)
		go func() { first <- question(impatient, c, n) }()
		synctest.Wait() // it waits for its second sample
		second := make(chan int, 1)
		go func() { second <- question(t.Context(), c, n) }()
		synctest.Wait()
		leave()
		if got := <-first; got != -1 {
			t.Errorf("the one that left got %d", got)
		}
		if got := <-second; got != 250 || b.asked.Load() != 3 {
			t.Errorf("the other got %d, after %d questions to the node", got, b.asked.Load())
		}
	})
}

// A kubelet that measures every ten seconds has its first rate after that.
func TestCollectSlowKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &busy{begin: time.Now(), measures: 10 * time.Second}
		c := &collector{transport: func(string) http.RoundTripper { return b }}
		n := nodeAt("n", "10.0.0.1")
		if got := question(t.Context(), c, n); got != -1 {
			t.Errorf("at first: %d", got)
		}
		time.Sleep(keep)
		if got := question(t.Context(), c, n); got != 250 {
			t.Errorf("later: %d", got)
		}
	})
}

// A node that refuses or redirects has told nothing.
func TestAskRefused(t *testing.T) {
	for _, code := range []int{http.StatusForbidden, http.StatusFound} {
		c := &collector{transport: func(string) http.RoundTripper {
			return roundTrip(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: code, Status: "no", Body: io.NopCloser(strings.NewReader("{}")),
					Header: http.Header{"Location": {"https://elsewhere/"}}}, nil
			})
		}}
		if _, err := c.ask(t.Context(), nodeAt("n", "10.0.0.1")); err == nil || !strings.Contains(err.Error(), "n") {
			t.Errorf("%d: %v", code, err)
		}
	}
	c := &collector{transport: func(string) http.RoundTripper {
		return roundTrip(func(*http.Request) (*http.Response, error) { return nil, errors.New("away") })
	}}
	if _, err := c.ask(t.Context(), nodeAt("n", "10.0.0.1")); err == nil {
		t.Error("no error from a node that is away")
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
