// Package packages keeps, on each coordinator, the packages of programs that an
// administrator has put there for `shoal upgrade --all`: nodes get them from it and
// compare them with the digest that they were told. Who may put and who may get is
// RBAC's to say: administrators, and nodes.
package packages
