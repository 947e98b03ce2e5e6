package config

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Config is agent.yaml. Zero fields take the value of Default.
type Config struct {
	metav1.TypeMeta `json:",inline"`

	// NodeName is the name of the Node and its address of the type Hostname, as the kubelet's
	// --hostname-override; the host's name when empty.
	NodeName string `json:"nodeName,omitempty"`
	// NodeIP is the address that the node is reached at, or one of each family with a comma
	// between, the primary one first; those of the default routes when empty.
	NodeIP string `json:"nodeIP,omitempty"`
	// NodeExternalIPs reach the node from outside; the Node shows them.
	NodeExternalIPs []string `json:"nodeExternalIPs,omitempty"`
	// Kubeconfig names the API server and the node's credential. Without it
	// the agent runs static pods only.
	Kubeconfig string `json:"kubeconfig,omitempty"`

	// DataDir holds the agent's own state: checkpoint, images, snapshots.
	DataDir string `json:"dataDir,omitempty"`
	// CheckpointKeyFile has the key that the agent's records are sealed with,
	// unless the service manager passes one; made when missing. Empty:
	// checkpoint.key in DataDir.
	CheckpointKeyFile string `json:"checkpointKeyFile,omitempty"`
	// CheckpointSecrets keeps Secrets and tokens on the disk, so that pods that
	// need them start without a coordinator; true when nil.
	CheckpointSecrets *bool `json:"checkpointSecrets,omitempty"`
	// RootDir is the kubelet's /var/lib/kubelet: volumes and plugin sockets.
	RootDir string `json:"rootDir,omitempty"`
	// PodLogsDir is the kubelet's field of that name.
	PodLogsDir string `json:"podLogsDir,omitempty"`
	// LocalVolumesDir holds the volumes of the storage driver that ships with Shoal;
	// local-volumes in DataDir when empty, no driver when "-".
	LocalVolumesDir string `json:"localVolumesDir,omitempty"`
	// ContainerLogsDir holds the flat links to container logs; none when "-".
	ContainerLogsDir string `json:"containerLogsDir,omitempty"`
	// RunDir holds what a reboot may take: sockets, pid files, pinned
	// namespaces.
	RunDir string `json:"runDir,omitempty"`
	// CNIConfDir and CNIBinDir are where third-party networks are found.
	CNIConfDir string `json:"cniConfDir,omitempty"`
	CNIBinDir  string `json:"cniBinDir,omitempty"`
	// RuntimeRequestTimeout is how long a request of the container runtime may take, and
	// a plugin of a third-party network; twice that where a sandbox is made, as
	// the kubelet has it.
	RuntimeRequestTimeout metav1.Duration `json:"runtimeRequestTimeout,omitempty"`
	// PodNetwork is what connects pods where CNIConfDir holds no configuration:
	// builtin, or none, so that the node is not ready until there is one.
	PodNetwork string `json:"podNetwork,omitempty"`
	// ImagesDir holds archives that are imported at start.
	ImagesDir string `json:"imagesDir,omitempty"`

	// RegistryConfigDir says how registries are reached: mirrors, certificates
	// (containerd's hosts.toml, one directory a registry, and _default).
	RegistryConfigDir string `json:"registryConfigDir,omitempty"`

	// CgroupRoot is the parent of the kubepods cgroup, "" for the top.
	CgroupRoot string `json:"cgroupRoot,omitempty"`
	// CgroupDriver is cgroupfs or, where control groups are v2, systemd. An
	// outside runtime tells its own.
	CgroupDriver string `json:"cgroupDriver,omitempty"`
	// ContainerRuntimeEndpoint is a CRI socket that takes the place of the
	// runtime in process.
	ContainerRuntimeEndpoint string `json:"containerRuntimeEndpoint,omitempty"`
	// ImageServiceEndpoint is a CRI socket for images where it is not that of the outside
	// runtime.
	ImageServiceEndpoint string `json:"imageServiceEndpoint,omitempty"`
	// RuntimeHandlers are programs that run containers as runc does, by the
	// name that a RuntimeClass's handler gives; options of the program may follow it. runc
	// and crun are there if they are installed; the name "" makes another one the default.
	RuntimeHandlers map[string]string `json:"runtimeHandlers,omitempty"`

	Address            string `json:"address,omitempty"`
	Port               int    `json:"port,omitempty"`
	TLSCertFile        string `json:"tlsCertFile,omitempty"`
	TLSPrivateKeyFile  string `json:"tlsPrivateKeyFile,omitempty"`
	ServerTLSBootstrap *bool  `json:"serverTLSBootstrap,omitempty"`
	ClientCAFile       string `json:"clientCAFile,omitempty"`
	StaticPodPath      string `json:"staticPodPath,omitempty"`
	// StaticPodURL is a server that has manifests, StaticPodURLHeader what requests to it
	// say, HTTPCheckFrequency the time between them.
	StaticPodURL       string              `json:"staticPodURL,omitempty"`
	StaticPodURLHeader map[string][]string `json:"staticPodURLHeader,omitempty"`
	HTTPCheckFrequency metav1.Duration     `json:"httpCheckFrequency,omitzero"`
	// FileCheckFrequency is how often StaticPodPath is read where the kernel tells of no
	// change in it; 0: it always does.
	FileCheckFrequency metav1.Duration `json:"fileCheckFrequency,omitzero"`
	// EnableSystemLogHandler has the kubelet's API show the node's /var/log; on unless
	// the file says false.
	EnableSystemLogHandler *bool `json:"enableSystemLogHandler,omitempty"`
	// EnableSystemLogQuery has it show the journal of systemd's units, too (KEP-2258).
	EnableSystemLogQuery bool `json:"enableSystemLogQuery,omitempty"`

	MaxPods            int   `json:"maxPods,omitempty"`
	EnableServiceProxy *bool `json:"enableServiceProxy,omitempty"`
	// EnableNetworkPolicy has NetworkPolicies enforced on pods of the own network; on
	// unless the file says false.
	EnableNetworkPolicy *bool `json:"enableNetworkPolicy,omitempty"`
	// Gateway is about Gateways and Ingresses.
	Gateway Gateway `json:"gateway,omitzero"`
	// ProxyHealthzBindAddress and ProxyMetricsBindAddress are healthzBindAddress and
	// metricsBindAddress of kube-proxy's configuration; "" serves nothing.
	ProxyHealthzBindAddress string    `json:"proxyHealthzBindAddress"`
	ProxyMetricsBindAddress string    `json:"proxyMetricsBindAddress"`
	Conntrack               Conntrack `json:"conntrack,omitzero"`
	// NodePortAddresses is nodePortAddresses of kube-proxy's configuration (SVC-39): ranges
	// of the node's addresses on which NodePorts and the health checks of Services answer,
	// or the word primary alone, for the node's own IPs. Without a range of a family every
	// address of it counts.
	NodePortAddresses []string `json:"nodePortAddresses,omitempty"`

	ClusterDNS    []string `json:"clusterDNS,omitempty"`
	ClusterDomain string   `json:"clusterDomain,omitempty"`
	ResolvConf    string   `json:"resolvConf,omitempty"`
	// UpstreamNameservers are asked for names outside the cluster instead of those of
	// resolvConf, StubDomains are domains with servers of their own: as in the ConfigMap
	// of kube-dns.
	UpstreamNameservers []string            `json:"upstreamNameservers,omitempty"`
	StubDomains         map[string][]string `json:"stubDomains,omitempty"`
	// DNSSearchCompletion is for which names a pod's search domains are looked through
	// at its first question: None, LongNames or AllNames.
	DNSSearchCompletion string `json:"dnsSearchCompletion,omitempty"`
	// DNSHostsFile is a file as /etc/hosts whose names are answered too.
	DNSHostsFile string `json:"dnsHostsFile,omitempty"`

	// Ranges of pods on this node, of all pods, and of Services: one, or one of each family
	// with a comma between, the primary family's first.
	PodCIDR     string `json:"podCIDR,omitempty"`
	ClusterCIDR string `json:"clusterCIDR,omitempty"`
	ServiceCIDR string `json:"serviceCIDR,omitempty"`
	// Bridge and NFTable name what the agent makes in the host's network, so
	// that several clusters can share one host.
	Bridge  string `json:"bridge,omitempty"`
	NFTable string `json:"nfTable,omitempty"`
	// PodMTU is that of pods' interfaces; 0: what fits into the node's own, and into the
	// tunnels that it uses.
	PodMTU int `json:"podMTU,omitempty"`
	// VXLANPort and VXLANID are those of tunnels to nodes on other networks, the same on
	// all nodes (RFC 7348).
	VXLANPort int `json:"vxlanPort,omitempty"`
	VXLANID   int `json:"vxlanID,omitempty"`
	// Encryption has what goes between pods of two nodes encrypted, where both say so.
	// WireGuardPort is this node's UDP port for it.
	Encryption    bool `json:"encryption,omitempty"`
	WireGuardPort int  `json:"wireGuardPort,omitempty"`

	// HostFirewall says whether other programs' firewalls on the node (firewalld, chains of
	// iptables) are made to let pods of the built-in network through: open or leave.
	HostFirewall string `json:"hostFirewall,omitempty"`

	// ReverseConnection says whether coordinators reach the kubelet's API by connections that
	// the agent keeps to them: where they cannot dial the node (auto), always, or never.
	ReverseConnection string `json:"reverseConnection,omitempty"`

	GossipPort    int      `json:"gossipPort,omitempty"`
	GossipKeyFile string   `json:"gossipKeyFile,omitempty"`
	Join          []string `json:"join,omitempty"`
	// GossipInsecure lets the gossip believe members that prove nothing, and
	// listen without a key.
	GossipInsecure bool `json:"gossipInsecure,omitempty"`

	// RegisterNode has the agent make its Node; else it waits until somebody has.
	RegisterNode              *bool             `json:"registerNode,omitempty"`
	NodeLabels                map[string]string `json:"nodeLabels,omitempty"`
	RegisterWithTaints        []string          `json:"registerWithTaints,omitempty"`
	NodeLeaseDurationSeconds  int32             `json:"nodeLeaseDurationSeconds,omitempty"`
	NodeStatusReportFrequency metav1.Duration   `json:"nodeStatusReportFrequency,omitempty"`
	NodeStatusMaxImages       int               `json:"nodeStatusMaxImages,omitempty"`
	SystemReserved            map[string]string `json:"systemReserved,omitempty"`
	KubeReserved              map[string]string `json:"kubeReserved,omitempty"`
	// MemoryReservationPolicy TieredReservation keeps what pods ask for of memory from being
	// reclaimed by the kernel, on cgroup v2: of Guaranteed pods in any case, of Burstable ones
	// as long as there is other memory; None: nothing is kept.
	MemoryReservationPolicy string `json:"memoryReservationPolicy,omitempty"`
	// MemoryThrottlingFactor slows a container down before its limit of memory, at this part
	// of the way from what it asks for to the limit (0 to 1), on cgroup v2; nil: none is.
	MemoryThrottlingFactor *float64 `json:"memoryThrottlingFactor,omitempty"`
	// IOLatencyTargets are how long the node's disks may take for a request of pods of a class
	// of service before the kernel slows the classes with longer targets, on cgroup v2
	// (io.latency).
	IOLatencyTargets map[corev1.PodQOSClass]metav1.Duration `json:"ioLatencyTargets,omitempty"`
	// CPUManagerPolicy static gives containers of pods of the class Guaranteed that ask for
	// whole CPUs these for themselves; none: nobody has CPUs for itself.
	CPUManagerPolicy        string            `json:"cpuManagerPolicy,omitempty"`
	CPUManagerPolicyOptions map[string]string `json:"cpuManagerPolicyOptions,omitempty"`
	// ReservedSystemCPUs are those of the system, a list as 0-1,4; they count instead of the
	// cpu of SystemReserved and KubeReserved.
	ReservedSystemCPUs string `json:"reservedSystemCPUs,omitempty"`
	// MemoryManagerPolicy Static keeps containers of pods of the class Guaranteed on NUMA
	// nodes that have the memory for them; None: on none.
	MemoryManagerPolicy string `json:"memoryManagerPolicy,omitempty"`
	// ReservedMemory is what the system keeps of each NUMA node; without it what is reserved
	// of memory is taken of all in proportion to their size.
	ReservedMemory []MemoryReservation `json:"reservedMemory,omitempty"`
	// TopologyManagerPolicy tells which containers run whose CPUs, memory and devices are on
	// several NUMA nodes: none, best-effort, restricted or single-numa-node.
	// TopologyManagerScope is what is to be on them together: container or pod.
	TopologyManagerPolicy        string            `json:"topologyManagerPolicy,omitempty"`
	TopologyManagerScope         string            `json:"topologyManagerScope,omitempty"`
	TopologyManagerPolicyOptions map[string]string `json:"topologyManagerPolicyOptions,omitempty"`
	// CPUCFSQuota enforces limits of CPU, on unless the file says false, by quotas of
	// CPUCFSQuotaPeriod.
	CPUCFSQuota       *bool           `json:"cpuCFSQuota,omitempty"`
	CPUCFSQuotaPeriod metav1.Duration `json:"cpuCFSQuotaPeriod,omitempty"`

	// FailSwapOn has the agent not start where the machine has swap; unlike the kubelet's it
	// is off unless the file says true. MemorySwap tells whether pods use it.
	FailSwapOn bool       `json:"failSwapOn,omitempty"`
	MemorySwap MemorySwap `json:"memorySwap,omitzero"`

	// EvictionHard and EvictionSoft have pods evicted when less than that is left of a
	// signal, by its name. EvictionHard of a file stands for all of the defaults, unless
	// MergeDefaultEvictionSettings keeps those that it does not name.
	EvictionHard                 map[string]string `json:"evictionHard,omitempty"`
	EvictionSoft                 map[string]string `json:"evictionSoft,omitempty"`
	EvictionSoftGracePeriod      map[string]string `json:"evictionSoftGracePeriod,omitempty"`
	EvictionMinimumReclaim       map[string]string `json:"evictionMinimumReclaim,omitempty"`
	MergeDefaultEvictionSettings bool              `json:"mergeDefaultEvictionSettings,omitempty"`
	// EvictionMaxPodGracePeriod is how long a pod may take to end for a soft threshold,
	// in seconds.
	EvictionMaxPodGracePeriod        int32           `json:"evictionMaxPodGracePeriod,omitempty"`
	EvictionPressureTransitionPeriod metav1.Duration `json:"evictionPressureTransitionPeriod,omitempty"`
	// EvictionMemoryStall has a pod evicted when all tasks of the machine that have work to
	// do waited for memory for this share of EvictionMemoryStallPeriod, as 60%; "", 0% and
	// 100%: never.
	EvictionMemoryStall       string          `json:"evictionMemoryStall"`
	EvictionMemoryStallPeriod metav1.Duration `json:"evictionMemoryStallPeriod,omitempty"`

	// ImageGCHighThresholdPercent is how full the disk of images is when unused ones
	// are deleted until it is ImageGCLowThresholdPercent full, the percentages of the
	// disk; 100: never.
	ImageGCHighThresholdPercent int             `json:"imageGCHighThresholdPercent,omitempty"`
	ImageGCLowThresholdPercent  int             `json:"imageGCLowThresholdPercent,omitempty"`
	ImageMinimumGCAge           metav1.Duration `json:"imageMinimumGCAge,omitempty"`
	ImageMaximumGCAge           metav1.Duration `json:"imageMaximumGCAge,omitempty"`

	// MaximumDeadContainersPerContainer is how many ended runs of a container are kept while
	// its pod is there, MaximumDeadContainers how many of the whole node; negative: any
	// number. They do not count before they are MinimumContainerTTLDuration old.
	MinimumContainerTTLDuration       metav1.Duration `json:"minimumContainerTTLDuration,omitempty"`
	MaximumDeadContainersPerContainer int             `json:"maximumDeadContainersPerContainer"`
	MaximumDeadContainers             int             `json:"maximumDeadContainers"`

	// SeccompDefault gives containers that name no seccomp profile the runtime's
	// default one. It is on unless the file says false.
	SeccompDefault *bool `json:"seccompDefault,omitempty"`
	// PodPidsLimit is how many processes and threads a pod may have, -1: as many
	// as the node.
	PodPidsLimit *int64 `json:"podPidsLimit,omitempty"`
	// UserNamespaces is of pods with users of their own.
	UserNamespaces UserNamespaces `json:"userNamespaces,omitzero"`

	// SerializeImagePulls has one image pulled at one time. MaxParallelImagePulls is how
	// many else: 10 unless the file says. Others wait for their turn (ParallelImagePulls).
	SerializeImagePulls   bool `json:"serializeImagePulls,omitempty"`
	MaxParallelImagePulls int  `json:"maxParallelImagePulls,omitempty"`
	// P2PImages has layers fetched from nodes that have them, and given to others; on unless
	// the file says false. P2PImagesUploadRate is how many bytes a second all others together
	// get from here, 0: no limit.
	P2PImages           *bool  `json:"p2pImages,omitempty"`
	P2PImagesUploadRate string `json:"p2pImagesUploadRate,omitempty"`

	// EndpointRemovalWait bounds how long a pod that ends behind a Service runs on until no
	// node sends new connections to it, half of its grace period in any case; 0: it is told
	// to end at once. A pod's annotation says another time (agent/withdraw).
	EndpointRemovalWait metav1.Duration `json:"endpointRemovalWait"`

	// WatchdogDevice is written to while pods that must be stopped in time are as they
	// should be (docs/fencing.md); empty: none. ResetUnstoppable resets the machine when
	// they cannot be stopped.
	WatchdogDevice   string `json:"watchdogDevice,omitempty"`
	ResetUnstoppable bool   `json:"resetUnstoppable,omitempty"`
	// SingleProcessOOMKill has the kernel end one process for lack of memory,
	// not the container as a whole. It does so anyway where groups are v1.
	SingleProcessOOMKill bool `json:"singleProcessOOMKill,omitempty"`

	// VolumeHealth has storage drivers asked each minute whether something is wrong
	// with their volumes.
	VolumeHealth bool `json:"volumeHealth,omitempty"`

	// ContainerLogMaxSize is what a container's log never passes: another is begun before;
	// ContainerLogMaxFiles how many there are then.
	ContainerLogMaxSize  string `json:"containerLogMaxSize,omitempty"`
	ContainerLogMaxFiles int    `json:"containerLogMaxFiles,omitempty"`
	// PodLogsMaxSize is what all logs of the node may take; empty: any. Those that
	// containers write now stay.
	PodLogsMaxSize string `json:"podLogsMaxSize,omitempty"`
	// DeletedPodLogMaxAge is how long logs can be read when their pod is gone, 0: not at all.
	DeletedPodLogMaxAge metav1.Duration `json:"deletedPodLogMaxAge"`

	ShutdownGracePeriod             metav1.Duration `json:"shutdownGracePeriod,omitempty"`
	ShutdownGracePeriodCriticalPods metav1.Duration `json:"shutdownGracePeriodCriticalPods,omitempty"`
	// ShutdownGracePeriodByPodPriority, if given, counts instead of the two.
	ShutdownGracePeriodByPodPriority []ShutdownGracePeriod `json:"shutdownGracePeriodByPodPriority,omitempty"`

	// MaxContainerRestartPeriod caps the crash loop back-off (KEP-4603).
	MaxContainerRestartPeriod metav1.Duration `json:"maxContainerRestartPeriod,omitempty"`
	// AllowedUnsafeSysctls are sysctls or patterns that pods may set beside
	// the safe ones.
	AllowedUnsafeSysctls []string `json:"allowedUnsafeSysctls,omitempty"`
	// ImagePullCredentialsVerificationPolicy tells which images that are on
	// the node need a pod's own pull secret (KEP-2535), and
	// PreloadedImagesVerificationAllowlist those that never do.
	ImagePullCredentialsVerificationPolicy string   `json:"imagePullCredentialsVerificationPolicy,omitempty"`
	PreloadedImagesVerificationAllowlist   []string `json:"preloadedImagesVerificationAllowlist,omitempty"`
	// ImageCredentialProviderConfig is the kubelet's CredentialProviderConfig, a file or a
	// directory of files, of programs in ImageCredentialProviderBinDir that are asked for
	// logins at registries; empty: none are.
	ImageCredentialProviderConfig string `json:"imageCredentialProviderConfig,omitempty"`
	ImageCredentialProviderBinDir string `json:"imageCredentialProviderBinDir,omitempty"`
	// LogLevel is debug, info, warn or error.
	LogLevel string `json:"logLevel,omitempty"`
	// LoggingFormat is text, or json: an object a line as upstream's components write it.
	LoggingFormat string `json:"loggingFormat,omitempty"`
	// Tracing is the kubelet's field of that name; nil: nothing is traced.
	Tracing *Tracing `json:"tracing,omitempty"`

	Hollow Hollow `json:"-"`
}

