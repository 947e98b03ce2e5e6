package plugins

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// strategy turns the share of a resource that would be in use into a score.
type strategy struct {
	resources []configv1.ResourceSpec
	score     func(used, capacity int64) int64
	// ratio is set for RequestedToCapacityRatio, which leaves out resources
	// that score nothing.
	ratio bool
}

var cpuAndMemory = []configv1.ResourceSpec{{Name: "cpu", Weight: 1}, {Name: "memory", Weight: 1}}

func newStrategy(c *configv1.ScoringStrategy) (strategy, error) {
	if c == nil {
		c = &configv1.ScoringStrategy{Type: configv1.LeastAllocated}
	}
	s := strategy{resources: withWeights(c.Resources)}
	switch c.Type {
	case configv1.LeastAllocated, "":
		s.score = leastAllocated
	case configv1.MostAllocated:
		s.score = mostAllocated
	case configv1.RequestedToCapacityRatio:
		if c.RequestedToCapacityRatio == nil || len(c.RequestedToCapacityRatio.Shape) == 0 {
			return s, fmt.Errorf("scoringStrategy.requestedToCapacityRatio.shape: Required value: at least one point must be specified")
		}
		s.score, s.ratio = shapeScore(c.RequestedToCapacityRatio.Shape), true
	default:
		return s, fmt.Errorf("scoring strategy %s is not supported", c.Type)
	}
	return s, nil
}

func withWeights(in []configv1.ResourceSpec) []configv1.ResourceSpec {
	if len(in) == 0 {
		return cpuAndMemory
	}
	out := append([]configv1.ResourceSpec(nil), in...)
	for i := range out {
		if out[i].Weight == 0 {
			out[i].Weight = 1
		}
	}
	return out
}

func leastAllocated(used, capacity int64) int64 {
	if used > capacity {
		return 0
	}
	return (capacity - used) * framework.MaxScore / capacity
}

func mostAllocated(used, capacity int64) int64 {
	return min(used, capacity) * framework.MaxScore / capacity
}

// shapeScore interpolates between points of utilization (0..100) and score (0..10).
func shapeScore(shape []configv1.UtilizationShapePoint) func(used, capacity int64) int64 {
	points := slices.SortedFunc(slices.Values(shape), func(a, b configv1.UtilizationShapePoint) int {
		return cmp.Compare(a.Utilization, b.Utilization)
	})
	const scale = framework.MaxScore / 10
	return func(used, capacity int64) int64 {
		u := int64(100)
		if used < capacity {
			u = used * 100 / capacity
		}
		for i, p := range points {
			if u > int64(p.Utilization) {
				continue
			}
			if i == 0 {
				return int64(p.Score) * scale
			}
			q := points[i-1]
			step := int64(p.Utilization - q.Utilization)
			return (int64(q.Score)*step + int64(p.Score-q.Score)*(u-int64(q.Utilization))) * scale / step
		}
		return int64(points[len(points)-1].Score) * scale
	}
}

// fitScore is the weighted mean over the strategy's resources. CPU and memory
// count with defaults for containers that request none.
type fitScore struct {
	strategy
	pod *framework.PodInfo
}

func (s *fitScore) Score(n *framework.NodeInfo) int64 {
	var sum, weights int64
	for i := range s.resources {
		name := corev1.ResourceName(s.resources[i].Name)
		capacity := n.Allocatable.Get(name)
		if capacity == 0 {
			continue
		}
		want, used := s.pod.Requests.Get(name), n.Requested.Get(name)
		switch name {
		case corev1.ResourceCPU:
			want, used = s.pod.NonZero.MilliCPU, n.NonZero.MilliCPU
		case corev1.ResourceMemory:
			want, used = s.pod.NonZero.Memory, n.NonZero.Memory
		default:
			if want == 0 {
				continue // a resource that the pod does not want says nothing
			}
		}
		v := s.score(used+want, capacity)
		if s.ratio && v == 0 {
			continue
		}
		sum += v * s.resources[i].Weight
		weights += s.resources[i].Weight
	}
	if weights == 0 {
		return 0
	}
	if s.ratio {
		return int64(math.Round(float64(sum) / float64(weights)))
	}
	return sum / weights
}

// balancedAllocation prefers nodes whose resources the pod brings into, or
// keeps in, even use.
type balancedAllocation struct{ resources []configv1.ResourceSpec }

func newBalancedAllocation(args []byte, _ *Deps) (framework.Plugin, error) {
	var a configv1.NodeResourcesBalancedAllocationArgs
	if err := decodeArgs(args, &a); err != nil {
		return nil, err
	}
	return &balancedAllocation{withWeights(a.Resources)}, nil
}

func (*balancedAllocation) Name() string { return BalancedAllocationName }

func (*balancedAllocation) Sign(key []byte, pod *framework.PodInfo, _ *framework.Snapshot) ([]byte, bool) {
	return signResources(key, &pod.Requests), true
}

func (b *balancedAllocation) PreScore(pod *framework.PodInfo,
	_ *framework.Snapshot) (framework.Scorer, *framework.Status) {
	for i := range b.resources {
		if pod.Requests.Get(corev1.ResourceName(b.resources[i].Name)) != 0 {
			return &balanceScore{resources: b.resources, pod: pod}, nil
		}
	}
	return nil, nil // a best-effort pod changes no balance
}

type balanceScore struct {
	resources []configv1.ResourceSpec
	pod       *framework.PodInfo
}

// Score is 75 when the pod changes nothing, up to 100 when it evens the use out
// and down to 50 when it unbalances it.
func (s *balanceScore) Score(n *framework.NodeInfo) int64 {
	const half = framework.MaxScore / 2
	return half + (half+s.balance(n, true)-s.balance(n, false))/2
}

func (s *balanceScore) balance(n *framework.NodeInfo, withPod bool) int64 {
	var buf [4]float64
	shares, sum := buf[:0], 0.0
	for i := range s.resources {
		name := corev1.ResourceName(s.resources[i].Name)
		capacity, want := n.Allocatable.Get(name), s.pod.Requests.Get(name)
		if capacity == 0 || want == 0 && name != corev1.ResourceCPU && name != corev1.ResourceMemory {
			continue
		}
		used := n.Requested.Get(name)
		if withPod {
			used += want
		}
		f := min(1, float64(used)/float64(capacity))
		shares, sum = append(shares, f), sum+f
	}
	dev := 0.0
	switch len(shares) {
	case 0, 1:
	case 2:
		dev = math.Abs(shares[0]-shares[1]) / 2
	default:
		mean := sum / float64(len(shares))
		for _, f := range shares {
			dev += (f - mean) * (f - mean)
		}
		dev = math.Sqrt(dev / float64(len(shares)))
	}
	return int64((1 - dev) * float64(framework.MaxScore))
}
