package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
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
	Config     *cri.ContainerConfig
	ImageID    string
	ImageRef   string
	ChainID    string // layers in use
	User       specs.User
	LogPath    string // "" = no log is kept
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
}

// Reasons of an exited container, as containerd tells them to the kubelet.
const (
	ReasonCompleted  = "Completed"
	ReasonError      = "Error"
	ReasonOOMKilled  = "OOMKilled"
	ReasonStartError = "StartError"
	ReasonUnknown    = "Unknown"

	exitStartError = 128
	exitUnknown    = 255
)

// record is written whenever its container changes, replaced in one step. It
// is not forced to the disk: after a power failure the process that it is
// about is gone too.
type record struct {
	Container
	Config []byte
}

func save(dir string, c *Container) error {
	config, err := proto.Marshal(c.Config)
	if err != nil {
		return fmt.Errorf("write container record: %w", err)
	}
	r := record{Container: *c, Config: config}
	r.Container.Config = nil
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write container record: %w", err)
	}
	file := filepath.Join(dir, c.ID+".json")
	if err := os.WriteFile(file+".tmp", b, 0o600); err != nil {
		return fmt.Errorf("write container record: %w", err)
	}
	return os.Rename(file+".tmp", file)
}

// load reads all records; a damaged one is moved aside with a message.
func load(dir string, log *slog.Logger) ([]*Container, error) {
	unfinished, err := filepath.Glob(filepath.Join(dir, "*.json.tmp"))
	if err != nil {
		return nil, err
	}
	for _, f := range unfinished { // of an agent that was killed while it wrote
		if err := os.Remove(f); err != nil {
			return nil, err
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var out []*Container
	for _, f := range files {
		c, err := read(f)
		if err != nil {
			log.Error("a container record is damaged; it has been moved aside and the container is started anew", "file", f, "err", err)
			_ = os.Rename(f, f+".damaged")
			continue
		}
		out = append(out, c)
	}
	return out, nil
}

func read(file string) (*Container, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, err
	}
	c := r.Container
	c.Config = &cri.ContainerConfig{}
	if err := proto.Unmarshal(r.Config, c.Config); err != nil {
		return nil, err
	}
	if c.ID == "" || c.ID+".json" != filepath.Base(file) {
		return nil, errors.New("the record is about something else")
	}
	return &c, nil
}

func forget(dir, id string) error {
	err := os.Remove(filepath.Join(dir, id+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
