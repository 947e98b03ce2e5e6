package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
)

const (
	namespace, name = "kube-system", "shoal-coordinator"
	// Upstream's leader election timing: a dead leader is followed after
	// duration; a living one stops by itself after deadline without a renewal.
	duration = 15 * time.Second
	deadline = 10 * time.Second
	period   = 2 * time.Second
	// renewal is less often than upstream's; what fails is tried again after period.
	renewal = 4 * time.Second
)

// Elector competes for the Lease.
type Elector struct {
	// Client reads and writes Leases.
	Client kubernetes.Interface
	// Identity names this process and no other, also of the same machine (NewIdentity).
	Identity string
	// Alone tells whether no other process can compete: a Lease that is held is that
	// of one that died then, and is taken over at once. Nil: others can.
	Alone func() bool
	// Quick has a dead leader followed within five seconds, for a write a second: where
	// coordinators share a store of their own. Nil: never.
	Quick func() bool
	Log   *slog.Logger
}

// pace is how the Lease is kept. The one that holds it writes its duration into it,
// and others go by that: coordinators of two paces respect each other.
type pace struct {
	// duration is after which a dead leader is followed, deadline after which a living
	// one without a renewal has stopped.
	duration, deadline time.Duration
	renewal, period    time.Duration
}

var (
	calm  = pace{duration: duration, deadline: deadline, renewal: renewal, period: period}
	quick = pace{
		duration: 4 * time.Second,
		deadline: 2500 * time.Millisecond,
		renewal:  time.Second,
		period:   500 * time.Millisecond,
	}
)

func (e Elector) pace() pace {
	if e.Quick != nil && e.Quick() {
		return quick
	}
	return calm
}

// Leads fails unless some coordinator leads: scheduler and controllers run there.
func Leads(ctx context.Context, client kubernetes.Interface) error {
	lease, err := client.CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("no coordinator leads: %w", err)
	}
	s := &lease.Spec
	if s.HolderIdentity == nil || *s.HolderIdentity == "" || s.RenewTime == nil {
		return fmt.Errorf("no coordinator leads: nobody holds Lease %s/%s", namespace, name)
	}
	if age := time.Since(s.RenewTime.Time); age > durationOf(s) {
		return fmt.Errorf("no coordinator leads: Lease %s/%s of %s was renewed %s ago", namespace, name,
			*s.HolderIdentity, age.Round(time.Second))
	}
	return nil
}

// NewIdentity returns an identity for a process of a host, in upstream's form.
func NewIdentity(host string) string { return host + "_" + string(uuid.NewUUID()) }

// Run waits until this coordinator leads and calls lead with a context that
// ends with the leadership. lead has returned before the Lease is given up.
// Run returns when ctx ends, or with lead's error.
func (e Elector) Run(ctx context.Context, lead func(ctx context.Context) error) error {
	registerMetrics()
	for {
		lease, asked, err := e.acquire(ctx)
		if err != nil {
			return nil // ctx ended
		}
		err = e.hold(ctx, lease, asked.Add(deadlineOf(lease)), lead)
		if ctx.Err() != nil {
			return err
		}
		if err != nil {
			return fmt.Errorf("lead: %w", err)
		}
		e.Log.Warn("leadership lost, competing again", "identity", e.Identity)
	}
}

// acquire returns the Lease once it is ours, and when it was asked for; an error
// only when ctx ended.
func (e Elector) acquire(ctx context.Context) (lease *coordinationv1.Lease, asked time.Time, err error) {
	var seen observed
	var last string
	for {
		asked = time.Now()
		lease, err := e.try(ctx, &seen)
		if err == nil {
			return lease, asked, nil
		}
		if ctx.Err() != nil {
			return nil, asked, ctx.Err()
		}
		if !errors.Is(err, errHeld) && err.Error() != last {
			last = err.Error()
			e.Log.Warn("cannot take leadership yet", "err", err)
		}
		// A Lease that is not renewed is an absence of events: look each period.
		if !sleep(ctx, e.pace().period) {
			return nil, asked, ctx.Err()
		}
	}
}

// observed is when another holder's record was first seen unchanged, by our own
// clock: clocks of machines need not agree.
type observed struct {
	holder string
	renew  metav1.MicroTime
	at     time.Time
}

var errHeld = errors.New("held by another")

