package dra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/shoal-project/shoal/agent/metrics"
)

// Claim is the record of a claim whose devices are being prepared, are there, or are
// being given back.
type Claim struct {
	UID             types.UID
	Namespace, Name string
	// Pods of this node that the claim is prepared for.
	Pods []types.UID
	// Drivers are all that have to be asked, Prepared what those answered that were.
	Drivers  []string
	Prepared map[string][]Device
	// Boot is the boot of the machine in which they were prepared.
	Boot string
}

// Device is one that a driver has prepared.
type Device struct {
	Pool, Name string
	// Requests of the claim that it is for; none: for all.
	Requests []string `json:",omitempty"`
	// CDI are the names by which the container runtime knows it.
	CDI []string `json:",omitempty"`
	// Share is which share of a device it is that several claims have.
	Share string `json:",omitempty"`
}

// Records keeps the records of claims over restarts, by the claims' UIDs.
type Records interface {
	All() (map[string]*Claim, error)
	Put(key string, c *Claim) error
	Delete(key string) error
}

// Manager prepares claims. Its methods may be called at the same time.
type Manager struct {
	Drivers *Drivers
	Records Records
	// Claim asks the API for a claim.
	Claim func(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error)
	// Boot is this boot of the machine.
	Boot string
	// Durations are of Ensure and Release of pods with claims, by operation and whether it
	// failed; nil: nobody counts.
	Durations *metrics.Durations

	mu    sync.Mutex
	known map[types.UID]*Claim // replaced, never changed
	busy  map[types.UID]*turn
}

// Load reads the records of an earlier agent, before the first pod is looked at.
func (m *Manager) Load() error {
	all, err := m.Records.All()
	if err != nil {
		return fmt.Errorf("records of resource claims: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known = map[types.UID]*Claim{}
	for _, c := range all {
		if c.Prepared == nil {
			c.Prepared = map[string][]Device{}
		}
		m.known[c.UID] = c
	}
	return nil
}

// Ensure prepares the claims of a pod, and the one that the scheduler made for its
// extended resources. Errors name the claim, and the driver with what
// it said; they may be tried again.
func (m *Manager) Ensure(ctx context.Context, p *corev1.Pod) (err error) {
	if len(p.Spec.ResourceClaims) > 0 || p.Status.ExtendedResourceClaimStatus != nil {
		defer m.took("PrepareResources", time.Now(), &err)
	}
	for i := range p.Spec.ResourceClaims {
		name, checkOwner, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i])
		if err != nil {
			return err
		}
		if name == nil {
			continue // the pod turned out not to need it
		}
		if err := m.ensure(ctx, p, *name, checkOwner); err != nil {
			return fmt.Errorf("resource claim %s: %w", *name, err)
		}
	}
	if made := p.Status.ExtendedResourceClaimStatus; made != nil {
		if err := m.ensure(ctx, p, made.ResourceClaimName, true); err != nil {
			return fmt.Errorf("resource claim %s: %w", made.ResourceClaimName, err)
		}
	}
	return nil
}

func (m *Manager) ensure(ctx context.Context, p *corev1.Pod, name string, checkOwner bool) error {
	old := m.of(p, name)
	if old != nil && m.ready(old) {
		return nil
	}
	asked, err := m.ask(ctx, p, name, checkOwner)
	if err != nil && (old == nil || !unreachable(err)) {
		return err
	}
	if err != nil {
		asked = old // it was allocated and reserved when the pod came
	}
	defer m.lock(asked.UID)()
	c := m.get(asked.UID)
	if c == nil {
		c = asked
		if before := m.namesake(c); before != nil {
			return fmt.Errorf("old ResourceClaim with same name %s and different UID %s still exists",
				before.Name, before.UID)
		}
		// Before there is a record, which drivers would have to undo: a pod of a driver that
		// this node does not have could never go.
		for _, driver := range c.Drivers {
			if _, err := m.Drivers.find(driver); err != nil {
				return err
			}
		}
	}
	c = c.clone()
	if c.Boot != m.Boot {
		c.Boot, c.Prepared = m.Boot, map[string][]Device{}
	}
	if !slices.Contains(c.Pods, p.UID) {
		c.Pods = append(c.Pods, p.UID)
	}
	if err := m.keep(c); err != nil {
		return err
	}
	for _, driver := range c.Drivers {
		if _, done := c.Prepared[driver]; done {
			continue
		}
		devices, err := m.prepare(ctx, driver, c)
		if err != nil {
			return err
		}
		c = c.clone()
		c.Prepared[driver] = devices
		if err := m.keep(c); err != nil {
			return err
		}
	}
	return nil
}

