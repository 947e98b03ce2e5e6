package allocate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// addressManager is upstream's mark of IPAddresses that follow services.
const addressManager = "ipallocator.k8s.io"

// lister lists a store's objects over all namespaces. They are shared with the
// watch cache. fresh: as of now, else as the cache has them.
type lister[T any] func(ctx context.Context, fresh bool) (T, error)

func listOf[T any](store *genericregistry.Store) lister[T] {
	return func(ctx context.Context, fresh bool) (list T, err error) {
		o := &internalversion.ListOptions{}
		if !fresh {
			o.ResourceVersion = "0"
		}
		obj, err := store.List(inside(ctx, store), o)
		if err != nil {
			return list, err
		}
		list, ok := obj.(T)
		if !ok {
			return list, fmt.Errorf("list %s: unexpected %T", store.DefaultQualifiedResource, obj)
		}
		return list, nil
	}
}

// inside is the context of a request of our own to a store, in the course of
// someone else's.
func inside(ctx context.Context, store *genericregistry.Store) context.Context {
	gr := store.DefaultQualifiedResource
	ctx = request.WithRequestInfo(ctx,
		&request.RequestInfo{APIGroup: gr.Group, Resource: gr.Resource, IsResourceRequest: true})
	return request.WithNamespace(ctx, metav1.NamespaceAll)
}

// storedAddresses keeps the address book as IPAddress objects (KEP-1880).
type storedAddresses struct {
	store     *genericregistry.Store
	addresses lister[*networkingv1.IPAddressList]
	cidrs     lister[*networkingv1.ServiceCIDRList]
	services  lister[*corev1.ServiceList]
	// stored reads a service as it is now, nil for none.
	stored func(ctx context.Context, namespace, name string) (*corev1.Service, error)
}

// storedService reads from a store of services.
func storedService(store *genericregistry.Store) func(context.Context, string, string) (*corev1.Service, error) {
	return func(ctx context.Context, namespace, name string) (*corev1.Service, error) {
		obj, err := store.Get(request.WithNamespace(inside(ctx, store), namespace), name, &metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		s, _ := obj.(*corev1.Service)
		return s, err
	}
}

// claim enters the address, in the place of an entry whose service is gone.
func (b *storedAddresses) claim(ctx context.Context, ip netip.Addr, s *corev1.Service) error {
	err := b.enter(ctx, ip, s)
	if !errors.Is(err, errTaken) {
		return err
	}
	if dropped, err := b.dropOrphan(ctx, ip); err != nil || !dropped {
		return errors.Join(errTaken, err)
	}
	return b.enter(ctx, ip, s)
}

// addressOrphaned is how old an entry without a service must be to be nobody's: a
// service is written within a request's time after it. Tests shorten it.
var addressOrphaned = orphaned

// dropOrphan strikes out an entry that its service left behind: etcd did delete
// the service, but not in time to say so, or did not take the release after it.
// The controller of IPAddresses does the same after a minute, where it runs.
func (b *storedAddresses) dropOrphan(ctx context.Context, ip netip.Addr) (bool, error) {
	obj, err := b.store.Get(inside(ctx, b.store), ip.String(), &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	a := obj.(*networkingv1.IPAddress)
	r := a.Spec.ParentRef
	if a.Labels[networkingv1.LabelManagedBy] != addressManager || r == nil || r.Resource != "services" ||
		time.Since(a.CreationTimestamp.Time) < addressOrphaned {
		return false, nil
	}
	holder, err := b.stored(ctx, r.Namespace, r.Name)
	if err != nil || holder != nil && slices.Contains(addressesOf(holder), ip) {
		return false, err
	}
	_, _, err = b.store.Delete(inside(ctx, b.store), ip.String(), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &a.UID, ResourceVersion: &a.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		err = nil
	} else if apierrors.IsConflict(err) {
		return false, nil // somebody was faster
	}
	return err == nil, err
}

func (b *storedAddresses) enter(ctx context.Context, ip netip.Addr, s *corev1.Service) error {
	a := &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: ip.String(), Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(familyOf(ip.String())),
			networkingv1.LabelManagedBy:       addressManager,
		}},
		Spec: networkingv1.IPAddressSpec{
			ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: s.Namespace, Name: s.Name}},
	}
	_, err := b.store.Create(inside(ctx, b.store), a, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return errTaken
	}
	return err
}

var errNotOurs = errors.New("the address is another's")

