// Package apiserverlease deletes the identity Leases of API servers that are no
// more (LSE-7): each server renews one in kube-system, good for an hour.
package apiserverlease
