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
