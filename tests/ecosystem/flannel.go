package main

import (
	"encoding/json"
	"errors"
	"fmt"
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
nft delete table ip nat
nft delete table ip filter
`

func runFlannel(r *rig) {
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
		return r.changedOver("cni0", "flannel.1")
	})
	if !arrived {
		return
	}
	r.reachEachOther("by VXLAN", r.podCIDR)
	r.check("its backend is changed to host-gw", r.hostGateways)
	r.reachEachOther("by host-gw", r.podCIDR)
	r.check("when it is removed the built-in bridge is back", func() (string, error) {
		if _, err := r.do("delete namespace kube-flannel --timeout=60s")(); err != nil {
			return "", err
		}
		return "", r.builtinAgain("10-flannel.conflist", removeFlannel)
	})
}

// hostGateways has flannel lead packets by routes instead of tunnels, as its
// documentation wants it: the configuration is changed, and flannel started again.
func (r *rig) hostGateways() (string, error) {
	for _, n := range nodes {
		name := "kube-flannel-" + n
		net, err := r.do("-n kube-flannel get configmap " + name + " -o jsonpath={.data.net-conf\\.json}")()
		if err != nil {
			return "", err
		}
		changed := strings.Replace(net, `"vxlan"`, `"host-gw"`, 1)
		if changed == net {
			return "", fmt.Errorf("no backend vxlan in %s", net)
		}
		patch, err := json.Marshal(map[string]any{"data": map[string]string{"net-conf.json": changed}})
		if err != nil {
			return "", err
		}
		if _, err := r.Kubectl("", "-n", "kube-flannel", "patch", "configmap", name, "-p", string(patch)); err != nil {
			return "", err
		}
		if _, err := r.do("-n kube-flannel rollout restart daemonset/" + name)(); err != nil {
			return "", err
		}
	}
	for _, n := range nodes {
		if err := r.rollout("kube-flannel", "daemonset/kube-flannel-"+n); err != nil {
			return "", err
		}
		// The tunnel's end, which flannel makes again as long as it has that backend.
		if out, err := r.onNode(n, "ip", "link", "delete", "flannel.1"); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
	}
	return r.until(time.Minute, func() (string, error) {
		var found []string
		for i, n := range nodes {
			other := nodes[1-i]
			cidr, err := r.podCIDR(other)
			if err != nil {
				return "", err
			}
			address, err := r.addressOf(other)
			if err != nil {
				return "", err
			}
			out, err := r.onNode(n, "ip", "route", "show", cidr)
			if err != nil || !strings.Contains(out, "via "+address) {
				return "", fmt.Errorf("%s has no route to %s by %s: %w: %s", n, cidr, address, err, out)
			}
			found = append(found, out)
		}
		return strings.Join(found, " "), nil
	})
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
