package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	coordinatorconfig "github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// Files of the data directory.
const (
	upFile    = "up.yaml"
	agentFile = "agent.yaml"
)

// options are what `shoal up` was told. They are kept in DataDir/up.yaml, so
// that down and status need only the data directory.
type options struct {
	DataDir     string `json:"dataDir"`
	NodeName    string `json:"nodeName,omitempty"`
	NodeIP      string `json:"nodeIP,omitempty"`
	Port        int    `json:"port"`
	KubeletPort int    `json:"kubeletPort"`
	GossipPort  int    `json:"gossipPort"`
	// VirtualAddress is the coordinator's.
	VirtualAddress string `json:"virtualAddress,omitempty"`
	ServiceCIDR    string `json:"serviceCIDR"`
	ClusterCIDR    string `json:"clusterCIDR"`
	// NodeCIDRMaskSize is the prefix length of the node's part of it, MaxPods how many pods the
	// node takes; 0: the daemons' defaults.
	NodeCIDRMaskSize int    `json:"nodeCIDRMaskSize,omitempty"`
	MaxPods          int    `json:"maxPods,omitempty"`
	ClusterDNS       string `json:"clusterDNS"`
	ClusterDomain    string `json:"clusterDomain"`
	NodePortRange    string `json:"nodePortRange"`
	RootDir          string `json:"rootDir"`
	PodLogsDir       string `json:"podLogsDir"`
	ContainerLogsDir string `json:"containerLogsDir"`
	RunDir           string `json:"runDir"`
	CNIConfDir       string `json:"cniConfDir"`
	CNIBinDir        string `json:"cniBinDir"`
	// PodNetwork is the agent's podNetwork; up.yaml of an earlier version has none.
	PodNetwork string `json:"podNetwork,omitempty"`
	// RegistryConfigDir holds registries' mirrors and their TLS.
	RegistryConfigDir string `json:"registryConfigDir,omitempty"`
	CgroupRoot        string `json:"cgroupRoot,omitempty"`
	// Encryption is the agent's.
	Encryption bool   `json:"encryption,omitempty"`
	Bridge     string `json:"bridge"`
	NFTable    string `json:"nfTable"`
	// EvictionHard replaces single thresholds of the agent's.
	EvictionHard map[string]string `json:"evictionHard,omitempty"`
	// RuntimeHandlers are the agent's: programs by the handler of a RuntimeClass.
	RuntimeHandlers map[string]string `json:"runtimeHandlers,omitempty"`
}

func defaultOptions() *options {
	a := agentconfig.Default()
	return &options{
		DataDir: "/var/lib/shoal", Port: 6443, KubeletPort: a.Port, GossipPort: a.GossipPort,
		ServiceCIDR: a.ServiceCIDR, ClusterCIDR: a.ClusterCIDR, ClusterDNS: a.ClusterDNS[0],
		ClusterDomain: a.ClusterDomain, NodePortRange: "30000-32767",
		RootDir: a.RootDir, PodLogsDir: a.PodLogsDir, ContainerLogsDir: a.ContainerLogsDir, RunDir: a.RunDir,
		CNIConfDir: a.CNIConfDir, CNIBinDir: a.CNIBinDir, PodNetwork: a.PodNetwork,
		RegistryConfigDir: a.RegistryConfigDir, Bridge: a.Bridge, NFTable: a.NFTable,
	}
}

