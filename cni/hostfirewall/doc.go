// Package hostfirewall has the chains of iptables let pods through, where another program
// (ufw, Docker, an administrator) made them such that they may drop. To accept a packet in a
// table of our own does not help: each base chain of a hook must let it pass.
//
//	ip, ip6 filter FORWARD   -i BRIDGE                                       ACCEPT
//	                         -o BRIDGE                                       ACCEPT
//	                         -i TUNNEL -o TUNNEL                             ACCEPT
//	                         -s, -d PODS -m conntrack --ctstate DNAT         ACCEPT
//	               INPUT     -i BRIDGE -d DNS -p udp, tcp --dport 53         ACCEPT
//	                         -i BRIDGE -m conntrack --ctstate DNAT           ACCEPT
//
// The third is for what two other nodes send each other through this one. The fourth is
// for connections to a Service, from outside, that this node leads on to a pod of another
// one: they pass no interface of pods.
//
// The rules stand at the head of a chain whose policy is another than ACCEPT, or that has
// rules of others; no chain and no table is made for them. Each has a comment that begins
// with "shoal:BRIDGE:" and tells one from the other: what is there is known by it.
//
// iptables has two homes in the kernel. In nftables, which all distributions use by now,
// the rules are written as iptables-nft does, but without that program: no host needs it,
// whichever version it has lists them, and to look costs some short requests to the
// kernel. The old one is spoken to by its own program alone, iptables-legacy, which is
// there where such rules are; it is run only where the kernel names a table of that kind.
//
// A rule that somebody puts before these afterwards holds: nobody is fought with. What a
// NetworkPolicy drops is dropped in a table of its own (agent/policy).
package hostfirewall
