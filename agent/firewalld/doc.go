// Package firewalld has firewalld let the pods of the built-in network through, by its
// D-Bus interface and at run time only: its files are not touched, and a reload takes all
// of it back, after which it is done again.
//
//	the zone of the interface        interfaces: eth0, BRIDGE+
//	to the other nodes               rich rules: from pods to the cluster's DNS, port 53
//
// The bridge, and the tunnels' interfaces, whose names begin with its, join the zone that
// the node's own network is in. What firewalld forwards within a zone ("intra-zone
// forwarding", on in all zones that it brings since version 1.0) is then what goes from
// pods to anywhere by that network, from one pod to another, and from other machines to
// pods; what our own tables led elsewhere (node ports, host ports, addresses of load
// balancers) it forwards in any case. For the node itself pods are what other machines in
// the zone are: they reach the ports that it opens. Names are the one exception.
//
// The zone "trusted", which other programs take, opens more and less: all ports of the node
// to pods, but pods to other nodes only if these are trusted too, with all of their ports.
//
// An interface to the others that is in no zone, so that the default zone holds for it, is
// put into that zone: firewalld forwards within a zone only between interfaces that are
// named in it. NetworkManager does the same with all of its own.
//
// Nobody is asked at intervals: the bus tells when firewalld comes, has been reloaded, or
// has moved an interface.
package firewalld
