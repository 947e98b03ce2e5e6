// Package netns creates Linux namespaces that belong to no process, keeps
// them by bind mounts, enters them and removes them (namespaces(7)).
package netns
