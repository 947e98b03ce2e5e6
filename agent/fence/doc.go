// Package fence makes it safe to replace a pod whose machine is silent: the machine
// stops the pod by its own clock before anybody else may start another. It holds what
// agent and coordinator must agree on (words.go), the agent's side (Guard), what other
// nodes say when no coordinator answers (votes.go; vouched.go is the Guard's part in it),
// and the process that stops pods when the agent cannot (Keeper). The proof, with what it
// assumes, is docs/fencing.md; model_test.go tries all orders of events.
//
//	                a renewal of the node's Lease was answered,
//	                and the answer shows no fence
//	        ┌─────────────────────────────────────────────────┐
//	        │   deadline = start of the request + Length      │
//	        ▼                                                 │
//	    ┌──────┐   deadline passed, or an answer    ┌─────────┴─┐
//	    │ held │ ─────────────────────────────────► │  not held │
//	    └──────┘   shows a fence: pods are killed   └───────────┘
//	        │                                             │
//	        ▼                                             ▼
//	a pod starts when the API confirms it        no pod of the policy stop
//	once in each term of holding                 starts
//
// While a node holds, most others' word prolongs that, too; it begins nothing. So who
// fences a node has so many of them refuse it first that the rest are too few.
//
// The coordinator raises a fence by an annotation on the node's Lease, so that a
// renewal and a fence are writes of one object, which etcd puts in one order.
package fence
