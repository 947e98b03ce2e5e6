package main

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/node"
)

// kubeletConfiguration is the agent's configuration in the form that clients of
// /configz know, KubeletConfiguration of kubelet.config.k8s.io/v1beta1: the fields
// that are true of this agent, by their names there. The type itself would bring
// tracing and logging libraries with it.
type kubeletConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	EnableServer       bool            `json:"enableServer"`
	StaticPodPath      string          `json:"staticPodPath,omitempty"`
	StaticPodURL       string          `json:"staticPodURL,omitempty"`
	FileCheckFrequency metav1.Duration `json:"fileCheckFrequency"`
	HTTPCheckFrequency metav1.Duration `json:"httpCheckFrequency"`
	// StaticPodURLHeader may have credentials, and is shown as the kubelet shows it.
	StaticPodURLHeader map[string][]string `json:"staticPodURLHeader,omitempty"`
	PodLogsDir         string              `json:"podLogsDir,omitempty"`

	RuntimeRequestTimeout metav1.Duration `json:"runtimeRequestTimeout"`

	Address            string                `json:"address,omitempty"`
	Port               int                   `json:"port,omitempty"`
	TLSCertFile        string                `json:"tlsCertFile,omitempty"`
	TLSPrivateKeyFile  string                `json:"tlsPrivateKeyFile,omitempty"`
	ServerTLSBootstrap *bool                 `json:"serverTLSBootstrap,omitempty"`
	Authentication     kubeletAuthentication `json:"authentication"`
	Authorization      kubeletAuthorization  `json:"authorization"`

	ImagePullCredentialsVerificationPolicy string `json:"imagePullCredentialsVerificationPolicy,omitempty"`

	PreloadedImagesVerificationAllowlist []string `json:"preloadedImagesVerificationAllowlist,omitempty"`

	EnableDebuggingHandlers      bool                  `json:"enableDebuggingHandlers"`
	EnableSystemLogHandler       *bool                 `json:"enableSystemLogHandler,omitempty"`
	EnableSystemLogQuery         bool                  `json:"enableSystemLogQuery"`
	ClusterDomain                string                `json:"clusterDomain,omitempty"`
	ClusterDNS                   []string              `json:"clusterDNS,omitempty"`
	NodeStatusReportFrequency    metav1.Duration       `json:"nodeStatusReportFrequency"`
	NodeLeaseDurationSeconds     int32                 `json:"nodeLeaseDurationSeconds,omitempty"`
	CgroupRoot                   string                `json:"cgroupRoot,omitempty"`
	CgroupsPerQOS                bool                  `json:"cgroupsPerQOS"`
	CgroupDriver                 string                `json:"cgroupDriver,omitempty"`
	SingleProcessOOMKill         bool                  `json:"singleProcessOOMKill"`
	CPUManagerPolicy             string                `json:"cpuManagerPolicy"`
	CPUManagerPolicyOptions      map[string]string     `json:"cpuManagerPolicyOptions,omitempty"`
	ReservedSystemCPUs           string                `json:"reservedSystemCPUs,omitempty"`
	MemoryManagerPolicy          string                `json:"memoryManagerPolicy"`
	TopologyManagerPolicy        string                `json:"topologyManagerPolicy"`
	TopologyManagerScope         string                `json:"topologyManagerScope"`
	TopologyManagerPolicyOptions map[string]string     `json:"topologyManagerPolicyOptions,omitempty"`
	CPUCFSQuotaPeriod            metav1.Duration       `json:"cpuCFSQuotaPeriod"`
	MemoryReservationPolicy      string                `json:"memoryReservationPolicy"`
	MemoryThrottlingFactor       *float64              `json:"memoryThrottlingFactor,omitempty"`
	FailSwapOn                   bool                  `json:"failSwapOn"`
	MemorySwap                   config.MemorySwap     `json:"memorySwap"`
	MaxPods                      int                   `json:"maxPods,omitempty"`
	PodCIDR                      string                `json:"podCIDR,omitempty"`
	PodPidsLimit                 *int64                `json:"podPidsLimit,omitempty"`
	UserNamespaces               config.UserNamespaces `json:"userNamespaces,omitzero"`
	ResolverConfig               string                `json:"resolvConf,omitempty"`
	CPUCFSQuota                  bool                  `json:"cpuCFSQuota"`
	NodeStatusMaxImages          int                   `json:"nodeStatusMaxImages"`
	SerializeImagePulls          bool                  `json:"serializeImagePulls"`
	MaxParallelImagePulls        int                   `json:"maxParallelImagePulls,omitempty"`
	EvictionHard                 map[string]string     `json:"evictionHard,omitempty"`
	EvictionSoft                 map[string]string     `json:"evictionSoft,omitempty"`
	EvictionSoftGracePeriod      map[string]string     `json:"evictionSoftGracePeriod,omitempty"`
	EvictionMinimumReclaim       map[string]string     `json:"evictionMinimumReclaim,omitempty"`
	EvictionMaxPodGracePeriod    int32                 `json:"evictionMaxPodGracePeriod,omitempty"`
	MergeDefaultEvictionSettings bool                  `json:"mergeDefaultEvictionSettings"`

	EvictionPressureTransitionPeriod metav1.Duration   `json:"evictionPressureTransitionPeriod"`
	ImageGCHighThresholdPercent      int               `json:"imageGCHighThresholdPercent"`
	ImageGCLowThresholdPercent       int               `json:"imageGCLowThresholdPercent"`
	ImageMinimumGCAge                metav1.Duration   `json:"imageMinimumGCAge"`
	ImageMaximumGCAge                metav1.Duration   `json:"imageMaximumGCAge"`
	ContainerLogMaxSize              string            `json:"containerLogMaxSize,omitempty"`
	ContainerLogMaxFiles             int               `json:"containerLogMaxFiles,omitempty"`
	SystemReserved                   map[string]string `json:"systemReserved,omitempty"`
	KubeReserved                     map[string]string `json:"kubeReserved,omitempty"`
	EnforceNodeAllocatable           []string          `json:"enforceNodeAllocatable"`
	AllowedUnsafeSysctls             []string          `json:"allowedUnsafeSysctls,omitempty"`
	ShutdownGracePeriod              metav1.Duration   `json:"shutdownGracePeriod"`
	ShutdownGracePeriodCriticalPods  metav1.Duration   `json:"shutdownGracePeriodCriticalPods"`

	ReservedMemory                   []config.MemoryReservation   `json:"reservedMemory,omitempty"`
	ShutdownGracePeriodByPodPriority []config.ShutdownGracePeriod `json:"shutdownGracePeriodByPodPriority,omitempty"`

	CrashLoopBackOff         kubeletCrashLoopBackOff `json:"crashLoopBackOff"`
	SeccompDefault           bool                    `json:"seccompDefault"`
	RegisterWithTaints       []corev1.Taint          `json:"registerWithTaints,omitempty"`
	RegisterNode             bool                    `json:"registerNode"`
	ContainerRuntimeEndpoint string                  `json:"containerRuntimeEndpoint"`
	ImageServiceEndpoint     string                  `json:"imageServiceEndpoint,omitempty"`
	Tracing                  *config.Tracing         `json:"tracing,omitempty"`
}

