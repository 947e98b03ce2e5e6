package gossipgrant

import (
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/gossip"
)

const (
	userPrefix = "system:node:"
	// maxCertificate bounds the annotation: a certificate of a P-256 key has less
	// than 1 KiB.
	maxCertificate = 8 << 10
	maxPodCIDRs    = 4
	maxNodeIPs     = 8
)

// ranges are what nodes may be given pods of, and what no node has.
type ranges struct {
	cluster, services []netip.Prefix
}

// plan returns what the node is given. Of its ranges those that lie outside the
// cluster's, or that an older node has, are left out: an agent makes its own
// Node and may write into it what it likes.
func plan(
	node *corev1.Node, others []*corev1.Node, cas []*x509.Certificate, r ranges, now time.Time,
) (gossip.Grant, error) {
	cert, err := certificate(node, cas, now)
	if err != nil {
		return gossip.Grant{}, err
	}
	key, err := gossip.PublicKeyOf(cert)
	if err != nil {
		return gossip.Grant{}, err
	}
	g := gossip.Grant{Role: gossip.RoleAgent, Key: key, Issued: now, Expires: cert.NotAfter, NodeIPs: addresses(node, r)}
	for _, p := range podCIDRs(node) {
		if within(r.cluster, p) && !takenBefore(node, others, p) && len(g.PodCIDRs) < maxPodCIDRs {
			g.PodCIDRs = append(g.PodCIDRs, p)
		}
	}
	return g, nil
}

// certificate is the node's client certificate, if it is one.
func certificate(node *corev1.Node, cas []*x509.Certificate, now time.Time) (*x509.Certificate, error) {
	text := node.Annotations[gossip.CertificateAnnotation]
	if len(text) > maxCertificate {
		return nil, fmt.Errorf("annotation %s is longer than %d bytes", gossip.CertificateAnnotation, maxCertificate)
	}
	der, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("annotation %s is not base64", gossip.CertificateAnnotation)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", gossip.CertificateAnnotation, err)
	}
	if cert.Subject.CommonName != userPrefix+node.Name || !slices.Contains(cert.Subject.Organization, "system:nodes") {
		return nil, fmt.Errorf("annotation %s: the certificate is that of %q", gossip.CertificateAnnotation,
			cert.Subject.CommonName)
	}
	roots := x509.NewCertPool()
	for _, ca := range cas {
		roots.AddCert(ca)
	}
	opts := x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := cert.Verify(opts); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", gossip.CertificateAnnotation, err)
	}
	return cert, nil
}

func addresses(node *corev1.Node, r ranges) []netip.Addr {
	var out []netip.Addr
	for _, a := range node.Status.Addresses {
		if a.Type != corev1.NodeInternalIP || len(out) == maxNodeIPs {
			continue
		}
		ip, err := netip.ParseAddr(a.Address)
		if err != nil || ip.Zone() != "" || !ip.IsGlobalUnicast() || holds(r.cluster, ip) || holds(r.services, ip) {
			continue
		}
		out = append(out, ip.Unmap())
	}
	return out
}

func holds(list []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(ip.Unmap()) })
}

func podCIDRs(node *corev1.Node) []netip.Prefix {
	var out []netip.Prefix
	for _, c := range node.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(c); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

func within(list []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(list, func(c netip.Prefix) bool { return c.Bits() <= p.Bits() && c.Contains(p.Addr()) })
}

// takenBefore tells whether an older node has a part of p.
func takenBefore(node *corev1.Node, others []*corev1.Node, p netip.Prefix) bool {
	for _, o := range others {
		if o.Name == node.Name || !older(o, node) {
			continue
		}
		if slices.ContainsFunc(podCIDRs(o), p.Overlaps) {
			return true
		}
	}
	return false
}

func older(a, b *corev1.Node) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}
