// Package trust is what an agent tells of the cluster's CAs to who rotates them: the
// path in the kubelet's API, the answer there, and the file of CAs that a node has learned.
package trust

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
)

// Path is where an agent, asked by POST, looks which CAs the cluster has, takes them
// over, and answers a Report.
const Path = "/authorities"

// Report is what a node believes, and shows.
type Report struct {
	// Trusted are the prints of the CAs that it believes; the first is the one that it
	// takes for the one that signs.
	Trusted []string `json:"trusted"`
	// Client and Serving tell whether that one has signed the certificates that it shows
	// as a client and as a server.
	Client  bool `json:"client"`
	Serving bool `json:"serving"`
}

// Print names a certificate.
func Print(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:16])
}
