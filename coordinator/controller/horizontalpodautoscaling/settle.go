package horizontalpodautoscaling

import (
	"math"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/utils/ptr"
)

const (
	// downWindow is how long a recommendation holds a scale-down back, where an
	// autoscaler says nothing.
	downWindow = 5 * time.Minute
	// Without behavior, one step at most doubles the replicas, or makes four.
	stepFactor, stepLeast = 2, 4
)

// event is a number of replicas at one time.
type event struct {
	replicas int32
	time     time.Time
}

// history is what was recommended for a target, before any limits, and what was
// added and removed lately.
type history struct {
	recommended, added, removed []event
}

// outcome is what a desired number of replicas comes to.
type outcome struct {
	replicas int32
	// able is the reason of the condition AbleToScale, which stays true; limit that of
	// ScalingLimited, which is true unless it is withinRange.
	able, limit string
}

// withinRange is the reason of what is not limited.
const withinRange = "DesiredWithinRange"

// words are the messages of the conditions, by their reasons.
var words = map[string]string{
	"ReadyForNewScale": "recommended size matches current size",
	"ScaleUpStabilized": "recent recommendations were lower than current one, " +
		"applying the lowest recent recommendation",
	"ScaleDownStabilized": "recent recommendations were higher than current one, " +
		"applying the highest recent recommendation",
	withinRange:       "the desired count is within the acceptable range",
	"ScaleUpLimit":    "the desired replica count is increasing faster than the maximum scale rate",
	"ScaleDownLimit":  "the desired replica count is decreasing faster than the maximum scale rate",
	"TooManyReplicas": "the desired replica count is more than the maximum replica count",
	"TooFewReplicas":  "the desired replica count is less than the minimum replica count",
}

// settle remembers what is desired, and returns what of it may be done now.
func (h *history) settle(behavior *autoscalingv2.HorizontalPodAutoscalerBehavior, current, desired, least, most int32,
	now time.Time) outcome {
	out := outcome{able: "ReadyForNewScale"}
	stable, reason := h.stabilize(behavior, current, desired, now)
	if stable != desired {
		out.able = reason
	}
	if behavior == nil {
		out.replicas, out.limit = limitStep(current, stable, least, most)
	} else {
		out.replicas, out.limit = h.limitRate(behavior, current, stable, least, most, now)
	}
	return out
}

// stabilize bounds what is desired by the recommendations of a while: by the largest
// of them for going down, the smallest for going up.
func (h *history) stabilize(behavior *autoscalingv2.HorizontalPodAutoscalerBehavior, current, desired int32,
	now time.Time) (int32, string) {
	up, down := time.Duration(0), downWindow
	if behavior != nil {
		up, down = windowOf(behavior.ScaleUp, 0), windowOf(behavior.ScaleDown, downWindow)
	}
	lowest, highest := desired, desired
	for _, r := range h.recommended {
		if behavior != nil && r.time.After(now.Add(-up)) {
			lowest = min(lowest, r.replicas)
		}
		if r.time.After(now.Add(-down)) || behavior == nil && r.time.Equal(now.Add(-down)) {
			highest = max(highest, r.replicas)
		}
	}
	oldest := now.Add(-max(up, down))
	h.recommended = slices.DeleteFunc(h.recommended, func(r event) bool { return r.time.Before(oldest) })
	h.recommended = append(h.recommended, event{desired, now})
	if behavior == nil {
		return highest, "ScaleDownStabilized"
	}
	reason := "ScaleDownStabilized"
	if desired >= current {
		reason = "ScaleUpStabilized"
	}
	return min(max(current, lowest), highest), reason
}

func windowOf(rules *autoscalingv2.HPAScalingRules, otherwise time.Duration) time.Duration {
	if rules == nil || rules.StabilizationWindowSeconds == nil {
		return otherwise
	}
	return time.Duration(*rules.StabilizationWindowSeconds) * time.Second
}

// limitStep is the limit without behavior.
func limitStep(current, desired, least, most int32) (int32, string) {
	step, reason := int32(max(stepFactor*int64(current), stepLeast)), "ScaleUpLimit"
	if most <= step {
		step, reason = most, "TooManyReplicas"
	}
	switch {
	case desired < least:
		return least, "TooFewReplicas"
	case desired > step:
		return step, reason
	}
	return desired, withinRange
}

