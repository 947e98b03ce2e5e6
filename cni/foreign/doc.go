// Package foreign tells when another program changed what the node's network stands on:
// a firewall that loads its ruleset and flushes all others', a network manager that
// takes interfaces down or addresses and routes away, a sysctl that turns forwarding off.
//
//	nftables   a new generation, made by a process of another name      -> Rules, Any
//	rtnetlink  an interface of ours is down or gone; an address or a    -> Any
//	           route was deleted; forwarding or rp_filter of all
//	           interfaces was set
//
// The kernel says all of it by itself, and drops what is not asked for before it wakes
// anybody. Whoever is told looks whether what he made is still there.
package foreign
