// Package namespace empties namespaces that are being deleted: every resource
// that discovery names, pods first, then lets the namespace go. Conditions on
// the namespace tell what is left and why.
package namespace
