package hollow

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/cni/cidr"
)

// Config of a Runtime.
type Config struct {
	// StartDelay is how long the start of a container takes.
	StartDelay time.Duration
	// Lifetime is how long a container of a pod, by its UID, runs before it
	// ends well; 0: until it is stopped.
	Lifetime func(uid, container string) time.Duration
}

// Runtime is a CRI runtime without processes: sandboxes and containers are
// entries in memory, images are always present.
type Runtime struct {
	cfg Config

	mu         sync.Mutex
	sandboxes  map[string]*sandbox
	containers map[string]*container
	images     map[string]*criv1.Image
	pool       pool
	changed    []*criv1.PodSandboxMetadata // whose pods have news
	wake       chan struct{}
}

type sandbox struct {
	criv1.PodSandbox
	host bool // in the node's network
	ip   netip.Addr
}

type container struct {
	criv1.ContainerStatus
	sandbox *sandbox
	end     *time.Timer
}

// New returns a runtime without pods and without a pod network.
func New(cfg Config) *Runtime {
	return &Runtime{cfg: cfg, sandboxes: map[string]*sandbox{}, containers: map[string]*container{},
		images: map[string]*criv1.Image{},
		wake:   make(chan struct{}, 1)}
}

// SetPodCIDRs gives the addresses of pods; until then the network is not
// ready.
func (r *Runtime) SetPodCIDRs(cidrs cidr.Prefixes) error {
	if len(cidrs) == 0 {
		return errors.New("no pod network")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pool.set(cidrs[0])
	return nil
}

// HasNetwork tells whether SetPodCIDRs was called.
func (r *Runtime) HasNetwork() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pool.cidr.IsValid()
}

func newID() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

func noSandbox(id string) error {
	return status.Errorf(codes.NotFound, "no sandbox %q", id)
}

func noContainer(id string) error {
	return status.Errorf(codes.NotFound, "no container %q", id)
}

// RunPodSandbox makes an entry with an address.
func (r *Runtime) RunPodSandbox(_ context.Context, c *criv1.PodSandboxConfig, _ string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &sandbox{host: c.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == criv1.NamespaceMode_NODE}
	if !s.host {
		var err error
		if s.ip, err = r.pool.take(); err != nil {
			return "", err
		}
	}
	s.Id, s.Metadata, s.Labels, s.Annotations = newID(), c.Metadata, c.Labels, c.Annotations
	s.CreatedAt = time.Now().UnixNano()
	r.sandboxes[s.Id] = s
	return s.Id, nil
}

// StopPodSandbox ends the sandbox's containers and frees its address.
func (r *Runtime) StopPodSandbox(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sandboxes[id]; s != nil {
		r.stop(s)
	}
	return nil
}

func (r *Runtime) stop(s *sandbox) {
	s.State = criv1.PodSandboxState_SANDBOX_NOTREADY
	if s.ip.IsValid() {
		r.pool.free(s.ip)
		s.ip = netip.Addr{}
	}
	for _, c := range r.containers {
		if c.sandbox == s {
			r.exit(c, 137)
		}
	}
}

// RemovePodSandbox forgets the sandbox and its containers.
func (r *Runtime) RemovePodSandbox(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return nil
	}
	r.stop(s)
	for cid, c := range r.containers {
		if c.sandbox == s {
			delete(r.containers, cid)
		}
	}
	delete(r.sandboxes, id)
	return nil
}

// PodSandboxStatus tells of one sandbox.
func (r *Runtime) PodSandboxStatus(_ context.Context, id string, _ bool) (*criv1.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return nil, noSandbox(id)
	}
	st := &criv1.PodSandboxStatus{Id: id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, Labels: s.Labels,
		Annotations: s.Annotations, Network: &criv1.PodSandboxNetworkStatus{}}
	if s.ip.IsValid() {
		st.Network.Ip = s.ip.String()
	}
	return &criv1.PodSandboxStatusResponse{Status: st}, nil
}

// ListPodSandbox lists the sandboxes that match.
func (r *Runtime) ListPodSandbox(_ context.Context, f *criv1.PodSandboxFilter) ([]*criv1.PodSandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*criv1.PodSandbox
	for id, s := range r.sandboxes {
		if f.GetId() != "" && f.GetId() != id || f.GetState() != nil && f.GetState().State != s.State ||
			!labelled(s.Labels, f.GetLabelSelector()) {
			continue
		}
		out = append(out,
			&criv1.PodSandbox{Id: id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, Labels: s.Labels,
				Annotations: s.Annotations})
	}
	return out, nil
}

func labelled(labels, want map[string]string) bool {
	for k, v := range want {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// Version tells name and versions.
func (r *Runtime) Version(context.Context, string) (*criv1.VersionResponse, error) {
	return &criv1.VersionResponse{Version: "0.1.0", RuntimeName: "hollow", RuntimeVersion: "0.1.0",
		RuntimeApiVersion: "v1"}, nil
}

// Status is ready once the pod network is known.
func (r *Runtime) Status(context.Context, bool) (*criv1.StatusResponse, error) {
	network := &criv1.RuntimeCondition{Type: criv1.NetworkReady, Status: r.HasNetwork()}
	if !network.Status {
		network.Reason, network.Message = "NetworkPluginNotReady", "Network plugin returns error: the node has no pod network yet"
	}
	return &criv1.StatusResponse{Status: &criv1.RuntimeStatus{Conditions: []*criv1.RuntimeCondition{
		{Type: criv1.RuntimeReady, Status: true}, network}}}, nil
}

// GetContainerEvents sends which pods have news until ctx ends.
func (r *Runtime) GetContainerEvents(ctx context.Context, events chan *criv1.ContainerEventResponse,
	connected func(criv1.RuntimeService_GetContainerEventsClient)) error {
	if connected != nil {
		connected(nil)
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.wake:
		}
		r.mu.Lock()
		changed := r.changed
		r.changed = nil
		r.mu.Unlock()
		for _, md := range changed {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case events <- &criv1.ContainerEventResponse{
				ContainerEventType: criv1.ContainerEventType_CONTAINER_STARTED_EVENT,
				PodSandboxStatus:   &criv1.PodSandboxStatus{Metadata: md}}:
			}
		}
	}
}

// tell announces news of a sandbox; the lock is held.
func (r *Runtime) tell(s *sandbox) {
	if !slices.Contains(r.changed, s.Metadata) {
		r.changed = append(r.changed, s.Metadata)
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// pool gives out the addresses of one pod network in turn.
type pool struct {
	cidr netip.Prefix
	last netip.Addr
	used map[netip.Addr]bool
}

// set takes the network; addresses that are used stay so.
func (p *pool) set(cidr netip.Prefix) {
	if p.cidr == cidr.Masked() {
		return
	}
	p.cidr = cidr.Masked()
	p.last = p.cidr.Addr().Next() // the bridge's
	if p.used == nil {
		p.used = map[netip.Addr]bool{}
	}
}

func (p *pool) take() (netip.Addr, error) {
	if !p.cidr.IsValid() {
		return netip.Addr{}, errors.New("the node has no pod network yet")
	}
	first := p.cidr.Addr().Next().Next()
	a := p.last.Next()
	for range len(p.used) + 2 {
		if !p.cidr.Contains(a) {
			a = first
		}
		if p.cidr.Contains(a) && p.cidr.Contains(a.Next()) && !p.used[a] {
			p.used[a], p.last = true, a
			return a, nil
		}
		a = a.Next()
	}
	return netip.Addr{}, errors.New("no address is left in " + p.cidr.String())
}

func (p *pool) free(a netip.Addr) { delete(p.used, a) }
