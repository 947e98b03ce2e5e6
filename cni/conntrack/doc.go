// Package conntrack ends flows that the kernel's connection tracking knows, so that their
// next packets are led anew. It knows the ports of each protocol that has some; the list
// of package vishvananda/netlink has none of SCTP.
package conntrack
