// Package serving keeps the certificate that the kubelet's API is served with. The
// node asks the cluster for it (a CertificateSigningRequest for the signer
// kubernetes.io/kubelet-serving) as soon as the API has the node's addresses, asks
// again when these change, and when 70 to 90 % of its life are over:
//
//	Node's addresses ──► request ──► approved, signed ──► file ──► next TLS handshake
//
// Until there is one, a certificate of the node's own making serves; the API server
// does not trust it. A certificate that waits for an administrator is told once.
package serving
