package node

import (
	"maps"
	"runtime"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/problem"
)

// Version is what the node says of itself: the level of the API and who wrote
// it. The linker may set it.
var Version = "v1.36.3+shoal"

// Input is all that Build looks at.
type Input struct {
	Name  string
	Facts host.Facts
	// ExternalIPs are addresses that reach the node from outside.
	ExternalIPs []string
	Labels      map[string]string
	// Annotations are set beside those that others wrote.
	Annotations map[string]string
	Taints      []corev1.Taint
	MaxPods     int
	Port        int
	Reserved    corev1.ResourceList
	Runtime     string // as in shoal://0.1
	Images      []corev1.ContainerImage
	// Handlers are what RuntimeClasses can ask for, by name.
	Handlers []corev1.NodeRuntimeHandler
	// StrictGroups tells whether the runtime can keep containers out of the groups that
	// their image gives their user (KEP-3619); nil while it says nothing.
	StrictGroups *bool
	// Features are those that status.declaredFeatures names, in order.
	Features []string
	// NotReady is why pods cannot run, "" when they can.
	NotReady string
	// OwnNetwork: the agent's own network connects pods. Network is what is said of it; while
	// it is nil, nobody knows, and what the Node said before stays.
	OwnNetwork bool
	Network    *corev1.NodeCondition
	// InUse are volumes that must not be detached.
	InUse []corev1.UniqueVolumeName
	// Devices are those of device plugins, by resource, HealthyDevices the healthy ones.
	Devices, HealthyDevices corev1.ResourceList
	// Anew: the machine does not remember to have been this node. What its Node still
	// advertises may not be there.
	Anew bool
	// Pressure is what is short: MemoryPressure, DiskPressure, PIDPressure. While it is
	// nil, nobody has looked yet, and what the Node said before stays.
	Pressure map[corev1.NodeConditionType]bool
	// Problems are what is known of the machine itself, well or ill (agent/problem).
	Problems []corev1.NodeCondition
	Now      metav1.Time
}

// Capacity is what the machine has, Allocatable what of it pods may ask for.
func Capacity(f host.Facts, maxPods int, reserved corev1.ResourceList) (capacity, allocatable corev1.ResourceList) {
	capacity = corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(f.CPUs), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(f.MemoryBytes, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(int64(maxPods), resource.DecimalSI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(f.DiskBytes, resource.BinarySI),
	}
	huge := int64(0)
	for size, n := range f.HugePages {
		capacity[corev1.ResourceName(corev1.ResourceHugePagesPrefix+size)] = *resource.NewQuantity(n, resource.BinarySI)
		huge += n
	}
	allocatable = corev1.ResourceList{}
	for name, q := range capacity {
		q = q.DeepCopy()
		if r, ok := reserved[name]; ok {
			q.Sub(r)
		}
		if name == corev1.ResourceMemory {
			q.Sub(*resource.NewQuantity(huge, resource.BinarySI))
		}
		if q.Sign() < 0 {
			q.Set(0)
		}
		allocatable[name] = q
	}
	return capacity, allocatable
}

// Build returns what the Node must be, given what the API has of it (nil when
// it has none). It is pure. Labels and taints of others stay.
func Build(old *corev1.Node, in Input) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: in.Name}}
	if old != nil {
		n = old.DeepCopy()
	} else {
		n.Spec.Taints = append(n.Spec.Taints, in.Taints...)
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	for k, v := range map[string]string{
		corev1.LabelHostname: in.Facts.Hostname, corev1.LabelOSStable: runtime.GOOS,
		corev1.LabelArchStable:  runtime.GOARCH,
		"beta.kubernetes.io/os": runtime.GOOS, "beta.kubernetes.io/arch": runtime.GOARCH,
	} {
		n.Labels[k] = v
	}
	n.Labels[corev1.LabelHostname] = in.Name
	for k, v := range in.Labels {
		n.Labels[k] = v
	}
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations["volumes.kubernetes.io/controller-managed-attach-detach"] = "true"
	maps.Copy(n.Annotations, in.Annotations)
	s := &n.Status
	given := s.Capacity
	s.Capacity, s.Allocatable = Capacity(in.Facts, in.MaxPods, in.Reserved)
	for name, q := range given {
		// What others advertise stays theirs to change and to remove.
		if _, mine := s.Capacity[name]; !mine && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			if in.Anew && strings.Contains(string(name), "/") {
				q = *resource.NewQuantity(0, resource.DecimalSI)
			}
			s.Capacity[name], s.Allocatable[name] = q, q
		}
	}
	maps.Copy(s.Capacity, in.Devices)
	maps.Copy(s.Allocatable, in.HealthyDevices)
	s.Addresses = nil
	for _, ip := range in.Facts.IPs {
		s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	for _, ip := range in.ExternalIPs {
		s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: ip})
	}
	s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: in.Name})
	s.DaemonEndpoints.KubeletEndpoint.Port = int32(in.Port)
	s.NodeInfo = corev1.NodeSystemInfo{
		MachineID: in.Facts.MachineID, SystemUUID: in.Facts.SystemUUID, BootID: in.Facts.BootID,
		KernelVersion: in.Facts.Kernel, OSImage: in.Facts.OSImage, ContainerRuntimeVersion: in.Runtime,
		KubeletVersion: Version, OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
	}
	if in.Facts.SwapBytes > 0 {
		swap := in.Facts.SwapBytes
		s.NodeInfo.Swap = &corev1.NodeSwapStatus{Capacity: &swap}
	}
	if in.StrictGroups != nil {
		s.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: in.StrictGroups}
	}
	s.DeclaredFeatures = in.Features
	s.Images = in.Images
	s.VolumesInUse = in.InUse
	if in.Handlers != nil {
		s.RuntimeHandlers = in.Handlers
	}
	s.Conditions = conditions(s.Conditions, in)
	return n
}

