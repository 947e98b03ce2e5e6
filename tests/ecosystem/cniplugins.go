package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shoal-project/shoal/tests/upstream"
)

// referencePlugins are those of the CNI project, which a node has to have before a
// network comes that is made of them.
var referencePlugins = software{
	name:   "cni-plugins",
	module: "github.com/containernetworking/plugins@v1.9.1",
	programs: []upstream.Program{
		{Name: "cni-bandwidth", Package: "./plugins/meta/bandwidth"},
		{Name: "cni-bridge", Package: "./plugins/main/bridge"},
		{Name: "cni-host-local", Package: "./plugins/ipam/host-local"},
		{Name: "cni-portmap", Package: "./plugins/meta/portmap"},
		{Name: "cni-tuning", Package: "./plugins/meta/tuning"},
	},
}

var cniPlugins = subject{name: "cni-plugins", software: []software{referencePlugins}, run: runCNIPlugins}

// chain is a network of them, in the version of the interface with STATUS and GC. Host
// ports and masquerading are by nftables, which is what every node has.
const chain = `{"cniVersion": "1.1.0", "name": "chain", "plugins": [
  {"type": "bridge", "bridge": "chain0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "%[1]s/chain", "ranges": [[{"subnet": "%[2]s"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "tuning", "sysctl": {"net.core.somaxconn": "517"}},
  {"type": "bandwidth", "capabilities": {"bandwidth": true}},
  {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}}]}`

// removeChain removes what the plugins leave on a node.
const removeChain = `ip link delete chain0
nft delete table ip cni_hostport
nft delete table inet cni_plugins_masquerade
ip route flush root 10.90.0.0/16
`

// chainRange is the range of a node's pods.
func chainRange(node string) (string, error) {
	return fmt.Sprintf("10.90.%d.0/24", slices.Index(nodes, node)), nil
}

func runCNIPlugins(r *rig) {
	if !r.check("a chain of them replaces the built-in network", r.applyChain) {
		return
	}
	r.reachEachOther("and by host ports", chainRange)
	r.check("each plugin of the chain did its part", r.eachPlugin)
	r.check("the node tells what a plugin says that is not ready", r.chainNotReady)
	r.check("nothing is left of a pod that is deleted", r.chainLeavesNothing)
	r.check("when it is removed the built-in bridge is back", func() (string, error) {
		return "", r.builtinAgain("10-chain.conflist", removeChain)
	})
}

// applyChain installs the plugins and the configuration on each node, whose pods run.
func (r *rig) applyChain() (string, error) {
	if err := r.apply("flat.yaml"); err != nil {
		return "", err
	}
	if err := r.rollout("flat", "daemonset/flat"); err != nil {
		return "", err
	}
	for i, n := range nodes {
		dir := r.nodeDir(n)
		if err := installPlugins(filepath.Join(r.cache, "programs"), filepath.Join(dir, "cni-bin")); err != nil {
			return "", err
		}
		subnet, _ := chainRange(n)
		if err := r.configureNetwork(n, "10-chain.conflist", fmt.Sprintf(chain, dir, subnet)); err != nil {
			return "", err
		}
		// The plugins connect pods of one node; routes between nodes are the installer's.
		other, _ := chainRange(nodes[1-i])
		address, err := r.addressOf(nodes[1-i])
		if err != nil {
			return "", err
		}
		if out, err := r.onNode(n, "ip", "route", "add", other, "via", address); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
	}
	return r.changedOver("chain0")
}

