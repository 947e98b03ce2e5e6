package shutdown

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

type bus struct {
	signals                 chan bool
	taken, released, closed int
	limit                   time.Duration // 0: long enough for every period
	raised                  []time.Duration
	refuses                 error
}

func (b *bus) Shutdowns(context.Context) (<-chan bool, error) { return b.signals, nil }
func (b *bus) Delay() (io.Closer, error)                      { b.taken++; return lock{b}, nil }
func (b *bus) Close() error                                   { b.closed++; return nil }

func (b *bus) MaxDelay() (time.Duration, error) { return cmp.Or(b.limit, time.Hour), nil }

func (b *bus) RaiseDelay(_ context.Context, limit time.Duration) error {
	b.raised = append(b.raised, limit)
	return b.refuses
}

// TestRaise: the machine is to wait for as long as pods have; where it cannot be had, that is
// told once.
func TestRaise(t *testing.T) {
	for _, c := range []struct {
		limit   time.Duration
		refuses error
		raised  int
		told    int
	}{
		{0, nil, 0, 0}, {30 * time.Second, nil, 0, 0},
		{5 * time.Second, nil, 2, 0}, {5 * time.Second, errors.New("no"), 2, 1},
	} {
		var text strings.Builder
		m := &Manager{Periods: Periods(30*time.Second, 10*time.Second), Log: slog.New(slog.NewTextHandler(&text, nil))}
		b := &bus{limit: c.limit, refuses: c.refuses}
		for range 2 {
			m.compare(t.Context(), b)
		}
		if len(b.raised) != c.raised || c.raised > 0 && b.raised[0] != 30*time.Second ||
			strings.Count(text.String(), "raise InhibitDelayMaxSec") != c.told {
			t.Errorf("%v, %v: raised to %v, told %q", c.limit, c.refuses, b.raised, text.String())
		}
	}
}

type lock struct{ b *bus }

func (l lock) Close() error { l.b.released++; return nil }

// pods end two seconds after they were asked to.
type pods struct {
	mu      sync.Mutex
	active  map[types.UID]*corev1.Pod
	said    []string
	changed chan struct{}
}

func (p *pods) Active() (out []*corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.active {
		out = append(out, q)
	}
	return out
}

func (p *pods) Changed() <-chan struct{} { return p.changed }

func (p *pods) End(q *corev1.Pod, grace time.Duration) {
	p.mu.Lock()
	p.said = append(p.said, q.Name+"/"+grace.String())
	p.mu.Unlock()
	go func() {
		time.Sleep(2 * time.Second)
		p.mu.Lock()
		delete(p.active, q.UID)
		p.mu.Unlock()
		p.changed <- struct{}{}
	}()
}

func newPod(name string, priority int32) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{Priority: &priority}}
}

func newPods(list ...*corev1.Pod) *pods {
	p := &pods{changed: make(chan struct{}, 9), active: map[types.UID]*corev1.Pod{}}
	for _, q := range list {
		p.active[q.UID] = q
	}
	return p
}

// NODE-53, NODE-55.
func TestCriticalPodsEndLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := filepath.Join(t.TempDir(), "state")
		p := newPods(newPod("web", 0), newPod("dns", criticalPriority))
		b := &bus{signals: make(chan bool, 1)}
		var steps []string
		note := func(s string) { steps = append(steps, s) }
		began := time.Now()
		ctx, stop := context.WithCancel(t.Context())
		m := &Manager{Connect: func(context.Context) (Bus, error) { return b, nil }, StateFile: state, Pods: p,
			Periods: Periods(30*time.Second, 10*time.Second),
			Leaving: func(l bool) { note(fmt.Sprint("leaving ", l)) },
			Told:    func(context.Context) { note(fmt.Sprint("told after ", time.Since(began))) },
			Log:     slog.New(slog.DiscardHandler)}
		b.signals <- true
		go func() { _ = m.Run(ctx) }()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if b.taken != 1 || b.released == 0 {
			t.Errorf("the lock was taken %d times, released %d times", b.taken, b.released)
		}
		b.signals <- false // called off: delay the next one again
		synctest.Wait()
		if b.taken != 2 {
			t.Errorf("the lock was taken %d times after the shutdown was called off", b.taken)
		}
		if got := strings.Join(p.said, " "); got != "web/20s dns/10s" {
			t.Errorf("ended %s", got)
		}
		// NODE-65.
		if times, err := Load(state); err != nil || !times.Start.Equal(began) ||
			times.End.Sub(times.Start) != 4*time.Second {
			t.Errorf("times %v, %v", times, err)
		}
		if got := strings.Join(steps, ", "); got != "leaving true, told after 4s, leaving false" {
			t.Error(got)
		}
		stop()
		close(b.signals)
	})
}

func TestALostBusIsOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		ctx, stop := context.WithCancel(t.Context())
		m := &Manager{Connect: func(context.Context) (Bus, error) {
			if tries++; tries == 2 {
				return nil, errors.New("no bus")
			}
			lost := &bus{signals: make(chan bool)}
			close(lost.signals)
			return lost, nil
		}, Log: slog.New(slog.DiscardHandler)}
		go func() { _ = m.Run(ctx) }()
		time.Sleep(2500 * time.Millisecond)
		stop()
		synctest.Wait()
		if tries != 3 {
			t.Errorf("opened %d times", tries)
		}
	})
}

// NODE-60: the example of KEP-2712.
func TestWavesByPriority(t *testing.T) {
	periods := []Period{{100000, 10 * time.Second}, {10000, 180 * time.Second},
		{1000, 120 * time.Second}, {0, 60 * time.Second}}
	list := []*corev1.Pod{newPod("a", 100001), newPod("b", 99999), newPod("c", 10000), newPod("d", 999), newPod("e", -5)}
	var got []string
	for _, w := range Waves(periods, list) {
		names := w.Grace.String()
		for _, p := range w.Pods {
			names += " " + p.Name
		}
		got = append(got, names)
	}
	if s := strings.Join(got, ", "); s != "1m0s d e, 3m0s b c, 10s a" {
		t.Error(s)
	}
	if got := Total(periods); got != 370*time.Second {
		t.Errorf("Total = %s", got)
	}
}
