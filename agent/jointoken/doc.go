// Package jointoken is the text that a machine joins a cluster with. It names the
// cluster's coordinators, says by a hash which CA is the cluster's, and holds a
// bootstrap token, so that one copied line is all that a new machine needs:
//
//	shoal1. base64url( JSON, then 4 bytes of its SHA-256 )
//
// The sum finds what was cut off or mistyped. Text of another version is told apart
// by its beginning; a role leaves room for other members than nodes.
package jointoken