// Conntrack is how the kernel remembers flows, by the fields of kube-proxy's configuration;
// 0 leaves what it has.
type Conntrack struct {
	// MaxPerCore flows for each processor, Min at least, are remembered.
	MaxPerCore            int32           `json:"maxPerCore"`
	Min                   int32           `json:"min"`
	TCPEstablishedTimeout metav1.Duration `json:"tcpEstablishedTimeout"`
	TCPCloseWaitTimeout   metav1.Duration `json:"tcpCloseWaitTimeout"`
	TCPBeLiberal          bool            `json:"tcpBeLiberal"`
	UDPTimeout            metav1.Duration `json:"udpTimeout"`
	UDPStreamTimeout      metav1.Duration `json:"udpStreamTimeout"`
}

// mostFlows are as many as v1.36 of kube-proxy asks for by the number of processors.
const mostFlows = 1 << 20

// Max is how many flows a machine of so many processors shall remember, 0 for as many as the
// kernel likes.
func (c Conntrack) Max(processors int) int {
	if c.MaxPerCore <= 0 {
		return 0
	}
	return max(min(int(c.MaxPerCore)*processors, mostFlows), int(c.Min))
}

// Values of MemoryReservationPolicy.
const (
	ReserveNone   = "None"
	ReserveTiered = "TieredReservation"
)