func conditions(old []corev1.NodeCondition, in Input) []corev1.NodeCondition {
	var out []corev1.NodeCondition
	mine := map[corev1.NodeConditionType]bool{corev1.NodeMemoryPressure: true, corev1.NodeDiskPressure: true,
		corev1.NodePIDPressure: true, corev1.NodeReady: true}
	if in.OwnNetwork && in.Network != nil {
		mine[corev1.NodeNetworkUnavailable] = true
	}
	problems := problemsOf(old, in.Problems)
	for _, c := range problems {
		mine[c.Type] = true
	}
	for _, c := range old {
		// Another network has the condition to itself.
		left := !in.OwnNetwork && c.Type == corev1.NodeNetworkUnavailable &&
			(c.Reason == networkUp || c.Reason == networkDown)
		if !mine[c.Type] && !left {
			out = append(out, c)
		}
	}
	add := func(c corev1.NodeCondition) {
		c.LastHeartbeatTime, c.LastTransitionTime = in.Now, in.Now
		for _, o := range old {
			if o.Type == c.Type && o.Status == c.Status {
				c.LastTransitionTime = o.LastTransitionTime
			}
		}
		out = append(out, c)
	}
	if in.OwnNetwork && in.Network != nil {
		add(*in.Network)
	}
	for _, p := range []struct {
		t                        corev1.NodeConditionType
		short, enough, bad, fine string
	}{
		{corev1.NodeMemoryPressure, "KubeletHasInsufficientMemory", "KubeletHasSufficientMemory",
			"kubelet has insufficient memory available", "kubelet has sufficient memory available"},
		{corev1.NodeDiskPressure, "KubeletHasDiskPressure", "KubeletHasNoDiskPressure", "kubelet has disk pressure", "kubelet has no disk pressure"},
		{corev1.NodePIDPressure, "KubeletHasInsufficientPID", "KubeletHasSufficientPID",
			"kubelet has insufficient PID available", "kubelet has sufficient PID available"},
	} {
		short := in.Pressure[p.t]
		if in.Pressure == nil {
			short = slices.ContainsFunc(old, func(c corev1.NodeCondition) bool {
				return c.Type == p.t && c.Status == corev1.ConditionTrue
			})
		}
		if short {
			add(corev1.NodeCondition{Type: p.t, Status: corev1.ConditionTrue, Reason: p.short, Message: p.bad})
		} else {
			add(corev1.NodeCondition{Type: p.t, Status: corev1.ConditionFalse, Reason: p.enough, Message: p.fine})
		}
	}
	for _, c := range problems {
		add(c)
	}
	if in.NotReady == "" {
		add(corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
			Reason: "KubeletReady", Message: "kubelet is posting ready status"})
	} else {
		add(corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse,
			Reason: "KubeletNotReady", Message: in.NotReady})
	}
	return out
}

// problemsOf are the problems that the Node is to show: those that hold, and that did. A
// condition that somebody else writes is left to them.
func problemsOf(old, now []corev1.NodeCondition) (out []corev1.NodeCondition) {
	for _, c := range now {
		i := slices.IndexFunc(old, func(o corev1.NodeCondition) bool { return o.Type == c.Type })
		switch {
		case i < 0 && c.Status != corev1.ConditionTrue:
		case i >= 0 && !problem.Mine(old[i]):
		default:
			out = append(out, c)
		}
	}
	return out
}

// strip returns a status without heartbeats, for comparison.
func strip(s corev1.NodeStatus) corev1.NodeStatus {
	s = *s.DeepCopy()
	for i := range s.Conditions {
		s.Conditions[i].LastHeartbeatTime = metav1.Time{}
	}
	sort.Slice(s.Conditions, func(i, j int) bool { return s.Conditions[i].Type < s.Conditions[j].Type })
	return s
}
