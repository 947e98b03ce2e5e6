package policy

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/shoal-project/shoal/agent/policyfeed"
)

// walker changes a small world at random: few names, so that everything comes,
// changes and goes.
type walker struct {
	*rand.Rand
	own map[PodID][]netip.Addr // pods of this node, with the addresses that they keep
}

func newWalker(t *testing.T) *walker {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	return &walker{Rand: rand.New(rand.NewPCG(seed, 0)), own: map[PodID][]netip.Addr{}}
}

var spaces = []string{"a", "b", "c"}

func pick[T any](w *walker, list ...T) T { return list[w.IntN(len(list))] }

func (w *walker) labels() map[string]string {
	out := map[string]string{"app": pick(w, "web", "db", "job")}
	if w.IntN(2) == 0 {
		out["tier"] = pick(w, "x", "y")
	}
	return out
}

func (w *walker) selector() *metav1.LabelSelector {
	switch w.IntN(5) {
	case 0:
		return &metav1.LabelSelector{}
	case 1:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "tier", Operator: pick(w, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}}}
	case 2:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "app", Operator: pick(w, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn),
				Values: []string{"web", "job"}}}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(w, "web", "db", "job")}}
}

func (w *walker) peers() (out []networkingv1.NetworkPolicyPeer) {
	for range w.IntN(4) {
		var p networkingv1.NetworkPolicyPeer
		switch w.IntN(4) {
		case 0:
			p.IPBlock = w.block()
		case 1:
			p.PodSelector = w.selector()
		case 2:
			p.NamespaceSelector = w.spaceSelector()
		default:
			p.NamespaceSelector, p.PodSelector = w.spaceSelector(), w.selector()
		}
		out = append(out, p)
	}
	return out
}

func (w *walker) block() *networkingv1.IPBlock {
	out := &networkingv1.IPBlock{}
	if w.IntN(2) == 0 {
		out.CIDR = pick(w, "fd00:10:244::/48", "fd00:10:244:8::/64", "::/0", "fd00:10:244:7::/124")
		for range w.IntN(3) {
			out.Except = append(out.Except,
				fmt.Sprintf("fd00:10:244:%d::%d/%d", 7+w.IntN(2), w.IntN(8), pick(w, 64, 125, 127, 128)))
		}
		return out
	}
	out.CIDR = pick(w, "10.244.0.0/16", "10.244.8.0/24", "0.0.0.0/0", "10.244.7.0/28")
	for range w.IntN(3) {
		out.Except = append(out.Except,
			fmt.Sprintf("10.244.%d.%d/%d", 7+w.IntN(2), w.IntN(8), pick(w, 24, 29, 31, 32)))
	}
	if out.CIDR == "10.244.8.0/24" && w.IntN(4) == 0 {
		out.Except = []string{"10.244.8.0/24"}
	}
	return out
}

func (w *walker) spaceSelector() *metav1.LabelSelector {
	if w.IntN(3) == 0 {
		return &metav1.LabelSelector{}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{"env": pick(w, "dev", "prod")}}
}

func (w *walker) ports() (out []networkingv1.NetworkPolicyPort) {
	for range w.IntN(3) {
		var p networkingv1.NetworkPolicyPort
		if w.IntN(3) > 0 {
			p.Protocol = pick(w, ptr(corev1.ProtocolTCP), ptr(corev1.ProtocolUDP), ptr(corev1.ProtocolSCTP))
		}
		switch w.IntN(4) {
		case 0:
			p.Port = ptr(intstr.FromString(pick(w, "http", "dns")))
		case 1:
			p.Port, p.EndPort = ptr(intstr.FromInt32(int32(79+w.IntN(3)))), ptr(int32(81+w.IntN(3)))
		case 2:
			p.Port = ptr(intstr.FromInt32(int32(80 + w.IntN(2))))
		}
		out = append(out, p)
	}
	return out
}

func (w *walker) policy(key Key) policyfeed.Policy {
	p := policyfeed.Policy{Key: key}
	p.Spec.PodSelector = *w.selector()
	p.Spec.PolicyTypes = pick(w, nil, nil, []networkingv1.PolicyType{"Ingress"}, []networkingv1.PolicyType{"Egress"},
		[]networkingv1.PolicyType{"Ingress", "Egress"})
	for range w.IntN(3) {
		in := networkingv1.NetworkPolicyIngressRule{From: w.peers(), Ports: w.ports()}
		p.Spec.Ingress = append(p.Spec.Ingress, in)
	}
	for range w.IntN(3) {
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: w.peers(), Ports: w.ports()})
	}
	return p
}

func (w *walker) namespacedPod() *networkpolicy.NamespacedPod {
	return &networkpolicy.NamespacedPod{NamespaceSelector: *w.spaceSelector(), PodSelector: *w.selector()}
}

