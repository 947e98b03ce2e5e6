// Package withdraw keeps a pod that ends from its end until nobody sends it anything new,
// so that a server which exits at once when it is told to loses no request. What others
// leave to a preStop hook that sleeps for a guessed time is asked for here.
//
//	the API says that the pod ends          (its containers run on)
//	  │
//	  ├─ its EndpointSlices say so too; this node's proxy has let go   Manager.Programmed
//	  ├─ every other node is asked: does your proxy still lead new     Manager.Wait
//	  │  connections there? until it says no, or is dead                  Answer, over there
//	  ├─ what the connections that stand were asked is answered        Quiet
//	  │
//	SIGTERM
//
// All of it has a bound, and counts as part of the grace period: a node that does not
// answer delays a pod's end, and never prevents it. Nodes ask each other by the gossip
// (gossip.Group.Ask), so that no coordinator is needed; a fleet's cost is one question a
// node and pod, or less where several end at once.
package withdraw
