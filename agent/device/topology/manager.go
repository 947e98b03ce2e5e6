package topology

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/metrics"
)

// Provider has something of the machine for containers. Its methods may be called at the
// same time.
type Provider interface {
	// Hints are where a container of a pod could have what it asks for and does not have;
	// PodHints where all of the pod's together.
	Hints(p *corev1.Pod, c *corev1.Container) Hints
	PodHints(p *corev1.Pod) Hints
	// Allocate gives a container what it asks for, near to nodes if that can be; nothing is
	// done for one that has it. An error is that it cannot have it.
	Allocate(ctx context.Context, p *corev1.Pod, c *corev1.Container, near Mask) error
}

// Rejection is an error that names why a pod is not let run.
type Rejection struct{ Reason, Message string }

func (r *Rejection) Error() string { return r.Message }

// misaligned is upstream's word for it.
var misaligned = &Rejection{Reason: "TopologyAffinityError",
	Message: "Resources cannot be allocated with Topology locality"}

// Scopes: what is to be near to each other.
const (
	ContainerScope = "container"
	PodScope       = "pod"
)

// MaxNodes is how many NUMA nodes a machine may have for a policy other than none: there are
// 2^n sets of nodes to look at. Upstream's default is the same.
const MaxNodes = 8

// Manager has providers give pods what they ask for.
type Manager struct {
	Machine *Machine
	Policy  Policy
	// Scope is ContainerScope or PodScope.
	Scope string
	// Closest has nodes that are near to each other preferred to others.
	Closest   bool
	Providers []Provider
	// Requests and Errors count pods that have something to align; nil: nobody does.
	Requests, Errors *metrics.Counts

	turn chan struct{}
}

// New returns a manager, or an error where the machine has more nodes than its policy may
// look at (maxNodes, 0: MaxNodes).
func New(m Manager, maxNodes int) (*Manager, error) {
	if maxNodes == 0 {
		maxNodes = MaxNodes
	}
	if n := len(m.Machine.Nodes); m.aligns() && n > maxNodes {
		return nil, fmt.Errorf("topologyManagerPolicy: %s is for machines with %d NUMA nodes at most, this one has %d: "+
			"use none, or raise max-allowable-numa-nodes of topologyManagerPolicyOptions", m.Policy, maxNodes, n)
	}
	m.turn = make(chan struct{}, 1)
	return &m, nil
}

// Configure reads topologyManagerPolicyOptions. It returns how many NUMA nodes the machine
// may have, 0 for the default.
func (m *Manager) Configure(options map[string]string) (maxNodes int, err error) {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(options)) {
		value := options[name]
		switch name {
		case "prefer-closest-numa-nodes":
			if m.Closest, err = strconv.ParseBool(value); err != nil {
				errs = append(errs, fmt.Errorf("%s: %q is neither true nor false", name, value))
			}
		case "max-allowable-numa-nodes":
			if maxNodes, err = strconv.Atoi(value); err != nil || maxNodes < MaxNodes {
				errs = append(errs, fmt.Errorf("%s: %q is not a number, %d at least", name, value, MaxNodes))
			}
		default:
			errs = append(errs, fmt.Errorf("%q is not an option: there are "+
				"max-allowable-numa-nodes, prefer-closest-numa-nodes", name))
		}
	}
	return maxNodes, errors.Join(errs...)
}

func (m *Manager) aligns() bool { return m.Policy != None && m.Policy != "" }

// Ensure gives the containers of a pod what they ask for of the machine. An error is that
// the pod cannot have it: that of a provider, or a Rejection.
func (m *Manager) Ensure(ctx context.Context, p *corev1.Pod) error {
	near := func(*corev1.Container) (Mask, error) { return 0, nil }
	if m.aligns() && m.asks(p) {
		// One pod at a time: what was hinted at must still be there when it is allocated.
		select {
		case m.turn <- struct{}{}:
			defer func() { <-m.turn }()
		case <-ctx.Done():
			return ctx.Err()
		}
		m.Requests.Inc()
		var err error
		if near, err = m.align(p); err != nil {
			return err
		}
	}
	return each(p, func(c *corev1.Container) error {
		nodes, err := near(c)
		if err != nil {
			return err
		}
		for _, provider := range m.Providers {
			if err := provider.Allocate(ctx, p, c, nodes); err != nil {
				return err
			}
		}
		return nil
	})
}

// asks tells whether there is anything to align for a pod.
func (m *Manager) asks(p *corev1.Pod) bool {
	for _, provider := range m.Providers {
		if len(provider.PodHints(p)) > 0 {
			return true
		}
	}
	return false
}

// align returns what tells the nodes of a container.
func (m *Manager) align(p *corev1.Pod) (func(*corev1.Container) (Mask, error), error) {
	if m.Scope == PodScope {
		nodes, err := m.choose(func(provider Provider) Hints { return provider.PodHints(p) })
		return func(*corev1.Container) (Mask, error) { return nodes, nil }, err
	}
	return func(c *corev1.Container) (Mask, error) {
		return m.choose(func(provider Provider) Hints { return provider.Hints(p, c) })
	}, nil
}

func (m *Manager) choose(of func(Provider) Hints) (Mask, error) {
	var all []Hints
	for _, provider := range m.Providers {
		if h := of(provider); len(h) > 0 {
			all = append(all, h)
		}
	}
	if len(all) == 0 {
		return 0, nil
	}
	nodes, admitted := chooser{m.Machine, m.Policy, m.Closest}.choose(all)
	if !admitted {
		m.Errors.Inc()
		return 0, misaligned
	}
	return nodes, nil
}

func each(p *corev1.Pod, f func(*corev1.Container) error) error {
	for i := range p.Spec.InitContainers {
		if err := f(&p.Spec.InitContainers[i]); err != nil {
			return err
		}
	}
	for i := range p.Spec.Containers {
		if err := f(&p.Spec.Containers[i]); err != nil {
			return err
		}
	}
	return nil
}
