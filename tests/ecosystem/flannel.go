package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shoal-project/shoal/tests/upstream"
)

const (
	flannelVersion = "v0.28.10"
	backends       = "github.com/flannel-io/flannel/pkg/backend/"
)

var flannel = subject{
	name: "flannel",
	software: []software{
		{
			name:   "flannel",
			module: "github.com/flannel-io/flannel@" + flannelVersion,
			// The one needs a module that the proxy lacks, the other a C compiler.
			without: []string{backends + "tencentvpc", backends + "udp"},
			programs: []upstream.Program{
				{Name: "flanneld", Package: "."},
				{Name: "install-conf", Package: "./cmd/install_conf"},
			},
			images: []image{{
				ref:      "ghcr.io/flannel-io/flannel:" + flannelVersion,
				packages: "iptables,iproute2,busybox", script: noDocs + iptablesLinks,
				programs: []string{"flanneld=/opt/bin/flanneld", "install-conf=/opt/bin/install-conf"},
			}},
		},
		{
			// The last release with flannel's own plugin, of which the proxy has nothing newer.
			name:   "cni-flannel",
			module: "github.com/containernetworking/plugins@v0.9.1",
			programs: []upstream.Program{
				{Name: "cni-flannel", Package: "./plugins/meta/flannel"},
			},
			images: []image{{
				ref: "ghcr.io/flannel-io/flannel-cni-plugin:v1.9.1-flannel3", packages: "busybox", script: noDocs,
				programs: []string{"cni-flannel=/flannel"},
			}},
		},
		referencePlugins,
	},
	run: runFlannel,
}

// iptablesLinks are made by the package's script.
const iptablesLinks = `for p in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
  ln -sf xtables-nft-multi usr/sbin/$p
done
`

// removeFlannel removes what flannel leaves on a node.
const removeFlannel = `ip link delete cni0
ip link delete flannel.1
nft delete table ip nat
nft delete table ip filter
`

// referencePlugins are those of the CNI project, which a node has to have before a
// network comes that is made of them.
var referencePlugins = software{
	name:   "cni-plugins",
	module: "github.com/containernetworking/plugins@v1.9.1",
	programs: []upstream.Program{
		{Name: "cni-bandwidth", Package: "./plugins/meta/bandwidth"},
		{Name: "cni-bridge", Package: "./plugins/main/bridge"},
		{Name: "cni-firewall", Package: "./plugins/meta/firewall"},
		{Name: "cni-host-local", Package: "./plugins/ipam/host-local"},
		{Name: "cni-loopback", Package: "./plugins/main/loopback"},
		{Name: "cni-portmap", Package: "./plugins/meta/portmap"},
		{Name: "cni-ptp", Package: "./plugins/main/ptp"},
		{Name: "cni-tuning", Package: "./plugins/meta/tuning"},
	},
}

func runFlannel(r *rig) {
	if _, err := r.do("create namespace flat")(); err != nil {
		r.check("its pods' namespace", func() (string, error) { return "", err })
		return
	}
	arrived := r.check("its manifest replaces the built-in network of nodes with pods", func() (string, error) {
		if err := r.apply("flat.yaml"); err != nil {
			return "", err
		}
		if err := r.rollout("flat", "daemonset/flat"); err != nil {
			return "", err
		}
		for _, n := range nodes {
			to := filepath.Join(r.nodeDir(n), "cni-bin")
			if err := installPlugins(filepath.Join(r.cache, "programs"), to); err != nil {
				return "", err
			}
		}
		if err := r.applyFlannel(); err != nil {
			return "", err
		}
		for _, n := range nodes {
			if err := r.rollout("kube-flannel", "daemonset/kube-flannel-"+n); err != nil {
				return "", err
			}
		}
		return r.until(2*time.Minute, func() (string, error) {
			for _, n := range nodes {
				if out, err := r.onNode(n, "ip", "-br", "link"); err != nil || !strings.Contains(out, "cni0") ||
					!strings.Contains(out, "flannel.1") || strings.Contains(out, "shoal0") {
					return "", fmt.Errorf("%s has not changed over: %w\n%s\n%s", n, err, out, r.state("flat"))
				}
			}
			return "", nil
		})
	})
	if !arrived {
		return
	}
	r.check("pods of both nodes reach each other, a Service and its name", func() (string, error) {
		return r.until(2*time.Minute, r.flat)
	})
	r.check("when it is removed the built-in bridge is back", func() (string, error) {
		if _, err := r.do("delete namespace kube-flannel --timeout=60s")(); err != nil {
			return "", err
		}
		for _, n := range nodes {
			if err := os.Remove(filepath.Join(r.nodeDir(n), "cni-conf", "10-flannel.conflist")); err != nil {
				return "", err
			}
		}
		for _, n := range nodes { // after it has been gone for a while
			if _, err := r.until(2*time.Minute, func() (string, error) {
				return r.onNode(n, "ip", "link", "show", "shoal0")
			}); err != nil {
				return "", fmt.Errorf("%s: %w", n, err)
			}
		}
		for _, n := range nodes {
			if out, err := r.onNode(n, "sh", "-euc", removeFlannel); err != nil {
				return "", fmt.Errorf("%s: %w: %s", n, err, out)
			}
		}
		return "", nil
	})
}

