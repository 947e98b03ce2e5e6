// Package shutdown ends the node's pods before the machine goes down: ordinary
// ones first, critical ones with the time that is kept for them (KEP-2000).
package shutdown
