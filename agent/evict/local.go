package evict

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Reason is that of a pod that is evicted.
const Reason = "Evicted"

// criticalPriority is the least of pods that are never evicted.
const criticalPriority = 2000000000

// Use is the local storage that a pod takes, in bytes.
type Use struct {
	// Containers is by name: what the container wrote beside its volumes, and its logs.
	Containers map[string]int64
	// Volumes is by name: its emptyDir volumes. Disk is their sum without those in
	// memory.
	Volumes map[string]int64
	Disk    int64
}

// Limited tells whether a pod is limited in its local storage, and may be evicted.
func Limited(p *corev1.Pod) bool {
	if Critical(p) {
		return false
	}
	if !storageLimit(p).IsZero() {
		return true
	}
	for i := range p.Spec.Volumes {
		if !sizeLimit(&p.Spec.Volumes[i]).IsZero() {
			return true
		}
	}
	return false
}

func storageLimit(p *corev1.Pod) *resource.Quantity {
	limits := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})
	q := limits[corev1.ResourceEphemeralStorage]
	return &q
}

func sizeLimit(v *corev1.Volume) *resource.Quantity {
	if v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.Sign() < 0 {
		return &resource.Quantity{}
	}
	return v.EmptyDir.SizeLimit
}

// Signals of pods that exceed a limit of their own: that of an emptyDir volume, of the pod,
// of a container.
const (
	EmptyDirLimit  = "emptydirfs.limit"
	PodLimit       = "ephemeralpodfs.limit"
	ContainerLimit = "ephemeralcontainerfs.limit"
)

// Exceeds tells which limit of its local storage a pod exceeds; "" for none.
func Exceeds(p *corev1.Pod, u Use) (signal, message string) {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if limit := sizeLimit(v); !limit.IsZero() && u.Volumes[v.Name] > limit.Value() {
			return EmptyDirLimit,
				fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())
		}
	}
	sum := u.Disk
	for _, bytes := range u.Containers {
		sum += bytes
	}
	if limit := storageLimit(p); !limit.IsZero() && sum > limit.Value() {
		return PodLimit,
			fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
	}
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		if limit := c.Resources.Limits.StorageEphemeral(); !limit.IsZero() && u.Containers[c.Name] > limit.Value() {
			return ContainerLimit,
				fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())
		}
	}
	return "", ""
}

// Storage ends pods that take more local storage than they are limited to. While no
// pod of the node has a limit, it waits to be told of one.
type Storage struct {
	// Pods are those that have not ended.
	Pods func() []*corev1.Pod
	// Changed holds a token when pods came or changed.
	Changed <-chan struct{}
	// Measure tells what a pod takes: exactly by its files alone, else by what file
	// systems count where they do, which costs little and is a little more.
	Measure func(ctx context.Context, p *corev1.Pod, exactly bool) (Use, error)
	Evict   func(p *corev1.Pod, message string)
	// Count counts an eviction for a signal; nil: nobody does.
	Count func(signal string)
	// Period is the time between two looks at the pods that are limited; more where a
	// look itself takes long.
	Period time.Duration
	Log    *slog.Logger
}

// gather is how long changes of pods gather on a node without limited ones.
const gather = time.Second

// costly is how many times as long as a look took the next one waits at least.
const costly = 20

// Run looks at the pods until ctx ends.
func (s *Storage) Run(ctx context.Context) error {
	evicted := map[types.UID]bool{}
	for {
		begun := time.Now()
		limited := map[types.UID]bool{}
		for _, p := range s.Pods() {
			if !Limited(p) {
				continue
			}
			limited[p.UID] = true
			if !evicted[p.UID] && s.look(ctx, p) {
				evicted[p.UID] = true
			}
		}
		for uid := range evicted {
			if !limited[uid] {
				delete(evicted, uid)
			}
		}
		if !s.wait(ctx, len(limited) > 0, max(s.Period, costly*time.Since(begun))) {
			return nil
		}
	}
}

// wait waits for the next look, and tells whether there is one. When no pod is limited
// it is after the next change of any; those of a moment are looked at once.
func (s *Storage) wait(ctx context.Context, again bool, pause time.Duration) bool {
	if !again {
		select {
		case <-ctx.Done():
			return false
		case <-s.Changed:
		}
		pause = gather
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (s *Storage) look(ctx context.Context, p *corev1.Pod) (evicted bool) {
	use, err := s.Measure(ctx, p, false)
	if signal, _ := Exceeds(p, use); err == nil && signal != "" {
		use, err = s.Measure(ctx, p, true) // no pod ends for what is not its own
	}
	if err != nil {
		s.Log.Debug("local storage of a pod is not measured", "pod", p.Namespace+"/"+p.Name, "err", err)
		return false
	}
	signal, message := Exceeds(p, use)
	if signal == "" || ctx.Err() != nil {
		return false
	}
	s.Evict(p, message)
	if s.Count != nil {
		s.Count(signal)
	}
	return true
}
