package evict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
)

// Files are how much files take, in bytes, and how many there are.
type Files struct{ Bytes, Inodes int64 }

func (f *Files) add(g Files) {
	f.Bytes += g.Bytes
	f.Inodes += g.Inodes
}

// PodUse is what a pod takes of the node.
type PodUse struct {
	// Memory is the working set in bytes, Processes counts threads too.
	Memory, Processes int64
	// Volumes are its emptyDir volumes on disk.
	Volumes Files
	// Containers are by name.
	Containers map[string]ContainerUse
}

// ContainerUse is what a container takes.
type ContainerUse struct {
	Memory int64
	// Layer is what it wrote beside its volumes, Logs its logs.
	Layer, Logs Files
}

// Layout tells whether images and containers have a file system of their own.
type Layout struct{ ImageFS bool }

// files are those that count for a signal (NPE-27, NPE-28): with a file system for
// images, layers are on that one, volumes and logs on the node's.
func (l Layout) files(signal string, u *PodUse) Files {
	image := signal == ImageFSAvailable || signal == ImageFSInodesFree
	var out Files
	if !l.ImageFS || !image {
		out.add(u.Volumes)
	}
	for _, c := range u.Containers {
		if !l.ImageFS || image {
			out.add(c.Layer)
		}
		if !l.ImageFS || !image {
			out.add(c.Logs)
		}
	}
	return out
}

// taken is what counts for a signal.
func (l Layout) taken(signal string, u *PodUse) int64 {
	switch signals[signal].resource {
	case corev1.ResourceMemory:
		return u.Memory
	case resourcePids:
		return u.Processes
	case resourceInodes:
		return l.files(signal, u).Inodes
	}
	return l.files(signal, u).Bytes
}

// Rank orders pods for a signal, the first to be ended first (NPE-23..28): those whose
// use nobody knows, those above their request, by priority, by how much they are above.
// Of inodes and processes nobody can ask for some: any use is above.
func (l Layout) Rank(signal string, pods []*corev1.Pod, use func(*corev1.Pod) (PodUse, bool)) {
	type facts struct {
		known, above bool
		priority     int32
		excess       int64
	}
	of := map[*corev1.Pod]facts{}
	for _, p := range pods {
		u, known := use(p)
		excess := l.taken(signal, &u)
		if name := signals[signal].resource; name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
			asked := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{UseStatusResources: true})[name]
			excess -= asked.Value()
		}
		above := excess > 0 && signals[signal].resource != resourcePids
		of[p] = facts{known, above, schedulinghelper.PodPriority(p), excess}
	}
	yes := func(b bool) int {
		if b {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		x, y := of[a], of[b]
		return cmp.Or(cmp.Compare(yes(!x.known), yes(!y.known)), cmp.Compare(yes(x.above), yes(y.above)),
			cmp.Compare(x.priority, y.priority), cmp.Compare(y.excess, x.excess))
	})
}

// Cause is why a pod is ended: in upstream's words, and for programs as annotations of its
// event.
type Cause struct {
	Message     string
	Annotations map[string]string
}

// Keys of the annotations, as upstream's (pkg/kubelet/eviction, helpers.go): the resource,
// and who took more of it than was asked for, of containers in lists with commas.
const (
	starvedResource          = "starved_resource"
	offendingPod             = "offending_pod"
	offendingPodUsage        = "offending_pod_usage"
	offendingContainers      = "offending_containers"
	offendingContainersUsage = "offending_containers_usage"
)

// Cause says why the pod is ended.
func (m *Met) Cause(p *corev1.Pod, u PodUse) Cause {
	name := signals[m.Threshold.Signal].resource
	about := map[string]string{starvedResource: string(name)}
	var out strings.Builder
	fmt.Fprintf(&out, "The node was low on resource: %s. %s. ", name, m.shortage())
	if asked, ok := podRequest(p, name); ok && name == corev1.ResourceMemory && u.Memory > 0 {
		used := resource.NewQuantity(u.Memory, resource.BinarySI).String()
		fmt.Fprintf(&out, "Pod %s was using %s, request is %s, has larger consumption of %s. ", p.Name, used, &asked,
			name)
		about[offendingPod], about[offendingPodUsage] = p.Name, used
	}
	var names, usages []string
	for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			c, known := u.Containers[list[i].Name]
			var used int64
			switch name {
			case corev1.ResourceMemory:
				used = c.Memory
			case corev1.ResourceEphemeralStorage:
				used = c.Layer.Bytes + c.Logs.Bytes
			default:
				continue
			}
			asked := list[i].Resources.Requests[name]
			if known && used > asked.Value() {
				usage := resource.NewQuantity(used, resource.BinarySI).String()
				fmt.Fprintf(&out, "Container %s was using %s, request is %s, has larger consumption of %s. ",
					list[i].Name, usage, &asked, name)
				names, usages = append(names, list[i].Name), append(usages, usage)
			}
		}
	}
	about[offendingContainers], about[offendingContainersUsage] = strings.Join(names, ","), strings.Join(usages, ",")
	return Cause{out.String(), about}
}

// shortage says how much there was, and how much there should be.
func (m *Met) shortage() string {
	if m.Threshold.Signal == MemoryStall {
		waited := float64(m.Signal.Capacity-m.Signal.Available) / float64(m.Signal.Capacity)
		return fmt.Sprintf("Tasks waited for memory %.0f%% of %s, threshold: %.4g%%", 100*waited,
			time.Duration(m.Signal.Capacity).Round(time.Second), 100*(1-m.Keep.Share))
	}
	format := resource.BinarySI
	if name := signals[m.Threshold.Signal].resource; name == resourceInodes || name == resourcePids {
		format = resource.DecimalSI
	}
	return fmt.Sprintf("Threshold quantity: %s, available: %s", m.Keep.text(m.Signal.Capacity),
		resource.NewQuantity(m.Signal.Available, format))
}

// podRequest is what the pod asks for as a whole.
func podRequest(p *corev1.Pod, name corev1.ResourceName) (resource.Quantity, bool) {
	if p.Spec.Resources == nil {
		return resource.Quantity{}, false
	}
	q, ok := p.Spec.Resources.Requests[name]
	return q, ok
}
