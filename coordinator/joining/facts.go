package joining

import (
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Alive tells whether a Node is Ready: the health of nodes says within seconds when
// one is not.
func Alive(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Servers are host:port of the endpoints in slices, each once.
func Servers(list []discoveryv1.EndpointSlice) (out []string) {
	for i := range list {
		s := &list[i]
		for _, port := range s.Ports {
			if port.Port == nil {
				continue
			}
			for _, e := range s.Endpoints {
				for _, ip := range e.Addresses {
					out = append(out, net.JoinHostPort(ip, strconv.Itoa(int(*port.Port))))
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// lasting are the taints that no controller takes off by itself.
func lasting(taints []corev1.Taint) (out []string) {
	for i := range taints {
		if t := &taints[i]; !strings.HasPrefix(t.Key, "node.kubernetes.io/") ||
			t.Key == corev1.TaintNodeOutOfService {
			out = append(out, t.ToString())
		}
	}
	return out
}
