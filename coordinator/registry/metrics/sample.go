package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// maxAnswer bounds a node's answer, in bytes: some kilobytes a pod.
const maxAnswer = 32 << 20

// reading is what a node or a container had used at one time, by its own clock, in
// whole seconds.
type reading struct {
	time   time.Time
	cpu    uint64 // nanoseconds of CPU time since it began
	memory uint64 // working set, in bytes
}

// sample is one answer of a node.
type sample struct {
	taken time.Time // by this server's clock
	node  *reading  // nil: it did not tell
	pods  map[types.NamespacedName]podSample
}

// podSample are a pod's containers by name. The UID tells a pod from a later one
// of the same name.
type podSample struct {
	uid        string
	containers map[string]reading
}

// readSample reads a kubelet's /stats/summary.
func readSample(r io.Reader, now time.Time) (*sample, error) {
	var told statsapi.Summary
	if err := json.NewDecoder(io.LimitReader(r, maxAnswer)).Decode(&told); err != nil {
		return nil, fmt.Errorf("read stats summary: %w", err)
	}
	s := &sample{taken: now, pods: map[types.NamespacedName]podSample{}}
	if r, ok := readingOf(told.Node.CPU, told.Node.Memory); ok {
		s.node = &r
	}
	for _, p := range told.Pods {
		pod := podSample{uid: p.PodRef.UID, containers: map[string]reading{}}
		for _, c := range p.Containers {
			if r, ok := readingOf(c.CPU, c.Memory); ok {
				pod.containers[c.Name] = r
			}
		}
		// A pod that runs is never hidden by an ended one of the same name.
		key := types.NamespacedName{Namespace: p.PodRef.Namespace, Name: p.PodRef.Name}
		if len(pod.containers) > 0 {
			s.pods[key] = pod
		}
	}
	return s, nil
}

func readingOf(cpu *statsapi.CPUStats, memory *statsapi.MemoryStats) (reading, bool) {
	if cpu == nil || cpu.UsageCoreNanoSeconds == nil || memory == nil || memory.WorkingSetBytes == nil {
		return reading{}, false
	}
	return reading{time: cpu.Time.Time, cpu: *cpu.UsageCoreNanoSeconds, memory: *memory.WorkingSetBytes}, true
}

// usage is what was used between two readings.
type usage struct {
	time      time.Time
	window    time.Duration
	nanoCores int64
	memory    int64
}

// between returns the usage of what two readings tell of, whose answers came so far
// apart; false when it began anew between them, or when they are of the same time.
// What is measured when it is asked for is as far apart as the answers, to more than a
// second's precision; a kubelet may have measured earlier, though.
func between(old, now reading, apart time.Duration) (usage, bool) {
	window := now.time.Sub(old.time)
	if window <= 0 || now.cpu < old.cpu {
		return usage{}, false
	}
	if (window - apart).Abs() < time.Second {
		window = apart
	}
	return usage{
		time: now.time, window: window,
		nanoCores: int64(float64(now.cpu-old.cpu) / window.Seconds()),
		memory:    int64(now.memory),
	}, true
}

// pair are two samples of a node, the older one first.
type pair struct{ old, now *sample }

// apart is how long after the first answer the second one came.
func (p pair) apart() time.Duration { return p.now.taken.Sub(p.old.taken) }

// nodeUsage is false when one of the samples does not tell of the node.
func (p pair) nodeUsage() (usage, bool) {
	if p.old == nil || p.now == nil || p.old.node == nil || p.now.node == nil {
		return usage{}, false
	}
	return between(*p.old.node, *p.now.node, p.apart())
}

// podUsage returns the usage of a pod's containers by name. It is false unless all
// of them are in both samples: a sum without one of them would mislead.
func (p pair) podUsage(key types.NamespacedName) (map[string]usage, bool) {
	if p.old == nil || p.now == nil {
		return nil, false
	}
	old, now := p.old.pods[key], p.now.pods[key]
	if old.uid != now.uid || len(now.containers) == 0 {
		return nil, false
	}
	out := map[string]usage{}
	for name, r := range now.containers {
		before, known := old.containers[name]
		if !known {
			return nil, false
		}
		u, ok := between(before, r, p.apart())
		if !ok {
			return nil, false
		}
		out[name] = u
	}
	return out, true
}
