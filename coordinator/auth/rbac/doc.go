// Package rbac authorizes requests by Roles and ClusterRoles and lists the rules
// that apply to a user. Bindings are found by subject through informer
// indexes, so a decision costs what the user's own bindings cost, not the cluster's.
package rbac