func (w *walker) clusterPolicy(name string) policyfeed.ClusterPolicy {
	p := policyfeed.ClusterPolicy{Name: name}
	p.Spec.Tier = pick(w, networkpolicy.AdminTier, networkpolicy.BaselineTier)
	p.Spec.Priority = int32(w.IntN(3))
	if w.IntN(2) == 0 {
		p.Spec.Subject.Namespaces = w.spaceSelector()
	} else {
		p.Spec.Subject.Pods = w.namespacedPod()
	}
	action := func() networkpolicy.ClusterNetworkPolicyRuleAction {
		return pick[networkpolicy.ClusterNetworkPolicyRuleAction](w, "Accept", "Deny", "Pass")
	}
	for range w.IntN(3) {
		r := networkpolicy.ClusterNetworkPolicyIngressRule{Action: action(), Protocols: w.protocols(true)}
		for range 1 + w.IntN(2) {
			var peer networkpolicy.ClusterNetworkPolicyIngressPeer
			if w.IntN(2) == 0 {
				peer.Namespaces = w.spaceSelector()
			} else {
				peer.Pods = w.namespacedPod()
			}
			r.From = append(r.From, peer)
		}
		p.Spec.Ingress = append(p.Spec.Ingress, r)
	}
	for range w.IntN(3) {
		r := networkpolicy.ClusterNetworkPolicyEgressRule{Action: action()}
		blocks := false
		for range 1 + w.IntN(2) {
			var peer networkpolicy.ClusterNetworkPolicyEgressPeer
			switch w.IntN(7) {
			case 6: // of a later version
			case 0, 4:
				peer.Namespaces = w.spaceSelector()
			case 1, 5:
				peer.Pods = w.namespacedPod()
			default:
				blocks = true
				for range 1 + w.IntN(2) {
					peer.Networks = append(peer.Networks, networkpolicy.CIDR(w.block().CIDR))
				}
			}
			r.To = append(r.To, peer)
		}
		r.Protocols = w.protocols(!blocks)
		p.Spec.Egress = append(p.Spec.Egress, r)
	}
	return p
}

func (w *walker) protocols(named bool) (out []networkpolicy.ClusterNetworkPolicyProtocol) {
	for range w.IntN(3) {
		var p networkpolicy.ClusterNetworkPolicyProtocol
		some := &networkpolicy.PortRange{Start: 79 + w.Int32N(2), End: 81 + w.Int32N(3)}
		port := pick(w, nil, &networkpolicy.Port{Number: 80 + w.Int32N(2)}, &networkpolicy.Port{Range: some})
		switch w.IntN(4) {
		case 0:
			p.TCP = &networkpolicy.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}
		case 1:
			p.UDP = &networkpolicy.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}
		case 2:
			p.SCTP = &networkpolicy.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}
		default:
			if !named {
				continue
			}
			p.DestinationNamedPort = pick(w, "http", "dns")
		}
		out = append(out, p)
	}
	return out
}

func (w *walker) namedPorts() (out []policyfeed.Port) {
	for _, proto := range []string{"", "UDP", "SCTP"} {
		if w.IntN(3) > 0 {
			p := policyfeed.Port{Name: pick(w, "http", "dns"), Protocol: proto, Number: uint16(80 + w.IntN(2))}
			out = append(out, p)
		}
	}
	return out
}

// remote is a pod of another node; those of the same number share an address, as an
// old and a new one may for a moment.
func (w *walker) remote(i int) policyfeed.Pod {
	return policyfeed.Pod{
		Key:    Key{Namespace: pick(w, spaces...), Name: fmt.Sprintf("remote%d", i)},
		Labels: w.labels(),
		Addrs:  both(netip.AddrFrom4([4]byte{10, 244, 8, byte(i)})),
		Ports:  w.namedPorts(),
		Node:   "there",
	}
}

