package kubelet

import (
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// port is used for a node that tells no port of its own.
const port = 10250

// addressOrder: which of a node's addresses the API server dials first.
var addressOrder = []corev1.NodeAddressType{
	corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeInternalDNS, corev1.NodeHostName, corev1.NodeExternalDNS,
}

// Address returns host:port of a node's kubelet.
func Address(n *corev1.Node) (string, error) {
	at := int(n.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if at <= 0 {
		at = port
	}
	for _, t := range addressOrder {
		for _, a := range n.Status.Addresses {
			if a.Type == t && a.Address != "" {
				return net.JoinHostPort(a.Address, strconv.Itoa(at)), nil
			}
		}
	}
	return "", fmt.Errorf("no preferred addresses found; known addresses: %v", n.Status.Addresses)
}
