// Package quota knows what objects use of a ResourceQuota: one evaluator a
// resource, shared by the admission plugin, which charges what is created, and
// by the controller, which counts what is there. It holds no state.
package quota
