package apiendpoints

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

const (
	// TTL is how long the address of a coordinator that died is published on, as
	// upstream's.
	TTL = 15 * time.Second
	// again is the pause before what failed is tried again.
	again = time.Second
)

// Leases is a set of names in the store, which all coordinators share. A name
// stays for TTL after the last sign of life of who holds it.
type Leases interface {
	// Hold has a name in the set until ctx ends, then takes it out. It returns an
	// error when the name may have gone before.
	Hold(ctx context.Context, name string) error
	// List returns the names.
	List(ctx context.Context) ([]string, error)
	// Follow calls changed when it begins and whenever the set may have changed
	// since, until ctx ends or with the error that keeps it from telling.
	Follow(ctx context.Context, changed func()) error
}

// Publisher publishes the address of one API server beside those of others.
type Publisher struct {
	Client kubernetes.Interface
	Leases Leases
	// Server is where this one can be reached. A loopback address may be in no
	// endpoints, for pods have their own: nothing is published then.
	Server netip.AddrPort
	Log    *slog.Logger
}

// Run publishes until ctx ends, then takes its address out of the set.
func (p *Publisher) Run(ctx context.Context) error {
	if p.Server.Addr().IsLoopback() {
		return nil
	}
	changed := make(chan struct{}, 1)
	dirty := func() {
		select {
		case changed <- struct{}{}:
		default: // told already
		}
	}
	var g errgroup.Group
	g.Go(func() error {
		p.persist(ctx, "hold the API server's address", func(ctx context.Context) error {
			return p.Leases.Hold(ctx, p.Server.String())
		})
		return nil
	})
	g.Go(func() error {
		p.persist(ctx, "follow the API servers' addresses", func(ctx context.Context) error {
			return p.Leases.Follow(ctx, dirty)
		})
		return nil
	})
	for {
		select {
		case <-ctx.Done():
			return g.Wait()
		case <-changed:
			p.persist(ctx, "publish the API servers' addresses", p.Publish)
		}
	}
}

// persist repeats what fails until it does not, or until ctx ends. Each reason is
// told once.
func (p *Publisher) persist(ctx context.Context, what string, do func(context.Context) error) {
	told := ""
	for {
		err := do(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		if told != err.Error() {
			told = err.Error()
			p.Log.Warn("could not "+what+", trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(again):
		}
	}
}

// Publish writes the objects once, if they differ from the set and this server.
func (p *Publisher) Publish(ctx context.Context) error {
	if p.Server.Addr().IsLoopback() {
		return nil
	}
	raced := func(err error) bool {
		return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
	}
	return retry.OnError(retry.DefaultBackoff, raced, func() error { return p.write(ctx) })
}

// write reads the objects before the set, so that a write of what has changed
// since is refused.
func (p *Publisher) write(ctx context.Context) error {
	endpoints, err := p.Client.CoreV1().Endpoints(metav1.NamespaceDefault).Get(ctx, service, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		endpoints, err = nil, nil
	}
	if err != nil {
		return fmt.Errorf("read endpoints %s: %w", service, err)
	}
	ofService := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service}
	stored, err := p.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, ofService)
	if err != nil {
		return fmt.Errorf("list endpoint slices of %s: %w", service, err)
	}
	names, err := p.Leases.List(ctx)
	if err != nil {
		return fmt.Errorf("list API servers: %w", err)
	}
	all := servers(append(names, p.Server.String()))
	if err := p.writeEndpoints(ctx, endpoints, subsets(all)); err != nil {
		return err
	}
	return p.writeSlices(ctx, stored.Items, endpointSlices(all))
}

func (p *Publisher) writeEndpoints(ctx context.Context, have *corev1.Endpoints, want []corev1.EndpointSubset) (err error) {
	client := p.Client.CoreV1().Endpoints(metav1.NamespaceDefault)
	switch {
	case have == nil:
		have = &corev1.Endpoints{Subsets: want}
		have.Name = service
		// The slices are made here too, so that nobody mirrors this object.
		have.Labels = map[string]string{discoveryv1.LabelSkipMirror: "true"}
		_, err = client.Create(ctx, have, metav1.CreateOptions{})
	case !equality.Semantic.DeepEqual(have.Subsets, want):
		have.Subsets = want
		_, err = client.Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("make endpoints %s: %w", service, err)
	}
	return nil
}

func (p *Publisher) writeSlices(
	ctx context.Context, stored []discoveryv1.EndpointSlice, wanted []*discoveryv1.EndpointSlice,
) error {
	client := p.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	byName := map[string]*discoveryv1.EndpointSlice{}
	for i := range stored {
		byName[stored[i].Name] = &stored[i]
	}
	for _, want := range wanted {
		have, err := p.sliceOf(ctx, byName, want.Name)
		if err == nil {
			err = p.writeSlice(ctx, have, want)
		}
		if err != nil {
			return fmt.Errorf("make endpoint slice %s: %w", want.Name, err)
		}
	}
	for i := range stored {
		if have := &stored[i]; leftOver(have, wanted) {
			if err := client.Delete(ctx, have.Name, unchanged(have)); err != nil {
				return fmt.Errorf("delete endpoint slice %s: %w", have.Name, err)
			}
		}
	}
	return nil
}

// sliceOf is the slice with a name, nil for none: one that somebody took the Service's label
// from is not listed with the others.
func (p *Publisher) sliceOf(ctx context.Context, listed map[string]*discoveryv1.EndpointSlice,
	name string) (*discoveryv1.EndpointSlice, error) {
	if have := listed[name]; have != nil {
		return have, nil
	}
	have, err := p.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return have, err
}

func (p *Publisher) writeSlice(ctx context.Context, have, want *discoveryv1.EndpointSlice) (err error) {
	client := p.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	if have != nil && have.AddressType != want.AddressType { // which never changes
		if err := client.Delete(ctx, have.Name, unchanged(have)); err != nil {
			return err
		}
		have = nil
	}
	switch {
	case have == nil:
		_, err = client.Create(ctx, want, metav1.CreateOptions{})
	case !equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints),
		!equality.Semantic.DeepEqual(have.Ports, want.Ports),
		have.Labels[discoveryv1.LabelServiceName] != service:
		have.Endpoints, have.Ports = want.Endpoints, want.Ports
		metav1.SetMetaDataLabel(&have.ObjectMeta, discoveryv1.LabelServiceName, service)
		_, err = client.Update(ctx, have, metav1.UpdateOptions{})
	}
	return err
}

// unchanged has a deletion refused when the slice is another than the one seen.
func unchanged(s *discoveryv1.EndpointSlice) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion}}
}
