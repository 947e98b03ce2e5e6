package evict

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Signals, by their names in a configuration.
const (
	MemoryAvailable      = "memory.available"
	AllocatableAvailable = "allocatableMemory.available"
	NodeFSAvailable      = "nodefs.available"
	NodeFSInodesFree     = "nodefs.inodesFree"
	ImageFSAvailable     = "imagefs.available"
	ImageFSInodesFree    = "imagefs.inodesFree"
	PIDAvailable         = "pid.available"
	// MemoryStall is the time in which tasks did not wait for memory. It has a setting of
	// its own, and comes from Stall.
	MemoryStall = "memory.stall"
)

// Names of what is short, in events and messages.
const (
	resourceInodes corev1.ResourceName = "inodes"
	resourcePids   corev1.ResourceName = "pids"
)

// signals are those that the node measures: the resource and the condition of each.
var signals = map[string]struct {
	resource  corev1.ResourceName
	condition corev1.NodeConditionType
}{
	MemoryAvailable:      {corev1.ResourceMemory, corev1.NodeMemoryPressure},
	AllocatableAvailable: {corev1.ResourceMemory, corev1.NodeMemoryPressure},
	MemoryStall:          {corev1.ResourceMemory, corev1.NodeMemoryPressure},
	NodeFSAvailable:      {corev1.ResourceEphemeralStorage, corev1.NodeDiskPressure},
	NodeFSInodesFree:     {resourceInodes, corev1.NodeDiskPressure},
	ImageFSAvailable:     {corev1.ResourceEphemeralStorage, corev1.NodeDiskPressure},
	ImageFSInodesFree:    {resourceInodes, corev1.NodeDiskPressure},
	PIDAvailable:         {resourcePids, corev1.NodePIDPressure},
}

// containerFS are the signals of containers' layers where they lie apart from images,
// which they never do here: upstream overrides what is configured for them, too.
var containerFS = []string{"containerfs.available", "containerfs.inodesFree"}

// Amount is so much of a resource, or a share of what there is.
type Amount struct {
	Quantity resource.Quantity
	// Share is between 0 and 1, and counts when it is not 0.
	Share float64
}

// Of is the amount, given what there is in all.
func (a Amount) Of(capacity int64) int64 {
	if a.Share > 0 {
		return int64(float64(capacity) * a.Share)
	}
	return a.Quantity.Value()
}

// text is the amount as messages show it.
func (a Amount) text(capacity int64) string {
	if a.Share > 0 {
		return resource.NewQuantity(a.Of(capacity), resource.BinarySI).String()
	}
	return a.Quantity.String()
}

// ParseAmount reads a quantity, or a percentage of the capacity.
func ParseAmount(text string) (Amount, error) {
	if p, ok := strings.CutSuffix(text, "%"); ok {
		f, err := strconv.ParseFloat(p, 64)
		if err != nil || !(f >= 0 && f <= 100) {
			return Amount{}, fmt.Errorf("%q is not a percentage between 0%% and 100%%", text)
		}
		return Amount{Share: f / 100}, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return Amount{}, fmt.Errorf("%q is neither a quantity, as 100Mi, nor a percentage, as 10%%", text)
	}
	if q.Sign() < 0 {
		return Amount{}, fmt.Errorf("%q must not be negative", text)
	}
	return Amount{Quantity: q}, nil
}

// Threshold has the node act when less than Keep of a signal is available.
type Threshold struct {
	Signal string
	Keep   Amount
	// Reclaim is how much more is freed once the node acts.
	Reclaim Amount
	// Grace is how long it must hold before the node acts; 0: a hard threshold.
	Grace time.Duration
}

func (t *Threshold) met(s Signal, reclaimed bool) bool {
	keep := t.Keep.Of(s.Capacity)
	if reclaimed {
		keep += t.Reclaim.Of(s.Capacity)
	}
	return s.Available < keep
}

// Settings are those of a configuration, by signal.
type Settings struct {
	Hard, Soft, SoftGrace, MinimumReclaim map[string]string
	// Stall is acted on if it has a share.
	Stall Stall
}

// Thresholds reads settings; the error names the fields. A hard threshold of the node's
// memory is one of the memory that pods may take, too (upstream's enforcement of
// allocatable).
func (s Settings) Thresholds() ([]Threshold, error) {
	var out []Threshold
	var errs []error
	bad := func(field, signal string, err error) {
		errs = append(errs, fmt.Errorf("%s: %s: %w", field, signal, err))
	}
	reclaim := map[string]Amount{}
	for signal, text := range s.MinimumReclaim {
		a, err := amountOf(signal, text)
		if err != nil {
			bad("evictionMinimumReclaim", signal, err)
		}
		reclaim[signal] = a
	}
	add := func(field, signal, text string, grace time.Duration) {
		keep, err := amountOf(signal, text)
		if err != nil {
			bad(field, signal, err)
			return
		}
		if keep.Share == 1 || keep.Share == 0 && keep.Quantity.IsZero() || slices.Contains(containerFS, signal) {
			return // 0% and 100% switch a threshold off, as upstream; so does 0
		}
		t := Threshold{Signal: signal, Keep: keep, Reclaim: reclaim[signal], Grace: grace}
		out = append(out, t)
		if _, own := s.Hard[AllocatableAvailable]; signal == MemoryAvailable && grace == 0 && !own {
			t.Signal = AllocatableAvailable
			out = append(out, t)
		}
	}
	for signal, text := range s.Hard {
		add("evictionHard", signal, text, 0)
	}
	for signal, text := range s.Soft {
		grace, err := time.ParseDuration(s.SoftGrace[signal])
		switch {
		case s.SoftGrace[signal] == "":
			bad("evictionSoft", signal, errors.New("evictionSoftGracePeriod must tell how long it has to hold"))
		case err != nil || grace <= 0:
			bad("evictionSoftGracePeriod", signal,
				fmt.Errorf("%q is not a duration above 0, as 1m30s", s.SoftGrace[signal]))
		default:
			add("evictionSoft", signal, text, grace)
		}
	}
	for signal := range s.SoftGrace {
		if _, ok := s.Soft[signal]; !ok {
			bad("evictionSoftGracePeriod", signal, errors.New("evictionSoft has no such threshold"))
		}
	}
	if s.Stall.Share > 0 {
		out = append(out, s.Stall.Threshold())
	}
	slices.SortFunc(out, func(a, b Threshold) int {
		return cmp.Or(cmp.Compare(a.order(), b.order()), cmp.Compare(a.Grace, b.Grace), cmp.Compare(a.Signal, b.Signal))
	})
	return out, errors.Join(errs...)
}

// order: memory first, for it is short the soonest (upstream's byEvictionPriority); what is
// left of it before the time that it costs, so that one pod ends for both.
func (t *Threshold) order() int {
	switch {
	case t.Signal == MemoryStall:
		return 1
	case signals[t.Signal].condition == corev1.NodeMemoryPressure:
		return 0
	}
	return 2
}

func amountOf(signal, text string) (Amount, error) {
	if signal == MemoryStall {
		return Amount{}, errors.New("it has no threshold here: set evictionMemoryStall")
	}
	if _, known := signals[signal]; !known && !slices.Contains(containerFS, signal) {
		names := slices.DeleteFunc(slices.Sorted(maps.Keys(signals)), func(n string) bool { return n == MemoryStall })
		return Amount{}, fmt.Errorf("no such signal; known are %s", strings.Join(append(names, containerFS...), ", "))
	}
	return ParseAmount(text)
}
