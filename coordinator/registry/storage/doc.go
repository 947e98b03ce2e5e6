// Package storage declares the API group storage.k8s.io/v1: classes of volumes,
// CSI drivers, what they run on which node, and attachments.
package storage
