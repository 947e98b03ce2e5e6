// Package controller is the reconcile loop, written once: keys in, Reconcile,
// retry with back-off, repeat at a time. The folders below it hold one
// controller each: plan.go decides (pure), reconcile.go reads and writes. They
// share nothing but this package and never import each other.
package controller
