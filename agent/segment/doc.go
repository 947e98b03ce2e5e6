// Package segment speaks ARP (RFC 826, RFC 5227) and NDP (RFC 4861) on an interface's
// network, for addresses that no interface has: it answers who asks for them, announces
// them, and hears what others say of them. An address that is only answered for cannot
// outlive the process, as one on an interface would; packets to it are the business of
// nftables.
//
// Answers are given until a time that the caller moves on (Answer). A process that was
// stopped for a while, or whose decisions hang, answers nothing when it goes on.
package segment
