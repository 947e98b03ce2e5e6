package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/evict"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/pod/launch"
	podrecord "github.com/shoal-project/shoal/agent/record"
)

// evictionPeriod is how often pods with a limit of their local storage are measured.
const evictionPeriod = 10 * time.Second

// newStorage ends pods that take more local storage than they are limited to.
func newStorage(b base, p *podParts) *evict.Storage {
	return &evict.Storage{
		Pods:    p.pods.Active,
		Changed: p.limits,
		Measure: func(ctx context.Context, obj *corev1.Pod, exactly bool) (evict.Use, error) {
			return localUse(ctx, b, p, obj, exactly)
		},
		Evict: func(obj *corev1.Pod, message string) {
			b.events.Event(obj, "", corev1.EventTypeWarning, evict.Reason, message)
			v := podrecord.Verdict{Phase: corev1.PodFailed, Reason: evict.Reason, Message: message}
			p.pods.Evict(obj.UID, v, nil, 1)
		},
		Count:  evictions(b),
		Period: evictionPeriod,
		Log:    b.log,
	}
}

// evictions counts them by signal; nil where nothing is counted.
func evictions(b base) func(signal string) {
	if b.counts == nil {
		return nil
	}
	return func(signal string) { b.counts.Evictions.Inc(signal) }
}

// Of memory, tasks that had to wait for so much of a second have the node looked at
// without delay.
const memoryStall, stallWindow = 150 * time.Millisecond, time.Second

// imagePeriod is how often the disk of images is looked at, as the kubelet's.
const imagePeriod = 5 * time.Minute

// newEviction keeps the node from running out of memory, disk and processes; changed
// hears of other conditions. It looks at nothing before newPods has made the pods.
func newEviction(ctx context.Context, b base, p *podParts, changed func()) (*evict.Node, *evict.Images, error) {
	cfg := b.cfg
	stall, err := newStall(b)
	if err != nil {
		return nil, nil, err
	}
	thresholds, err := evict.Settings{Hard: cfg.EvictionHard, Soft: cfg.EvictionSoft,
		SoftGrace: cfg.EvictionSoftGracePeriod, MinimumReclaim: cfg.EvictionMinimumReclaim,
		Stall: stall}.Thresholds()
	if err != nil {
		return nil, nil, err
	}
	stalled, err := host.WatchStall(ctx, "memory", memoryStall, stallWindow)
	if err != nil {
		b.log.Debug("the kernel does not tell of stalls for want of memory", "err", err)
	}
	warn := func(reason, message string) { b.events.Node(corev1.EventTypeWarning, reason, message) }
	images := &evict.Images{
		ImagePolicy: evict.ImagePolicy{High: cfg.ImageGCHighThresholdPercent, Low: cfg.ImageGCLowThresholdPercent,
			MinAge: cfg.ImageMinimumGCAge.Duration, MaxAge: cfg.ImageMaximumGCAge.Duration},
		Store:   b.runtime.images,
		Runtime: b.runtime,
		Pods:    p.pods.Active,
		Space: func() (evict.Signal, error) {
			s, err := host.Space(cfg.DataDir)
			return evict.Signal{Available: int64(s.Available), Capacity: int64(s.Bytes)}, err
		},
		Tell:   warn,
		Period: imagePeriod,
		Log:    b.log,
	}
	if r := b.runtime.builtin; r != nil {
		images.Leftovers = r.Images().Reclaim
	}
	return &evict.Node{
		Plan:     evict.Plan{Thresholds: thresholds, Transition: cfg.EvictionPressureTransitionPeriod.Duration},
		MaxGrace: time.Duration(cfg.EvictionMaxPodGracePeriod) * time.Second,
		Layout:   evict.Layout{ImageFS: !host.SameDisk(cfg.RootDir, cfg.DataDir)},
		Signals: func() map[string]evict.Signal {
			var pods evict.Signal
			if g := b.runtime.groups; g != nil {
				pods.Available, pods.Capacity = g.Memory()
			}
			memory := evict.Signal{Available: host.MemoryAvailable(), Capacity: b.facts.MemoryBytes}
			return evict.Measure(cfg.RootDir, cfg.DataDir, memory, pods)
		},
		Pods: p.pods.Active,
		Use: func(ctx context.Context, files bool) (func(*corev1.Pod) (evict.PodUse, bool), error) {
			return podUses(ctx, b, p, files)
		},
		Free:     images.DeleteUnused,
		FreeLogs: func(context.Context) error { return p.past.DeleteAll() },
		FreeDead: p.pods.RemoveDead,
		Evict: func(obj *corev1.Pod, c evict.Cause, grace time.Duration) {
			b.events.Annotated(obj, c.Annotations, corev1.EventTypeWarning, evict.Reason, c.Message)
			v := podrecord.Verdict{Phase: corev1.PodFailed, Reason: evict.Reason, Message: c.Message}
			target := &podrecord.Verdict{Reason: corev1.PodReasonTerminationByKubelet, Message: c.Message}
			p.pods.Evict(obj.UID, v, target, int64(grace.Seconds()))
		},
		Count: evictions(b),
		Gone: func(obj *corev1.Pod) bool {
			v, ok := p.pods.View(obj.UID)
			return !ok || v.Ended && len(v.Observed.Containers) == 0
		},
		Tell:    warn,
		Changed: changed,
		Waits:   memoryWaits,
		Stall:   stall,
		Period:  evictionPeriod,
		Stalled: stalled,
		Log:     b.log,
	}, images, nil
}

