package runtime

import (
	"bytes"
	"context"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/container"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/netns"
	"github.com/shoal-project/shoal/agent/sandbox"
)

// Measurement is what the control group of a pod or of a container uses. It holds
// what the CRI's statistics have no place for.
type Measurement struct {
	Namespace, Pod string
	// Container, ContainerID and Image are empty for a pod.
	Container, ContainerID, Image string
	// Cgroup is the group's path.
	Cgroup  string
	Created time.Time
	Use     cgroup.Stats
	Disks   []cgroup.Disk
	// Processes is their number.
	Processes int
	// Files are what a container's processes have open; FileLimit is how many its first one
	// may have, -1 for any number, 0 where that is not known.
	Files     host.Files
	FileLimit int64
	// Limits are a container's; nil for a pod.
	Limits *criv1.LinuxContainerResources
	// LayerBytes and LayerInodes are what a container's writable layer takes.
	LayerBytes, LayerInodes int64
	// Interfaces are those of the pod's network; none where it has the node's.
	Interfaces []Interface
}

// Interface counts what went through an interface.
type Interface struct {
	Name           string
	Received, Sent Traffic
}

// Traffic is one direction of an interface.
type Traffic struct {
	Bytes, Packets, Errors, Dropped uint64
}

// Measure reads what each ready pod uses, followed by what each of its running
// containers does.
func (r *Runtime) Measure(ctx context.Context) []Measurement {
	byPod, list := r.runningByPod(), r.ready(nil)
	networks := interfaces(list...)
	var out []Measurement
	for _, s := range list {
		if m, err := r.measurePod(s); err == nil {
			m.Interfaces = networks[s.ID]
			out = append(out, m)
		}
		for _, c := range byPod[s.ID] {
			if m, err := r.measureContainer(ctx, s, c); err == nil {
				out = append(out, m)
			}
		}
	}
	return out
}

func (r *Runtime) measurePod(s *sandbox.Sandbox) (Measurement, error) {
	pod := s.Config.GetMetadata()
	use, err := r.cgroups.Stat(s.Cgroup)
	if err != nil {
		return Measurement{}, err
	}
	return Measurement{
		Namespace: pod.GetNamespace(), Pod: pod.GetName(), Cgroup: s.Cgroup, Created: s.CreatedAt, Use: use,
		Disks: r.cgroups.Disks(s.Cgroup), Processes: len(r.pids(s.Cgroup)),
	}, nil
}

func (r *Runtime) measureContainer(
	ctx context.Context, s *sandbox.Sandbox, c *container.Container,
) (Measurement, error) {
	pod := s.Config.GetMetadata()
	use, err := r.containers.Stats(c.ID)
	if err != nil {
		return Measurement{}, err
	}
	pids := r.pids(c.Cgroup)
	m := Measurement{
		Namespace: pod.GetNamespace(), Pod: pod.GetName(),
		Container: c.Config.GetMetadata().GetName(), ContainerID: c.ID,
		Image: imageName(c), Cgroup: c.Cgroup, Created: c.StartedAt, Use: use, Disks: r.cgroups.Disks(c.Cgroup),
		Processes: len(pids), Files: host.OpenFiles(pids), Limits: c.Config.GetLinux().GetResources(),
	}
	if _, in := slices.BinarySearch(pids, c.PID); in { // else it has ended, and the number is another's
		m.FileLimit, _ = host.FileLimit(c.PID)
	}
	if u, err := r.containers.Usage(ctx, c.ID); err == nil {
		m.LayerBytes, m.LayerInodes = u.Bytes, max(u.Inodes, 0)
	}
	return m, nil
}

// imageName is what the container's pod calls the image, if that is known.
func imageName(c *container.Container) string {
	if name := c.Config.GetImage().GetUserSpecifiedImage(); name != "" {
		return name
	}
	return c.ImageRef
}

// pids are the processes of a group, in order.
func (r *Runtime) pids(group string) []int {
	pids, err := r.cgroups.Pids(group)
	if err != nil {
		return nil
	}
	return pids
}

// HostInterfaces are those of the node's own network.
func HostInterfaces() []Interface {
	text, err := os.ReadFile("/proc/self/net/dev")
	if err != nil {
		return nil
	}
	return parseNetDev(text)
}

// interfaces reads those of pods with networks of their own, by the sandboxes' IDs; none of
// one that is gone.
func interfaces(list ...*sandbox.Sandbox) map[string][]Interface {
	ids := map[string]string{}
	for _, s := range list {
		if s.NetNS() != "" {
			ids[s.NetNS()] = s.ID
		}
	}
	out := make(map[string][]Interface, len(ids))
	if len(ids) == 0 {
		return out
	}
	netns.Each(maps.Keys(ids), func(path string) {
		if text, err := os.ReadFile("/proc/thread-self/net/dev"); err == nil {
			out[ids[path]] = parseNetDev(text)
		}
	})
	return out
}

// parseNetDev reads /proc/net/dev, proc_pid_net(5), without the loopback.
func parseNetDev(text []byte) []Interface {
	var out []Interface
	for line := range bytes.Lines(text) {
		name, counters, ok := strings.Cut(string(line), ":")
		f := strings.Fields(counters)
		name = strings.TrimSpace(name)
		if !ok || len(f) < 12 || name == "lo" {
			continue
		}
		direction := func(first int) Traffic {
			n := func(i int) uint64 {
				v, _ := strconv.ParseUint(f[first+i], 10, 64)
				return v
			}
			return Traffic{Bytes: n(0), Packets: n(1), Errors: n(2), Dropped: n(3)}
		}
		out = append(out, Interface{Name: name, Received: direction(0), Sent: direction(8)})
	}
	return out
}
