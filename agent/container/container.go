package container

import (
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// State is where a container is in its life.
type State string

// The states of a container.
const (
	Created State = "Created"
	Running State = "Running"
	Exited  State = "Exited"
)

// Container is one container's record. A published value is never changed.
type Container struct {
	ID         string
	SandboxID  string
	Handler    string // OCI runtime by name: a later default does not change it
	Config     *criv1.ContainerConfig
	ImageID    string
	ImageRef   string
	ChainID    string // layers in use
	User       specs.User
	LogPath    string // "" = no log is kept
	LogRoot    string // the directory of all logs
	StopSignal string
	Cgroup     string

	State      State
	CreatedAt  time.Time
	StartedAt  time.Time
	FinishedAt time.Time
	PID        int
	PIDStart   uint64 // start time of PID in clock ticks since boot, proc(5)
	Monitor    int    // conmon's process ID
	MonitorAt  uint64 // its start time
	ExitCode   int32
	Reason     string // Completed, Error, OOMKilled, StartError, Unknown
	Message    string
	// Project is what the container's writes are counted by where the file system has
	// projects, and HardLimit how many bytes they may take, 0 for any.
	Project   uint32 `json:",omitempty"`
	HardLimit int64  `json:",omitempty"`
	// PodOOMs is the count of the pod's group when the container started or,
	// killed for lack of memory, ended (systemd driver).
	PodOOMs uint64 `json:",omitempty"`
}

// Reasons of an exited container, as containerd tells them to the kubelet.
const (
	ReasonCompleted  = "Completed"
	ReasonError      = "Error"
	ReasonOOMKilled  = "OOMKilled"
	ReasonStartError = "StartError"
	ReasonUnknown    = "Unknown"

	exitStartError = 128
	exitKilled     = 137 // by SIGKILL
	exitUnknown    = 255
)
