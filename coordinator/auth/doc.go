// Package auth says who sends a request and whether they may: it joins client
// certificates, tokens, the Node and the RBAC authorizer into the two
// interfaces that the API server's chain asks.
package auth
