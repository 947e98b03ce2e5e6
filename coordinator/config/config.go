package config

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// DefaultFile is read when it exists and --config does not name another.
const DefaultFile = "/etc/shoal/coordinator.yaml"

// Config is the content of the file. Each field has the flag of the same name.
type Config struct {
	// DataDir holds all state, below DataDir/coordinator.
	DataDir string `json:"dataDir,omitempty"`
	// BindAddress and Port are where the API is served; AdvertiseAddress is what
	// the Service "kubernetes" points to (default: the machine's address).
	BindAddress      string `json:"bindAddress,omitempty"`
	Port             int    `json:"port,omitempty"`
	AdvertiseAddress string `json:"advertiseAddress,omitempty"`
	// VirtualAddress leads to whichever coordinator lives: nodes with one announce it on
	// their network. The same for all coordinators.
	VirtualAddress string `json:"virtualAddress,omitempty"`
	// ExtraNames are further names and addresses in the serving certificate.
	ExtraNames []string `json:"extraNames,omitempty"`
	// ServiceCIDR is the range of ClusterIPs, ClusterCIDR that of pods; a second
	// range of the other family may follow a comma.
	ServiceCIDR string `json:"serviceCIDR,omitempty"`
	ClusterCIDR string `json:"clusterCIDR,omitempty"`
	// NodeCIDRMaskSizeIPv4 and NodeCIDRMaskSizeIPv6 are the prefix lengths of each Node's part
	// of the ClusterCIDR.
	NodeCIDRMaskSizeIPv4 int `json:"nodeCIDRMaskSizeIPv4,omitempty"`
	NodeCIDRMaskSizeIPv6 int `json:"nodeCIDRMaskSizeIPv6,omitempty"`

	ClusterDNS    string `json:"clusterDNS,omitempty"`
	ClusterDomain string `json:"clusterDomain,omitempty"`
	// NodePortRange is "first-last".
	NodePortRange string `json:"nodePortRange,omitempty"`
	// GossipBind and GossipPort are where the gossip listens.
	GossipBind string `json:"gossipBind,omitempty"`
	GossipPort int    `json:"gossipPort,omitempty"`
	// GossipInsecure lets the gossip believe members that prove nothing.
	GossipInsecure bool `json:"gossipInsecure,omitempty"`
	// GossipJoin are members to join, host:port.
	GossipJoin []string `json:"gossipJoin,omitempty"`
	// PeerPort is where members of the embedded store reach each other, once there are
	// several; a coordinator alone does not listen there.
	PeerPort int `json:"peerPort,omitempty"`
	// SnapshotInterval is the time from one snapshot of the embedded store to the next, 0
	// for none; SnapshotKeep is how many of these stay, in SnapshotDir (snapshots beside
	// the other state when empty). With SnapshotPassphraseFile, whose first line is a
	// passphrase, the cluster's keys are beside each, under it.
	SnapshotInterval       Duration `json:"snapshotInterval,omitempty"`
	SnapshotKeep           int      `json:"snapshotKeep,omitempty"`
	SnapshotDir            string   `json:"snapshotDir,omitempty"`
	SnapshotPassphraseFile string   `json:"snapshotPassphraseFile,omitempty"`
	// EtcdServers are URLs of an outside etcd; empty: the embedded one.
	EtcdServers  []string `json:"etcdServers,omitempty"`
	EtcdCAFile   string   `json:"etcdCAFile,omitempty"`
	EtcdCertFile string   `json:"etcdCertFile,omitempty"`
	EtcdKeyFile  string   `json:"etcdKeyFile,omitempty"`
	// EncryptionProviderConfig is an EncryptionConfiguration file; empty: one
	// that is made at the first start, beside the other keys.
	EncryptionProviderConfig string `json:"encryptionProviderConfig,omitempty"`
	// KubeletCertificateAuthority is a file of the CAs that sign kubelets' serving
	// certificates; empty: the cluster's own; "none": they are not verified.
	KubeletCertificateAuthority string `json:"kubeletCertificateAuthority,omitempty"`
	// ClusterSigningDuration is how long a certificate lives at most that the cluster
	// signs for a request: nodes' among them, which ask for the next one in time.
	ClusterSigningDuration Duration `json:"clusterSigningDuration,omitempty"`
	// NodeName is the Node on this machine: it alone gets a serving certificate
	// for addresses that are the API server's too. Empty: the host's name.
	NodeName string `json:"nodeName,omitempty"`
	// SchedulerConfig is a KubeSchedulerConfiguration v1 file; empty: defaults.
	SchedulerConfig string `json:"schedulerConfig,omitempty"`
	// DisableForceDetachOnTimeout: volumes are not taken from a node that has not been
	// ready for six minutes, only from one with the taint
	// node.kubernetes.io/out-of-service.
	DisableForceDetachOnTimeout bool `json:"disableForceDetachOnTimeout,omitempty"`
	// WhenIsolated is what becomes of pods that do not say it by the annotation
	// shoal.io/when-isolated: stay, stop or stop-if-replaced. Empty: they stay.
	WhenIsolated string `json:"whenIsolated,omitempty"`
	// NoLocalStorage: the cluster gets no CSIDriver and no StorageClass for the storage
	// driver that ships with Shoal.
	NoLocalStorage bool `json:"noLocalStorage,omitempty"`
	// RuntimeConfig turns built-in APIs off and on, as upstream's --runtime-config:
	// api/all, api/ga, api/beta, api/alpha, group/version or group/version/resource.
	RuntimeConfig map[string]string `json:"runtimeConfig,omitempty"`
	// SchedulerPort and ControllerManagerPort are where monitoring finds the metrics
	// and the health of these, beside the API; 0: nowhere.
	SchedulerPort         int `json:"schedulerPort,omitempty"`
	ControllerManagerPort int `json:"controllerManagerPort,omitempty"`
	// Profiling serves /debug/pprof to who may get it. Profiles and dumps of goroutines
	// may hold secrets.
	Profiling bool `json:"profiling,omitempty"`
	// TracingConfigFile is a TracingConfiguration of apiserver.config.k8s.io; empty:
	// nothing is traced.
	TracingConfigFile string `json:"tracingConfigFile,omitempty"`
	Metrics
	Controllers
	Recycler
	S3
	Audit
	Admission
	Authentication
	Authorization
	// LogLevel is debug, info, warn or error.
	LogLevel string `json:"logLevel,omitempty"`
	// LoggingFormat is text, or json: an object a line as upstream's components write it.
	LoggingFormat string `json:"loggingFormat,omitempty"`
}

