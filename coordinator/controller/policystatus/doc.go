// Package policystatus looks at the expressions of each ValidatingAdmissionPolicy
// once it is made or changed, with the types of the objects that it is for, and
// says in its status where they do not fit (KEP-3488). A policy is evaluated all
// the same.
package policystatus
