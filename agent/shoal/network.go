package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/shoal-project/shoal/agent/policy"
	"github.com/shoal-project/shoal/agent/policyfeed"
	"github.com/shoal-project/shoal/cni/nft"
)

// whyOptions are the flags of `shoal network why`.
type whyOptions struct {
	cluster             *options
	kubeconfig          string
	namespace, protocol string
}

func networkCommand() *cobra.Command {
	c := &cobra.Command{Use: "network", Short: "Look into the pod network"}
	o := &whyOptions{cluster: defaultOptions()}
	why := &cobra.Command{
		Use: "why POD PEER[:PORT]", Short: "Tell which network policies decide whether a pod may talk to a peer",
		Long: `A pod is [NAMESPACE/]NAME, a peer that or an address; the first may be an address too, and the other a pod that is
asked. Without a port only rules count that allow every port. It reads what the API has; nodes follow in moments.`,
		Example: `  shoal network why shop/cart shop/db:5432
  shoal network why 192.0.2.7 shop/web:8080
  shoal network why -n shop cart '[2001:db8::1]:53' --protocol UDP`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.cluster.admin(cmd.Context(), o.kubeconfig)
			if err != nil {
				return err
			}
			return o.why(cmd.Context(), client, args[0], args[1], os.Stdout)
		},
	}
	f := why.Flags()
	f.StringVarP(&o.namespace, "namespace", "n", corev1.NamespaceDefault, "the namespace of pods that are named without one")
	f.StringVar(&o.protocol, "protocol", "TCP", "TCP, UDP or SCTP")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "a kubeconfig that may list pods, namespaces and policies "+
		"(default: the keys on this machine)")
	f.StringVar(&o.cluster.DataDir, "data-dir", o.cluster.DataDir, "the cluster's data directory")
	c.AddCommand(why)
	return c
}

// whyWorld is what policies are about, and what else is known of its pods.
type whyWorld struct {
	*policy.World
	pods []corev1.Pod
}

func (o *whyOptions) why(ctx context.Context, client *api, from, to string, out io.Writer) error {
	p := policy.Packet{Protocol: nft.Proto(o.protocol)}
	if p.Protocol == 0 {
		return fmt.Errorf("--protocol %s: it is TCP, UDP or SCTP", o.protocol)
	}
	to, port, err := splitPort(to)
	if err != nil {
		return err
	}
	w, err := readWhyWorld(ctx, client)
	if err != nil {
		return err
	}
	sources, err := w.addresses(from, o.namespace)
	if err != nil {
		return err
	}
	targets, err := w.addresses(to, o.namespace)
	if err != nil {
		return err
	}
	p.Port = port
	asked := false
	for _, p.From = range sources {
		for _, p.To = range targets {
			if p.From.Is4() == p.To.Is4() {
				asked = true
				w.explain(p, strings.ToUpper(o.protocol), out)
			}
		}
	}
	if !asked {
		return fmt.Errorf("%s and %s have no addresses of the same family", from, to)
	}
	return nil
}

// splitPort takes a port from the end of a peer; 0 for none.
func splitPort(peer string) (host string, port uint16, err error) {
	if _, err := netip.ParseAddr(peer); err == nil || !strings.Contains(peer, ":") {
		return peer, 0, nil
	}
	host, text, err := net.SplitHostPort(peer)
	if err != nil {
		return "", 0, fmt.Errorf("peer %q: %w; an address of IPv6 with a port stands in brackets", peer, err)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("peer %q: the port is a number from 1 to 65535", peer)
	}
	return host, uint16(n), nil
}

func readWhyWorld(ctx context.Context, client *api) (*whyWorld, error) {
	w := &whyWorld{World: policy.NewWorld()}
	var policies networkingv1.NetworkPolicyList
	var cluster networkpolicy.ClusterNetworkPolicyList
	var namespaces corev1.NamespaceList
	var pods corev1.PodList
	for path, into := range map[string]any{
		"/apis/networking.k8s.io/v1/networkpolicies": &policies,
		"/api/v1/namespaces":                         &namespaces,
		"/api/v1/pods":                               &pods,
	} {
		if err := client.read(ctx, path, into); err != nil {
			return nil, fmt.Errorf("ask the API: %w", explainDial(err))
		}
	}
	refused := new(statusError)
	err := client.read(ctx, "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies", &cluster)
	if err != nil && (!errors.As(err, &refused) || refused.code != http.StatusNotFound) { // an API may serve none
		return nil, fmt.Errorf("ask the API: %w", explainDial(err))
	}
	for _, p := range cluster.Items {
		w.Cluster[p.Name] = &policyfeed.ClusterPolicy{Name: p.Name, Spec: p.Spec}
	}
	for _, p := range policies.Items {
		k := policyfeed.Key{Namespace: p.Namespace, Name: p.Name}
		w.Policies[k] = &policyfeed.Policy{Key: k, Spec: p.Spec}
	}
	for _, n := range namespaces.Items {
		w.Namespaces[n.Name] = n.Labels
	}
	w.World.Pods = map[policy.PodID]*policyfeed.Pod{}
	w.pods = pods.Items
	for i := range w.pods {
		if p := policyfeed.PodOf(&w.pods[i], podAddresses(&w.pods[i])); p != nil {
			w.World.Pods[policy.PodID{Key: p.Key}] = p
		}
	}
	return w, nil
}