// minSigning leaves nodes the time to ask for their next certificate.
const minSigning = 10 * time.Second

// StateDir is where a coordinator keeps its state; nothing else is in it.
func (c Config) StateDir() string { return filepath.Join(c.DataDir, "coordinator") }

// SnapshotsDir is where snapshots of the store are.
func (c Config) SnapshotsDir() string {
	if c.SnapshotDir != "" {
		return c.SnapshotDir
	}
	return filepath.Join(c.StateDir(), "snapshots")
}

// KeysDir is the directory of the cluster's keys and certificates (pki.Dir).
func (c Config) KeysDir() string { return filepath.Join(c.StateDir(), "pki") }

// maxNodeBits is how many bits the number of a Node's part of the ClusterCIDR may have.
const maxNodeBits = 16

// Default returns the configuration of a coordinator without a file.
func Default() Config {
	return Config{
		DataDir:     "/var/lib/shoal",
		BindAddress: "0.0.0.0", Port: 6443,
		ServiceCIDR: "10.96.0.0/16", ClusterCIDR: "10.244.0.0/16", ClusterDNS: "10.96.0.10", ClusterDomain: "cluster.local",
		NodeCIDRMaskSizeIPv4: 24, NodeCIDRMaskSizeIPv6: 64,
		NodePortRange: "30000-32767",
		GossipBind:    "0.0.0.0", GossipPort: 7946,
		PeerPort:               2380,
		SnapshotInterval:       Duration(12 * time.Hour),
		SnapshotKeep:           5,
		ClusterSigningDuration: Duration(365 * 24 * time.Hour),
		Controllers:            defaultControllers(),
		Recycler:               defaultRecycler(),
		S3:                     defaultS3(),
		Audit:                  defaultAudit(),
		Authentication:         defaultAuthentication(),
		Authorization:          defaultAuthorization(),
		LogLevel:               "info",
		LoggingFormat:          "text",
	}
}

