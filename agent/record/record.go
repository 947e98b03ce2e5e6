package record

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pod is what the agent keeps of one pod. Its worker alone writes it.
type Pod struct {
	// Pod is the desired pod as last seen.
	Pod *corev1.Pod `json:"pod"`
	// Source is "api" or "file".
	Source string `json:"source,omitempty"`
	// Admitted is when this node accepted the pod.
	Admitted metav1.Time `json:"admitted,omitzero"`
	// Ended is a verdict that ends the pod whatever its containers do:
	// rejection, eviction, deadline.
	Ended *Verdict `json:"ended,omitempty"`
	// Stopping is set once the pod's containers are being stopped for good.
	Stopping *Stopping `json:"stopping,omitempty"`
	// Released is set once steps were undone: no sandbox, volume or cgroup.
	Released bool `json:"released,omitempty"`
	// RestartingAll: a container ended with a rule that restarts all of them. What
	// there is of them is removed, then they begin anew.
	RestartingAll bool `json:"restartingAll,omitempty"`
	// SandboxAttempts counts the sandboxes made so far.
	SandboxAttempts uint32 `json:"sandboxAttempts,omitempty"`
	// IPs are those of the last ready sandbox.
	IPs []string `json:"ips,omitempty"`
	// Fault is why the pod's sandbox cannot be made now.
	Fault *Verdict `json:"fault,omitempty"`
	// Retry is when setup is tried again after Fault; Delay the pause used.
	Retry time.Time     `json:"retry,omitzero"`
	Delay time.Duration `json:"delay,omitempty"`
	// Allocated is what the node gave the pod, which is what it asked for
	// until that changes; Resize tells of a change under way.
	Allocated *Allocation `json:"allocated,omitempty"`
	Resize    Resize      `json:"resize,omitzero"`
	// Containers is by container name, of all three sorts.
	Containers map[string]*Container `json:"containers,omitempty"`
	// Back: its manifest was away and is there again. It ends only to begin anew.
	Back bool `json:"back,omitempty"`
	// Disrupted is the reason of the DisruptionTarget condition, if any.
	Disrupted *Verdict `json:"disrupted,omitempty"`
}

// Allocation is the resources of a pod and of its containers by name.
type Allocation struct {
	Pod        *corev1.ResourceRequirements           `json:"pod,omitempty"`
	Containers map[string]corev1.ResourceRequirements `json:"containers,omitempty"`
}

// Resize is a change of a running pod's resources (KEP-1287).
type Resize struct {
	// Pending is why what the pod asks for is not given, and since which
	// generation.
	Pending           *Verdict `json:"pending,omitempty"`
	PendingGeneration int64    `json:"pendingGeneration,omitempty"`
	// Actuating: Allocated is not yet what all containers have. Updated: those
	// that need no restart for it have it.
	Actuating bool `json:"actuating,omitempty"`
	// From is what the pod as a whole had before, nil for nothing of its own.
	From       *corev1.ResourceRequirements `json:"from,omitempty"`
	Updated    bool                         `json:"updated,omitempty"`
	Generation int64                        `json:"generation,omitempty"`
	// Error is of the last try, Retry when the next is, Delay the pause used.
	Error string        `json:"error,omitempty"`
	Retry time.Time     `json:"retry,omitzero"`
	Delay time.Duration `json:"delay,omitempty"`
}

// Verdict is a reason with its message as they show in the API.
type Verdict struct {
	Phase   corev1.PodPhase `json:"phase,omitempty"`
	Reason  string          `json:"reason"`
	Message string          `json:"message,omitempty"`
	// Image is what could not be pulled, or what the container that could not start was to be
	// made of: the container's image, or one that it mounts.
	Image string `json:"image,omitempty"`
	// ByExit: where all containers end with 0 the pod has succeeded after all.
	ByExit bool `json:"byExit,omitempty"`
}

// Stopping tells since when and with how much grace the pod ends.
type Stopping struct {
	Since time.Time `json:"since"`
	// Grace is in seconds.
	Grace int64 `json:"grace"`
}

