package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/checkpoint"
	"github.com/shoal-project/shoal/agent/container"
	"github.com/shoal-project/shoal/agent/image"
	"github.com/shoal-project/shoal/agent/oci"
	"github.com/shoal-project/shoal/agent/sandbox"
	"github.com/shoal-project/shoal/agent/selinux"
	"github.com/shoal-project/shoal/agent/stream"
	criapi "k8s.io/cri-api/pkg/apis"
)

// Network connects pods. Status is nil when pods can be connected.
type Network interface {
	sandbox.Network
	Status(ctx context.Context) error
}

// Config is a runtime's configuration.
type Config struct {
	DataDir    string                 // images, writable layers, records; survives a reboot
	RunDir     string                 // sockets, namespaces, bundles
	ImportDir  string                 // archives imported at start, "" = none
	CertsDir   string                 // registry configuration as containerd's certs.d, "" = none
	CgroupRoot string                 // parent of sandboxes that name none
	Driver     cgroup.Driver          // who makes control groups, "" = cgroupfs
	Conmon     string                 // program, "" = from PATH
	Pause      string                 // the program shoal-pause
	Hybrid     string                 // the program shoal-hybrid; "": a shell script does its work
	Runtimes   map[string]oci.Runtime // RuntimeClass handlers; "" = default, found if missing
	Network    Network
	Seal       *checkpoint.Keys // of records, nil: in the clear
	// HugePages is how many bytes the node has in them.
	HugePages int64
	// KeepFree is how much of their file system images leave free, by its
	// size, KeepInodes how many inodes; nil = nothing.
	KeepFree, KeepInodes func(total uint64) uint64
	// KeepCheckpoints is how much of their file system checkpoints leave free, by its size;
	// nil = nothing.
	KeepCheckpoints func(total uint64) uint64
	// Quotas limit what containers write; nil = nothing does.
	Quotas container.Quotas
	// MayRun is asked, with the UID of the pod, when a container's process exists and is
	// about to run its program; nil: all may.
	MayRun func(podUID string) error
	Pulls  int // how many images are pulled at one time; 0 = no limit
	Log    *slog.Logger
}

// Runtime implements the CRI's runtime and image services.
type Runtime struct {
	// Imported is called when images have been imported while the runtime runs; nil: nobody
	// waits for any. It is set before that.
	Imported func()

	cfg        Config
	cgroups    *cgroup.Root
	programs   oci.Programs
	images     *image.Store
	sandboxes  *sandbox.Manager
	containers *container.Manager
	stream     *stream.Server
	events     events
	imported   chan struct{} // closed, once, when the archives of ImportDir are imported
	once       sync.Once
}

// Images is the store of images.
func (r *Runtime) Images() *image.Store { return r.images }

var (
	_ criapi.RuntimeService      = (*Runtime)(nil)
	_ criapi.ImageManagerService = (*Runtime)(nil)
)

