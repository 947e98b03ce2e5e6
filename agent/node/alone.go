package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// ErrTwin says that the node runs on another machine.
var ErrTwin = errors.New("another machine is this node, and lives")

const (
	aloneCall  = 5 * time.Second // for one request
	aloneAgain = 2 * time.Second
)

// Alone returns when nobody else is the node, for an agent that finds itself on another
// machine than the one that it ran on: with a copy of that one's disk, or with the disk
// itself. A copy would run all pods a second time, and its volumes would have two writers.
// The node's Lease tells: who lives renews it four times in its duration. ErrTwin: somebody
// does. While no coordinator answers, nothing is known, and it waits.
func Alone(ctx context.Context, leases coordination.LeaseInterface, name string, log *slog.Logger) error {
	var seen *coordinationv1.Lease
	var since time.Time
	for told := false; ; {
		now, err := ask(ctx, leases, name)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil && ctx.Err() == nil && !told:
			told = true
			log.Warn("this is not the machine that the node ran on; it is not started before a coordinator tells that the other one is gone",
				"err", err)
		case err != nil:
		case seen != nil && !now.Spec.RenewTime.Equal(seen.Spec.RenewTime):
			return ErrTwin
		case now.Spec.RenewTime == nil:
			return nil
		case seen == nil: // how old it is tells nothing: a copied machine's clock may be wrong
			seen, since = now, time.Now()
		case time.Since(since) > duration(now)*3/8: // half as much again as until the next renewal
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(aloneAgain):
		}
	}
}

func ask(ctx context.Context, leases coordination.LeaseInterface, name string) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, aloneCall)
	defer cancel()
	l, err := leases.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("lease of node %s: %w", name, err)
	}
	return l, nil
}

// duration is how long a Lease lasts; the kubelet's where it does not say.
func duration(l *coordinationv1.Lease) time.Duration {
	if s := l.Spec.LeaseDurationSeconds; s != nil && *s > 0 {
		return time.Duration(*s) * time.Second
	}
	return 40 * time.Second
}