type kubeletAuthentication struct {
	X509 struct {
		ClientCAFile string `json:"clientCAFile,omitempty"`
	} `json:"x509"`
	Webhook   enabled `json:"webhook"`
	Anonymous enabled `json:"anonymous"`
}

type enabled struct {
	Enabled bool `json:"enabled"`
}

type kubeletAuthorization struct {
	Mode string `json:"mode"`
}

type kubeletCrashLoopBackOff struct {
	MaxContainerRestartPeriod metav1.Duration `json:"maxContainerRestartPeriod"`
}

// masked are headers without what they say.
func masked(headers map[string][]string) map[string][]string {
	out := map[string][]string{}
	for name := range headers {
		out[name] = []string{"<masked>"}
	}
	return out
}

var kubeletType = metav1.TypeMeta{Kind: "KubeletConfiguration", APIVersion: "kubelet.config.k8s.io/v1beta1"}

// kubeletConfig is what /configz shows.
func kubeletConfig(c *config.Config) kubeletConfiguration {
	k := kubeletConfiguration{
		TypeMeta:                               kubeletType,
		EnableServer:                           c.Port != 0,
		StaticPodPath:                          c.StaticPodPath,
		StaticPodURL:                           c.StaticPodURL,
		FileCheckFrequency:                     c.FileCheckFrequency,
		HTTPCheckFrequency:                     c.HTTPCheckFrequency,
		StaticPodURLHeader:                     masked(c.StaticPodURLHeader),
		PodLogsDir:                             c.PodLogsDir,
		Address:                                c.Address,
		Port:                                   c.Port,
		TLSCertFile:                            c.TLSCertFile,
		TLSPrivateKeyFile:                      c.TLSPrivateKeyFile,
		ServerTLSBootstrap:                     c.ServerTLSBootstrap,
		Authorization:                          kubeletAuthorization{Mode: "Webhook"},
		ImagePullCredentialsVerificationPolicy: c.ImagePullCredentialsVerificationPolicy,
		PreloadedImagesVerificationAllowlist:   c.PreloadedImagesVerificationAllowlist,
		EnableDebuggingHandlers:                true,
		EnableSystemLogHandler:                 c.EnableSystemLogHandler,
		EnableSystemLogQuery:                   c.EnableSystemLogQuery,
		ClusterDomain:                          c.ClusterDomain,
		ClusterDNS:                             c.ClusterDNS,
		NodeStatusReportFrequency:              c.NodeStatusReportFrequency,
		RuntimeRequestTimeout:                  c.RuntimeRequestTimeout,
		NodeLeaseDurationSeconds:               c.NodeLeaseDurationSeconds,
		CgroupRoot:                             c.CgroupRoot,
		CgroupsPerQOS:                          true,
		CgroupDriver:                           c.CgroupDriver,
		SingleProcessOOMKill:                   c.SingleProcessOOMKill,
		CPUManagerPolicy:                       c.CPUManagerPolicy,
		CPUManagerPolicyOptions:                c.CPUManagerPolicyOptions,
		ReservedSystemCPUs:                     c.ReservedSystemCPUs,
		MemoryManagerPolicy:                    c.MemoryManagerPolicy,
		ReservedMemory:                         c.ReservedMemory,
		TopologyManagerPolicy:                  c.TopologyManagerPolicy,
		TopologyManagerScope:                   c.TopologyManagerScope,
		TopologyManagerPolicyOptions:           c.TopologyManagerPolicyOptions,
		CPUCFSQuotaPeriod:                      c.CPUCFSQuotaPeriod,
		MemoryReservationPolicy:                c.MemoryReservationPolicy,
		MemoryThrottlingFactor:                 c.MemoryThrottlingFactor,
		FailSwapOn:                             c.FailSwapOn,
		MemorySwap:                             c.MemorySwap,
		MaxPods:                                c.MaxPods,
		PodCIDR:                                c.PodCIDR,
		PodPidsLimit:                           c.PodPidsLimit,
		UserNamespaces:                         c.UserNamespaces,
		ResolverConfig:                         c.ResolvConf,
		CPUCFSQuota:                            c.CFSQuota(),
		NodeStatusMaxImages:                    c.NodeStatusMaxImages,
		SerializeImagePulls:                    c.ParallelImagePulls() == 1,
		MaxParallelImagePulls:                  c.ParallelImagePulls(),
		EvictionHard:                           c.EvictionHard,
		EvictionSoft:                           c.EvictionSoft,
		EvictionSoftGracePeriod:                c.EvictionSoftGracePeriod,
		EvictionMinimumReclaim:                 c.EvictionMinimumReclaim,
		EvictionMaxPodGracePeriod:              c.EvictionMaxPodGracePeriod,
		MergeDefaultEvictionSettings:           c.MergeDefaultEvictionSettings,
		EvictionPressureTransitionPeriod:       c.EvictionPressureTransitionPeriod,
		ImageGCHighThresholdPercent:            c.ImageGCHighThresholdPercent,
		ImageGCLowThresholdPercent:             c.ImageGCLowThresholdPercent,
		ImageMinimumGCAge:                      c.ImageMinimumGCAge,
		ImageMaximumGCAge:                      c.ImageMaximumGCAge,
		ContainerLogMaxSize:                    c.ContainerLogMaxSize,
		ContainerLogMaxFiles:                   c.ContainerLogMaxFiles,
		SystemReserved:                         c.SystemReserved,
		KubeReserved:                           c.KubeReserved,
		EnforceNodeAllocatable:                 []string{"pods"},
		AllowedUnsafeSysctls:                   c.AllowedUnsafeSysctls,
		ShutdownGracePeriod:                    c.ShutdownGracePeriod,
		ShutdownGracePeriodCriticalPods:        c.ShutdownGracePeriodCriticalPods,
		ShutdownGracePeriodByPodPriority:       c.ShutdownGracePeriodByPodPriority,
		CrashLoopBackOff:                       kubeletCrashLoopBackOff{c.MaxContainerRestartPeriod},
		SeccompDefault:                         c.Seccomp(),
		RegisterWithTaints:                     node.Taints(c.RegisterWithTaints),
		RegisterNode:                           c.Kubeconfig != "" && c.Registers(),
		ContainerRuntimeEndpoint:               c.ContainerRuntimeEndpoint,
		ImageServiceEndpoint:                   c.ImageServiceEndpoint,
		Tracing:                                c.Tracing,
	}
	k.Authentication.X509.ClientCAFile = c.ClientCAFile
	k.Authentication.Webhook.Enabled = c.Kubeconfig != ""
	return k
}
