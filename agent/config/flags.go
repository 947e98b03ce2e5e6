package config

import "github.com/spf13/pflag"

// Flags registers the flags that override the file, with what c holds as their
// defaults.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.DataDir, "data-dir", c.DataDir, "directory of the agent's own state")
	fs.StringVar(&c.CheckpointKeyFile, "checkpoint-key-file", c.CheckpointKeyFile, "key that the agent's records are sealed with, made when missing (default: checkpoint.key in the data directory)")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "API server and credential of this node")
	fs.StringVar(&c.NodeName, "node-name", c.NodeName, "name of the Node object (default: the host's name)")
	fs.StringVar(&c.NodeName, "hostname-override", c.NodeName, "the same as --node-name, as the kubelet calls it")
	fs.StringSliceVar(&c.NodeExternalIPs, "node-external-ip", c.NodeExternalIPs,
		"addresses that reach this node from outside, which the Node shows as ExternalIP")
	fs.StringVar(&c.NodeIP, "node-ip", c.NodeIP, "address of this node, or one of each family with a comma between (default: that of the default route)")
	fs.StringVar(&c.RootDir, "root-dir", c.RootDir, "directory of volumes and plugin sockets")
	fs.StringVar(&c.PodLogsDir, "pod-logs-dir", c.PodLogsDir, "directory of pod logs")
	fs.StringVar(&c.LocalVolumesDir, "local-volumes-dir", c.LocalVolumesDir,
		"directory of the volumes of driver local.shoal-project.io, empty for one in the data directory, - for no driver")
	fs.StringVar(&c.ContainerLogsDir, "container-logs-dir", c.ContainerLogsDir, "directory of flat links to container logs, - for none")
	fs.StringVar(&c.RunDir, "run-dir", c.RunDir, "directory of sockets, pid files and pinned namespaces")
	fs.StringVar(&c.CNIConfDir, "cni-conf-dir", c.CNIConfDir, "directory of CNI configurations")
	fs.StringVar(&c.CNIBinDir, "cni-bin-dir", c.CNIBinDir, "directory of CNI plugins")
	fs.StringVar(&c.PodNetwork, "pod-network", c.PodNetwork, "what connects pods where there is no CNI configuration: builtin, or none")
	fs.StringVar(&c.ImagesDir, "images-dir", c.ImagesDir, "directory of image archives that are imported at start")
	fs.StringVar(&c.RegistryConfigDir, "registry-config-dir", c.RegistryConfigDir, "directory of registry mirrors and certificates (hosts.toml)")
	fs.StringVar(&c.ImageCredentialProviderConfig, "image-credential-provider-config", c.ImageCredentialProviderConfig,
		"CredentialProviderConfig of programs that know logins at image registries: a file, or a directory of files")
	fs.StringVar(&c.ImageCredentialProviderBinDir, "image-credential-provider-bin-dir", c.ImageCredentialProviderBinDir,
		"directory of these programs")
	fs.StringVar(&c.CgroupRoot, "cgroup-root", c.CgroupRoot, "parent of the kubepods cgroup")
	fs.StringVar(&c.ContainerRuntimeEndpoint, "runtime-endpoint", c.ContainerRuntimeEndpoint, "CRI socket of a runtime that takes the place of the built-in one")
	fs.StringVar(&c.ContainerRuntimeEndpoint, "container-runtime-endpoint", c.ContainerRuntimeEndpoint,
		"the same as --runtime-endpoint, as the kubelet calls it")
	fs.StringVar(&c.ImageServiceEndpoint, "image-service-endpoint", c.ImageServiceEndpoint,
		"CRI socket of the images of that runtime (default: the same)")
	fs.StringVar(&c.Address, "address", c.Address, "address that the kubelet API listens at")
	fs.IntVar(&c.Port, "port", c.Port, "port of the kubelet API, 0 for none")
	fs.StringVar(&c.TLSCertFile, "tls-cert-file", c.TLSCertFile, "serving certificate (default: one that the cluster signs)")
	fs.StringVar(&c.TLSPrivateKeyFile, "tls-private-key-file", c.TLSPrivateKeyFile, "key of the serving certificate")
	fs.StringVar(&c.ClientCAFile, "client-ca-file", c.ClientCAFile, "CA of clients of the kubelet API (default: that of the kubeconfig)")
	fs.StringVar(&c.StaticPodPath, "pod-manifest-path", c.StaticPodPath, "directory of static pods")
	fs.IntVar(&c.MaxPods, "max-pods", c.MaxPods, "number of pods that this node takes")
	fs.StringSliceVar(&c.ClusterDNS, "cluster-dns", c.ClusterDNS, "address of the cluster's DNS")
	fs.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", c.NodePortAddresses,
		"ranges of the node's addresses that NodePorts answer on, or primary (default: all)")
	fs.StringVar(&c.ClusterDomain, "cluster-domain", c.ClusterDomain, "DNS domain of the cluster")
	fs.StringVar(&c.ClusterCIDR, "cluster-cidr", c.ClusterCIDR, "addresses of pods")
	fs.StringVar(&c.ServiceCIDR, "service-cidr", c.ServiceCIDR, "addresses of services")
	fs.StringVar(&c.PodCIDR, "pod-cidr", c.PodCIDR, "addresses of this node's pods (default: what the Node object says)")
	fs.StringVar(&c.Bridge, "bridge", c.Bridge, "name of the pod bridge")
	fs.StringVar(&c.NFTable, "nf-table", c.NFTable, "name of the nftables table")
	fs.BoolVar(&c.Encryption, "encryption", c.Encryption, "encrypt what pods send to those of other nodes that encrypt too")
	fs.IntVar(&c.GossipPort, "gossip-port", c.GossipPort, "port of the gossip, 0 for none")
	fs.StringVar(&c.GossipKeyFile, "gossip-key-file", c.GossipKeyFile, "file of the gossip keys")
	fs.BoolVar(&c.GossipInsecure, "gossip-insecure", c.GossipInsecure, "the gossip believes members without certificates, and listens without a key (for load tests); no pods are routed then")
	fs.StringSliceVar(&c.Join, "join", c.Join, "addresses of other gossip members")
	fs.BoolVar(c.RegisterNode, "register-node", c.Registers(), "make the Node object; else wait until somebody has")
	fs.StringToStringVar(&c.NodeLabels, "node-labels", c.NodeLabels, "labels of the Node object")
	fs.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
	fs.StringVar(&c.LoggingFormat, "logging-format", c.LoggingFormat, "text, or json")
	c.Hollow.flags(fs)
}

