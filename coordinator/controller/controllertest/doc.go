// Package controllertest plays scenarios of controllers: what happens in the API is
// in the text, and so is what the controller writes then. The API is one that only
// stores; time stands still until a scenario waits.
//
// A line "> command" is done. The lines below it that begin with "= " are what the
// controller wrote, each with the time since the beginning. A file that is played is
// rewritten with them, and must be as it was:
//
//	> put {apiVersion: v1, kind: Namespace, metadata: {name: a}}
//	= 0s create serviceaccounts a/default {}
//
//	put OBJECT              the object is new, or what it says is merged into the one that is there
//	delete OBJECT           it is gone
//	refuse VERB RESOURCE REASON|nothing
//	                        what the controller asks is refused from now on
//	wait TIME
//	events                  those since the last time, sorted
package controllertest
