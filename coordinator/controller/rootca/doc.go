// Package rootca keeps the ConfigMap kube-root-ca.crt in every active
// namespace: the CA that pods verify the API server with.
package rootca
