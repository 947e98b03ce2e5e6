package allocate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var (
	errTaken      = errors.New("provided IP is already allocated")
	errOtherRange = errors.New("the provided network does not match the current range")
)

// addressBook is the truth about service addresses, shared by all coordinators.
type addressBook interface {
	// claim enters an address for a service; errTaken: it is in the book.
	claim(ctx context.Context, ip netip.Addr, s *corev1.Service) error
	// release strikes an address out if it is that service's.
	release(ctx context.Context, ip netip.Addr, s *corev1.Service) error
	// known lists what is claimed, and what services hold who were there before
	// the book. fresh: not from a cache that may lag.
	known(ctx context.Context, fresh bool) ([]netip.Addr, error)
	// holder tells whether a stored service has the address.
	holder(ctx context.Context, ip netip.Addr) (bool, error)
	// ranges lists what addresses may be given out of now.
	ranges(ctx context.Context, fresh bool) ([]netip.Prefix, error)
}

// addressPools gives out cluster IPs. Its pools only guess what is free, so
// that a claim seldom fails.
type addressPools struct {
	book addressBook

	mu    sync.Mutex
	pools map[netip.Prefix]addresses
}

func newAddressPools(book addressBook) *addressPools {
	register()
	return &addressPools{book: book, pools: map[netip.Prefix]addresses{}}
}

// next claims a free address of a family. A dry run only names one.
func (a *addressPools) next(ctx context.Context, s *corev1.Service, f corev1.IPFamily, dryRun bool) (netip.Addr, error) {
	// The first look may be at a cache that lags.
	for _, fresh := range []bool{false, true} {
		prefixes, err := a.book.ranges(ctx, fresh)
		if err != nil {
			return netip.Addr{}, apierrors.NewInternalError(fmt.Errorf("list service ranges: %w", err))
		}
		for _, p := range prefixes {
			if familyOf(p.Addr().String()) != f {
				continue
			}
			ip, err := a.nextOf(ctx, s, p, fresh, dryRun)
			if err != nil || ip.IsValid() {
				return ip, err
			}
		}
	}
	return netip.Addr{},
		apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: range is full", s.Name))
}

// nextOf claims an address of one range; none is valid when it is full.
func (a *addressPools) nextOf(ctx context.Context, s *corev1.Service, p netip.Prefix,
	fresh, dryRun bool) (netip.Addr, error) {
	if err := a.learn(ctx, p, fresh); err != nil {
		return netip.Addr{}, apierrors.NewInternalError(fmt.Errorf("list what is allocated of %s: %w", p, err))
	}
	begin := time.Now()
	for {
		ip, ok := a.guess(p)
		if !ok {
			allocated(p, dynamic, begin, errors.New("range is full"))
			return netip.Addr{}, nil
		}
		if dryRun {
			a.forget(ip)
			return ip, nil
		}
		err := a.book.claim(ctx, ip, s)
		if err == nil {
			a.tell(ip)
			allocated(p, dynamic, begin, nil)
			return ip, nil
		}
		if !errors.Is(err, errTaken) {
			allocated(p, dynamic, begin, err)
			a.forget(ip)
			return netip.Addr{},
				apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %w", s.Name, err))
		}
	}
}

func (a *addressPools) guess(p netip.Prefix) (netip.Addr, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	pool := a.pools[p]
	n, ok := pool.next()
	if !ok {
		return netip.Addr{}, false
	}
	return pool.at(n), true
}

// forget has an address guessed again.
func (a *addressPools) forget(ip netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, pool := range a.pools {
		if n, err := pool.index(ip); err == nil {
			pool.free(n)
		}
	}
}

// tell shows the pools that an address is of.
func (a *addressPools) tell(ip netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, pool := range a.pools {
		if _, err := pool.index(ip); err == nil {
			pool.tell()
		}
	}
}

// learn fills the pool of a range once, and again on demand.
func (a *addressPools) learn(ctx context.Context, p netip.Prefix, again bool) error {
	a.mu.Lock()
	_, have := a.pools[p]
	a.mu.Unlock()
	if have && !again {
		return nil
	}
	known, err := a.book.known(ctx, again)
	if err != nil {
		return err
	}
	pool := newAddresses(p)
	for _, ip := range known {
		if n, err := pool.index(ip); err == nil {
			pool.take(n)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pools[p] = pool
	return nil
}

// take claims the address that a service asks for.
func (a *addressPools) take(ctx context.Context, s *corev1.Service, ip netip.Addr, dryRun bool) error {
	begin := time.Now()
	of, err := a.rangeOf(ctx, ip)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("list service ranges: %w", err))
	}
	if !of.IsValid() {
		return invalidIP(s, ip, errOtherRange)
	}
	if dryRun { // upstream does not look who has it
		return nil
	}
	// A service from before the book holds its address without an entry.
	held, err := a.book.holder(ctx, ip)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("list services: %w", err))
	}
	if held {
		return invalidIP(s, ip, errTaken)
	}
	err = a.book.claim(ctx, ip, s)
	allocated(of, static, begin, err)
	if err != nil {
		return invalidIP(s, ip, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, pool := range a.pools {
		if n, err := pool.index(ip); err == nil {
			pool.take(n)
			pool.tell()
		}
	}
	return nil
}

func invalidIP(s *corev1.Service, ip netip.Addr, why error) error {
	return invalidService(s, field.ErrorList{field.Invalid(field.NewPath("spec", "clusterIPs"), s.Spec.ClusterIPs,
		fmt.Sprintf("failed to allocate IP %v: %v", ip, why))})
}

// rangeOf returns the range that gives out the address, none valid when there is
// none: its network and broadcast addresses are nobody's.
func (a *addressPools) rangeOf(ctx context.Context, ip netip.Addr) (netip.Prefix, error) {
	for _, fresh := range []bool{false, true} {
		prefixes, err := a.book.ranges(ctx, fresh)
		if err != nil {
			return netip.Prefix{}, err
		}
		if i := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return hostOf(p, ip) }); i >= 0 {
			return prefixes[i], nil
		}
	}
	return netip.Prefix{}, nil
}

func hostOf(p netip.Prefix, ip netip.Addr) bool {
	p = p.Masked()
	if !p.Contains(ip) || ip == p.Addr() {
		return false
	}
	return !ip.Is4() || p.Bits() > 30 || p.Contains(ip.Next()) // else it is the broadcast address
}

// release gives an address back.
func (a *addressPools) release(ctx context.Context, s *corev1.Service, ip netip.Addr) error {
	if err := a.book.release(ctx, ip, s); err != nil {
		return fmt.Errorf("release service address %s: %w", ip, err)
	}
	a.forget(ip)
	a.tell(ip)
	return nil
}
