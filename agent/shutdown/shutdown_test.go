package shutdown

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type bus struct {
	signals  chan bool
	released int
}

func (b *bus) Shutdowns(context.Context) (<-chan bool, error) { return b.signals, nil }
func (b *bus) Delay() (io.Closer, error)                      { return b, nil }
func (b *bus) Close() error                                   { b.released++; return nil }

// pods end after the time that their name tells in seconds.
type pods struct {
	active  map[string]*v1.Pod
	said    []string
	changed chan struct{}
}

func (p *pods) Active() (out []*v1.Pod) {
	for _, q := range p.active {
		out = append(out, q)
	}
	return out
}

func (p *pods) Changed() <-chan struct{} { return p.changed }

func (p *pods) End(q *v1.Pod, grace time.Duration) {
	p.said = append(p.said, q.Name+"/"+grace.String())
	go func() {
		time.Sleep(2 * time.Second)
		delete(p.active, q.Name)
		p.changed <- struct{}{}
	}()
}

func TestCriticalPodsEndLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		high := int32(criticalPriority)
		p := &pods{changed: make(chan struct{}, 9), active: map[string]*v1.Pod{
			"web": {ObjectMeta: metav1.ObjectMeta{Name: "web"}},
			"dns": {ObjectMeta: metav1.ObjectMeta{Name: "dns"}, Spec: v1.PodSpec{Priority: &high}},
		}}
		b := &bus{signals: make(chan bool, 1)}
		m := &Manager{Bus: b, Pods: p, Grace: 30 * time.Second, Critical: 10 * time.Second, Leaving: func(bool) {}, Log: slog.New(slog.DiscardHandler)}
		began := time.Now()
		b.signals <- true
		close(b.signals)
		if err := m.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(p.said, " "); got != "web/20s dns/10s" {
			t.Errorf("ended %s", got)
		}
		if took := time.Since(began); took != 4*time.Second || b.released == 0 {
			t.Errorf("after %s, released %d times", took, b.released)
		}
	})
}
