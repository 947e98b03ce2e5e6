package policy

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/shoal-project/shoal/agent/policyfeed"
	"github.com/shoal-project/shoal/cni/nft"
)

// Key names a policy or a pod.
type Key = policyfeed.Key

// PodID tells a pod of this node, by its UID, from what a coordinator says of a pod of
// the name: the one may not be gone yet while the other is on another node.
type PodID struct {
	Key
	UID string // empty: not of this node
}

// World is what policies are about. Values in it are not changed, but replaced.
type World struct {
	Policies   map[Key]*policyfeed.Policy
	Cluster    map[string]*policyfeed.ClusterPolicy
	Namespaces map[string]map[string]string // labels
	Pods       map[PodID]*policyfeed.Pod
}

// NewWorld is empty.
func NewWorld() *World {
	return &World{
		Policies:   map[Key]*policyfeed.Policy{},
		Cluster:    map[string]*policyfeed.ClusterPolicy{},
		Namespaces: map[string]map[string]string{},
		Pods:       map[PodID]*policyfeed.Pod{},
	}
}

// Clone is a world that changes apart from this one.
func (w *World) Clone() *World {
	return &World{maps.Clone(w.Policies), maps.Clone(w.Cluster), maps.Clone(w.Namespaces), maps.Clone(w.Pods)}
}

// delta is what changes in a world: the new values, nil for what goes.
type delta struct {
	policies   map[Key]*policyfeed.Policy
	cluster    map[string]*policyfeed.ClusterPolicy
	namespaces map[string]*policyfeed.Namespace
	pods       map[PodID]*policyfeed.Pod
}

func newDelta() delta {
	return delta{map[Key]*policyfeed.Policy{}, map[string]*policyfeed.ClusterPolicy{}, map[string]*policyfeed.Namespace{},
		map[PodID]*policyfeed.Pod{}}
}

func (d delta) empty() bool { return len(d.policies)+len(d.cluster)+len(d.namespaces)+len(d.pods) == 0 }

// add takes what a coordinator told after what the delta holds. w is the world before
// all of it. What the coordinator says of pods of this node is passed over: the node
// knows them first.
func (d delta) add(w *World, u *policyfeed.Update, node string) {
	if u.Reset {
		d.goneAll(w)
	}
	for _, k := range u.GonePolicies {
		d.policies[k] = nil
	}
	for _, name := range u.GoneClusterPolicies {
		d.cluster[name] = nil
	}
	for _, k := range u.GoneNamespaces {
		d.namespaces[k] = nil
	}
	for _, k := range u.GonePods {
		d.pods[PodID{Key: k}] = nil
	}
	for i := range u.Policies {
		d.policies[u.Policies[i].Key] = &u.Policies[i]
	}
	for i := range u.ClusterPolicies {
		d.cluster[u.ClusterPolicies[i].Name] = &u.ClusterPolicies[i]
	}
	for i := range u.Namespaces {
		d.namespaces[u.Namespaces[i].Name] = &u.Namespaces[i]
	}
	for i := range u.Pods {
		p := &u.Pods[i]
		if p.Node == node {
			d.pods[PodID{Key: p.Key}] = nil
			continue
		}
		d.pods[PodID{Key: p.Key}] = p
	}
}

// goneAll takes away all that a coordinator told.
func (d delta) goneAll(w *World) {
	clear(d.policies)
	clear(d.cluster)
	clear(d.namespaces)
	maps.DeleteFunc(d.pods, func(id PodID, _ *policyfeed.Pod) bool { return id.UID == "" })
	for k := range w.Policies {
		d.policies[k] = nil
	}
	for name := range w.Cluster {
		d.cluster[name] = nil
	}
	for k := range w.Namespaces {
		d.namespaces[k] = nil
	}
	for id := range w.Pods {
		if id.UID == "" {
			d.pods[id] = nil
		}
	}
}

// reduce drops what is as the world has it.
func (d delta) reduce(w *World) {
	for k, p := range d.policies {
		old := w.Policies[k]
		if old == nil && p == nil || old != nil && p != nil && reflect.DeepEqual(old.Spec, p.Spec) {
			delete(d.policies, k)
		}
	}
	for name, p := range d.cluster {
		old := w.Cluster[name]
		if old == nil && p == nil || old != nil && p != nil && reflect.DeepEqual(old.Spec, p.Spec) {
			delete(d.cluster, name)
		}
	}
	for k, n := range d.namespaces {
		old, there := w.Namespaces[k]
		if there == (n != nil) && (n == nil || maps.Equal(old, n.Labels)) {
			delete(d.namespaces, k)
		}
	}
	for k, p := range d.pods {
		if old := w.Pods[k]; old == nil && p == nil || old != nil && p != nil && samePod(old, p) {
			delete(d.pods, k)
		}
	}
}

func samePod(a, b *policyfeed.Pod) bool {
	return slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.Ports, b.Ports) && maps.Equal(a.Labels, b.Labels) &&
		a.Node == b.Node
}

// clusterDNS is the agent's own DNS server as policies see it: as the pods that
// answer names elsewhere. What allows these, allows it. No pod can have its name.
var clusterDNS = Key{Namespace: "kube-system", Name: "(cluster DNS)"}

// dnsPod is nil without addresses.
func dnsPod(addrs []netip.Addr) *policyfeed.Pod {
	if len(addrs) == 0 {
		return nil
	}
	return &policyfeed.Pod{
		Key:    clusterDNS,
		Labels: map[string]string{"k8s-app": "kube-dns"},
		Addrs:  addrs,
		Ports:  []policyfeed.Port{{Name: "dns", Protocol: "UDP", Number: 53}, {Name: "dns-tcp", Number: 53}},
	}
}

// numbersOf are a pod's ports of a name.
func numbersOf(p *policyfeed.Pod, name string, proto uint8) (out []uint16) {
	for _, port := range p.Ports {
		if port.Name == name && nft.Proto(port.Protocol) == proto {
			out = append(out, port.Number)
		}
	}
	return out
}
