// Package hollow takes the place of a node's mechanisms where only the API
// server and what is behind it are under test: a container runtime that keeps
// pods in memory alone, and a checkpoint that keeps nothing.
package hollow
