// Package serviceaccount keeps the ServiceAccount "default" in every active
// namespace, so that pods without one of their own have an identity.
package serviceaccount