// Container is what is kept of one container across its restarts.
type Container struct {
	// ID is the container that Started, Ready, Unhealthy and Hooked tell of.
	ID string `json:"id,omitempty"`
	// Started: it ran, its postStart hook is done, its startup probe passed.
	Started bool `json:"started,omitempty"`
	// Ready is the readiness probe's word, or Started without such a probe.
	Ready bool `json:"ready,omitempty"`
	// Hooked: the postStart hook of ID went well, or there is none.
	Hooked bool `json:"hooked,omitempty"`
	// Actuated is what ID was given; nil while not known.
	Actuated *corev1.ResourceRequirements `json:"actuated,omitempty"`
	// Limits are the cpu and memory that ID is limited to, its own or its pod's; nil
	// where those of Actuated are all.
	Limits corev1.ResourceList `json:"limits,omitempty"`
	// Again: it was stopped only to start with another image or other resources, or
	// with all others of its pod, whatever its restart policy.
	Again bool `json:"again,omitempty"`
	// Failed: it was stopped because a probe failed, which counts as a failure whatever
	// its exit code.
	Failed bool `json:"failed,omitempty"`
	// Unhealthy is why ID must be restarted: a failed liveness or startup
	// probe or hook.
	Unhealthy string `json:"unhealthy,omitempty"`
	// ProbeGrace overrides the grace period when Unhealthy, in seconds.
	ProbeGrace *int64 `json:"probeGrace,omitempty"`
	// Backoff is the pause before the restart after the next failure;
	// BackoffAt is when it was last raised, or would have been if it were not at its cap.
	Backoff   time.Duration `json:"backoff,omitempty"`
	BackoffAt time.Time     `json:"backoffAt,omitzero"`
	// Fault is why the container cannot start now; Retry when to try again.
	Fault *Verdict      `json:"fault,omitempty"`
	Retry time.Time     `json:"retry,omitzero"`
	Delay time.Duration `json:"delay,omitempty"`
	// Seen is the last state known of a container that the runtime may have
	// removed since.
	Seen *Exit `json:"seen,omitempty"`
}

// Exit is the end of a container.
type Exit struct {
	ID      string                          `json:"id"`
	Attempt uint32                          `json:"attempt"`
	State   corev1.ContainerStateTerminated `json:"state"`
}

// Of returns the record of a container, made when missing.
func (p *Pod) Of(name string) *Container {
	c := p.Containers[name]
	if c == nil {
		if p.Containers == nil {
			p.Containers = map[string]*Container{}
		}
		c = &Container{}
		p.Containers[name] = c
	}
	return c
}

// Get returns a copy of the record of a container, zero when missing.
func (p *Pod) Get(name string) Container {
	if p == nil || p.Containers[name] == nil {
		return Container{}
	}
	return *p.Containers[name]
}

// State is a container's state in the runtime.
type State int

// States of a container.
const (
	Unknown State = iota
	Created
	Running
	Exited
)

// Observed is what the runtime shows of one pod: sandboxes newest first, containers by name,
// the newest run of each first.
type Observed struct {
	Sandboxes  []Sandbox
	Containers []Observation
}

// Sandbox is one sandbox of the pod.
type Sandbox struct {
	ID        string
	Attempt   uint32
	Ready     bool
	IPs       []string
	CreatedAt time.Time
}

// Observation is one container of the pod.
type Observation struct {
	ID, Name, SandboxID string
	Attempt             uint32
	State               State
	Created             time.Time
	Started             time.Time
	Finished            time.Time
	ExitCode            int32
	Reason, Message     string
	Image, ImageRef     string
	Hash                string
	User                *corev1.ContainerUser
	LogPath             string
	// LogBounded: the container's monitor begins its log anew by itself.
	LogBounded bool
	StopSignal string
}

// Sandbox returns the newest sandbox, or nil.
func (o *Observed) Sandbox() *Sandbox {
	if len(o.Sandboxes) == 0 {
		return nil
	}
	return &o.Sandboxes[0]
}

// Latest returns the newest container of a name, or nil.
func (o *Observed) Latest(name string) *Observation {
	for i := range o.Containers {
		if o.Containers[i].Name == name {
			return &o.Containers[i]
		}
	}
	return nil
}

// Running tells whether any container runs.
func (o *Observed) Running() bool {
	for i := range o.Containers {
		if o.Containers[i].State == Running {
			return true
		}
	}
	return false
}

// Terminated is the API's form of an ended container.
func (c *Observation) Terminated() corev1.ContainerStateTerminated {
	reason := c.Reason
	if reason == "" {
		reason = "Completed"
		if c.ExitCode != 0 {
			reason = "Error"
		}
	}
	t := corev1.ContainerStateTerminated{
		ExitCode: c.ExitCode, Reason: reason, Message: c.Message, ContainerID: c.ID,
	}
	if !c.Started.IsZero() {
		t.StartedAt = metav1.NewTime(c.Started)
	}
	if !c.Finished.IsZero() {
		t.FinishedAt = metav1.NewTime(c.Finished)
	}
	return t
}

// Sidecar tells whether an init container keeps running beside the others.
func Sidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// Mounted tells whether the pod's volumes are in use: it was set up, and does not
// end.
func (r *Pod) Mounted() bool {
	return r.Pod != nil && !r.Released && r.Stopping == nil && r.SandboxAttempts > 0
}

// EachContainer calls f for every container of a pod, of all three sorts.
func EachContainer(p *corev1.Pod, f func(*corev1.Container)) {
	for i := range p.Spec.InitContainers {
		f(&p.Spec.InitContainers[i])
	}
	for i := range p.Spec.Containers {
		f(&p.Spec.Containers[i])
	}
	for i := range p.Spec.EphemeralContainers {
		c := corev1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		f(&c)
	}
}

// FindContainer returns the container of a name, or nil.
func FindContainer(p *corev1.Pod, name string) (found *corev1.Container) {
	EachContainer(p, func(c *corev1.Container) {
		if c.Name == name {
			found = c
		}
	})
	return found
}