func podAddresses(p *corev1.Pod) (out []string) {
	for _, ip := range p.Status.PodIPs {
		out = append(out, ip.IP)
	}
	return out
}

// addresses are those of a pod by its name, or the one that is given.
func (w *whyWorld) addresses(name, namespace string) (out []netip.Addr, err error) {
	if a, err := netip.ParseAddr(name); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	if before, after, found := strings.Cut(name, "/"); found {
		namespace, name = before, after
	}
	for i := range w.pods {
		p := &w.pods[i]
		if p.Namespace != namespace || p.Name != name {
			continue
		}
		for _, text := range podAddresses(p) {
			if a, err := netip.ParseAddr(text); err == nil {
				out = append(out, a.Unmap())
			}
		}
		if len(out) == 0 {
			return nil, fmt.Errorf("pod %s/%s has no address yet", namespace, name)
		}
		return out, nil
	}
	return nil, fmt.Errorf("there is no pod %s/%s; name another namespace as NAMESPACE/%s or with -n", namespace, name,
		name)
}

// onNode tells whether an address is that of the node where a pod with the other is.
func (w *whyWorld) onNode(pod, node netip.Addr) bool {
	return slices.ContainsFunc(w.pods, func(p corev1.Pod) bool {
		return !p.Spec.HostNetwork && slices.Contains(podAddresses(&p), pod.String()) &&
			slices.ContainsFunc(p.Status.HostIPs, func(h corev1.HostIP) bool { return h.IP == node.String() })
	})
}

func (w *whyWorld) explain(p policy.Packet, protocol string, out io.Writer) {
	d := policy.Verdict(w.World, p)
	port := "every port"
	if p.Port != 0 {
		port = strconv.Itoa(int(p.Port))
	}
	own := w.onNode(p.From, p.To) || w.onNode(p.To, p.From)
	allowed := d.Allowed || own
	fmt.Fprintf(out, "%s -> %s %s %s: %s\n", w.nameOf(p.From, d.Egress), w.nameOf(p.To, d.Ingress), protocol, port,
		map[bool]string{true: "allowed", false: "not allowed"}[allowed])
	switch {
	case own:
		fmt.Fprintln(out, "  a pod and its own node may always talk to each other")
		return
	case p.From == p.To:
		fmt.Fprintln(out, "  a pod may always talk to itself")
		return
	}
	explainSide(out, "egress", d.Egress)
	explainSide(out, "ingress", d.Ingress)
	if d.Egress.Pod == "" && d.Ingress.Pod == "" {
		fmt.Fprintln(out, "  neither is a pod with an address of its own: policies see nothing of this")
	}
}

func (w *whyWorld) nameOf(a netip.Addr, s policy.Side) string {
	if s.Pod != "" {
		return fmt.Sprintf("%s (%s)", s.Pod, a)
	}
	i := slices.IndexFunc(w.pods, func(p corev1.Pod) bool {
		return p.Spec.HostNetwork && slices.Contains(podAddresses(&p), a.String())
	})
	if i >= 0 {
		return fmt.Sprintf("%s (a node's: blocks of addresses count, selectors do not)", a)
	}
	return fmt.Sprintf("%s (no pod's: blocks of addresses count; of a Service ask for an endpoint)", a)
}

func explainSide(out io.Writer, direction string, s policy.Side) {
	if s.Pod == "" {
		return
	}
	fmt.Fprintf(out, "  %s of %s: ", direction, s.Pod)
	switch {
	case s.Cluster != nil:
		name := ""
		if s.Cluster.RuleName != "" {
			name = fmt.Sprintf(" (%q)", s.Cluster.RuleName)
		}
		fmt.Fprintf(out, "rule %d%s of the %s of ClusterNetworkPolicy %s, tier %s, %s this\n", s.Cluster.Rule+1, name,
			direction, s.Cluster.Policy, s.Cluster.Tier,
			map[bool]string{true: "accepts", false: "denies"}[s.Cluster.Accepted])
	case len(s.Isolating) == 0:
		fmt.Fprintln(out, "no policy isolates it")
	case s.By == "":
		fmt.Fprintf(out, "isolated by %s; none of their rules allows this\n", strings.Join(s.Isolating, ", "))
	default:
		fmt.Fprintf(out, "isolated by %s; %s allows this by rule %d of its %s\n", strings.Join(s.Isolating, ", "), s.By,
			s.Rule+1, direction)
	}
}