// AddFlags registers a flag for each field, with c's values as defaults.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.DataDir, "data-dir", c.DataDir, "directory of all state")
	fs.StringVar(&c.BindAddress, "bind-address", c.BindAddress, "address to serve the API on")
	fs.IntVar(&c.Port, "port", c.Port, "port to serve the API on")
	fs.IntVar(&c.SchedulerPort, "scheduler-port", c.SchedulerPort, "port to serve metrics and health of the scheduler on, upstream's is 10259; 0: none")
	fs.IntVar(&c.ControllerManagerPort, "controller-manager-port", c.ControllerManagerPort, "port to serve metrics and health of the controllers on, upstream's is 10257; 0: none")
	fs.StringVar(&c.VirtualAddress, "virtual-address", c.VirtualAddress, "address that leads to whichever coordinator lives; all coordinators have the same")
	fs.StringVar(&c.AdvertiseAddress, "advertise-address", c.AdvertiseAddress, "address by which nodes and pods reach the API (default: the machine's)")
	fs.StringSliceVar(&c.ExtraNames, "extra-names", c.ExtraNames, "further names and addresses in the serving certificate")
	fs.StringVar(&c.ServiceCIDR, "service-cidr", c.ServiceCIDR, "range of Service addresses, or one of each family with a comma between")
	fs.StringVar(&c.ClusterCIDR, "cluster-cidr", c.ClusterCIDR, "range of pod addresses, or one of each family with a comma between")
	fs.IntVar(&c.NodeCIDRMaskSizeIPv4, "node-cidr-mask-size-ipv4", c.NodeCIDRMaskSizeIPv4, "prefix length of each node's range of pod addresses: 24 has 254 of them, 23 has 510")
	fs.IntVar(&c.NodeCIDRMaskSizeIPv6, "node-cidr-mask-size-ipv6", c.NodeCIDRMaskSizeIPv6, "prefix length of each node's IPv6 range of pod addresses")
	fs.StringVar(&c.ClusterDNS, "cluster-dns", c.ClusterDNS, "address of the cluster's DNS, in the service range, or one of each family with a comma between")
	fs.StringVar(&c.ClusterDomain, "cluster-domain", c.ClusterDomain, "DNS domain of the cluster")
	fs.StringVar(&c.NodePortRange, "node-port-range", c.NodePortRange, "ports for Services of type NodePort")
	fs.StringVar(&c.GossipBind, "gossip-bind", c.GossipBind, "address of the gossip")
	fs.IntVar(&c.GossipPort, "gossip-port", c.GossipPort, "port of the gossip")
	fs.BoolVar(&c.GossipInsecure, "gossip-insecure", c.GossipInsecure, "the gossip believes members without certificates (for load tests); no pods are routed then")
	fs.StringSliceVar(&c.GossipJoin, "gossip-join", c.GossipJoin, "gossip members to join, host:port")
	fs.IntVar(&c.PeerPort, "peer-port", c.PeerPort, "port where several coordinators' embedded stores reach each other; not open while there is one")
	fs.Var(&c.SnapshotInterval, "snapshot-interval", "time between snapshots of the embedded store; 0: none")
	fs.IntVar(&c.SnapshotKeep, "snapshot-keep", c.SnapshotKeep, "how many snapshots of the schedule are kept")
	fs.StringVar(&c.SnapshotDir, "snapshot-dir", c.SnapshotDir, "directory of snapshots (default: snapshots beside the other state)")
	fs.StringVar(&c.SnapshotPassphraseFile, "snapshot-passphrase-file", c.SnapshotPassphraseFile,
		"file whose first line is the passphrase under which the cluster's keys go beside each snapshot (default: no keys)")
	fs.StringSliceVar(&c.EtcdServers, "etcd-servers", c.EtcdServers, "URLs of an outside etcd (default: embedded)")
	fs.StringVar(&c.EtcdCAFile, "etcd-cafile", c.EtcdCAFile, "CA of the outside etcd")
	fs.StringVar(&c.EtcdCertFile, "etcd-certfile", c.EtcdCertFile, "client certificate for the outside etcd")
	fs.StringVar(&c.EtcdKeyFile, "etcd-keyfile", c.EtcdKeyFile, "client key for the outside etcd")
	fs.StringVar(&c.EncryptionProviderConfig, "encryption-provider-config", c.EncryptionProviderConfig, "EncryptionConfiguration file: how values are encrypted in the store (default: encryption.yaml beside the other keys, made when missing)")
	fs.StringVar(&c.KubeletCertificateAuthority, "kubelet-certificate-authority", c.KubeletCertificateAuthority,
		"file of the CAs that sign kubelets' serving certificates (default: the cluster's own CA), none to verify nothing")
	fs.Var(&c.ClusterSigningDuration, "cluster-signing-duration",
		"how long certificates live at most that the cluster signs for requests, nodes' among them")
	fs.StringVar(&c.NodeName, "node-name", c.NodeName, "name of the Node on this machine (default: the host's name)")
	fs.BoolVar(&c.NoLocalStorage, "no-local-storage", c.NoLocalStorage,
		"make no CSIDriver and no StorageClass for driver local.shoal-project.io")
	fs.BoolVar(&c.DisableForceDetachOnTimeout, "disable-force-detach-on-timeout", c.DisableForceDetachOnTimeout,
		"take volumes from nodes that are out of service only, not from those that were not ready for six minutes")
	fs.StringVar(&c.WhenIsolated, "when-isolated", c.WhenIsolated,
		"what becomes of pods on isolated nodes unless annotation shoal.io/when-isolated says it: stay, stop or stop-if-replaced (default stay)")
	fs.StringVar(&c.SchedulerConfig, "scheduler-config", c.SchedulerConfig, "KubeSchedulerConfiguration v1 file")
	fs.Var((*switches)(&c.RuntimeConfig), "runtime-config", "built-in APIs to turn off or on, key=true|false: api/all, api/ga, api/beta, api/alpha, group/version, group/version/resource")
	fs.BoolVar(&c.Profiling, "profiling", c.Profiling,
		"serve profiles at /debug/pprof, to who may get that path; they may hold secrets")
	fs.StringVar(&c.TracingConfigFile, "tracing-config-file", c.TracingConfigFile, "TracingConfiguration file: where spans of requests are sent (default: none are made)")
	c.Metrics.addFlags(fs)
	c.Controllers.addFlags(fs)
	c.Recycler.addFlags(fs)
	c.S3.addFlags(fs)
	c.Audit.addFlags(fs)
	c.Admission.addFlags(fs)
	c.Authentication.addFlags(fs)
	c.Authorization.addFlags(fs)
	fs.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
	fs.StringVar(&c.LoggingFormat, "logging-format", c.LoggingFormat, "text, or json")
}

