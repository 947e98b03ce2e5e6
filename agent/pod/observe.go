package pod

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/logs"
	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
)

// observe asks the runtime for all it has of a pod.
func (m *Manager) observe(ctx context.Context, uid types.UID) (*record.Observed, error) {
	labels := map[string]string{launch.LabelPodUID: string(uid)}
	sandboxes, err := m.Runtime.ListPodSandbox(ctx, &criv1.PodSandboxFilter{LabelSelector: labels})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	o := &record.Observed{}
	for _, s := range sandboxes {
		sb := record.Sandbox{ID: s.Id, Attempt: s.Metadata.GetAttempt(),
			Ready:     s.State == criv1.PodSandboxState_SANDBOX_READY,
			CreatedAt: time.Unix(0, s.CreatedAt)}
		if sb.Ready {
			if st, err := m.Runtime.PodSandboxStatus(ctx, s.Id, false); err == nil && st.Status != nil {
				sb.Ready = st.Status.State == criv1.PodSandboxState_SANDBOX_READY
				sb.IPs = podIPs(sandboxIPs(st.Status), m.Host.IPs)
			}
		}
		o.Sandboxes = append(o.Sandboxes, sb)
	}
	sort.Slice(o.Sandboxes, func(i, j int) bool {
		a, b := &o.Sandboxes[i], &o.Sandboxes[j]
		if a.Ready != b.Ready {
			return a.Ready
		}
		return a.Attempt > b.Attempt
	})
	if len(sandboxes) == 0 {
		return o, nil
	}
	containers, err := m.Runtime.ListContainers(ctx, &criv1.ContainerFilter{LabelSelector: labels})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	for _, c := range containers {
		st, err := m.Runtime.ContainerStatus(ctx, c.Id, false)
		if err != nil || st.Status == nil {
			continue // removed between list and status
		}
		o.Containers = append(o.Containers, observation(c.PodSandboxId, st.Status))
	}
	sortRuns(o.Containers)
	return o, nil
}

// sortRuns has the newest of each container's runs come first. They are numbered; their
// times are of the machine's clock, which somebody may have set back between two of them.
func sortRuns(list []record.Observation) {
	sort.Slice(list, func(i, j int) bool {
		a, b := &list[i], &list[j]
		if a.Name != b.Name {
			return a.Name < b.Name
		}
		if a.Attempt != b.Attempt {
			return a.Attempt > b.Attempt
		}
		return a.Created.After(b.Created)
	})
}

func sandboxIPs(s *criv1.PodSandboxStatus) []string {
	if s.Network == nil || s.Network.Ip == "" {
		return nil
	}
	ips := []string{s.Network.Ip}
	for _, a := range s.Network.AdditionalIps {
		ips = append(ips, a.Ip)
	}
	return ips
}

// podIPs are the addresses that a pod is known by: one of each family, first that of the
// node's main address. A plugin of a network may have given more, in another order.
func podIPs(all, node []string) (ips []string) {
	six := len(node) > 0 && isIPv6(node[0])
	for _, wanted := range []bool{six, !six} {
		if i := slices.IndexFunc(all, func(ip string) bool { return isIPv6(ip) == wanted }); i >= 0 {
			ips = append(ips, all[i])
		}
	}
	return ips
}

func isIPv6(ip string) bool { return strings.Contains(ip, ":") }

func observation(sandbox string, s *criv1.ContainerStatus) record.Observation {
	o := record.Observation{
		ID: s.Id, SandboxID: sandbox, Name: s.Labels[launch.LabelContainerName], Attempt: s.Metadata.GetAttempt(),
		Created: moment(s.CreatedAt), Started: moment(s.StartedAt), Finished: moment(s.FinishedAt),
		ExitCode: s.ExitCode, Reason: s.Reason, Message: s.Message, ImageRef: s.ImageRef,
		Hash: s.Annotations[launch.AnnotationHash], LogPath: s.LogPath,
		LogBounded: s.Annotations[logs.AnnotationMax] != "",
	}
	if s.Image != nil {
		o.Image = s.Image.UserSpecifiedImage
		if o.Image == "" {
			o.Image = s.Image.Image
		}
	}
	if s.StopSignal != criv1.Signal_RUNTIME_DEFAULT {
		o.StopSignal = s.StopSignal.String()
	}
	if l := s.User.GetLinux(); l != nil {
		o.User = &corev1.ContainerUser{
			Linux: &corev1.LinuxContainerUser{UID: l.Uid, GID: l.Gid, SupplementalGroups: l.SupplementalGroups}}
	}
	switch s.State {
	case criv1.ContainerState_CONTAINER_CREATED:
		o.State = record.Created
	case criv1.ContainerState_CONTAINER_RUNNING:
		o.State = record.Running
	case criv1.ContainerState_CONTAINER_EXITED:
		o.State = record.Exited
	}
	return o
}

func moment(ns int64) time.Time {
	if ns <= 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// Longest termination messages: of the file, and of the log that stands in
// for it.
const (
	maxMessage      = 4096
	maxMessageLog   = 2048
	maxMessageLines = 80
	// maxMessages is how much all containers of a pod may say.
	maxMessages = 12 << 10
)

// lastWords fills the termination messages of containers that ended.
func (m *Manager) lastWords(p *corev1.Pod, r *record.Pod, o *record.Observed) {
	containers := len(p.Spec.InitContainers) + len(p.Spec.Containers) + len(p.Spec.EphemeralContainers)
	for i := range o.Containers {
		c := &o.Containers[i]
		if c.State != record.Exited {
			continue
		}
		if s := r.Get(c.Name).Seen; s != nil && s.ID == c.ID {
			c.Message = s.State.Message
			continue
		}
		spec := record.FindContainer(p, c.Name)
		if spec == nil {
			continue
		}
		text := readTail(m.Host.TerminationFile(p, c.Name, c.Attempt), maxMessage)
		if text == "" && spec.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError &&
			c.ExitCode != 0 {
			text = logs.Tail(logs.File{Dir: m.Host.PodLogsDir, Path: c.LogPath}, maxMessageLines, maxMessageLog)
		}
		if text != "" && c.Message != "" {
			text = c.Message + ": " + text
		}
		text = cmp.Or(text, c.Message)
		c.Message = strings.ToValidUTF8(text[:min(len(text), maxMessages/max(1, containers))], "\ufffd")
	}
}

// readHead reads the beginning of a file that is mounted into containers: they
// write it, but the name beside the mount is the agent's.
func readHead(path string, limit int64) string {
	return readPart(path, limit, func(int64) int64 { return 0 })
}

// readTail reads the end of such a file.
func readTail(path string, limit int64) string {
	return readPart(path, limit, func(size int64) int64 { return max(0, size-limit) })
}

func readPart(path string, limit int64, begin func(size int64) int64) string {
	f, err := beneath.OpenBelow(filepath.Dir(path), path)
	if err != nil {
		return ""
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	data, err := io.ReadAll(io.NewSectionReader(f, begin(st.Size()), limit))
	if err != nil {
		return ""
	}
	return string(data)
}
