// Package members has further coordinators join the embedded store's cluster, and
// leave it.
//
//	newcomer                                   any coordinator of the cluster
//	shoal join --coordinator TOKEN
//	  Ask: POST Path, with the token ──────►   Server.join, one at a time
//	                                             the store grows (its first newcomer), its
//	                                             leader adds the newcomer as a learner
//	  Bundle, sealed with the token's secret ◄── keys, settings, who the members are
//	  writes them, starts
//	  the store is copied; Vote ───────────►   promoted: it votes, and serves the API
//
// A newcomer that does not come is forgotten after a while (Server.Forget), so that it
// keeps nobody else from joining. Before it votes its loss costs nothing.
package members
