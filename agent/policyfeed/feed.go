package policyfeed

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/shoal-project/shoal/agent/feed"
)

// Path is where a coordinator serves the stream.
const Path = "/shoal/v1/policyfeed"

// Beat is how often a coordinator says something, if only that nothing changed.
const Beat = feed.Beat

// Key names an object; cluster-wide ones have no namespace.
type Key struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

func (k Key) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// Compare orders names.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Namespace, other.Namespace), cmp.Compare(k.Name, other.Name))
}

// Policy is a NetworkPolicy.
type Policy struct {
	Key
	Spec networkingv1.NetworkPolicySpec `json:"spec"`
}

// ClusterPolicy is a ClusterNetworkPolicy.
type ClusterPolicy struct {
	Name string                                 `json:"name"`
	Spec networkpolicy.ClusterNetworkPolicySpec `json:"spec"`
}

// Namespace is what selectors see of one.
type Namespace struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
}

// Pod is what policies see of one. Pods in their node's network and those that have
// ended are none: they have no address of their own.
type Pod struct {
	Key
	Labels map[string]string `json:"labels,omitempty"`
	Addrs  []netip.Addr      `json:"addrs"`
	Ports  []Port            `json:"ports,omitempty"`
	Node   string            `json:"node,omitempty"`
}

// Port is a container's port that has a name.
type Port struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol,omitempty"` // TCP is left out
	Number   uint16 `json:"number"`
}

// PodOf is a pod as policies see it, at its addresses: nil for one that they do not
// see.
func PodOf(p *corev1.Pod, addrs []string) *Pod {
	over := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	if p.Spec.HostNetwork || over {
		return nil
	}
	out := &Pod{Key: Key{p.Namespace, p.Name}, Labels: p.Labels, Node: p.Spec.NodeName}
	for _, text := range addrs {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
			out.Addrs = append(out.Addrs, a.Unmap())
		}
	}
	if len(out.Addrs) == 0 {
		return nil
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out.addPorts(c)
		}
	}
	for i := range p.Spec.Containers {
		out.addPorts(&p.Spec.Containers[i])
	}
	return out
}

func (p *Pod) addPorts(c *corev1.Container) {
	for _, port := range c.Ports {
		if port.Name == "" || port.ContainerPort < 1 || port.ContainerPort > 65535 {
			continue
		}
		proto := string(port.Protocol)
		if proto == string(corev1.ProtocolTCP) {
			proto = ""
		}
		p.Ports = append(p.Ports, Port{Name: port.Name, Protocol: proto, Number: uint16(port.ContainerPort)})
	}
}

// Update is one line.
type Update struct {
	// Reset: what was told before does not count any more.
	Reset bool `json:"reset,omitempty"`
	// More: the line counts together with those after it, up to one without More.
	More bool `json:"more,omitempty"`

	Policies            []Policy        `json:"policies,omitempty"`
	ClusterPolicies     []ClusterPolicy `json:"clusterPolicies,omitempty"`
	Namespaces          []Namespace     `json:"namespaces,omitempty"`
	Pods                []Pod           `json:"pods,omitempty"`
	GonePolicies        []Key           `json:"gonePolicies,omitempty"`
	GoneClusterPolicies []string        `json:"goneClusterPolicies,omitempty"`
	GoneNamespaces      []string        `json:"goneNamespaces,omitempty"`
	GonePods            []Key           `json:"gonePods,omitempty"`
}

// Count is how many objects the line names.
func (u *Update) Count() int {
	return len(u.Policies) + len(u.ClusterPolicies) + len(u.Namespaces) + len(u.Pods) +
		len(u.GonePolicies) + len(u.GoneClusterPolicies) + len(u.GoneNamespaces) + len(u.GonePods)
}

// Empty tells whether the line says nothing.
func (u *Update) Empty() bool {
	return !u.Reset && u.Count() == 0
}

// maxLine bounds a line: an object is at most what the store takes, 1.5 MiB, of
// which JSON may make more, and lines of several objects are cut long before.
const maxLine = 16 << 20

// Reader reads lines.
type Reader = feed.Reader[Update]

// NewReader reads from r.
func NewReader(r io.Reader) *Reader { return feed.NewReader(r, maxLine, Decode) }

// Decode reads one line. What it returns is sound: names are not empty, and
// addresses are addresses.
func Decode(line []byte) (*Update, error) {
	var u Update
	if err := json.Unmarshal(line, &u); err != nil {
		return nil, err
	}
	for i := range u.Policies {
		if p := &u.Policies[i]; p.Namespace == "" || p.Name == "" {
			return nil, errors.New("policies: one has no name")
		}
	}
	for i := range u.ClusterPolicies {
		if u.ClusterPolicies[i].Name == "" {
			return nil, errors.New("clusterPolicies: one has no name")
		}
	}
	for i := range u.Namespaces {
		if u.Namespaces[i].Name == "" {
			return nil, errors.New("namespaces: one has no name")
		}
	}
	for i := range u.Pods {
		p := &u.Pods[i]
		if p.Namespace == "" || p.Name == "" {
			return nil, errors.New("pods: one has no name")
		}
		for j, a := range p.Addrs {
			if p.Addrs[j] = a.Unmap(); !a.IsValid() || a.Zone() != "" {
				return nil, fmt.Errorf("pods: %s: %q is no address", p.Key, a)
			}
		}
	}
	return &u, nil
}