// MemorySwap tells how much swap pods use (KEP-2400).
type MemorySwap struct {
	// SwapBehavior NoSwap keeps pods from it. With LimitedSwap a container of a Burstable pod
	// may use as much of it in proportion as it asks for of the machine's memory.
	SwapBehavior string `json:"swapBehavior,omitempty"`
}

// UserNamespaces is of pods with users of their own (KEP-127).
type UserNamespaces struct {
	// IDsPerPod is how many users and groups such a pod gets: a multiple of 65536, which is
	// the default. Pods that have others already keep them.
	IDsPerPod *int64 `json:"idsPerPod,omitempty"`
}

// UsersPerPod is the default of IDsPerPod, and what it is a multiple of.
const UsersPerPod = 1 << 16

// Users is IDsPerPod, 0 for the default.
func (u UserNamespaces) Users() uint32 {
	if u.IDsPerPod == nil {
		return 0
	}
	return uint32(*u.IDsPerPod)
}

// MemoryReservation is what the system keeps of a NUMA node, by memory and hugepages-SIZE.
type MemoryReservation struct {
	NumaNode int               `json:"numaNode"`
	Limits   map[string]string `json:"limits"`
}

// Tracing says where spans go, and how many begin here.
type Tracing struct {
	// Endpoint of an OpenTelemetry collector; localhost:4317 when empty.
	Endpoint string `json:"endpoint,omitempty"`
	// SamplingRatePerMillion is for traces that no caller has begun.
	SamplingRatePerMillion int32 `json:"samplingRatePerMillion,omitempty"`
}