func (e Elector) try(ctx context.Context, seen *observed) (*coordinationv1.Lease, error) {
	leases := e.Client.CoordinationV1().Leases(namespace)
	lease, err := leases.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: e.claim(coordinationv1.LeaseSpec{}),
		}, metav1.CreateOptions{})
	}
	if err != nil {
		return nil, err
	}
	holder := ""
	if lease.Spec.HolderIdentity != nil {
		holder = *lease.Spec.HolderIdentity
	}
	alone := e.Alone != nil && e.Alone()
	if holder != "" && holder != e.Identity && !alone && !seen.expired(lease.Spec, time.Now()) {
		return nil, errHeld
	}
	lease.Spec = e.claim(lease.Spec)
	return leases.Update(ctx, lease, metav1.UpdateOptions{})
}

func (o *observed) expired(s coordinationv1.LeaseSpec, now time.Time) bool {
	var renew metav1.MicroTime
	if s.RenewTime != nil {
		renew = *s.RenewTime
	}
	if *s.HolderIdentity != o.holder || !renew.Equal(&o.renew) {
		*o = observed{holder: *s.HolderIdentity, renew: renew, at: now}
	}
	return now.Sub(o.at) > durationOf(&s)
}

// durationOf is how long a Lease holds after its last renewal, as its holder has said.
func durationOf(s *coordinationv1.LeaseSpec) time.Duration {
	if s.LeaseDurationSeconds == nil || *s.LeaseDurationSeconds < 1 {
		return duration
	}
	return time.Duration(*s.LeaseDurationSeconds) * time.Second
}

// deadlineOf is how long its holder may act without another renewal.
func deadlineOf(l *coordinationv1.Lease) time.Duration {
	if durationOf(&l.Spec) == quick.duration {
		return quick.deadline
	}
	return deadline
}

// claim returns the record of our leadership, following old.
func (e Elector) claim(old coordinationv1.LeaseSpec) coordinationv1.LeaseSpec {
	now := metav1.NowMicro()
	seconds, transitions := int32(e.pace().duration/time.Second), int32(0)
	if old.LeaseTransitions != nil {
		transitions = *old.LeaseTransitions
	}
	acquired := old.AcquireTime
	if old.HolderIdentity == nil || *old.HolderIdentity != e.Identity {
		acquired = &now
		if old.HolderIdentity != nil {
			transitions++
		}
	}
	return coordinationv1.LeaseSpec{
		HolderIdentity: &e.Identity, LeaseDurationSeconds: &seconds, LeaseTransitions: &transitions,
		AcquireTime: acquired, RenewTime: &now,
	}
}

// hold runs lead while the Lease can be renewed, then releases it. Unless it is
// renewed, it is held until a time: others may lead soon after.
func (e Elector) hold(
	ctx context.Context, lease *coordinationv1.Lease, until time.Time, lead func(ctx context.Context) error,
) error {
	leading, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	defer leads()()
	go func() { done <- lead(leading) }()
	pause := e.pace().renewal
	for {
		select {
		case err := <-done:
			e.release(lease)
			return err
		case <-ctx.Done():
			err := <-done
			e.release(lease)
			return err
		case <-time.After(min(pause, time.Until(until))):
		}
		asked := time.Now()
		next, err := e.renew(leading, lease, until)
		switch {
		case err == nil:
			lease, until, pause = next, asked.Add(deadlineOf(next)), e.pace().renewal
		case apierrors.IsConflict(err) || apierrors.IsNotFound(err) || !time.Now().Before(until):
			stop()
			return <-done
		default:
			pause = e.pace().period
		}
	}
}

// renew writes the Lease anew, if that can be done before a time.
func (e Elector) renew(
	ctx context.Context, lease *coordinationv1.Lease, until time.Time,
) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, min(e.pace().deadline/2, time.Until(until)))
	defer cancel()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	lease = lease.DeepCopy()
	lease.Spec = e.claim(lease.Spec)
	return e.Client.CoordinationV1().Leases(namespace).Update(ctx, lease, metav1.UpdateOptions{})
}

// release lets a successor start at once. It is best effort: a Lease that is
// not released ends by itself.
func (e Elector) release(lease *coordinationv1.Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	lease = lease.DeepCopy()
	empty, seconds := "", int32(1)
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &empty, &seconds
	now := metav1.NowMicro()
	lease.Spec.RenewTime = &now
	_, _ = e.Client.CoordinationV1().Leases(namespace).Update(ctx, lease, metav1.UpdateOptions{})
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
