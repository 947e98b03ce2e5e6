package harness

import "os/exec"

// LAN is the network of a cluster for what is not a Shoal cluster: hosts are
// network namespaces on one bridge.
type LAN struct{ lan *lan }

// NewLAN makes a LAN without hosts. The name is unique and short: it is the
// prefix of the namespaces' names.
func NewLAN(name string) (*LAN, error) {
	l, err := newLAN(name)
	return &LAN{lan: l}, err
}

// Host adds a host, and returns its namespace and its address.
func (l *LAN) Host() (netns, address string, err error) { return l.lan.host() }

// Close removes the LAN and its hosts.
func (l *LAN) Close() error { return l.lan.close() }

// Cut takes a host off the network, as a pulled cable does. Hosts count from 1.
func (l *LAN) Cut(host int) error { return l.lan.cut(host) }

// Cut takes a further node off the network, as a pulled cable does.
func (a *Agent) Cut() error { return a.cluster.lan.cut(a.host) }

// Plug ends Cut.
func (a *Agent) Plug() error { return a.cluster.lan.plug(a.host) }

// AddIPv6 gives the machines of a cluster that was prepared, and those that come,
// addresses of IPv6 too. It returns that of the first.
func (c *Cluster) AddIPv6() (string, error) { return address6(1), c.lan.addIPv6() }

// Address6 is the node's address of IPv6, where the cluster's machines have one.
func (a *Agent) Address6() string { return address6(a.host) }

// Command returns a command that runs in a network namespace.
func Command(netns, program string, args ...string) *exec.Cmd { return in(netns, program, args...) }

// Outside adds a host on the cluster's network that is no node, and returns its
// namespace and its address.
func (c *Cluster) Outside() (netns, address string, err error) { return c.lan.host() }

// Far is Outside on a network of its own, which the LAN's gateway routes to.
func (c *Cluster) Far() (netns, address string, err error) { return c.lan.apart() }

// Cut takes the first node's machine off the network, as a pulled cable does.
func (c *Cluster) Cut() error { return c.lan.cut(1) }

// Plug ends Cut.
func (c *Cluster) Plug() error { return c.lan.plug(1) }
