package launch

import (
	"io/fs"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/logs"
	"github.com/shoal-project/shoal/agent/volume"
)

// Facts is all that one container is made of.
type Facts struct {
	Host      *Host
	Pod       *corev1.Pod
	Container *corev1.Container
	// Attempt counts the container's runs, from 0.
	Attempt uint32
	// Image is what the container is created from.
	Image *criv1.Image
	// PodIPs are those of the pod's sandbox.
	PodIPs []string
	// Target is the container whose PID namespace an ephemeral one joins.
	Target string
	// Users are those that the pod has on the node instead of the node's own.
	Users Users
	Sources
}

// Sources answer what only the container's spec tells to ask for. A missing
// object is an apimachinery not-found error.
type Sources struct {
	ConfigMap func(name string) (*corev1.ConfigMap, error)
	Secret    func(name string) (*corev1.Secret, error)
	// Services gives all services, false while they are not known.
	Services func() ([]*corev1.Service, bool)
	// Volume tells where a volume is on the host, SubPath where a part of it
	// is, which is bound there first.
	Volume  func(name string) (string, error)
	SubPath func(s volume.SubPath) (string, error)
	// Relabel tells whether a volume's files have to be given the container's SELinux
	// label.
	Relabel func(name string) bool
	// Group tells of which group those are who have a volume, if of any.
	Group func(name string) (gid int64, ok bool)
	// EnvFile reads a variable of a file in a volume; volume.ErrNoKey when it
	// is not there.
	EnvFile func(volumeName, path, key string) (string, error)
	// CDI tells the names of the devices that drivers have prepared for a container
	// (container device interface).
	CDI func(c *corev1.Container) ([]string, error)
	// Plugged tells what a container gets with the devices that device plugins have
	// allocated to it: variables, mounts, devices, annotations, CDI devices; nil for
	// nothing. It readies them for a start of the container.
	Plugged func(c *corev1.Container) (*criv1.ContainerConfig, error)
	// Pinned tells which CPUs and memory a container is kept on; nil: on none.
	Pinned func(c *corev1.Container) Pinned
	// NodeHosts is the node's own /etc/hosts.
	NodeHosts func() ([]byte, error)
}

// Pinned is what of the machine a container is kept on, in lists as the kernel writes them;
// an empty one keeps it on nothing.
type Pinned struct {
	// CPUs and Mems are for cpuset.cpus and cpuset.mems.
	CPUs, Mems string
	// Exclusive: nobody else is on these CPUs, so that no quota is needed.
	Exclusive bool
}

// Quota is what is left of a container's quota of CPU time: none where it has CPUs for itself.
func (p Pinned) Quota(quota int64) int64 {
	if p.Exclusive {
		return unlimited
	}
	return quota
}

// SandboxFacts is all that one sandbox is made of.
type SandboxFacts struct {
	Host *Host
	Pod  *corev1.Pod
	// Attempt counts the pod's sandboxes, from 0.
	Attempt uint32
	// Users are those that the pod has on the node instead of the node's own.
	Users Users
	// NodeResolver is the node's own resolver configuration.
	NodeResolver func() ([]byte, error)
	// Warn is told, for an event, where the pod's resolver is not what it asks for; nil: nobody is.
	Warn func(reason, message string)
}

// Host is what pods take from the node they run on.
type Host struct {
	NodeName string
	Hostname string
	// IPs are the node's addresses, the first is the main one.
	IPs []string
	// MemoryBytes is the node's capacity.
	MemoryBytes int64
	Allocatable corev1.ResourceList
	// PageSizes are the sizes of the node's huge pages, as in "2Mi".
	PageSizes []string
	// UsersPerPod is how many users a pod with its own gets; 0: the default, 65536.
	UsersPerPod uint32

	// SELinux: the node has it, and labels containers that ask for it.
	SELinux bool
	// SeccompDefault gives containers that name no profile the runtime's.
	SeccompDefault bool

	// Unified are v2 control files of every container and their values.
	Unified map[string]string
	// Reserve keeps what pods ask for of memory from being reclaimed, Throttle slows a container
	// down at this part of the way from what it asks for to its limit (0: never); KEP-2570.
	Reserve  bool
	Throttle float64
	// SwapBytes is the swap that containers may use together; 0: they use none.
	SwapBytes int64
	CFS       CFS
	// Unthrottled tells whether a pod has CPUs for itself; nil: none has.
	Unthrottled func(*corev1.Pod) bool

	RootDir, PodLogsDir, ContainerLogsDir string
	// LogMaxBytes is the size at which a container's monitor begins its log anew by itself;
	// 0: the runtime's do not.
	LogMaxBytes int64

	ClusterDNS    []string
	ClusterDomain string
	ResolvConf    string
	// CgroupParent is the pod's cgroup, made by a step before the sandbox.
	CgroupParent func(*corev1.Pod) string
}

// LogDir is the directory of the pod's logs.
func (h *Host) LogDir(p *corev1.Pod) string {
	return logs.PodDir(h.PodLogsDir, p.Namespace, p.Name, string(p.UID))
}

// Dir is the pod's directory under the kubelet's root directory.
func (h *Host) Dir(p *corev1.Pod) string { return filepath.Join(h.RootDir, "pods", string(p.UID)) }

// TerminationFile is where the container's last words are on the host.
func (h *Host) TerminationFile(p *corev1.Pod, container string, attempt uint32) string {
	return filepath.Join(h.Dir(p), "containers", container, strconv.Itoa(int(attempt)))
}

// File is a file of the agent's that a container mounts.
type File struct {
	// Name is what errors call it.
	Name, Path string
	Data       []byte
	// Mode is as given, whatever the umask.
	Mode fs.FileMode
}
