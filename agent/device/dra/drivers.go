package dra

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"github.com/shoal-project/shoal/agent/metrics"
)

const (
	// callLimit is how long a driver may take for one call (upstream: 45 s).
	callLimit = 45 * time.Second
	// maxAnswer is the size of an answer, in bytes.
	maxAnswer = 16 << 20
	// absence is how long a driver may be away before its devices are withdrawn.
	absence = 30 * time.Second
)

// reconnects are how often a driver that is lost is looked for.
var reconnects = backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 10 * time.Second}

// Drivers are those that registered on this node. Its methods may be called at the
// same time.
type Drivers struct {
	// Client is the API; nil where there is none.
	Client kubernetes.Interface
	Node   string
	// Changed is called when a driver came or went; it may be nil.
	Changed func()
	// HealthChanged is called when something else is known of a driver's devices than
	// before, with which they are; it may be nil.
	HealthChanged func(driver string, changed func(pool, device string) bool)
	// Calls are the durations of calls, by driver, method and code; nil: nobody counts.
	Calls *metrics.Durations
	Log   *slog.Logger
	// connect opens a connection to a socket; nil: of the file system.
	connect func(ctx context.Context, path string) (net.Conn, error)

	mu    sync.Mutex
	known map[string][]*driver // the newest last
	left  map[string]time.Time // drivers that went away, until their devices are withdrawn
	wake  chan struct{}        // something was put into left

	followers sync.WaitGroup
}

type driver struct {
	endpoint string
	conn     *grpc.ClientConn
	drav1.DRAPluginClient
	// end ends what follows the health of its devices.
	end    context.CancelFunc
	lost   bool // it cannot be connected to
	health map[deviceKey]report
}

func (d *driver) close() {
	d.end()
	_ = d.conn.Close()
}

// Register takes a driver that serves at endpoint; versions are the gRPC services
// that it has ("v1.DRAPlugin").
func (d *Drivers) Register(name, endpoint string, versions []string) error {
	if msgs := validation.IsDNS1123Subdomain(name); len(msgs) > 0 {
		return fmt.Errorf("DRA driver %q: %s", name, msgs[0])
	}
	v1 := slices.Contains(versions, drav1.DRAPluginService)
	if !v1 && !slices.Contains(versions, drav1beta1.DRAPluginService) {
		return fmt.Errorf("DRA driver %s: none of its gRPC services %q is known: it has to serve %s or %s",
			name, versions, drav1.DRAPluginService, drav1beta1.DRAPluginService)
	}
	conn, err := d.dial(endpoint, grpc.WithChainUnaryInterceptor(d.counted(name)))
	if err != nil {
		return fmt.Errorf("DRA driver %s at %s: %w", name, endpoint, err)
	}
	n := &driver{endpoint: endpoint, conn: conn, DRAPluginClient: drav1.NewDRAPluginClient(conn)}
	if !v1 {
		n.DRAPluginClient = drav1beta1.V1Beta1ClientWrapper{DRAPluginClient: drav1beta1.NewDRAPluginClient(conn)}
	}
	ctx, end := context.WithCancel(context.Background())
	n.end = end
	d.mu.Lock()
	if d.known == nil {
		d.known = map[string][]*driver{}
	}
	d.known[name] = append(d.remove(name, endpoint), n)
	delete(d.left, name)
	d.followers.Go(func() { d.follow(ctx, name, n) })
	d.followers.Go(func() { d.watch(ctx, name, n) })
	d.mu.Unlock()
	d.tell()
	return nil
}

