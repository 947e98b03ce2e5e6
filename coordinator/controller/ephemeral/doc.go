// Package ephemeral makes the claims of generic ephemeral volumes; the pod owns
// them, so that they go with it (KEP-1698, EPH-12).
package ephemeral
