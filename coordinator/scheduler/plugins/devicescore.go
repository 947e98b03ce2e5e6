package plugins

import (
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// PreScore implements framework.ScorePlugin: all is told by the filter.
func (*dynamicResources) PreScore(*framework.PodInfo, *framework.Snapshot) (framework.Scorer, *framework.Status) {
	return nil, nil
}

// ScoreBy implements framework.JudgedScorePlugin: of devices that a claim lists by
// preference, a node that has one named early is better (KEP-4816).
func (*dynamicResources) ScoreBy(judged framework.NodeFilter) framework.Scorer {
	f, ok := judged.(*deviceFilter)
	if !ok {
		return nil
	}
	for _, c := range f.waiting {
		if hasAlternatives(c) {
			return deviceScore{f}
		}
	}
	return nil // what is allocated is the same for all nodes
}

func hasAlternatives(c *resourcev1.ResourceClaim) bool {
	for i := range c.Spec.Devices.Requests {
		if len(c.Spec.Devices.Requests[i].FirstAvailable) > 0 {
			return true
		}
	}
	return false
}

type deviceScore struct{ judged *deviceFilter }

// Score counts for each request how early in its list the alternative is that the node
// gives a device for.
func (s deviceScore) Score(n *framework.NodeInfo) (sum int64) {
	plan := s.judged.plan(n.Node.Name)
	if plan == nil {
		return 0
	}
	for _, c := range s.judged.waiting {
		given := sets.New[string]()
		if a := plan.results[c.UID]; a != nil {
			for i := range a.Devices.Results {
				given.Insert(a.Devices.Results[i].Request)
			}
		}
		for i := range c.Spec.Devices.Requests {
			r := &c.Spec.Devices.Requests[i]
			for j := range r.FirstAvailable {
				if given.Has(resourceclaim.CreateSubRequestRef(r.Name, r.FirstAvailable[j].Name)) {
					sum += int64(resourcev1.FirstAvailableDeviceRequestMaxSize - j)
				}
			}
		}
	}
	return sum
}

// Normalize implements framework.Normalizer.
func (deviceScore) Normalize(scores []int64) { normalize(scores, false) }