// step changes one thing, or several.
func (w *walker) step(world *World, d delta) {
	var u policyfeed.Update
	switch w.IntN(8) {
	case 6:
		u.GoneClusterPolicies = append(u.GoneClusterPolicies, fmt.Sprintf("c%d", w.IntN(4)))
	case 7:
		u.ClusterPolicies = append(u.ClusterPolicies, w.clusterPolicy(fmt.Sprintf("c%d", w.IntN(4))))
	case 0:
		key := Key{Namespace: pick(w, spaces...), Name: fmt.Sprintf("p%d", w.IntN(3))}
		u.GonePolicies = append(u.GonePolicies, key)
	case 1, 2:
		key := Key{Namespace: pick(w, spaces...), Name: fmt.Sprintf("p%d", w.IntN(3))}
		u.Policies = append(u.Policies, w.policy(key))
	case 3:
		n := policyfeed.Namespace{Name: pick(w, spaces...)}
		if w.IntN(4) > 0 {
			n.Labels = map[string]string{"env": pick(w, "dev", "prod")}
		}
		u.Namespaces = append(u.Namespaces, n)
	case 4:
		i := 1 + w.IntN(3)
		for _, ns := range spaces {
			u.GonePods = append(u.GonePods, Key{Namespace: ns, Name: fmt.Sprintf("remote%d", i)})
		}
		if w.IntN(4) > 0 {
			d.add(world, &u, "here")
			u = policyfeed.Update{Pods: []policyfeed.Pod{w.remote(i)}}
		}
	default:
		for id, a := range w.own {
			if w.IntN(2) == 0 {
				d.pods[id] = &policyfeed.Pod{Key: id.Key, Labels: w.labels(), Addrs: a, Ports: w.namedPorts(),
					Node: "here"}
			}
		}
	}
	d.add(world, &u, "here")
}

func ptr[T any](v T) *T { return &v }

// described are the tables alone.
func described(c *compiler) string {
	var b strings.Builder
	for _, t := range c.tables {
		b.WriteString(t.Objects.String())
	}
	return b.String()
}

// all is a world as one change from nothing.
func all(w *World) delta {
	d := newDelta()
	for k, p := range w.Policies {
		d.policies[k] = p
	}
	for name, p := range w.Cluster {
		d.cluster[name] = p
	}
	for k, labels := range w.Namespaces {
		d.namespaces[k] = &policyfeed.Namespace{Name: k, Labels: labels}
	}
	for id, p := range w.Pods {
		d.pods[id] = p
	}
	return d
}

// The tables after any walk are those that the end alone makes, and so is what the
// changes made of a copy.
func TestRandomWalkConverges(t *testing.T) {
	w := newWalker(t)
	for i, ns := range []string{"a", "a", "b", "c"} {
		id := PodID{Key{Namespace: ns, Name: fmt.Sprintf("own%d", i)}, fmt.Sprint("uid", i)}
		w.own[id] = ownAddrs(i)
	}
	c := newCompiler("walk", slog.New(slog.DiscardHandler))
	for step := range 400 {
		d := newDelta()
		for range 1 + w.IntN(2)*w.IntN(4) {
			w.step(c.world, d)
		}
		switch w.IntN(40) {
		case 0: // a coordinator tells all anew
			d.goneAll(c.world)
			for k, p := range c.world.Policies {
				d.policies[k] = p
			}
			for name, p := range c.world.Cluster {
				d.cluster[name] = p
			}
		case 1: // pods end
			for id := range w.own {
				d.pods[id] = nil
			}
		}
		c.change(d)
		if step%10 > 0 {
			continue
		}
		fresh := newCompiler("walk", slog.New(slog.DiscardHandler))
		fresh.change(all(c.world))
		if got, want := described(c), described(fresh); got != want {
			t.Fatalf("step %d: walked to\n%s\nwant\n%s", step, got, want)
		}
	}
	d := newDelta()
	d.goneAll(c.world)
	for id := range c.world.Pods {
		d.pods[id] = nil
	}
	c.change(d)
	if got := len(c.selectors) + len(c.tables[0].fixed) + len(c.tables[0].chains) + len(c.tables[0].recipes) +
		len(c.tables[0].owners) + len(c.byNamespace) + len(c.local); got > 0 {
		t.Errorf("%d things are left: %+v", got, c)
	}
}

// The last policy takes the namespaces' labels with it, by which its subject was chosen.
func TestLastClusterPolicyGoes(t *testing.T) {
	c := newCompiler("walk", slog.New(slog.DiscardHandler))
	id := PodID{Key{Namespace: "a", Name: "own"}, "uid"}
	var u policyfeed.Update
	line := `{"namespaces":[{"name":"a","labels":{"env":"dev"}}],"clusterPolicies":[{"name":"c","spec":{"tier":"Admin",
"subject":{"namespaces":{"matchLabels":{"env":"dev"}}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}}]}`
	if err := json.Unmarshal([]byte(line), &u); err != nil {
		t.Fatal(err)
	}
	d := newDelta()
	d.add(c.world, &u, "here")
	d.pods[id] = &policyfeed.Pod{Key: id.Key, Addrs: ownAddrs(1), Node: "here"}
	c.change(d)
	if c.tables[0].idle() {
		t.Error("the policy isolates nothing")
	}
	d = newDelta()
	d.add(c.world, &policyfeed.Update{Reset: true}, "here")
	c.change(d)
	if !c.tables[0].idle() {
		t.Errorf("without a policy there is\n%s", described(c))
	}
}

