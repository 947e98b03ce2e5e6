// Package source knows which pods the node shall run and what they refer to: a
// watch of the API's pods for this node, manifests in a directory, and the
// ConfigMaps and Secrets that those pods name. What was once known is kept for
// when the API is away.
package source