// newStall is off where the kernel does not tell what it decides by.
func newStall(b base) (evict.Stall, error) {
	share, err := b.cfg.MemoryStallShare()
	if err != nil {
		return evict.Stall{}, fmt.Errorf("evictionMemoryStall: %w", err)
	}
	if share == 0 {
		return evict.Stall{}, nil
	}
	if _, err := memoryWaits(); err != nil {
		b.log.Info("no pod is evicted for the time that tasks wait for memory", "err", err)
		return evict.Stall{}, nil
	}
	return evict.Stall{Share: share, Period: b.cfg.EvictionMemoryStallPeriod.Duration}, nil
}

func memoryWaits() (evict.Waits, error) {
	p := host.Stall("memory")
	if p == nil {
		return evict.Waits{}, errors.New("the kernel does not measure it (/proc/pressure; psi=1 at its start)")
	}
	r, err := host.ReadReclaim()
	return evict.Waits{Full: time.Duration(p.Full.Total) * time.Microsecond, Reclaim: r}, err
}

// podUses measures pods: all at once what the runtime tells, one by one the files of
// those that are asked for.
func podUses(ctx context.Context, b base, p *podParts, files bool) (func(*corev1.Pod) (evict.PodUse, bool), error) {
	list, err := b.runtime.ListPodSandboxStats(ctx, nil)
	if err != nil {
		return nil, err
	}
	told := map[string]evict.PodUse{}
	for _, s := range list {
		u := evict.PodUse{Containers: map[string]evict.ContainerUse{},
			Memory:    int64(s.GetLinux().GetMemory().GetWorkingSetBytes().GetValue()),
			Processes: int64(s.GetLinux().GetProcess().GetProcessCount().GetValue())}
		for _, c := range s.GetLinux().GetContainers() {
			w := c.GetWritableLayer()
			u.Containers[c.GetAttributes().GetLabels()[launch.LabelContainerName]] = evict.ContainerUse{
				Memory: int64(c.GetMemory().GetWorkingSetBytes().GetValue()),
				Layer: evict.Files{Bytes: int64(w.GetUsedBytes().GetValue()),
					Inodes: int64(w.GetInodesUsed().GetValue())}}
		}
		told[s.GetAttributes().GetMetadata().GetUid()] = u
	}
	walked := map[types.UID]bool{}
	return func(obj *corev1.Pod) (evict.PodUse, bool) {
		u, ok := told[string(obj.UID)]
		if !ok || !files || walked[obj.UID] {
			return u, ok
		}
		walked[obj.UID] = true
		for name, c := range u.Containers {
			c.Logs = logFiles(ctx, b.cfg, filepath.Join(p.pods.Host.LogDir(obj), name))
			u.Containers[name] = c
		}
		for i := range obj.Spec.Volumes {
			v := &obj.Spec.Volumes[i]
			if v.EmptyDir == nil || v.EmptyDir.Medium != corev1.StorageMediumDefault {
				continue
			}
			if path, err := p.volumes.Path(obj, v.Name); err == nil {
				f := filesBelow(ctx, path)
				u.Volumes.Bytes += f.Bytes
				u.Volumes.Inodes += f.Inodes
			}
		}
		told[string(obj.UID)] = u
		return u, true
	}, nil
}