// KubeletsUnverified, as KubeletCertificateAuthority, is for kubelets that serve
// with certificates of their own making.
const KubeletsUnverified = "none"

// Load returns the defaults, changed by the file at path. An empty path means
// DefaultFile, which may be missing.
func Load(path string) (Config, error) {
	c := Default()
	named := path != ""
	if !named {
		path = DefaultFile
	}
	data, err := os.ReadFile(path)
	if err != nil {
		if !named && errors.Is(err, os.ErrNotExist) {
			return c, nil
		}
		return c, fmt.Errorf("read configuration: %w", err)
	}
	if len(bytes.TrimSpace(data)) == 0 { // as after a power cut: it would begin another cluster
		return c, fmt.Errorf("read configuration %s: it is empty; write it again, or leave a comment in it for the defaults",
			path)
	}
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return c, fmt.Errorf("read configuration %s: %w", path, err)
	}
	return c, nil
}

// Validate tells every field that cannot be, and what it should be.
func (c Config) Validate() error {
	var errs []error
	bad := func(field, value, remedy string) {
		errs = append(errs, fmt.Errorf("%s %q: %s", field, value, remedy))
	}
	if !strings.HasPrefix(c.DataDir, "/") {
		bad("dataDir", c.DataDir, "give an absolute path")
	}
	if c.EncryptionProviderConfig != "" && !strings.HasPrefix(c.EncryptionProviderConfig, "/") {
		bad("encryptionProviderConfig", c.EncryptionProviderConfig, "give an absolute path")
	}
	switch c.WhenIsolated {
	case "", "stay", "stop", "stop-if-replaced":
	default:
		bad("whenIsolated", c.WhenIsolated, "give stay, stop or stop-if-replaced")
	}
	checkAddr := func(field, value string) {
		if _, err := netip.ParseAddr(value); err != nil {
			bad(field, value, "give an IP address, for example 0.0.0.0")
		}
	}
	checkAddr("bindAddress", c.BindAddress)
	checkAddr("gossipBind", c.GossipBind)
	if c.AdvertiseAddress != "" {
		checkAddr("advertiseAddress", c.AdvertiseAddress)
	}
	if c.VirtualAddress != "" {
		checkAddr("virtualAddress", c.VirtualAddress)
	}
	for field, port := range map[string]int{"port": c.Port, "gossipPort": c.GossipPort} {
		if port < 0 || port > 65535 {
			bad(field, strconv.Itoa(port), "give a port from 1 to 65535, or 0 for any free one")
		}
	}
	for field, port := range map[string]int{
		"schedulerPort": c.SchedulerPort, "controllerManagerPort": c.ControllerManagerPort,
	} {
		if port < 0 || port > 65535 {
			bad(field, strconv.Itoa(port), "give a port from 1 to 65535, or 0 for none")
		}
	}
	if d := time.Duration(c.SnapshotInterval); d != 0 && d < time.Minute {
		bad("snapshotInterval", d.String(), "give 1m at least, or 0 for no snapshots")
	}
	if c.SnapshotKeep < 1 {
		bad("snapshotKeep", strconv.Itoa(c.SnapshotKeep), "give 1 or more")
	}
	for field, path := range map[string]string{
		"snapshotDir": c.SnapshotDir, "snapshotPassphraseFile": c.SnapshotPassphraseFile,
	} {
		if path != "" && !strings.HasPrefix(path, "/") {
			bad(field, path, "give an absolute path")
		}
	}
	if c.PeerPort < 1 || c.PeerPort > 65535 {
		bad("peerPort", strconv.Itoa(c.PeerPort), "give a port from 1 to 65535")
	}
	if d := time.Duration(c.ClusterSigningDuration); d < minSigning {
		bad("clusterSigningDuration", d.String(), "give at least "+minSigning.String())
	}
	services, err := Prefixes(c.ServiceCIDR)
	if err != nil {
		bad("serviceCIDR", c.ServiceCIDR, "give a range such as 10.96.0.0/16")
	}
	pods, err := c.PodRanges()
	if err != nil {
		bad("clusterCIDR", c.ClusterCIDR, "give a range such as 10.244.0.0/16, or some that do not overlap")
	}
	for _, p := range pods {
		field, size, most := "nodeCIDRMaskSizeIPv4", c.NodeCIDRMaskSizeIPv4, 30
		if p.Addr().Is6() {
			field, size, most = "nodeCIDRMaskSizeIPv6", c.NodeCIDRMaskSizeIPv6, 120
		}
		// Upstream has the same limit: at most 65536 nodes.
		if least := p.Bits(); size < least || size > min(most, least+maxNodeBits) {
			bad(field, strconv.Itoa(size), fmt.Sprintf("give one from %d to %d: each node takes such a part of clusterCIDR %s",
				least, min(most, least+maxNodeBits), p))
		}
	}
	dns := c.DNSAddresses()
	for _, text := range dns {
		if a, err := netip.ParseAddr(text); err != nil || !contains(services, a) {
			bad("clusterDNS", c.ClusterDNS, "give an address inside serviceCIDR "+c.ServiceCIDR)
		}
	}
	if len(dns) > 2 || len(dns) == 2 && strings.Contains(dns[0], ":") == strings.Contains(dns[1], ":") {
		bad("clusterDNS", c.ClusterDNS, "give at most one address of each family")
	}
	if c.ClusterDomain == "" || strings.HasPrefix(c.ClusterDomain, ".") {
		bad("clusterDomain", c.ClusterDomain, "give a domain such as cluster.local")
	}
	if _, _, err := c.NodePorts(); err != nil {
		bad("nodePortRange", c.NodePortRange, "give first-last, for example 30000-32767")
	}
	c.Controllers.validate(bad)
	c.Recycler.validate(bad)
	c.S3.validate(bad)
	c.Audit.validate(bad)
	c.Authentication.validate(bad)
	c.Authorization.validate(bad)
	switch c.LogLevel {
	case "debug", "info", "warn", "error":
	default:
		bad("logLevel", c.LogLevel, "give debug, info, warn or error")
	}
	if c.LoggingFormat != "text" && c.LoggingFormat != "json" {
		bad("loggingFormat", c.LoggingFormat, "give text or json")
	}
	return errors.Join(errs...)
}