// ask reads the claim and tells what is to be prepared of it for the pod.
func (m *Manager) ask(ctx context.Context, p *corev1.Pod, name string, checkOwner bool) (*Claim, error) {
	claim, err := m.Claim(ctx, p.Namespace, name)
	if err != nil {
		return nil, &readError{err}
	}
	if checkOwner {
		if err := resourceclaim.IsForPod(p, claim, false); err != nil {
			return nil, err
		}
	}
	if claim.Status.Allocation == nil {
		return nil, errors.New("not allocated yet")
	}
	if !resourceclaim.IsReservedForPod(p, claim, false) {
		return nil, fmt.Errorf("pod %s (%s) is not allowed to use it: it is not reserved for the pod", p.Name, p.UID)
	}
	drivers := sets.New[string]()
	for _, r := range claim.Status.Allocation.Devices.Results {
		drivers.Insert(r.Driver)
	}
	return &Claim{UID: claim.UID, Namespace: claim.Namespace, Name: claim.Name, Drivers: sets.List(drivers),
		Prepared: map[string][]Device{}, Boot: m.Boot}, nil
}

// readError tells that a claim could not be read.
type readError struct{ error }

func (e *readError) Unwrap() error { return e.error }

// unreachable tells whether the API gave no answer.
func unreachable(err error) bool {
	read := new(readError)
	status := apierrors.APIStatus(nil)
	return errors.As(err, &read) && !errors.As(err, &status)
}

func (m *Manager) prepare(ctx context.Context, driver string, c *Claim) ([]Device, error) {
	client, err := m.Drivers.find(driver)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	answer, err := client.NodePrepareResources(ctx, &drav1.NodePrepareResourcesRequest{Claims: []*drav1.Claim{c.named()}})
	if err != nil {
		return nil, fmt.Errorf("NodePrepareResources of driver %s: %w", driver, err)
	}
	one := answer.GetClaims()[string(c.UID)]
	switch {
	case one == nil:
		return nil, fmt.Errorf("NodePrepareResources of driver %s: the claim is not in its answer", driver)
	case one.GetError() != "":
		return nil, fmt.Errorf("NodePrepareResources of driver %s: %s", driver, one.GetError())
	}
	devices := []Device{}
	for _, d := range one.GetDevices() {
		devices = append(devices, Device{Pool: d.GetPoolName(), Name: d.GetDeviceName(), Requests: d.GetRequestNames(),
			CDI: d.GetCdiDeviceIds(), Share: d.GetShareId()})
	}
	return devices, nil
}

// Release gives back what no other pod of this node needs. It is to be called again
// after an error.
func (m *Manager) Release(ctx context.Context, p *corev1.Pod) (err error) {
	claims := m.claimsOf(p.UID)
	if len(claims) > 0 {
		defer m.took("UnprepareResources", time.Now(), &err)
	}
	var errs []error
	for _, uid := range claims {
		if err := m.release(ctx, uid, p.UID); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) took(operation string, begin time.Time, err *error) {
	m.Durations.Since(begin, operation, strconv.FormatBool(*err != nil))
}

// AllDrivers is what InUse calls all drivers together (upstream: DRAResourceClaimsInUseAnyDriver).
const AllDrivers = "<any>"

// InUse is how many claims are prepared, by their drivers; one of two drivers counts for
// each.
func (m *Manager) InUse() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]int{AllDrivers: 0}
	for _, c := range m.known {
		if !m.ready(c) {
			continue
		}
		out[AllDrivers]++
		for driver := range c.Prepared {
			out[driver]++
		}
	}
	return out
}

func (m *Manager) release(ctx context.Context, uid, pod types.UID) error {
	defer m.lock(uid)()
	c := m.get(uid)
	if c == nil {
		return nil
	}
	if others := slices.DeleteFunc(slices.Clone(c.Pods), func(u types.UID) bool { return u == pod }); len(others) > 0 {
		c = c.clone()
		c.Pods = others
		return m.keep(c)
	}
	for _, driver := range c.Drivers {
		if err := m.unprepare(ctx, driver, c); err != nil {
			return fmt.Errorf("resource claim %s: %w", c.Name, err)
		}
	}
	if err := m.Records.Delete(string(uid)); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, uid)
	return nil
}

func (m *Manager) unprepare(ctx context.Context, driver string, c *Claim) error {
	client, err := m.Drivers.find(driver)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	answer, err := client.NodeUnprepareResources(ctx,
		&drav1.NodeUnprepareResourcesRequest{Claims: []*drav1.Claim{c.named()}})
	if err != nil {
		return fmt.Errorf("NodeUnprepareResources of driver %s: %w", driver, err)
	}
	one, ok := answer.GetClaims()[string(c.UID)]
	switch {
	case !ok:
		return fmt.Errorf("NodeUnprepareResources of driver %s: the claim is not in its answer", driver)
	case one.GetError() != "":
		return fmt.Errorf("NodeUnprepareResources of driver %s: %s", driver, one.GetError())
	}
	return nil
}