// logFiles are those of a directory of logs, which pods may have mounted: no links are
// followed to it. One that cannot be read counts nothing.
func logFiles(ctx context.Context, cfg *config.Config, dir string) evict.Files {
	bytes, inodes, err := beneath.UsageBelow(ctx, cfg.PodLogsDir, dir)
	if err != nil {
		return evict.Files{}
	}
	return evict.Files{Bytes: bytes, Inodes: inodes}
}

// filesBelow counts as far as it can: one that cannot be read counts nothing.
func filesBelow(ctx context.Context, dir string) evict.Files {
	bytes, inodes, err := beneath.Usage(ctx, dir)
	if err != nil {
		return evict.Files{}
	}
	return evict.Files{Bytes: bytes, Inodes: inodes}
}

// localUse is the local storage that a pod takes, by its files alone where it is to be
// told exactly.
func localUse(ctx context.Context, b base, p *podParts, obj *corev1.Pod, exactly bool) (evict.Use, error) {
	use := evict.Use{Containers: map[string]int64{}, Volumes: map[string]int64{}}
	list, err := b.runtime.ListContainerStats(ctx, &criv1.ContainerStatsFilter{
		LabelSelector: map[string]string{launch.LabelPodUID: string(obj.UID)}})
	if err != nil {
		return use, err
	}
	for _, c := range list {
		name := c.GetAttributes().GetLabels()[launch.LabelContainerName]
		bytes := int64(c.GetWritableLayer().GetUsedBytes().GetValue())
		if exactly && b.runtime.builtin != nil {
			if bytes, err = b.runtime.builtin.Files(ctx, c.GetAttributes().GetId()); err != nil {
				return use, err
			}
		}
		use.Containers[name] += bytes
	}
	podrecord.EachContainer(obj, func(c *corev1.Container) {
		bytes, _, e := beneath.UsageBelow(ctx, b.cfg.PodLogsDir, filepath.Join(p.pods.Host.LogDir(obj), c.Name))
		use.Containers[c.Name] += bytes
		err = errors.Join(err, ifThere(e))
	})
	for i := range obj.Spec.Volumes {
		v := &obj.Spec.Volumes[i]
		if v.EmptyDir == nil {
			continue
		}
		path, e := p.volumes.Path(obj, v.Name)
		if e != nil {
			continue // not made yet
		}
		bytes, counted := int64(0), false
		if !exactly {
			bytes, counted = p.volumes.Used(obj, v.Name)
		}
		if !counted {
			bytes, e = usage(ctx, path)
			err = errors.Join(err, e)
		}
		use.Volumes[v.Name] = bytes
		if v.EmptyDir.Medium == corev1.StorageMediumDefault {
			use.Disk += bytes
		}
	}
	return use, err
}

// usage is what lies below a directory, nothing where there is none.
func usage(ctx context.Context, dir string) (int64, error) {
	bytes, _, err := beneath.Usage(ctx, dir)
	return bytes, ifThere(err)
}

func ifThere(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