// ShutdownGracePeriod is the time in seconds that pods of a priority and
// above have when the machine shuts down.
type ShutdownGracePeriod struct {
	Priority                   int32 `json:"priority"`
	ShutdownGracePeriodSeconds int64 `json:"shutdownGracePeriodSeconds"`
}

// Kind and APIVersion of agent.yaml, both optional in the file.
const (
	Kind       = "AgentConfiguration"
	APIVersion = "agent.shoal-project.io/v1alpha1"
)

// Values of ReverseConnection.
const (
	ReverseAuto   = "auto"
	ReverseAlways = "always"
	ReverseNever  = "never"
)

// Values of HostFirewall.
const (
	OpenFirewall  = "open"
	LeaveFirewall = "leave"
)

// Values of PodNetwork.
const (
	BuiltinNetwork = "builtin"
	NoNetwork      = "none"
)

// Values of CPUManagerPolicy, MemoryManagerPolicy and TopologyManagerPolicy.
const (
	ManagerNone       = "none"
	CPUManagerStatic  = "static"
	MemoryManagerNone = "None"
	MemoryManagerOn   = "Static"
)

// Values of MemorySwap.SwapBehavior.
const (
	NoSwap      = "NoSwap"
	LimitedSwap = "LimitedSwap"
)

// Default returns the configuration of an agent on a machine of its own.
func Default() Config {
	yes, registers := true, true // the second is a flag's
	pids := int64(4096)
	return Config{
		TypeMeta:          metav1.TypeMeta{Kind: Kind, APIVersion: APIVersion},
		DataDir:           "/var/lib/shoal/agent",
		RootDir:           "/var/lib/kubelet",
		PodLogsDir:        "/var/log/pods",
		ContainerLogsDir:  "/var/log/containers",
		RunDir:            "/run/shoal",
		CNIConfDir:        "/etc/cni/net.d",
		CNIBinDir:         "/opt/cni/bin",
		PodNetwork:        BuiltinNetwork,
		HostFirewall:      OpenFirewall,
		ReverseConnection: ReverseAuto,
		ImagesDir:         "/var/lib/shoal/images",
		RegistryConfigDir: "/etc/containerd/certs.d",
		CgroupDriver:      "cgroupfs",
		Address:           "0.0.0.0", Port: 10250,
		MaxPods:             110,
		RegisterNode:        &registers,
		EnableServiceProxy:  &yes,
		EnableNetworkPolicy: &yes,

		EnableSystemLogHandler:  &yes,
		ProxyHealthzBindAddress: "0.0.0.0:10256",
		ProxyMetricsBindAddress: "127.0.0.1:10249",
		Conntrack: Conntrack{
			MaxPerCore:            32768,
			Min:                   131072,
			TCPEstablishedTimeout: metav1.Duration{Duration: 24 * time.Hour},
			TCPCloseWaitTimeout:   metav1.Duration{Duration: time.Hour},
		},

		ClusterDNS:    []string{"10.96.0.10"},
		ClusterDomain: "cluster.local",
		ResolvConf:    "/etc/resolv.conf",

		DNSSearchCompletion: CompleteLongNames,

		ClusterCIDR: "10.244.0.0/16",
		ServiceCIDR: "10.96.0.0/16",
		Bridge:      "shoal0",
		NFTable:     "shoal",
		GossipPort:  7946,

		VXLANPort:     4789,
		VXLANID:       1,
		WireGuardPort: 51820,

		NodeLeaseDurationSeconds:  40,
		NodeStatusReportFrequency: metav1.Duration{Duration: 5 * time.Minute},
		NodeStatusMaxImages:       50,
		MemorySwap:                MemorySwap{SwapBehavior: NoSwap},
		CPUManagerPolicy:          ManagerNone,
		MemoryReservationPolicy:   ReserveNone,
		MemoryManagerPolicy:       MemoryManagerNone,
		TopologyManagerPolicy:     ManagerNone,
		TopologyManagerScope:      "container",
		CPUCFSQuota:               &yes,
		CPUCFSQuotaPeriod:         metav1.Duration{Duration: 100 * time.Millisecond},
		EvictionHard: map[string]string{
			"memory.available": "100Mi", "nodefs.available": "10%",
			"nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%",
		},
		EvictionPressureTransitionPeriod: metav1.Duration{Duration: 5 * time.Minute},
		RuntimeRequestTimeout:            metav1.Duration{Duration: 2 * time.Minute},
		HTTPCheckFrequency:               metav1.Duration{Duration: 20 * time.Second},
		FileCheckFrequency:               metav1.Duration{Duration: 20 * time.Second},
		DeletedPodLogMaxAge:              metav1.Duration{Duration: 10 * time.Minute},
		EvictionMemoryStall:              "60%", // as systemd-oomd's defaults
		EvictionMemoryStallPeriod:        metav1.Duration{Duration: 30 * time.Second},
		ImageGCHighThresholdPercent:      85,
		ImageGCLowThresholdPercent:       80,
		ImageMinimumGCAge:                metav1.Duration{Duration: 2 * time.Minute},

		MaximumDeadContainersPerContainer: 1,
		MaximumDeadContainers:             -1,

		SeccompDefault:            &yes,
		PodPidsLimit:              &pids,
		P2PImagesUploadRate:       "100Mi",
		EndpointRemovalWait:       metav1.Duration{Duration: 5 * time.Second},
		ContainerLogMaxSize:       "10Mi",
		ContainerLogMaxFiles:      5,
		MaxContainerRestartPeriod: metav1.Duration{Duration: 5 * time.Minute},
		LogLevel:                  "info",
		LoggingFormat:             "text",
		Hollow:                    defaultHollow(),
	}
}