// Open opens the runtime's state and adopts the containers that run.
func Open(ctx context.Context, cfg Config) (*Runtime, error) {
	groups, err := cgroup.Open(cfg.Driver)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(sweepSealed(groups, cfg), sweepUnknown(groups, cfg)); err != nil {
		return nil, err
	}
	cfg, programs, err := complete(ctx, cfg, groups.Mode())
	if err != nil {
		return nil, err
	}
	r := &Runtime{cfg: cfg, cgroups: groups, programs: programs, imported: make(chan struct{})}
	host, err := oci.ReadHost(r.cgroups.Mode() == cgroup.V2)
	if err != nil {
		return nil, err
	}
	tellHugePages(cfg.Log, cfg.HugePages, host.NoHugetlb)
	if err := host.LoadApparmor(); err != nil {
		cfg.Log.Warn("containers are not confined by AppArmor unless they name a profile", "err", err)
	}
	// First, because it is locked: a second agent on these directories ends
	// here, before it touches anything.
	r.images, err = image.Open(ctx, image.Config{
		Dir:        filepath.Join(cfg.DataDir, "image"),
		CertsDir:   cfg.CertsDir,
		KeepFree:   cfg.KeepFree,
		KeepInodes: cfg.KeepInodes,
		Pulls:      cfg.Pulls,
		Log:        cfg.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("open image store: %w", err)
	}
	r.sandboxes, err = sandbox.Open(sandbox.Config{
		RecordDir: filepath.Join(cfg.DataDir, "sandboxes"), RunDir: r.sandboxRun(), CgroupRoot: cfg.CgroupRoot,
		Cgroups: r.cgroups, Network: cfg.Network, Pause: cfg.Pause, Seal: cfg.Seal, Log: cfg.Log,
	})
	if err != nil {
		return nil, errors.Join(err, r.images.Close())
	}
	var mayRun func(*container.Container) error
	if cfg.MayRun != nil {
		mayRun = func(c *container.Container) error { return cfg.MayRun(c.Config.GetLabels()[podUIDLabel]) }
	}
	r.containers, err = container.Open(container.Config{
		MayRun:  mayRun,
		DataDir: filepath.Join(cfg.DataDir, "containers"), RunDir: r.containerRun(),
		Conmon: cfg.Conmon, Runtimes: cfg.Runtimes,
		Cgroups: r.cgroups, Host: host, OnChange: r.changed, Quotas: cfg.Quotas, Seal: cfg.Seal,
		Labels: selinux.New(), Log: cfg.Log,
	})
	if err != nil {
		return nil, errors.Join(err, r.images.Close())
	}
	if err := r.endUnknown(ctx); err != nil {
		cfg.Log.Error("what runs without a record is not all ended; the next start of the agent tries it again",
			"err", err)
	}
	r.stream = stream.New(streams{r})
	return r, nil
}

// tellHugePages warns that containers are not held to their huge pages, where the node has any.
func tellHugePages(log *slog.Logger, has int64, why string) {
	if has > 0 && why != "" {
		log.Warn("containers are not held to the huge pages that they ask for: any may take all of the node's",
			"because", why)
	}
}

func (r *Runtime) sandboxRun() string   { return filepath.Join(r.cfg.RunDir, "sandboxes") }
func (r *Runtime) containerRun() string { return filepath.Join(r.cfg.RunDir, "containers") }

// complete finds programs and makes directories.
func complete(ctx context.Context, cfg Config, mode cgroup.Mode) (Config, oci.Programs, error) {
	if os.Geteuid() != 0 {
		return cfg, oci.Programs{}, errors.New("the container runtime needs root: run shoal-agent as root")
	}
	if cfg.Conmon == "" {
		path, err := exec.LookPath("conmon")
		if err != nil {
			return cfg, oci.Programs{}, errors.New("conmon is not installed: install it (on Debian: apt install conmon)")
		}
		cfg.Conmon = path
	}
	programs, err := oci.Find(cfg.RunDir, mode == cgroup.Hybrid, cfg.Hybrid)
	if _, other := cfg.Runtimes[""]; err != nil && !other {
		return cfg, programs, err
	}
	runtimes := maps.Clone(programs.Named)
	if runtimes == nil {
		runtimes = map[string]oci.Runtime{}
	}
	given := map[string]oci.Runtime{}
	for name, rt := range cfg.Runtimes {
		if known, ok := runtimes[rt.Path]; ok {
			rt.Path, rt.From = known.Path, known.From // runc or crun, the latter wrapped where need be
		} else if rt.Path, err = exec.LookPath(rt.Path); err != nil {
			return cfg, oci.Programs{}, fmt.Errorf("runtime handler %q: %w", name, err)
		}
		given[name] = rt
	}
	maps.Copy(runtimes, given)
	for name, rt := range runtimes {
		if rt.Root == "" {
			rt.Root = filepath.Join(cfg.RunDir, filepath.Base(rt.Path))
		}
		rt.Name, rt.Systemd = name, cfg.Driver == cgroup.Systemd
		runtimes[name] = rt.Probe(ctx)
	}
	cfg.Runtimes = runtimes
	if cfg.CgroupRoot == "" {
		cfg.CgroupRoot = cfg.Driver.Child("", "kubepods")
	}
	// The root of a user namespace goes through RunDir to its container.
	for d, mode := range map[string]fs.FileMode{cfg.DataDir: 0o700, cfg.RunDir: 0o711} {
		if err := errors.Join(os.MkdirAll(d, mode), os.Chmod(d, mode)); err != nil {
			return cfg, oci.Programs{}, fmt.Errorf("make runtime directory: %w", err)
		}
	}
	for _, rt := range runtimes {
		if rt.Direct() { // else the program's own affair
			if err := oci.PrivateDir(rt.Root, oci.IDs{}); err != nil {
				return cfg, oci.Programs{}, fmt.Errorf("make runtime directory: %w", err)
			}
		}
	}
	return cfg, programs, nil
}

// podUIDLabel is what the kubelet names a container's pod by.
const podUIDLabel = "io.kubernetes.pod.uid"

// Close lets go of the state; containers go on.
func (r *Runtime) Close(context.Context) error {
	return errors.Join(r.stream.Close(), r.containers.Close(), r.images.Close(), r.programs.Close())
}