func (o *options) flags(f *pflag.FlagSet) {
	f.StringVar(&o.DataDir, "data-dir", o.DataDir, "directory of the cluster's state")
	f.StringVar(&o.NodeName, "node-name", o.NodeName, "name of this node (default: the host's name)")
	f.StringVar(&o.NodeIP, "node-ip", o.NodeIP, "address of this node, or one of each family with a comma between (default: that of the default route)")
	f.IntVar(&o.Port, "port", o.Port, "port of the API server")
	f.IntVar(&o.KubeletPort, "kubelet-port", o.KubeletPort, "port of the agent's kubelet API")
	f.IntVar(&o.GossipPort, "gossip-port", o.GossipPort, "port of the agent's gossip; the coordinator takes the next")
	f.StringVar(&o.VirtualAddress, "virtual-address", o.VirtualAddress, "address that leads to whichever coordinator lives")
	f.StringVar(&o.ServiceCIDR, "service-cidr", o.ServiceCIDR, "range of Service addresses, or one of each family with a comma between")
	f.StringVar(&o.ClusterCIDR, "cluster-cidr", o.ClusterCIDR, "range of pod addresses, or one of each family with a comma between")
	f.IntVar(&o.NodeCIDRMaskSize, "node-cidr-mask-size", o.NodeCIDRMaskSize, "prefix length of a node's range of pod addresses (default 24, which is 254 pods; 23: 510)")
	f.IntVar(&o.MaxPods, "max-pods", o.MaxPods, "pods that this node takes (default 110)")
	f.StringVar(&o.ClusterDNS, "cluster-dns", o.ClusterDNS, "address of the cluster's DNS, within the service range, or one of each family")
	f.StringVar(&o.ClusterDomain, "cluster-domain", o.ClusterDomain, "DNS domain of the cluster")
	f.StringVar(&o.NodePortRange, "node-port-range", o.NodePortRange, "ports for Services of type NodePort")
	f.StringVar(&o.RootDir, "root-dir", o.RootDir, "the kubelet's directory: volumes and plugin sockets")
	f.StringVar(&o.PodLogsDir, "pod-logs-dir", o.PodLogsDir, "directory of pod logs")
	f.StringVar(&o.ContainerLogsDir, "container-logs-dir", o.ContainerLogsDir, "directory of links to container logs, - for none")
	f.StringVar(&o.RunDir, "run-dir", o.RunDir, "directory of sockets and pinned namespaces")
	f.StringVar(&o.CNIConfDir, "cni-conf-dir", o.CNIConfDir, "directory of third-party CNI configuration")
	f.StringVar(&o.CNIBinDir, "cni-bin-dir", o.CNIBinDir, "directory of third-party CNI plugins")
	f.StringVar(&o.PodNetwork, "pod-network", o.PodNetwork, "what connects pods where there is no CNI configuration: builtin, or none")
	f.StringVar(&o.RegistryConfigDir, "registry-config-dir", o.RegistryConfigDir, "directory of registries' mirrors and their TLS (hosts.toml)")
	f.StringVar(&o.CgroupRoot, "cgroup-root", o.CgroupRoot, "parent of the pods' cgroups")
	f.BoolVar(&o.Encryption, "encryption", o.Encryption, "encrypt what pods send to those of other nodes that encrypt too (`shoal join --encryption`)")
	f.StringVar(&o.Bridge, "bridge", o.Bridge, "name of the pods' bridge")
	f.StringVar(&o.NFTable, "nf-table", o.NFTable, "name of the nftables table")
	f.StringToStringVar(&o.EvictionHard, "eviction-hard", o.EvictionHard, "thresholds of the pressure conditions, as nodefs.available=5%,imagefs.available=5%")
	f.StringToStringVar(&o.RuntimeHandlers, "runtime-handlers", o.RuntimeHandlers, "programs of RuntimeClass handlers, as gvisor=/usr/local/bin/runsc")
}

// Paths below the data directory.
func (o *options) path(elem ...string) string {
	return filepath.Join(append([]string{o.DataDir}, elem...)...)
}
func (o *options) kubeconfig() string { return o.path("kubeconfig") }
func (o *options) agentDir() string   { return o.path("agent") }
func (o *options) keys() pki.Dir      { return pki.Dir(o.coordinatorConfig().KeysDir()) }

// complete makes the data directory absolute and fills the node's name.
func (o *options) complete() error {
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	o.DataDir = dir
	if most := maxSocketPath - len("/log/coordinator.notify"); len(dir) > most {
		return fmt.Errorf("--data-dir %s: choose a path of at most %d bytes: those of the sockets in it would be longer "+
			"than the kernel takes (unix(7))", dir, most)
	}
	for _, d := range []struct{ flag, dir string }{
		{"root-dir", o.RootDir}, {"pod-logs-dir", o.PodLogsDir}, {"container-logs-dir", o.ContainerLogsDir},
		{"run-dir", o.RunDir}, {"cni-conf-dir", o.CNIConfDir}, {"cni-bin-dir", o.CNIBinDir},
		{"registry-config-dir", o.RegistryConfigDir},
	} {
		if d.dir != "" && d.dir != "-" && !filepath.IsAbs(d.dir) {
			return fmt.Errorf("--%s %q: must be an absolute path, for the daemons run in another directory",
				d.flag, d.dir)
		}
	}
	if o.PodNetwork != agentconfig.BuiltinNetwork && o.PodNetwork != agentconfig.NoNetwork {
		return fmt.Errorf("--pod-network %q: use builtin or none", o.PodNetwork)
	}
	if o.NodeName == "" {
		if o.NodeName, err = os.Hostname(); err != nil {
			return fmt.Errorf("--node-name: %w", err)
		}
	}
	return nil
}

