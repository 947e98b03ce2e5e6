package node

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// told is a Fence that notes what it is asked.
type told struct {
	now      time.Duration
	created  []bool
	answered []time.Duration
	versions []string
}

func (f *told) Now() time.Duration     { f.now++; return f.now }
func (f *told) Period() time.Duration  { return time.Second }
func (f *told) Renew() <-chan struct{} { return nil }
func (f *told) Mark(l *coordinationv1.Lease, created bool) {
	f.created = append(f.created, created)
	l.Annotations = map[string]string{"marked": "yes"}
}
func (f *told) Answered(_ context.Context, started time.Duration, l *coordinationv1.Lease) {
	f.answered = append(f.answered, started)
	f.versions = append(f.versions, l.Annotations["marked"])
}

func TestTheFenceIsToldOfRenewalsThatWereAnswered(t *testing.T) {
	client := fake.NewClientset()
	f := &told{}
	m := &Manager{Client: client, Name: "n", LeaseSeconds: 40, Fence: f, Log: slog.New(slog.DiscardHandler)}
	held, err := m.renewInTime(t.Context(), nil) // there is none
	if err != nil {
		t.Fatal(err)
	}
	if held, err = m.renewInTime(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	if len(f.created) != 2 || !f.created[0] || f.created[1] {
		t.Errorf("created: %v, it was made first and then renewed", f.created)
	}
	if len(f.answered) != 2 || f.answered[0] != 1 || f.answered[1] != 2 || f.versions[1] != "yes" {
		t.Errorf("answered: %v %v: each with the time of before it was sent", f.answered, f.versions)
	}
	refused := apierrors.NewConflict(coordinationv1.Resource("leases"), "n", errors.New("somebody raised a fence"))
	client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, refused
	})
	if _, err = m.renewInTime(t.Context(), held); !errors.Is(err, refused) || len(f.answered) != 2 {
		t.Errorf("%v, answered %d times: what was refused renews nothing", err, len(f.answered))
	}
	if period, _ := m.period(); period != time.Second {
		t.Errorf("renewed each %s", period)
	}
}