// Load reads the file at path over c. Unknown fields are errors.
func (c *Config) Load(path string) error {
	return c.read(path, func(data []byte) error { return yaml.UnmarshalStrict(data, c) })
}

// LoadKnown reads what it knows of the file at path over c: another version may
// have written it.
func (c *Config) LoadKnown(path string) error {
	return c.read(path, func(data []byte) error { return yaml.Unmarshal(data, c) })
}

// apply reads a file, if there is one, over c, and the files of a directory over that.
func (c *Config) apply(file, dir string, known bool) error {
	load := c.Load
	if known {
		load = c.LoadKnown
	}
	if file != "" {
		if err := load(file); err != nil {
			return err
		}
	}
	if dir == "" {
		return nil
	}
	return c.loadDir(dir, known)
}

func (c *Config) read(path string, decode func([]byte) error) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	if len(bytes.TrimSpace(data)) == 0 { // as after a power cut: it would begin as another node
		return fmt.Errorf("configuration %s: it is empty; write it again, or leave a comment in it for the defaults",
			path)
	}
	hard := c.EvictionHard
	c.EvictionHard = nil
	if err := decode(data); err != nil {
		return fmt.Errorf("configuration %s: %w", path, err)
	}
	if c.EvictionHard == nil {
		c.EvictionHard = hard
	} else if c.MergeDefaultEvictionSettings {
		own := c.EvictionHard
		c.EvictionHard = maps.Clone(hard)
		maps.Copy(c.EvictionHard, own)
	}
	return nil
}

