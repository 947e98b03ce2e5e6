// Package pod runs pods: Decide says what to do next from the desired pod, its
// record and what the runtime shows; a worker a pod carries it out and records
// it. Containers are known again by labels in the runtime, so that an agent
// that was killed goes on with what runs. What a pod is in the runtime's words,
// package launch says.
//
// A worker's phase tells who wants its pod (phase.go):
//
//	from a record           from a source         from the runtime, or from volumes
//	      │                       │                           │
//	    held ── claimed, ──> wanted <─────── claimed ────── found
//	      │     let-run       │  ^                            │
//	      │           disowned│  │claimed                     │disowned
//	      └─── disowned ──> removed                       abandoned
//	                          │ cleaned           cleaned │   (claimed: wanted)
//	                          └────────────> gone <───────┘
//
//	held, found         nothing is done: what runs is left alone
//	wanted              Decide keeps it as its spec says
//	removed, abandoned  Decide ends it and removes what is left; of what was only
//	                    found nobody is told
//	gone                its worker is about to be forgotten
//
//	claimed   its source has it (Update)
//	disowned  its source does not have it, and is known in full (Remove, Prune),
//	          or its API object was deleted here
//	let-run   its sandbox ran when the agent began, or the API is away (Unhold)
//	cleaned   the last of it was removed
//
// A pod that is claimed while it ends for want of a source ends all the same:
// then it begins anew, with a worker of its own.
//
// In phases that do not wait, each pass (pass.go) has Decide name the actions
// (plan.go): setup, start, hook and resize bring containers up; stop, release,
// finish and forget end them, undo the steps, delete the API object and remove
// what is left.
package pod
