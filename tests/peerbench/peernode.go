package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-project/shoal/tests/bench/measure"
	"github.com/shoal-project/shoal/tests/harness"
)

// peerNode is a node of upstream's: containerd, kubelet and kube-proxy in a
// mount namespace of their own, whose mounts end with its last process.
type peerNode struct {
	machine   int
	name      string
	pods      string // cgroup of its pods
	namespace int    // pid of the process that holds the mount namespace
}

func (p *peer) nodePath(n *peerNode, elem ...string) string {
	return p.path(append([]string{n.name}, elem...)...)
}

// prepareNode makes a node's directories, configuration and cgroups, and
// imports the images into its runtime.
func (p *peer) prepareNode(machine int, name string) (*peerNode, error) {
	n := &peerNode{machine: machine, name: name, pods: p.name}
	if machine > 0 {
		n.pods += "-" + name
	}
	for _, dir := range []string{"containerd", "kubelet", "cni-conf", "pod-logs"} {
		if err := os.MkdirAll(p.nodePath(n, dir), 0o755); err != nil {
			return n, err
		}
	}
	for file, text := range map[string]string{
		"containerd.toml":      p.containerdConfig(n),
		"cni-conf/10.conflist": fmt.Sprintf(networkConfig, machine),
		"kubelet.yaml":         p.kubeletConfig(n),
		"proxy.yaml":           fmt.Sprintf(proxyConfig, p.path("proxy.kubeconfig"), n.name),
	} {
		if err := p.write(filepath.Join(n.name, file), text); err != nil {
			return n, err
		}
	}
	if err := makePodGroups(n.pods); err != nil {
		return n, err
	}
	if err := p.makeNamespace(n); err != nil {
		return n, err
	}
	return n, p.importImages(n)
}

// makePodGroups makes a cgroup in every hierarchy of version 1, or in version
// 2's: the kubelet wants its root to be there.
func makePodGroups(name string) error {
	tops, err := filepath.Glob(filepath.Join(measure.Cgroups, "*", "cgroup.procs"))
	if err != nil {
		return err
	}
	if len(tops) == 0 {
		return os.Mkdir(filepath.Join(measure.Cgroups, name), 0o755)
	}
	for _, top := range tops {
		dir := filepath.Join(filepath.Dir(top), name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			data, err := os.ReadFile(filepath.Join(filepath.Dir(top), file))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, file), data, 0o644)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// makeNamespace makes the node's mount namespace. What daemons write to fixed
// places, such as /var/lib/kubelet/device-plugins and /run/containerd, goes
// into file systems in memory.
func (p *peer) makeNamespace(n *peerNode) error {
	const script = `mount --make-rshared / && for d in /run /var/lib /var/log; do mount -t tmpfs tmpfs $d || exit 1; done && exec sleep infinity`
	proc, err := p.host.start(n.machine, n.name+"-mounts", "unshare", "--mount", "--propagation",
		"private", "sh", "-c", script)
	if err != nil {
		return err
	}
	n.namespace = proc.cmd.Process.Pid // nsenter, sh and unshare all become it
	deadline := time.Now().Add(5 * time.Second)
	for { // no event tells what a process has become
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", n.namespace))
		if err == nil &&
			(strings.HasSuffix(exe, "/sleep") || strings.HasSuffix(exe, "/coreutils") || strings.HasSuffix(exe, "/busybox")) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the mounts of %s are not there: %w\n%s", n.name, err, p.logs())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// inside is a command in the node's mount namespace.
func (n *peerNode) inside(command ...string) []string {
	return append([]string{"nsenter", "--mount=/proc/" + strconv.Itoa(n.namespace) + "/ns/mnt", "--"}, command...)
}

func (p *peer) socket(n *peerNode) string { return p.nodePath(n, "containerd", "s") }

func (p *peer) containerdConfig(n *peerNode) string {
	return fmt.Sprintf(`version = 3
root = %q
state = %q
[grpc]
address = %q
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = %q
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = [%q]
conf_dir = %q
[plugins.'io.containerd.nri.v1.nri']
disable = true
`, p.nodePath(n, "containerd", "root"), p.nodePath(n, "containerd", "state"),
		p.socket(n), pauseImage, p.program("cni"), p.nodePath(n, "cni-conf"))
}

const networkConfig = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": {"type": "host-local", "dataDir": "/run/cni-addresses", "ranges": [[{"subnet": "10.244.%d.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
{"type": "portmap", "capabilities": {"portMappings": true}}]}
`

func (p *peer) kubeletConfig(n *peerNode) string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %q}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupRoot: /%s
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix://%s
podLogsDir: %s
volumePluginDir: %s
failCgroupV1: false
failSwapOn: false
evictionHard: {memory.available: 100Mi, nodefs.available: 1%%, imagefs.available: 1%%}
imageGCHighThresholdPercent: 100
kubeAPIQPS: 1000
kubeAPIBurst: 2000
`, p.keys.Path("ca.crt"), n.pods, p.socket(n), p.nodePath(n, "pod-logs"), p.nodePath(n, "kubelet", "plugins-exec"))
}

