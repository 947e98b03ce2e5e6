// Package pki makes and renews the cluster's keys and certificates in one
// directory, and the kubeconfig files of their users. Keys are EC P-256.
package pki