// The kernel takes 255 bytes for a chain's name, the API 253 for a policy's.
func TestLongNames(t *testing.T) {
	c := newCompiler("walk", slog.New(slog.DiscardHandler))
	long := strings.Repeat("n", 253)
	id := PodID{Key{Namespace: strings.Repeat("a", 63), Name: "own"}, "uid"}
	d := newDelta()
	d.pods[id] = &policyfeed.Pod{Key: id.Key, Addrs: ownAddrs(1), Node: "here"}
	key := Key{Namespace: id.Namespace, Name: long}
	d.policies[key] = &policyfeed.Policy{Key: key}
	d.cluster[long] = &policyfeed.ClusterPolicy{Name: long}
	d.cluster[long].Spec.Tier, d.cluster[long].Spec.Subject.Namespaces = networkpolicy.AdminTier, &metav1.LabelSelector{}
	d.cluster[long].Spec.Ingress = []networkpolicy.ClusterNetworkPolicyIngressRule{{Action: "Deny"}}
	c.change(d)
	for name := range c.tables[0].Chains {
		if len(name) > 255 {
			t.Errorf("a chain's name has %d bytes", len(name))
		}
	}
	if len(c.tables[0].chains) != 2 {
		t.Errorf("%d chains", len(c.tables[0].chains))
	}
}

// enforced is what this node is to do with a packet: the other end's policies are the
// other node's.
func enforced(w *World, p Packet, here func(netip.Addr) bool) bool {
	d := Verdict(w, p)
	return p.From == p.To || (!here(p.From) || d.Egress.Allows()) && (!here(p.To) || d.Ingress.Allows())
}

// For random policies and pods the verdict of the kernel, by packets, is that of the
// model, in both families; a change of policies reaches flows that go on, in both
// directions.
func TestKernelIsTheModel(t *testing.T) {
	w := newWalker(t)
	n := newNode(t)
	for i, ns := range []string{"a", "a", "b", "c"} {
		id := PodID{Key{Namespace: ns, Name: fmt.Sprintf("own%d", i)}, fmt.Sprint("uid", i)}
		w.own[id] = n.pod(id.Name, ownAddrs(i)[0])
	}
	for i := 1; i <= 3; i++ {
		n.remote(netip.AddrFrom4([4]byte{10, 244, 8, byte(i)}))
	}
	n.open(80, 81)
	mine := map[netip.Addr]bool{}
	for _, addrs := range w.own {
		for _, a := range addrs {
			mine[a] = true
		}
	}
	c := newCompiler("policy", slog.New(slog.NewTextHandler(t.Output(), nil)))
	k := kernel{}
	t.Cleanup(func() {
		k.close()
		if err := Cleanup("policy"); err != nil {
			t.Error(err)
		}
	})
	first := newDelta()
	for _, ns := range spaces {
		first.namespaces[ns] = &policyfeed.Namespace{Name: ns, Labels: map[string]string{"env": "dev"}}
	}
	for id, a := range w.own {
		first.pods[id] = &policyfeed.Pod{Key: id.Key, Labels: w.labels(), Addrs: a, Ports: w.namedPorts(), Node: "here"}
	}
	c.change(first)
	type kind struct {
		protocol uint8
		passes   bool
	}
	verdicts := map[kind]int{}
	for step := range 15 {
		d := newDelta()
		for range 1 + w.IntN(4) {
			w.step(c.world, d)
		}
		c.change(d)
		if err := k.apply(c); err != nil {
			t.Fatalf("step %d: %v\n%s", step, err, c.tables[0].Objects)
		}
		model := func(p Packet) bool {
			return enforced(c.world, p, func(a netip.Addr) bool { return mine[a] })
		}
		for _, a := range n.try(model) {
			want := model(a.Packet)
			if verdicts[kind{a.Protocol, want}]++; want != a.passed {
				t.Errorf("step %d: %s: the kernel says %v, the model %v", step, a, a.passed, want)
			}
		}
		if t.Failed() {
			var policies []string
			for _, p := range c.world.Policies {
				policies = append(policies, fmt.Sprintf("%+v", *p))
			}
			for _, p := range c.world.Cluster {
				text, _ := json.Marshal(p)
				policies = append(policies, string(text))
			}
			slices.Sort(policies)
			t.Fatalf("policies:\n%s\n%s", strings.Join(policies, "\n"), described(c))
		}
	}
	for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP} {
		passed, dropped := verdicts[kind{protocol, true}], verdicts[kind{protocol, false}]
		t.Logf("protocol %d: %d packets passed, %d were dropped", protocol, passed, dropped)
		if passed == 0 || dropped == 0 {
			t.Errorf("the walk shows only one verdict of protocol %d", protocol)
		}
	}
}

func ownAddrs(i int) []netip.Addr { return both(netip.AddrFrom4([4]byte{10, 244, 7, byte(2 + i)})) }
