// Package bootstraptoken looks after bootstrap tokens, the Secrets of kube-system
// that new nodes join with (SEC-54..57): it signs the ConfigMap cluster-info of
// kube-public with each that is for signing, so that who holds one can tell the
// real cluster's address and CA from another's, and deletes those that have expired.
package bootstraptoken