// proxyConfig leaves the connection tracking of the machine as it is.
const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: %s, qps: 1000, burst: 2000}
hostnameOverride: %s
mode: nftables
clusterCIDR: 10.244.0.0/16
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// importImages imports the workload's and the sandbox's image, and ends the
// runtime again.
func (p *peer) importImages(n *peerNode) error {
	if err := p.startRuntime(n); err != nil {
		return err
	}
	runtime := p.procs[len(p.procs)-1]
	for _, archive := range []string{filepath.Join(p.options.cache, "pause.tar"),
		filepath.Join(p.options.bin, "images", "hello.tar")} {
		args := n.inside(p.program("ctr"), "--address", p.socket(n), "--namespace", "k8s.io",
			"images", "import", archive)
		// No event tells that another's runtime serves.
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			out, err := harness.Command(p.netns[n.machine], args[0], args[1:]...).CombinedOutput()
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("import %s: %w: %s", archive, err, out)
			}
		}
	}
	if err := runtime.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	<-runtime.done
	p.procs = p.procs[:len(p.procs)-1]
	return nil
}

func (p *peer) startRuntime(n *peerNode) error {
	path := "PATH=" + p.options.cache + ":" + os.Getenv("PATH") // of the shim
	_, err := p.host.start(n.machine,
		n.name+"-containerd",
		n.inside("env", path, p.program("containerd"), "--config", p.nodePath(n, "containerd.toml"),
			"--log-level", "warn")...)
	return err
}

// startNode starts kubelet and kube-proxy and returns when the node is Ready.
func (p *peer) startNode(ctx context.Context, n *peerNode) error {
	_, err := p.host.start(n.machine,
		n.name+"-kubelet",
		n.inside(p.program("kubelet"), "--config", p.nodePath(n, "kubelet.yaml"), "--kubeconfig", p.path(n.name+".kubeconfig"),
			"--root-dir", p.nodePath(n, "kubelet"), "--cert-dir", p.nodePath(n, "kubelet", "pki"),
			"--hostname-override", n.name, "--node-ip", p.addrs[n.machine])...)
	if err != nil {
		return err
	}
	if _, err := p.host.start(n.machine,
		n.name+"-kube-proxy", n.inside(p.program("kube-proxy"), "--config", p.nodePath(n, "proxy.yaml"))...); err != nil {
		return err
	}
	return p.until(ctx, n.name+" is Ready", 2*time.Minute, func() error { return nodeReady(ctx, p.client, n.name) })
}

// tunables are what the kubelet changes for the whole machine.
type tunables map[string][]byte

func saveTunables() (tunables, error) {
	t := tunables{}
	for _, name := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"} {
		file := filepath.Join("/proc/sys", name)
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		t[file] = data
	}
	return t, nil
}

func (t tunables) restore() {
	for file, data := range t {
		if err := os.WriteFile(file, data, 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "peerbench:", err)
		}
	}
}
