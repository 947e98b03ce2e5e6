package service

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

// conditionAnnounced is the condition of a Service whose addresses the coordinator gave
// from its pools (controller/loadbalancer): the nodes announce them, and no others. It
// is in the status, which who may write Services may not write.
const conditionAnnounced = "shoal.io/Announced"

// Announcement is what nodes announce of a Service.
type Announcement struct {
	Addrs []netip.Addr
	// Local: only nodes of Nodes may, for no other has a backend that is sent to
	// (externalTrafficPolicy).
	Local bool
	Nodes []string // sorted
}

func announced(s *corev1.Service) bool {
	return meta.IsStatusConditionTrue(s.Status.Conditions, conditionAnnounced)
}

// announcement is nil for a Service with no address of a pool. Of the policy Local it has
// the nodes with a ready endpoint, or, without any, with one that still serves.
func announcement(s *corev1.Service, addrs []netip.Addr, eps []endpoint) *Announcement {
	if len(addrs) == 0 || !announced(s) {
		return nil
	}
	out := &Announcement{Addrs: addrs}
	if s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return out
	}
	out.Local = true
	usable := filter(eps, func(e *endpoint) bool { return e.ready && e.node != "" })
	if len(usable) == 0 {
		usable = filter(eps, func(e *endpoint) bool { return e.terminating && e.node != "" })
	}
	for _, e := range usable {
		out.Nodes = append(out.Nodes, e.node)
	}
	slices.Sort(out.Nodes)
	out.Nodes = slices.Compact(out.Nodes)
	return out
}

// Announced follows the announcements of tables.
type Announced struct {
	last *Tables
	held map[Key]*Announcement
}

// Update takes new tables, and tells whether another announcement is in them.
func (a *Announced) Update(next *Tables) (changed bool) {
	if a.held == nil {
		a.held = map[Key]*Announcement{}
	}
	for _, k := range Changed(a.last, next) {
		var now *Announcement
		if s := next.Get(k); s != nil {
			now = s.Announcement
		}
		switch old := a.held[k]; {
		case now == nil && old != nil:
			delete(a.held, k)
			changed = true
		case now != nil && !reflect.DeepEqual(now, old):
			a.held[k] = now
			changed = true
		}
	}
	a.last = next
	return changed
}

// All are the announcements, in the order of their Services' names: of an address that two
// have, as they may for a moment, all nodes take the first.
func (a *Announced) All() (out []*Announcement) {
	keys := slices.SortedFunc(maps.Keys(a.held), func(x, y Key) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	for _, k := range keys {
		out = append(out, a.held[k])
	}
	return out
}