// VolumesDir is where the storage driver that ships with Shoal keeps volumes, "" for
// nowhere.
func (c *Config) VolumesDir() string {
	switch c.LocalVolumesDir {
	case "-":
		return ""
	case "":
		return filepath.Join(c.DataDir, "local-volumes")
	}
	return c.LocalVolumesDir
}

// CheckpointDir holds the records that start pods without a coordinator.
func (c *Config) CheckpointDir() string { return filepath.Join(c.DataDir, "checkpoint") }

// ClusterCAs is the file of the cluster's CAs that came after those of the kubeconfig.
func (c *Config) ClusterCAs() string { return filepath.Join(c.DataDir, "cluster-ca.crt") }

// RotatedCertificate is the file of the client certificate that the agent has asked for
// after the kubeconfig's.
func (c *Config) RotatedCertificate() string { return filepath.Join(c.DataDir, "kubelet-client.pem") }

// LeavingMark is the file that says, when the agent is stopped, that its node leaves the
// cluster for good.
func (c *Config) LeavingMark() string { return filepath.Join(c.DataDir, "leaving") }

// CheckpointKey is the file of the key that records are sealed with.
func (c *Config) CheckpointKey() string {
	if c.CheckpointKeyFile != "" {
		return c.CheckpointKeyFile
	}
	return filepath.Join(c.DataDir, "checkpoint.key")
}

