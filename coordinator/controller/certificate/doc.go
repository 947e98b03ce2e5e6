// Package certificate answers CertificateSigningRequests: it approves those of
// nodes for themselves, signs the approved ones of the cluster's own signers,
// and deletes what is done with.
package certificate