// Devices are the CDI names of what a container of a pod asks for: by its claims, and by
// extended resources for which the scheduler made a claim.
func (m *Manager) Devices(p *corev1.Pod, container *corev1.Container) ([]string, error) {
	var names []string
	for _, wanted := range container.Resources.Claims {
		i := slices.IndexFunc(p.Spec.ResourceClaims,
			func(c corev1.PodResourceClaim) bool { return c.Name == wanted.Name })
		if i < 0 {
			return nil, fmt.Errorf("the pod has no resource claim %s", wanted.Name)
		}
		name, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name == nil {
			continue
		}
		c := m.of(p, *name)
		if c == nil || !m.ready(c) {
			return nil, fmt.Errorf("resource claim %s is not prepared", *name)
		}
		names = append(names, c.names(wanted.Request)...)
	}
	extended, err := m.extended(p, container)
	if err != nil {
		return nil, err
	}
	names = append(names, extended...)
	seen := sets.New[string]()
	return slices.DeleteFunc(names, func(name string) bool {
		defer seen.Insert(name)
		return seen.Has(name)
	}), nil
}

// extended are the CDI names of devices for extended resources of the container.
func (m *Manager) extended(p *corev1.Pod, container *corev1.Container) (names []string, err error) {
	made := p.Status.ExtendedResourceClaimStatus
	if made == nil {
		return nil, nil
	}
	for _, r := range made.RequestMappings {
		if r.ContainerName != container.Name {
			continue
		}
		c := m.of(p, made.ResourceClaimName)
		if c == nil || !m.ready(c) {
			return nil, fmt.Errorf("resource claim %s is not prepared", made.ResourceClaimName)
		}
		names = append(names, c.names(r.RequestName)...)
	}
	return names, nil
}

// names are the CDI names of devices for a request; empty: for all.
func (c *Claim) names(request string) (names []string) {
	for _, driver := range c.Drivers {
		for _, d := range c.Prepared[driver] {
			if d.serves(request) {
				names = append(names, d.CDI...)
			}
		}
	}
	return names
}

// serves tells whether the device is for a request of its claim; "" is each of them. It
// may be one of several that were acceptable: "request/which".
func (d *Device) serves(request string) bool {
	mine := func(r string) bool { return r == request || resourceclaim.BaseRequestRef(r) == request }
	return request == "" || len(d.Requests) == 0 || slices.ContainsFunc(d.Requests, mine)
}

func (c *Claim) named() *drav1.Claim {
	return &drav1.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}
}

func (c *Claim) clone() *Claim {
	out := *c
	out.Pods = slices.Clone(c.Pods)
	out.Prepared = maps.Clone(c.Prepared)
	return &out
}

// ready tells whether all drivers have prepared the claim in this boot.
func (m *Manager) ready(c *Claim) bool {
	return c.Boot == m.Boot && !slices.ContainsFunc(c.Drivers, func(driver string) bool {
		_, done := c.Prepared[driver]
		return !done
	})
}

// of is the record of a claim, by its name, that is prepared for the pod.
func (m *Manager) of(p *corev1.Pod, name string) *Claim {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.known {
		if c.Namespace == p.Namespace && c.Name == name && slices.Contains(c.Pods, p.UID) {
			return c
		}
	}
	return nil
}

func (m *Manager) claimsOf(pod types.UID) (uids []types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, c := range m.known {
		if slices.Contains(c.Pods, pod) {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}

// namesake is a claim of an earlier object of the same name, whose devices are not given
// back yet: its pod was deleted by force. Drivers may know claims by their names.
func (m *Manager) namesake(c *Claim) *Claim {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, other := range m.known {
		if other.UID != c.UID && other.Namespace == c.Namespace && other.Name == c.Name {
			return other
		}
	}
	return nil
}

func (m *Manager) get(uid types.UID) *Claim {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known[uid]
}

// keep writes the record, then has it known.
func (m *Manager) keep(c *Claim) error {
	if err := m.Records.Put(string(c.UID), c); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known == nil {
		m.known = map[types.UID]*Claim{}
	}
	m.known[c.UID] = c
	return nil
}

// turn is whose turn it is to work on a claim, and how many want to.
type turn struct {
	sync.Mutex
	users int
}

// lock has one at a time work on a claim.
func (m *Manager) lock(uid types.UID) (unlock func()) {
	m.mu.Lock()
	if m.busy == nil {
		m.busy = map[types.UID]*turn{}
	}
	t := m.busy[uid]
	if t == nil {
		t = &turn{}
		m.busy[uid] = t
	}
	t.users++
	m.mu.Unlock()
	t.Lock()
	return func() {
		t.Unlock()
		m.mu.Lock()
		defer m.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(m.busy, uid)
		}
	}
}