// release leaves the entry to a service that was made anew by the same name
// meanwhile.
func (b *storedAddresses) release(ctx context.Context, ip netip.Addr, s *corev1.Service) error {
	now, err := b.stored(ctx, s.Namespace, s.Name)
	if err != nil || now != nil && now.UID != s.UID && slices.Contains(addressesOf(now), ip) {
		return err
	}
	ours := func(_ context.Context, obj runtime.Object) error {
		a, ok := obj.(*networkingv1.IPAddress)
		if r := a.Spec.ParentRef; !ok || r == nil || r.Resource != "services" ||
			r.Namespace != s.Namespace || r.Name != s.Name {
			return errNotOurs
		}
		return nil
	}
	_, _, err = b.store.Delete(inside(ctx, b.store), ip.String(), ours, &metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) || errors.Is(err, errNotOurs) {
		return nil
	}
	return err
}

func (b *storedAddresses) known(ctx context.Context, fresh bool) (out []netip.Addr, err error) {
	claimed, err := b.addresses(ctx, fresh)
	if err != nil {
		return nil, err
	}
	for i := range claimed.Items {
		if ip, err := netip.ParseAddr(claimed.Items[i].Name); err == nil {
			out = append(out, ip)
		}
	}
	services, err := b.services(ctx, fresh)
	if err != nil {
		return nil, err
	}
	for i := range services.Items {
		out = append(out, addressesOf(&services.Items[i])...)
	}
	return out, nil
}

func (b *storedAddresses) holder(ctx context.Context, ip netip.Addr) (bool, error) {
	services, err := b.services(ctx, false)
	if err != nil {
		return false, err
	}
	for i := range services.Items {
		if slices.Contains(addressesOf(&services.Items[i]), ip) {
			return true, nil
		}
	}
	return false, nil
}

// ranges are those of ready ServiceCIDRs, the oldest first.
func (b *storedAddresses) ranges(ctx context.Context, fresh bool) (out []netip.Prefix, err error) {
	list, err := b.cidrs(ctx, fresh)
	if err != nil {
		return nil, err
	}
	cidrs := slices.Clone(list.Items)
	slices.SortFunc(cidrs, func(a, b networkingv1.ServiceCIDR) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	for i := range cidrs {
		c := &cidrs[i]
		if c.DeletionTimestamp != nil ||
			!meta.IsStatusConditionTrue(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
			continue
		}
		for _, text := range c.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil && !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out, nil
}

// storedPorts keeps the port book at the key and in the form that upstream does.
type storedPorts struct {
	open     func() (storage.Interface, string, error)
	services lister[*corev1.ServiceList]

	mu sync.Mutex
	// last is what this process wrote last: mostly nobody else has since.
	last runtime.Object
}

func newStoredPorts(env *kind.Env, services lister[*corev1.ServiceList]) *storedPorts {
	return &storedPorts{services: services, open: func() func() (storage.Interface, string, error) {
		var once sync.Once
		var s storage.Interface
		var key string
		var err error
		return func() (storage.Interface, string, error) {
			once.Do(func() { s, key, err = openPorts(env) })
			return s, key, err
		}
	}()}
}

func openPorts(env *kind.Env) (storage.Interface, string, error) {
	gr := schema.GroupResource{Resource: "servicenodeportallocations"}
	o, err := env.RESTOptions.GetRESTOptions(gr, &corev1.RangeAllocation{})
	if err != nil {
		return nil, "", fmt.Errorf("storage of node ports: %w", err)
	}
	key := "/" + o.ResourcePrefix
	s, _, err := o.Decorator(o.StorageConfig, key, nil,
		func() runtime.Object { return &corev1.RangeAllocation{} }, nil, nil, nil, nil)
	if err != nil {
		return nil, "", fmt.Errorf("storage of node ports: %w", err)
	}
	return s, key, nil
}

func (b *storedPorts) change(ctx context.Context, dryRun bool, f func(*corev1.RangeAllocation) error) error {
	store, key, err := b.open()
	if err != nil {
		return err
	}
	if dryRun {
		var r corev1.RangeAllocation
		if err := store.Get(ctx, key, storage.GetOptions{IgnoreNotFound: true}, &r); err != nil {
			return fmt.Errorf("read node ports: %w", err)
		}
		return f(&r)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	out := &corev1.RangeAllocation{}
	err = store.GuaranteedUpdate(ctx, key, out, true, nil,
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			r, ok := obj.(*corev1.RangeAllocation)
			if !ok {
				return nil, fmt.Errorf("read node ports: unexpected %T", obj)
			}
			r = r.DeepCopy() // obj may be last, which the next change begins with
			return r, f(r)
		}), b.last)
	b.last = nil
	if err == nil {
		b.last = out
	}
	return err
}

func (b *storedPorts) held(ctx context.Context) (out []int32, err error) {
	services, err := b.services(ctx, true)
	if err != nil {
		return nil, err
	}
	for i := range services.Items {
		out = append(out, portsOf(&services.Items[i])...)
	}
	return out, nil
}
