// Package clusterroleaggregation fills ClusterRoles that have an aggregation
// rule (admin, edit, view) with the rules of the roles they select.
package clusterroleaggregation
