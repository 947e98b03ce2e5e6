// Package token signs and checks the tokens that workloads and joining nodes
// carry: service account JWTs bound to living objects (KEP-1205) and bootstrap
// tokens, and publishes the signing keys (OpenID discovery).
package token
