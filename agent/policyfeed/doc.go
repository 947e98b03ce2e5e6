// Package policyfeed is what coordinators tell agents about NetworkPolicies, as both
// know it: the policies, the namespaces' labels, and of each pod that has an address
// of its own as much as policies ask for. It is a stream of lines of JSON that does
// not end:
//
//	GET /shoal/v1/policyfeed
//	{"reset":true,"more":true, …}   all that there is, in as many lines as it takes
//	{"more":true, …}
//	{ … }                           from here on it counts, all at once
//	{ … }                           a change
//	{}                              nothing changed; so that each side hears of the other's end
//
// An agent could watch pods by the API. Each would get every change of every pod's
// status, thousands of bytes, and the right to read the environment of all pods of
// the cluster, which a node does not have (the Node authorizer). Here the coordinator
// encodes a pod once for all agents, in some hundred bytes, and only when something
// changes that policies see. In a cluster without a policy the stream holds no pod
// and no namespace.
package policyfeed
