// Package nodeipam gives every Node its pod network: one free block of the
// cluster's range in spec.podCIDR (NODE-36).
package nodeipam
