package devicetaint

import (
	"math"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// pools returns the slices of a driver's pool.
type pools func(driver, pool string) []*resourcev1.ResourceSlice

// due tells when the pods of a claim must go; false is never.
func due(claim *resourcev1.ResourceClaim, of pools) (at time.Time, evict bool) {
	if claim.Status.Allocation == nil {
		return time.Time{}, false
	}
	for i := range claim.Status.Allocation.Devices.Results {
		given := &claim.Status.Allocation.Devices.Results[i]
		for _, taint := range evicting(of(given.Driver, given.Pool), given.Device) {
			wait, ever := tolerated(given.Tolerations, taint)
			if !ever {
				continue
			}
			if end := since(taint).Add(wait); !evict || end.Before(at) {
				at, evict = end, true
			}
		}
	}
	return at, evict
}

// evicting are a device's NoExecute taints, as the newest slices of its pool tell.
func evicting(slices []*resourcev1.ResourceSlice, device string) (out []resourcev1.DeviceTaint) {
	newest := int64(math.MinInt64)
	for _, s := range slices {
		newest = max(newest, s.Spec.Pool.Generation)
	}
	for _, s := range slices {
		if s.Spec.Pool.Generation != newest {
			continue
		}
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			for _, t := range d.Taints {
				if d.Name == device && t.Effect == resourcev1.DeviceTaintEffectNoExecute {
					out = append(out, t)
				}
			}
		}
	}
	return out
}

// tolerated tells how long a taint is tolerated; ends is false for one that is for ever.
func tolerated(tolerations []resourcev1.DeviceToleration, taint resourcev1.DeviceTaint) (wait time.Duration, ends bool) {
	shortest := int64(math.MaxInt64)
	for _, t := range tolerations {
		if !resourceclaim.ToleratesTaint(t, taint) {
			continue
		}
		if t.TolerationSeconds == nil {
			return 0, false
		}
		shortest = min(shortest, max(*t.TolerationSeconds, 0))
	}
	if shortest == math.MaxInt64 {
		return 0, true
	}
	return time.Duration(min(shortest, math.MaxInt64/int64(time.Second))) * time.Second, true
}

func since(taint resourcev1.DeviceTaint) time.Time {
	if taint.TimeAdded == nil { // the API server sets it
		return time.Time{}
	}
	return taint.TimeAdded.Time
}