// limitRate is the limit by policies.
func (h *history) limitRate(behavior *autoscalingv2.HorizontalPodAutoscalerBehavior, current, desired, least,
	most int32, now time.Time) (int32, string) {
	if desired > current {
		limit, reason := max(h.upLimit(behavior.ScaleUp, current, now), current), "ScaleUpLimit"
		if most <= limit {
			limit, reason = most, "TooManyReplicas"
		}
		if desired > limit {
			return limit, reason
		}
	}
	if desired < current {
		limit, reason := min(h.downLimit(behavior.ScaleDown, current, now), current), "ScaleDownLimit"
		if least >= limit {
			limit, reason = least, "TooFewReplicas"
		}
		if desired < limit {
			return limit, reason
		}
	}
	return desired, withinRange
}

// upLimit is the largest number that the policies allow now: of them, that with the
// largest change, or the smallest.
func (h *history) upLimit(rules *autoscalingv2.HPAScalingRules, current int32, now time.Time) int32 {
	choose, limit := largest, int32(math.MinInt32)
	switch ptr.Deref(rules.SelectPolicy, autoscalingv2.MaxChangePolicySelect) {
	case autoscalingv2.DisabledPolicySelect:
		return current
	case autoscalingv2.MinChangePolicySelect:
		choose, limit = smallest, math.MaxInt32
	}
	for _, p := range rules.Policies {
		start := h.before(p.PeriodSeconds, current, now)
		if p.Type == autoscalingv2.PodsScalingPolicy {
			limit = choose(limit, ceil(float64(start)+float64(p.Value)))
		} else {
			limit = choose(limit, ceil(float64(start)*(1+float64(p.Value)/100)))
		}
	}
	return limit
}

// downLimit is the smallest number that the policies allow now.
func (h *history) downLimit(rules *autoscalingv2.HPAScalingRules, current int32, now time.Time) int32 {
	choose, limit := smallest, int32(math.MaxInt32)
	switch ptr.Deref(rules.SelectPolicy, autoscalingv2.MaxChangePolicySelect) {
	case autoscalingv2.DisabledPolicySelect:
		return current
	case autoscalingv2.MinChangePolicySelect:
		choose, limit = largest, math.MinInt32
	}
	for _, p := range rules.Policies {
		start := h.before(p.PeriodSeconds, current, now)
		if p.Type == autoscalingv2.PodsScalingPolicy {
			limit = choose(limit, start-p.Value)
		} else {
			limit = choose(limit, int32(float64(start)*(1-float64(p.Value)/100)))
		}
	}
	return limit
}

func smallest(a, b int32) int32 { return min(a, b) }
func largest(a, b int32) int32  { return max(a, b) }

// before is how many replicas there were at the beginning of a policy's period.
func (h *history) before(seconds, current int32, now time.Time) int32 {
	cutoff := now.Add(-time.Duration(seconds) * time.Second)
	for _, e := range h.added {
		if e.time.After(cutoff) {
			current -= e.replicas
		}
	}
	for _, e := range h.removed {
		if e.time.After(cutoff) {
			current += e.replicas
		}
	}
	return current
}

// done remembers a change for the policies that look back at it.
func (h *history) done(behavior *autoscalingv2.HorizontalPodAutoscalerBehavior, from, to int32, now time.Time) {
	if behavior == nil {
		return // no policy looks back
	}
	var longest int32
	for _, rules := range []*autoscalingv2.HPAScalingRules{behavior.ScaleUp, behavior.ScaleDown} {
		if rules == nil {
			continue
		}
		for _, p := range rules.Policies {
			longest = max(longest, p.PeriodSeconds)
		}
	}
	old := func(e event) bool { return e.time.Before(now.Add(-time.Duration(longest) * time.Second)) }
	h.added, h.removed = slices.DeleteFunc(h.added, old), slices.DeleteFunc(h.removed, old)
	if to > from {
		h.added = append(h.added, event{to - from, now})
	} else {
		h.removed = append(h.removed, event{from - to, now})
	}
}
