// Package image keeps container images on the node with containerd's
// libraries in process (content store, overlay snapshots, metadata database):
// pull, import of archives, list, remove, and the layers of a root file
// system.
package image