func contains(ps []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ps, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Prefixes parses one range, or two of different families with a comma between.
func Prefixes(s string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, part := range strings.Split(s, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		out = append(out, p.Masked())
	}
	if len(out) > 2 || len(out) == 2 && out[0].Addr().Is4() == out[1].Addr().Is4() {
		return nil, errors.New("at most one range of each family")
	}
	return out, nil
}

// maxPodRanges bounds how many ranges pods have: agents compare addresses with each.
const maxPodRanges = 16

// PodRanges are those of the ClusterCIDR, of which the first one's family is the primary
// one. Of a family the first with room counts, so that a range may be added to one that
// is full.
func (c Config) PodRanges() ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, part := range strings.Split(c.ClusterCIDR, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(out, p.Overlaps) {
			return nil, fmt.Errorf("%s overlaps another range", p)
		}
		out = append(out, p.Masked())
	}
	if len(out) > maxPodRanges {
		return nil, fmt.Errorf("more than %d ranges", maxPodRanges)
	}
	return out, nil
}

// DNSAddresses are those of the cluster's DNS, the primary one first.
func (c Config) DNSAddresses() (out []string) {
	for one := range strings.SplitSeq(c.ClusterDNS, ",") {
		out = append(out, strings.TrimSpace(one))
	}
	return out
}

// NodePorts returns the first and the last NodePort.
func (c Config) NodePorts() (first, last int, err error) {
	a, b, ok := strings.Cut(c.NodePortRange, "-")
	if !ok {
		return 0, 0, errors.New("no '-'")
	}
	if first, err = strconv.Atoi(a); err != nil {
		return 0, 0, err
	}
	if last, err = strconv.Atoi(b); err != nil {
		return 0, 0, err
	}
	if first < 1 || last > 65535 || first > last {
		return 0, 0, errors.New("not a range of ports")
	}
	return first, last, nil
}
