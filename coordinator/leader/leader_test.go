package leader_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/shoal-project/shoal/coordinator/leader"
)

func elect(ctx context.Context, e leader.Elector) (leading, ended chan struct{}) {
	leading, ended = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_ = e.Run(ctx, func(ctx context.Context) error {
			close(leading)
			<-ctx.Done()
			return nil
		})
	}()
	return leading, ended
}

func wait(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatal(what + " did not happen")
	}
}

// The first leads, the second waits until the first has released; a restarted
// leader of the same name goes on at once though its Lease was not released.
func TestElection(t *testing.T) {
	client := fake.NewClientset()
	elector := func(name string) leader.Elector {
		return leader.Elector{Client: client, Identity: name, Log: slog.New(slog.DiscardHandler)}
	}
	ctxA, stopA := context.WithCancel(context.Background())
	leadA, endA := elect(ctxA, elector("a"))
	wait(t, leadA, "leadership of a")
	ctxB, stopB := context.WithCancel(context.Background())
	leadB, endB := elect(ctxB, elector("b"))
	select {
	case <-leadB:
		t.Fatal("two lead")
	case <-time.After(50 * time.Millisecond):
	}
	stopA()
	wait(t, endA, "the end of a")
	wait(t, leadB, "leadership of b")
	stopB()
	wait(t, endB, "the end of b")

	unreleased(t, client, "c")
	ctxC, stopC := context.WithCancel(context.Background())
	leadC, endC := elect(ctxC, elector("c"))
	wait(t, leadC, "leadership of c after its restart")
	stopC()
	wait(t, endC, "the end of c")

	unreleased(t, client, "dead")
	alone := elector("d")
	alone.Alone = func() bool { return true }
	ctxD, stopD := context.WithCancel(context.Background())
	leadD, endD := elect(ctxD, alone)
	wait(t, leadD, "leadership of d, beside whom nobody is")
	stopD()
	wait(t, endD, "the end of d")
}

// unreleased leaves a Lease as a leader does that dies.
func unreleased(t *testing.T, client kubernetes.Interface, holder string) {
	t.Helper()
	now, seconds := metav1.NowMicro(), int32(15)
	leases := client.CoordinationV1().Leases("kube-system")
	lease, err := leases.Get(context.Background(), "shoal-coordinator", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &now, LeaseDurationSeconds: &seconds}
	if _, err := leases.Update(context.Background(), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestIdentityIsOfOneProcess(t *testing.T) {
	one, other := leader.NewIdentity("host"), leader.NewIdentity("host")
	if one == other || !strings.HasPrefix(one, "host_") {
		t.Errorf("%s, %s", one, other)
	}
}