// KeepSecrets tells whether Secrets and tokens are in the checkpoint.
func (c *Config) KeepSecrets() bool { return c.CheckpointSecrets == nil || *c.CheckpointSecrets }

// PodDir is the directory of one pod under the kubelet's root directory.
func (c *Config) PodDir(uid string) string { return filepath.Join(c.RootDir, "pods", uid) }

// Values of DNSSearchCompletion.
const (
	CompleteNone      = "None"
	CompleteLongNames = "LongNames" // of three labels and more
	CompleteAllNames  = "AllNames"  // of two labels, too
)

// Proxy tells whether the agent programs Services and answers DNS.
func (c *Config) Proxy() bool { return c.EnableServiceProxy == nil || *c.EnableServiceProxy }

// Registers tells whether the agent makes its Node.
func (c *Config) Registers() bool { return c.RegisterNode == nil || *c.RegisterNode }

// PrimaryAddresses is the word for the node's own IPs in NodePortAddresses.
const PrimaryAddresses = "primary"

// Policies tells whether the agent enforces NetworkPolicies.
func (c *Config) Policies() bool { return c.EnableNetworkPolicy == nil || *c.EnableNetworkPolicy }

// Seccomp tells whether containers without a profile get the default one.
func (c *Config) Seccomp() bool { return c.SeccompDefault == nil || *c.SeccompDefault }