// maxSocketPath is the longest path of a socket, in bytes.
const maxSocketPath = 107

// save writes up.yaml and the two daemons' configuration files.
func (o *options) save() error {
	for _, dir := range []string{o.coordinatorConfig().StateDir(), o.agentDir(), o.path("images"), o.path("log")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("data directory: %w", err)
		}
	}
	for name, v := range map[string]any{upFile: o, "coordinator.yaml": o.coordinatorConfig(),
		agentFile: o.agentConfig()} {
		data, err := yaml.Marshal(v)
		if err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		if err := os.WriteFile(o.path(name), data, 0o600); err != nil {
			return fmt.Errorf("write configuration: %w", err)
		}
	}
	return nil
}

var errNoCluster = errors.New("no cluster")

// load reads the options of the cluster in dataDir. Another version may have
// written them: what it knew and this one does not keeps nobody from stopping it.
func load(dataDir string) (*options, error) {
	o := &options{DataDir: dataDir, PodNetwork: agentconfig.BuiltinNetwork}
	if err := o.complete(); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(o.path(upFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s; start one with `shoal up --data-dir %s`", errNoCluster, o.DataDir, o.DataDir)
	}
	if err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(data, o); err != nil {
		return nil, fmt.Errorf("%s: %w; delete the file and run `shoal up` again", o.path(upFile), err)
	}
	return o, nil
}

// primary is the first of addresses with commas between.
func primary(ips string) string {
	first, _, _ := strings.Cut(ips, ",")
	return strings.TrimSpace(first)
}

// coordinatorConfig has what the coordinator's defaults have not.
func (o *options) coordinatorConfig() coordinatorconfig.Config {
	return coordinatorconfig.Config{
		DataDir:          o.DataDir,
		Port:             o.Port,
		AdvertiseAddress: primary(o.NodeIP),
		VirtualAddress:   o.VirtualAddress,
		ServiceCIDR:      o.ServiceCIDR,
		ClusterCIDR:      o.ClusterCIDR,

		NodeCIDRMaskSizeIPv4: o.NodeCIDRMaskSize,

		ClusterDNS:    o.ClusterDNS,
		ClusterDomain: o.ClusterDomain,
		NodePortRange: o.NodePortRange,
		GossipPort:    o.GossipPort + 1,
		NodeName:      o.NodeName,
	}
}

func (o *options) agentConfig() agentconfig.Config {
	c := agentconfig.Default()
	c.NodeName, c.NodeIP, c.Kubeconfig = o.NodeName, o.NodeIP, filepath.Join(o.agentDir(), "kubeconfig")
	c.DataDir, c.ImagesDir = o.agentDir(), o.path("images")
	c.RootDir, c.PodLogsDir, c.ContainerLogsDir, c.RunDir = o.RootDir, o.PodLogsDir, o.ContainerLogsDir, o.RunDir
	c.CNIConfDir, c.CNIBinDir, c.CgroupRoot, c.Bridge, c.NFTable = o.CNIConfDir, o.CNIBinDir,
		o.CgroupRoot, o.Bridge, o.NFTable
	if o.RegistryConfigDir != "" { // up.yaml of an earlier version has none
		c.RegistryConfigDir = o.RegistryConfigDir
	}
	c.PodNetwork, c.Encryption = o.PodNetwork, o.Encryption
	if o.MaxPods != 0 {
		c.MaxPods = o.MaxPods
	}
	c.Port, c.ClusterDNS, c.ClusterDomain = o.KubeletPort, strings.Split(o.ClusterDNS, ","), o.ClusterDomain
	c.ClusterCIDR, c.ServiceCIDR = o.ClusterCIDR, o.ServiceCIDR
	c.ClientCAFile = o.keys().Path(pki.CAFile)
	maps.Copy(c.EvictionHard, o.EvictionHard)
	c.RuntimeHandlers = o.RuntimeHandlers
	c.GossipPort, c.GossipKeyFile, c.Join = o.GossipPort, o.keys().
		Path(pki.GossipKeyFile), []string{fmt.Sprintf("127.0.0.1:%d", o.GossipPort+1)}
	return c
}
