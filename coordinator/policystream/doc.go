// Package policystream tells agents about NetworkPolicies: it serves the stream of
// package policyfeed from this coordinator's copy of the objects.
//
//	informers ─ what policies see of an object ─> Hub ─ one encoding ─> a queue for each agent
//
// An object is encoded when policies see a change of it, once for all agents. While
// there is no policy the hub keeps nothing, and looks at no pod.
package policystream
