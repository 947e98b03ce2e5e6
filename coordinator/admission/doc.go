// Package admission changes and refuses writes before they are stored: one file
// a plugin, chain.go the order, which is upstream's.
package admission