// watch keeps a driver connected, and notes when it cannot be: one that was killed leaves its
// socket, by which it seems to be registered.
func (d *Drivers) watch(ctx context.Context, name string, n *driver) {
	for state := n.conn.GetState(); ; state = n.conn.GetState() {
		switch state {
		case connectivity.Idle:
			n.conn.Connect()
		case connectivity.Ready, connectivity.TransientFailure:
			d.reached(name, n, state == connectivity.Ready)
		}
		if !n.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// reached notes whether a driver can be connected to. Those of a name are away when none can.
func (d *Drivers) reached(name string, n *driver, there bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.known[name]
	if !slices.Contains(list, n) {
		return
	}
	n.lost = !there
	away := !slices.ContainsFunc(list, func(o *driver) bool { return !o.lost })
	if _, left := d.left[name]; away && !left {
		d.leave(name)
	} else if !away {
		delete(d.left, name)
	}
}

// remove closes what is at the endpoint and returns the others of the name.
func (d *Drivers) remove(name, endpoint string) []*driver {
	return slices.DeleteFunc(d.known[name], func(o *driver) bool {
		if o.endpoint == endpoint {
			o.close()
		}
		return o.endpoint == endpoint
	})
}

// Deregister forgets the driver at endpoint.
func (d *Drivers) Deregister(name, endpoint string) {
	d.mu.Lock()
	rest := d.remove(name, endpoint)
	if len(rest) > 0 {
		d.known[name] = rest
	} else if d.known[name] != nil {
		delete(d.known, name)
		d.leave(name)
	}
	d.mu.Unlock()
	d.tell()
}

// leave notes when a driver went; it is called with the lock.
func (d *Drivers) leave(name string) {
	if d.left == nil {
		d.left = map[string]time.Time{}
	}
	d.left[name] = time.Now()
	select {
	case d.waker() <- struct{}{}:
	default: // it is awake
	}
}

// waker is called with the lock.
func (d *Drivers) waker() chan struct{} {
	if d.wake == nil {
		d.wake = make(chan struct{}, 1)
	}
	return d.wake
}

func (d *Drivers) tell() {
	if d.Changed != nil {
		d.Changed()
	}
}

func (d *Drivers) find(name string) (drav1.DRAPluginClient, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.known[name]
	if len(list) == 0 {
		return nil, fmt.Errorf("DRA driver %s is not registered", name)
	}
	// In an update the newest may have ended without a word while the one before still serves.
	for _, one := range slices.Backward(list) {
		if !one.lost {
			return one, nil
		}
	}
	return list[len(list)-1], nil
}

// counted has the calls of a driver counted.
func (d *Drivers) counted(name string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		begin := time.Now()
		err := call(ctx, method, req, reply, conn, opts...)
		d.Calls.Since(begin, name, method, status.Code(err).String())
		return err
	}
}

// dial prepares a connection.
func (d *Drivers) dial(path string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	connect := d.connect
	if connect == nil {
		connect = func(ctx context.Context, path string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	}
	return grpc.NewClient("passthrough:///"+path, append(opts,
		grpc.WithAuthority("localhost"),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnects, MinConnectTimeout: time.Second}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return connect(ctx, path) }),
	)...)
}

// Run withdraws the devices of drivers that stay away: of those that were there before
// the agent began and do not come back, of those that go, and of those that cannot be
// connected to.
func (d *Drivers) Run(ctx context.Context) error {
	defer d.close()
	if d.Client == nil {
		<-ctx.Done()
		return nil
	}
	d.mu.Lock()
	wake := d.waker()
	d.mu.Unlock()
	look := time.NewTimer(absence)
	defer look.Stop()
	for first := true; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
			if first {
				continue // it is looked at soon
			}
		case <-look.C:
		}
		next, err := d.withdraw(ctx, first)
		if err != nil && ctx.Err() == nil {
			d.Log.Debug("ResourceSlices of drivers that are away are not deleted yet", "err", err)
			next = absence
		} else {
			first = false
		}
		if next > 0 {
			look.Reset(next)
		}
	}
}

// close ends all connections.
func (d *Drivers) close() {
	d.mu.Lock()
	for _, list := range d.known {
		for _, one := range list {
			one.close()
		}
	}
	d.known = nil
	d.mu.Unlock()
	d.followers.Wait()
}

// withdraw deletes the ResourceSlices of drivers that have been away for long, all
// being those that never registered too. It returns when to look again; 0: when a
// driver has gone.
func (d *Drivers) withdraw(ctx context.Context, all bool) (time.Duration, error) {
	away := sets.New[string]()
	var next time.Duration
	d.mu.Lock()
	for name, since := range d.left {
		if rest := absence - time.Since(since); rest <= 0 {
			away.Insert(name)
		} else if next == 0 || rest < next {
			next = rest
		}
	}
	d.mu.Unlock()
	if all {
		list, err := d.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
			FieldSelector: fields.Set{resourcev1.ResourceSliceSelectorNodeName: d.Node}.String()})
		if err != nil {
			return 0, err
		}
		for i := range list.Items {
			if name := list.Items[i].Spec.Driver; !d.has(name) {
				away.Insert(name)
			}
		}
	}
	for _, name := range sets.List(away) {
		if err := d.delete(ctx, name); err != nil {
			return 0, err
		}
	}
	return next, nil
}

func (d *Drivers) has(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.known[name]) > 0
}

func (d *Drivers) delete(ctx context.Context, name string) error {
	err := d.Client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{
		FieldSelector: fields.Set{resourcev1.ResourceSliceSelectorNodeName: d.Node,
			resourcev1.ResourceSliceSelectorDriver: name}.String()})
	if err != nil {
		return fmt.Errorf("delete the ResourceSlices of driver %s: %w", name, err)
	}
	d.mu.Lock()
	delete(d.left, name)
	d.mu.Unlock()
	return nil
}
