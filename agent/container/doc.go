// Package container runs containers: an OCI runtime makes them, conmon (one
// small process each) keeps their stdio, log and exit code, so that the agent
// may come and go. A small record of each outlives the agent.
//
//	Create -> Created -> Start -> Running -> exit or Stop -> Exited -> Remove -> gone
package container