// addressOf is a node's address.
func (r *rig) addressOf(node string) (string, error) {
	return r.do("get node " + node + ` -o jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)()
}

// configureNetwork writes a node's configuration as installers do: beside, and renamed.
func (r *rig) configureNetwork(node, file, text string) error {
	dir := filepath.Join(r.nodeDir(node), "cni-conf")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	to := filepath.Join(dir, file)
	if err := os.WriteFile(to+".new", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(to+".new", to)
}

// changedOver waits until all nodes have links, and the built-in bridge no more.
func (r *rig) changedOver(links ...string) (string, error) {
	return r.until(2*time.Minute, func() (string, error) {
		for _, n := range nodes {
			out, err := r.onNode(n, "ip", "-br", "link")
			missing := slices.ContainsFunc(links, func(l string) bool { return !strings.Contains(out, l) })
			if err != nil || missing || strings.Contains(out, "shoal0") {
				return "", fmt.Errorf("%s has not changed over: %w\n%s\n%s", n, err, out, r.state("flat"))
			}
		}
		return "", nil
	})
}

// eachPlugin looks at what the chained plugins do beside the bridge.
func (r *rig) eachPlugin() (string, error) {
	out, err := r.do("-n flat get pods -l app=flat -o jsonpath={.items[0].metadata.name},{.items[0].spec.nodeName}")()
	if err != nil {
		return "", err
	}
	pod, node, _ := strings.Cut(out, ",")
	tuned, err := r.do("-n flat exec " + pod + " -c client -- cat /proc/sys/net/core/somaxconn")()
	if err != nil || strings.TrimSpace(tuned) != "517" {
		return "", fmt.Errorf("net.core.somaxconn is %s: %w", tuned, err)
	}
	shaped, err := r.onNode(node, "tc", "qdisc", "show")
	if err != nil || !strings.Contains(shaped, "rate 20Mbit") {
		return "", fmt.Errorf("no bound of what pods receive: %w: %s", err, shaped)
	}
	return "net.core.somaxconn 517, tbf rate 20Mbit", nil
}

// chainNotReady takes a plugin away that STATUS needs, and gives it back.
func (r *rig) chainNotReady() (string, error) {
	file := filepath.Join(r.nodeDir(nodes[1]), "cni-bin", "bridge")
	if err := os.Rename(file, file+".away"); err != nil {
		return "", err
	}
	ready := "get node " + nodes[1] + ` -o jsonpath={.status.conditions[?(@.type=="Ready")].status},` +
		`{.status.conditions[?(@.type=="Ready")].message}`
	said, err := r.shows(time.Minute, ready, "False", `failed to find plugin "bridge"`)()
	if errBack := os.Rename(file+".away", file); err != nil || errBack != nil {
		return "", errors.Join(err, errBack)
	}
	_, err = r.shows(time.Minute, ready, "True")()
	return said, err
}

// chainLeavesNothing deletes the pods, and looks for addresses and host ports of more
// than those that come after them.
func (r *rig) chainLeavesNothing() (string, error) {
	if _, err := r.do("-n flat delete pods -l app=flat")(); err != nil {
		return "", err
	}
	if err := r.rollout("flat", "daemonset/flat"); err != nil {
		return "", err
	}
	return r.until(time.Minute, func() (string, error) {
		out, err := r.do("get pods -A -o jsonpath={.items[*].status.podIP}")()
		if err != nil {
			return "", err
		}
		want := slices.DeleteFunc(strings.Fields(out), func(a string) bool { return !strings.HasPrefix(a, "10.90.") })
		slices.Sort(want)
		var kept []string
		for _, n := range nodes {
			files, err := filepath.Glob(filepath.Join(r.nodeDir(n), "chain", "chain", "10.*"))
			if err != nil {
				return "", err
			}
			for _, f := range files {
				kept = append(kept, filepath.Base(f))
			}
			ports, err := r.onNode(n, "nft", "list", "chain", "ip", "cni_hostport", "hostports")
			if err != nil || strings.Count(ports, "8765") != 1 {
				return "", fmt.Errorf("%s's host ports: %w: %s", n, err, ports)
			}
		}
		if slices.Sort(kept); !slices.Equal(kept, want) {
			return "", fmt.Errorf("addresses %v are kept, pods have %v", kept, want)
		}
		return strings.Join(kept, " "), nil
	})
}

// builtinAgain removes a configuration from the nodes, waits for the built-in bridge and
// removes what the plugins left with a script.
func (r *rig) builtinAgain(file, script string) error {
	for _, n := range nodes {
		if err := os.Remove(filepath.Join(r.nodeDir(n), "cni-conf", file)); err != nil {
			return err
		}
	}
	for _, n := range nodes { // after it has been gone for a while
		if _, err := r.until(2*time.Minute, func() (string, error) {
			return r.onNode(n, "ip", "link", "show", "shoal0")
		}); err != nil {
			return fmt.Errorf("%s: %w", n, err)
		}
	}
	for _, n := range nodes {
		if out, err := r.onNode(n, "sh", "-euc", script); err != nil {
			return fmt.Errorf("%s: %w: %s", n, err, out)
		}
	}
	return nil
}

// reachEachOther checks that pods of both nodes do, with addresses of their nodes' ranges.
func (r *rig) reachEachOther(how string, rangeOf func(node string) (string, error)) bool {
	return r.check("pods of both nodes reach each other, a Service and its name, "+how, func() (string, error) {
		return r.until(2*time.Minute, func() (string, error) { return r.flat(rangeOf) })
	})
}

// podCIDR is the range that the cluster gave to a node.
func (r *rig) podCIDR(node string) (string, error) {
	return r.do("get node " + node + " -o jsonpath={.spec.podCIDR}")()
}

// flat has the pod of each node fetch a page of every other, by its address and by its
// host port, and of the Service, by its name.
func (r *rig) flat(rangeOf func(node string) (string, error)) (string, error) {
	out, err := r.do("-n flat get pods -l app=flat -o " +
		`jsonpath={range.items[*]}{.metadata.name}{"\t"}{.status.podIP}{"\t"}{.spec.nodeName}{"\t"}` +
		`{.status.hostIP}{"\n"}{end}`)()
	if err != nil {
		return "", err
	}
	var names, urls []string
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 4 {
			return "", fmt.Errorf("no address yet: %s", line)
		}
		names, urls = append(names, f[0]), append(urls, "http://"+f[1]+":8080/", "http://"+f[3]+":8765/")
		subnet, err := rangeOf(f[2])
		if err != nil {
			return "", err
		}
		if err := inside(f[1], subnet); err != nil {
			return "", err
		}
	}
	if len(names) != len(nodes) {
		return "", fmt.Errorf("%d pods on %d nodes", len(names), len(nodes))
	}
	urls = append(urls, "http://flat.flat.svc.cluster.local/")
	for _, name := range names {
		for _, url := range urls {
			if _, err := r.do("-n flat exec " + name + " -c client -- timeout 5 wget -q -O - " + url)(); err != nil {
				return "", err
			}
		}
	}
	return strings.Join(urls, " "), nil
}

func inside(address, subnet string) error {
	a, err := netip.ParseAddr(address)
	p, errPrefix := netip.ParsePrefix(subnet)
	if err = errors.Join(err, errPrefix); err == nil && !p.Contains(a) {
		err = fmt.Errorf("%s is not in its node's %s", a, p)
	}
	return err
}

// installPlugins puts plugins where a node looks for them.
func installPlugins(programs, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, p := range referencePlugins.programs {
		file := filepath.Join(to, strings.TrimPrefix(p.Name, "cni-"))
		if err := upstream.CopyFile(filepath.Join(programs, p.Name), file); err != nil {
			return err
		}
		if err := os.Chmod(file, 0o755); err != nil {
			return err
		}
	}
	return nil
}
