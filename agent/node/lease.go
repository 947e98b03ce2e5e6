package node

import (
	"context"
	"errors"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Fence is what depends on the Lease besides others' view of the node.
type Fence interface {
	// Now is its clock.
	Now() time.Duration
	// Period is how often the Lease must be renewed at least, 0: as usual. Renew holds a
	// token when it should be at once.
	Period() time.Duration
	Renew() <-chan struct{}
	// Mark adds to a Lease that is about to be written; created: it is made.
	Mark(l *coordinationv1.Lease, created bool)
	// Answered takes what the API has after a write that began at started.
	Answered(ctx context.Context, started time.Duration, l *coordinationv1.Lease)
}

// lease renews the node's Lease until ctx ends.
func (m *Manager) lease(ctx context.Context) {
	var held *coordinationv1.Lease
	for ctx.Err() == nil {
		err := m.patiently(ctx, "renew the node's lease", func(ctx context.Context) error {
			l, err := m.renewInTime(ctx, held)
			if held = l; err != nil {
				held = nil // what clients return with an error is no Lease
			}
			return err
		})
		if err != nil {
			return
		}
		period, now := m.period()
		select {
		case <-ctx.Done():
		case <-now:
		case <-time.After(period):
		}
	}
}

// period is the pause between renewals, and what may end it.
func (m *Manager) period() (time.Duration, <-chan struct{}) {
	period := time.Duration(m.LeaseSeconds) * time.Second / 4
	if m.Fence == nil {
		return period, nil
	}
	if p := m.Fence.Period(); p > 0 {
		period = min(period, p)
	}
	return period, m.Fence.Renew()
}

// renewInTime is renew, which is tried anew, at another coordinator perhaps, before
// something that depends on it is over.
func (m *Manager) renewInTime(ctx context.Context, held *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if m.Fence == nil {
		return m.renew(ctx, held)
	}
	if p := m.Fence.Period(); p > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p)
		defer cancel()
	}
	return m.renew(ctx, held)
}

const leases = "kube-node-lease"

func (m *Manager) renew(ctx context.Context, held *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	c := m.Client.CoordinationV1().Leases(leases)
	if held != nil {
		l := held.DeepCopy()
		now := metav1.NowMicro()
		l.Spec.RenewTime = &now
		return m.write(ctx, l, false)
	}
	l, err := c.Get(ctx, m.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		l = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: m.Name, Namespace: leases}}
		if n := m.Node(); n != nil {
			l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}}
		}
		l.Spec = m.leaseSpec(metav1.NowMicro())
		return m.write(ctx, l, true)
	}
	if err != nil {
		return nil, err
	}
	l.Spec = m.leaseSpec(metav1.NowMicro())
	return m.write(ctx, l, false)
}

// write sends a Lease that must be the newest version, or one that must be new: what
// another wrote meanwhile is never lost.
func (m *Manager) write(ctx context.Context, l *coordinationv1.Lease, create bool) (*coordinationv1.Lease, error) {
	c := m.Client.CoordinationV1().Leases(leases)
	var started time.Duration
	if m.Fence != nil {
		m.Fence.Mark(l, create)
		started = m.Fence.Now()
	}
	var err error
	if create {
		l, err = c.Create(ctx, l, metav1.CreateOptions{})
	} else {
		l, err = c.Update(ctx, l, metav1.UpdateOptions{})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil, errors.Join(errors.New("the lease was changed by another"), err)
	}
	if err != nil {
		return nil, err
	}
	if m.Fence != nil {
		m.Fence.Answered(ctx, started, l)
	}
	return l, nil
}

func (m *Manager) leaseSpec(now metav1.MicroTime) coordinationv1.LeaseSpec {
	name, seconds := m.Name, m.LeaseSeconds
	return coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now}
}