// MemoryStallShare is EvictionMemoryStall from 0 to 1, 0 for never.
func (c *Config) MemoryStallShare() (float64, error) {
	if c.EvictionMemoryStall == "" {
		return 0, nil
	}
	number, percent := strings.CutSuffix(c.EvictionMemoryStall, "%")
	f, err := strconv.ParseFloat(number, 64)
	if !percent || err != nil || !(f >= 0 && f <= 100) {
		return 0, fmt.Errorf("%q is not a percentage, such as 60%%; empty: no pod is evicted for it",
			c.EvictionMemoryStall)
	}
	if f == 100 {
		return 0, nil
	}
	return f / 100, nil
}

// CFSQuota tells whether limits of CPU are enforced.
func (c *Config) CFSQuota() bool { return c.CPUCFSQuota == nil || *c.CPUCFSQuota }

// BootstrapsTLS tells whether the cluster is asked to sign the certificate of the
// kubelet's API, where no file gives one.
func (c *Config) BootstrapsTLS() bool { return c.ServerTLSBootstrap == nil || *c.ServerTLSBootstrap }

// Complete fills what depends on the host.
func (c *Config) Complete() error {
	if c.NodeName == "" {
		h, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("node name: %w", err)
		}
		c.NodeName = h
	}
	c.NodeName = strings.ToLower(strings.TrimSpace(c.NodeName))
	return nil
}