// Parse returns the configuration of args: defaults, under the file that
// --config names, under those of --config-dir, under the flags.
func Parse(args []string) (Config, error) { return parse(args, false) }

// ParseKnown is Parse for who undoes what an agent did: fields that this version
// does not know do not keep it from that, and flags that are its own are not looked at.
func ParseKnown(args []string) (Config, error) { return parse(args, true) }

func parse(args []string, known bool) (Config, error) {
	c := Default()
	ignored := Default()
	probe, from := flagSet(&ignored, known)
	if err := probe.Parse(args); err != nil {
		return c, err
	}
	if err := c.apply(from.file, from.dir, known); err != nil {
		return c, err
	}
	fs, _ := flagSet(&c, known)
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	return c, c.Complete()
}

// sources are what flags name of files.
type sources struct{ file, dir string }

// flagSet are the flags that set c, and those that name its files.
func flagSet(c *Config, known bool) (*pflag.FlagSet, *sources) {
	fs := pflag.NewFlagSet("shoal-agent", pflag.ContinueOnError)
	fs.ParseErrorsAllowlist.UnknownFlags = known
	from := &sources{}
	fs.StringVar(&from.file, "config", "", "configuration file")
	fs.StringVar(&from.dir, "config-dir", "", "directory of files, NAME.conf, whose fields go before those of the configuration file")
	c.Flags(fs)
	return fs, from
}
