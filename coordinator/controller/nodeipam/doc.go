// Package nodeipam gives every Node its pod network: a free block of each of the
// cluster's ranges in spec.podCIDRs (NODE-36, DS-3).
package nodeipam
