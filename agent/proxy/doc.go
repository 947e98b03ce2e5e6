// Package proxy makes Services work on this node: it keeps one nftables table
// true to service.Tables, changing in one transaction only what changed, so
// that a node with thousands of Services pays for one when one moves.
package proxy
