package harness

import (
	"fmt"
	"os/exec"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// lan is a bridge in a network namespace of its own, which hosts plug into.
type lan struct {
	name  string
	hosts int
	v6    bool
}

// subnet of every lan; lans are separate, so all use the same.
const subnet = "10.99.0"

func newLAN(name string) (*lan, error) {
	l := &lan{name: name}
	return l, ip(
		"netns add "+l.name,
		"-n "+l.name+" link add br0 type bridge",
		"-n "+l.name+" addr add "+subnet+".254/24 dev br0",
		"-n "+l.name+" link set br0 up",
		"-n "+l.name+" link set lo up",
	)
}

// subnet6 is that of a lan with IPv6; the hosts' numbers are in hexadecimal.
const subnet6 = "fd99:"

func address6(host int) string { return fmt.Sprintf("%s:%x", subnet6, host) }

// addIPv6 gives the lan and its hosts, those of before and those that come, addresses of
// IPv6 too.
func (l *lan) addIPv6() error {
	l.v6 = true
	if err := ip("-n " + l.name + " addr add " + subnet6 + ":fe/64 dev br0 nodad"); err != nil {
		return err
	}
	for i := range l.hosts {
		if err := l.hostIPv6(i + 1); err != nil {
			return err
		}
	}
	return nil
}

func (l *lan) hostIPv6(host int) error {
	netns := fmt.Sprintf("%s-%d", l.name, host)
	return ip(
		"-n "+netns+" addr add "+address6(host)+"/64 dev eth0 nodad",
		"-n "+netns+" -6 route add default via "+subnet6+":fe dev eth0",
	)
}

// host adds a namespace with one address and a default route, as a machine on
// the lan has. It returns the namespace and the address.
func (l *lan) host() (netns, address string, err error) {
	l.hosts++
	netns, address = fmt.Sprintf("%s-%d", l.name, l.hosts), fmt.Sprintf("%s.%d", subnet, l.hosts)
	port := fmt.Sprintf("h%d", l.hosts)
	err = ip(
		"netns add "+netns,
		"-n "+l.name+" link add "+port+" type veth peer name eth0 netns "+netns,
		"-n "+l.name+" link set "+port+" master br0 up",
		"-n "+netns+" link set lo up",
		"-n "+netns+" addr add "+address+"/24 dev eth0",
		"-n "+netns+" link set eth0 up",
		"-n "+netns+" route add default via "+subnet+".254",
	)
	if err == nil && l.v6 {
		err = l.hostIPv6(l.hosts)
	}
	return netns, address, err
}

// cut takes a host's port down; hosts count from 1.
func (l *lan) cut(host int) error {
	return ip(fmt.Sprintf("-n %s link set h%d down", l.name, host))
}

// plug ends cut.
func (l *lan) plug(host int) error {
	return ip(fmt.Sprintf("-n %s link set h%d up", l.name, host))
}

// close removes the lan and its hosts.
func (l *lan) close() error {
	var failed []string
	for i := range l.hosts {
		if err := ip(fmt.Sprintf("netns del %s-%d", l.name, i+1)); err != nil {
			failed = append(failed, err.Error())
		}
	}
	if err := ip("netns del " + l.name); err != nil {
		failed = append(failed, err.Error())
	}
	if failed != nil {
		return fmt.Errorf("remove test network: %s", strings.Join(failed, "; "))
	}
	return nil
}

func ip(commands ...string) error {
	for _, c := range commands {
		if out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", c, err, out)
		}
	}
	return nil
}

// in returns a command that runs in a network namespace. nsenter, unlike `ip
// netns exec`, leaves /sys and with it the cgroups alone.
func in(netns string, name string, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=/run/netns/" + netns, "--", name}, args...)...)
}

// named is a command that runs with a host name of its own, which its children
// inherit.
func named(host string, command ...string) []string {
	return append([]string{"unshare", "--uts", "--", "sh", "-c", `hostname "$0" && exec "$@"`, host}, command...)
}

// leftInterfaces lists what a namespace has beside lo and eth0.
func leftInterfaces(netns string) ([]string, error) {
	out, err := in(netns, "ip", "-o", "link").Output()
	if err != nil {
		return nil, err
	}
	var left []string
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		if name, _, _ := strings.Cut(strings.TrimSuffix(f[1], ":"), "@"); name != "lo" && name != "eth0" {
			left = append(left, name)
		}
	}
	return left, nil
}

func mountsBelow(dir string) ([]string, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	var found []string
	for _, m := range mounts {
		if m.Mountpoint != dir {
			found = append(found, m.Mountpoint)
		}
	}
	return found, err
}
