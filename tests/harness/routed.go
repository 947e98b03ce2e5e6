package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"sigs.k8s.io/yaml"

	agentconfig "github.com/shoal-project/shoal/agent/config"
)

// Apart makes a node on a network of its own, as Host does on the LAN: the LAN's gateway
// is the router between them. It knows the machines' networks and no pods'.
func (c *Cluster) Apart(name string, change ...func(*Agent, *agentconfig.Config)) (*Agent, error) {
	return c.apart(name, c.lan.apart, change)
}

// Hidden is Apart behind a router that translates addresses: to the other nodes all that
// it sends is from an address of the router, and nobody can begin to talk to it.
func (c *Cluster) Hidden(name string, change ...func(*Agent, *agentconfig.Config)) (*Agent, error) {
	return c.apart(name, c.lan.hidden, change)
}

func (c *Cluster) apart(
	name string, host func() (netns, address string, err error), change []func(*Agent, *agentconfig.Config),
) (*Agent, error) {
	netns, address, err := host()
	if err != nil {
		return nil, err
	}
	a := &Agent{Name: name, NetNS: netns, Address: address, Dir: c.path(name), cluster: c, host: c.lan.hosts}
	c.agents = append(c.agents, a)
	if err := os.MkdirAll(a.Dir, 0o700); err != nil {
		return nil, err
	}
	return a, a.configure(change)
}

// apart adds a host on a network of its own, and has the lan's gateway route.
func (l *lan) apart() (netns, address string, err error) {
	l.hosts++
	netns, address = fmt.Sprintf("%s-%d", l.name, l.hosts), fmt.Sprintf("10.98.%d.1", l.hosts)
	port, gateway := fmt.Sprintf("h%d", l.hosts), fmt.Sprintf("10.98.%d.254", l.hosts)
	if err := ip(
		"netns add "+netns,
		"-n "+l.name+" link add "+port+" type veth peer name eth0 netns "+netns,
		"-n "+l.name+" addr add "+gateway+"/24 dev "+port,
		"-n "+l.name+" link set "+port+" up",
		"-n "+netns+" link set lo up",
		"-n "+netns+" addr add "+address+"/24 dev eth0",
		"-n "+netns+" link set eth0 up",
		"-n "+netns+" route add default via "+gateway,
	); err != nil {
		return "", "", err
	}
	out, err := in(l.name, "sysctl", "-qw", "net.ipv4.ip_forward=1").CombinedOutput()
	if err != nil {
		return "", "", fmt.Errorf("router: %w: %s", err, out)
	}
	return netns, address, nil
}

// hidden is apart with address translation: the lan's gateway shows its own address to
// whom the host talks, and lets in only what answers.
func (l *lan) hidden() (netns, address string, err error) {
	netns, address, err = l.apart()
	if err != nil {
		return "", "", err
	}
	port := fmt.Sprintf("h%d", l.hosts)
	cmd := in(l.name, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`
table ip nat-%[1]s {
	chain out {
		type nat hook postrouting priority srcnat;
		iifname %[1]s masquerade random
	}
	chain in {
		type filter hook forward priority filter;
		oifname %[1]s ct state established,related accept
		oifname %[1]s drop
	}
}
`, port))
	if out, ferr := cmd.CombinedOutput(); ferr != nil {
		return "", "", fmt.Errorf("translating router: %w: %s", ferr, out)
	}
	return netns, address, nil
}

// Behind is Hidden behind a router of its own, which is on the LAN with an address that all
// who are behind it have outside. A router keeps the ports of those behind it where it can,
// which is the same port to whomever they talk; one that shuffles chooses another for each.
func (c *Cluster) Behind(shuffles bool) func(string, ...func(*Agent, *agentconfig.Config)) (*Agent, error) {
	return func(name string, change ...func(*Agent, *agentconfig.Config)) (*Agent, error) {
		return c.apart(name, func() (string, string, error) { return c.lan.behind(shuffles) }, change)
	}
}

// behind adds a router, and a host behind it.
func (l *lan) behind(shuffles bool) (netns, address string, err error) {
	router, _, err := l.host()
	if err != nil {
		return "", "", err
	}
	l.hosts++
	netns, address = fmt.Sprintf("%s-%d", l.name, l.hosts), fmt.Sprintf("10.97.%d.1", l.hosts)
	gateway := fmt.Sprintf("10.97.%d.254", l.hosts)
	if err := ip(
		"netns add "+netns,
		"-n "+router+" link add inside type veth peer name eth0 netns "+netns,
		"-n "+router+" addr add "+gateway+"/24 dev inside",
		"-n "+router+" link set inside up",
		"-n "+netns+" link set lo up",
		"-n "+netns+" addr add "+address+"/24 dev eth0",
		"-n "+netns+" link set eth0 up",
		"-n "+netns+" route add default via "+gateway,
	); err != nil {
		return "", "", err
	}
	if out, err := in(router, "sysctl", "-qw", "net.ipv4.ip_forward=1").CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("router: %w: %s", err, out)
	}
	ports := ""
	if shuffles {
		ports = " fully-random"
	}
	cmd := in(router, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`
table ip translates {
	chain out {
		type nat hook postrouting priority srcnat;
		oifname eth0 masquerade%s
	}
	chain forward {
		type filter hook forward priority filter;
		iifname eth0 ct state established,related accept
		iifname eth0 drop
	}
	chain input {
		type filter hook input priority filter;
		iifname eth0 ct state established,related accept
		iifname eth0 drop
	}
}
`, ports))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("translating router: %w: %s", err, out)
	}
	return netns, address, nil
}

// Router runs a command on the router of Apart and Hidden.
func (c *Cluster) Router(name string, args ...string) (string, error) {
	out, err := in(c.lan.name, name, args...).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return string(out), err
}

// Change changes the configuration of an agent that does not run.
func (a *Agent) Change(change func(*Agent, *agentconfig.Config)) error {
	data, err := os.ReadFile(a.config)
	if err != nil {
		return err
	}
	var cfg agentconfig.Config
	if err := yaml.Unmarshal(data, &cfg); err != nil {
		return err
	}
	change(a, &cfg)
	if data, err = yaml.Marshal(cfg); err != nil {
		return err
	}
	return os.WriteFile(a.config, data, 0o600)
}

// KillCoordinator ends the coordinator of UpCoordinator with SIGKILL. UpCoordinator starts
// it again.
func (c *Cluster) KillCoordinator() error {
	if err := c.coordinator.Process.Kill(); err != nil {
		return err
	}
	_ = c.coordinator.Wait() // says that it was killed
	return nil
}