// flat has the pod of each node fetch a page of every other, by its address, and of
// the Service, by its name.
func (r *rig) flat() (string, error) {
	out, err := r.do("-n flat get pods -l app=flat -o " +
		`jsonpath={range.items[*]}{.metadata.name}{"\t"}{.status.podIP}{"\t"}{.spec.nodeName}{"\n"}{end}`)()
	if err != nil {
		return "", err
	}
	var names, urls []string
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 3 {
			return "", fmt.Errorf("no address yet: %s", line)
		}
		names, urls = append(names, f[0]), append(urls, "http://"+f[1]+":8080/")
		subnet, err := r.do("get node " + f[2] + " -o jsonpath={.spec.podCIDR}")()
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

// flannelConf is the configuration in flannel's manifest, in the version of the
// interface that its plugin knows, with files that are of one node.
const flannelConf = `{"name": "cbr0", "cniVersion": "0.4.0", "plugins": [
  {"type": "flannel", "subnetFile": "%[1]s/flannel/subnet.env", "dataDir": "%[1]s/flannel/plugin",
   "ipam": {"type": "host-local", "dataDir": "%[1]s/flannel/addresses"},
   "delegate": {"hairpinMode": true, "isDefaultGateway": true}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}`

// applyFlannel applies flannel's manifest, for each node its own DaemonSet and files:
// the rig's nodes share a file system, as machines do not.
func (r *rig) applyFlannel() error {
	text, err := os.ReadFile(filepath.Join(r.source("flannel"), "Documentation", "kube-flannel.yml"))
	if err != nil {
		return err
	}
	common, daemonSet, ok := strings.Cut(string(text), "---\napiVersion: apps/v1\n")
	if !ok {
		return errors.New("kube-flannel.yml has no DaemonSet where it was")
	}
	if _, err := r.Kubectl(common, "apply", "-f", "-"); err != nil {
		return err
	}
	for _, n := range nodes {
		dir := r.nodeDir(n)
		conf := filepath.Join(r.work, n)
		if err := os.WriteFile(conf, fmt.Appendf(nil, flannelConf, dir), 0o644); err != nil {
			return err
		}
		net, err := r.do("-n kube-flannel get configmap kube-flannel-cfg -o jsonpath={.data.net-conf\\.json}")()
		if err != nil {
			return err
		}
		if _, err := r.Kubectl("", "-n", "kube-flannel", "create", "configmap", "kube-flannel-"+n,
			"--from-file=cni-conf.json="+conf, "--from-literal=net-conf.json="+net); err != nil {
			return err
		}
		own := strings.NewReplacer(
			"name: kube-flannel-ds", "name: kube-flannel-"+n, "app: flannel", "app: flannel-"+n,
			"name: kube-flannel-cfg", "name: kube-flannel-"+n,
			"      hostNetwork: true", "      nodeSelector: {kubernetes.io/hostname: "+n+"}\n      hostNetwork: true",
			"path: /opt/cni/bin\n", "path: "+dir+"/cni-bin\n", "path: /etc/cni/net.d\n", "path: "+dir+"/cni-conf\n",
			"path: /run/flannel\n", "path: "+dir+"/flannel\n",
			"path: /run/xtables.lock\n", "path: "+dir+"/xtables.lock\n",
		).Replace("apiVersion: apps/v1\n" + daemonSet)
		if _, err := r.Kubectl(own, "apply", "-f", "-"); err != nil {
			return err
		}
	}
	return nil
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
