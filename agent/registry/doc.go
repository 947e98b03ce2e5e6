// Package registry holds the logins of image registries: how a Docker configuration names
// them and which are for an image, and those that a node has of its own (IMG-18, IMG-19):
// a configuration file, and plugins that are asked for short-lived ones.
//
//	pull secrets of the pod ──► Parse ──► For ─┐
//	config.json of the node ──► Parse ──► For ─┼──► tried in this order, until one works
//	plugins, for images that match ──► For ────┘
//
// What the node's own logins get belongs to the node: all of its pods may use it.
package registry
