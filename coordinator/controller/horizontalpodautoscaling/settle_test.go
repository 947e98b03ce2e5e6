package horizontalpodautoscaling

import (
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

func ago(seconds int) time.Time { return now.Add(-time.Duration(seconds) * time.Second) }

func rules(window int32, choose autoscalingv2.ScalingPolicySelect,
	policies ...autoscalingv2.HPAScalingPolicy) *autoscalingv2.HPAScalingRules {
	return &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &window, SelectPolicy: &choose, Policies: policies}
}

func podsIn(value, seconds int32) autoscalingv2.HPAScalingPolicy {
	return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: value, PeriodSeconds: seconds}
}

func percentIn(value, seconds int32) autoscalingv2.HPAScalingPolicy {
	return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: value, PeriodSeconds: seconds}
}

// Without behavior: five minutes of recommendations hold a scale-down back, and a
// step at most doubles.
func TestSettle(t *testing.T) {
	for _, c := range []struct {
		name                          string
		recommended                   []event
		current, desired, least, most int32
		want                          outcome
	}{
		{"nothing to do", nil, 3, 3, 1, 10, outcome{3, "ReadyForNewScale", withinRange}},
		{"up", nil, 3, 5, 1, 10, outcome{5, "ReadyForNewScale", withinRange}},
		{"doubled at most", nil, 3, 9, 1, 10, outcome{6, "ReadyForNewScale", "ScaleUpLimit"}},
		{"four at least", nil, 1, 9, 1, 10, outcome{4, "ReadyForNewScale", "ScaleUpLimit"}},
		{"the most", nil, 8, 20, 1, 10, outcome{10, "ReadyForNewScale", "TooManyReplicas"}},
		{"the least", nil, 8, 1, 2, 10, outcome{2, "ReadyForNewScale", "TooFewReplicas"}},
		{"held", []event{{7, ago(299)}, {9, ago(301)}}, 8, 2, 1, 10, outcome{7, "ScaleDownStabilized", withinRange}},
		{"at the edge", []event{{7, ago(300)}}, 8, 2, 1, 10, outcome{7, "ScaleDownStabilized", withinRange}},
		{"long ago", []event{{7, ago(301)}}, 8, 2, 1, 10, outcome{2, "ReadyForNewScale", withinRange}},
	} {
		h := &history{recommended: c.recommended}
		if got := h.settle(nil, c.current, c.desired, c.least, c.most, now); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		if last := h.recommended[len(h.recommended)-1]; last != (event{c.desired, now}) {
			t.Errorf("%s: remembered %+v", c.name, last)
		}
	}
}

func TestSettleWithBehavior(t *testing.T) {
	const most, least, off = autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect,
		autoscalingv2.DisabledPolicySelect
	free := rules(0, most, percentIn(100, 15), podsIn(4, 15))
	for _, c := range []struct {
		name             string
		up, down         *autoscalingv2.HPAScalingRules
		past             history
		current, desired int32
		want             outcome
	}{
		{"free", free, free, history{}, 10, 15, outcome{15, "ReadyForNewScale", withinRange}},
		{"the larger of two policies", free, free, history{}, 10, 50, outcome{20, "ReadyForNewScale", "ScaleUpLimit"}},
		{"the smaller", rules(0, least, percentIn(100, 15), podsIn(4, 15)), free, history{}, 10, 50,
			outcome{14, "ReadyForNewScale", "ScaleUpLimit"}},
		{"percents are rounded up", rules(0, most, percentIn(10, 60)), free, history{}, 1, 5,
			outcome{2, "ReadyForNewScale", "ScaleUpLimit"}},
		{"no way up", rules(0, off, podsIn(4, 15)), free, history{}, 10, 50,
			outcome{10, "ReadyForNewScale", "ScaleUpLimit"}},
		{"used up", rules(0, most, podsIn(4, 60)), free, history{added: []event{{4, ago(59)}}}, 10, 50,
			outcome{10, "ReadyForNewScale", "ScaleUpLimit"}},
		{"half used", rules(0, most, podsIn(4, 60)), free, history{added: []event{{2, ago(59)}, {4, ago(60)}}}, 10, 50,
			outcome{12, "ReadyForNewScale", "ScaleUpLimit"}},
		{"what was removed may come back", rules(0, most, podsIn(4, 60)), free, history{removed: []event{{3, ago(5)}}},
			10, 50, outcome{17, "ReadyForNewScale", "ScaleUpLimit"}},
		{"a policy beyond all numbers", rules(0, most, podsIn(1<<31-1, 60)), free, history{}, 10, 50,
			outcome{50, "ReadyForNewScale", withinRange}},
		{"the most of all", free, free, history{}, 60, 200, outcome{100, "ReadyForNewScale", "TooManyReplicas"}},

		{"down", free, rules(0, most, podsIn(2, 60)), history{}, 10, 1, outcome{8, "ReadyForNewScale", "ScaleDownLimit"}},
		{"down, the larger", free, rules(0, most, podsIn(2, 60), percentIn(50, 60)), history{}, 10, 1,
			outcome{5, "ReadyForNewScale", "ScaleDownLimit"}},
		{"down, the smaller", free, rules(0, least, podsIn(2, 60), percentIn(50, 60)), history{}, 10, 1,
			outcome{8, "ReadyForNewScale", "ScaleDownLimit"}},
		{"down, used up", free, rules(0, most, podsIn(2, 60)), history{removed: []event{{2, ago(9)}}}, 10, 1,
			outcome{10, "ReadyForNewScale", "ScaleDownLimit"}},
		{"no way down", free, rules(0, off), history{}, 10, 1, outcome{10, "ReadyForNewScale", "ScaleDownLimit"}},
		{"the least of all", free, free, history{}, 10, 0, outcome{1, "ReadyForNewScale", "TooFewReplicas"}},

		{"down waits", free, rules(60, most, percentIn(100, 15)), history{recommended: []event{{9, ago(59)}}}, 10, 5,
			outcome{9, "ScaleDownStabilized", withinRange}},
		{"down has waited", free, rules(60, most, percentIn(100, 15)), history{recommended: []event{{9, ago(60)}}},
			10, 5, outcome{5, "ReadyForNewScale", withinRange}},
		{"up waits", rules(60, most, podsIn(90, 15)), free, history{recommended: []event{{12, ago(59)}}}, 10, 20,
			outcome{12, "ScaleUpStabilized", withinRange}},
		{"up and down wait", rules(60, most, podsIn(90, 15)), rules(60, most, percentIn(100, 15)),
			history{recommended: []event{{5, ago(50)}}}, 10, 20, outcome{10, "ScaleUpStabilized", withinRange}},
	} {
		b := &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: c.up, ScaleDown: c.down}
		if got := c.past.settle(b, c.current, c.desired, 1, 100, now); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	// A window that is not said is five minutes for going down.
	b := &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: free, ScaleDown: rules(0, most, percentIn(100, 15))}
	b.ScaleDown.StabilizationWindowSeconds = nil
	h := &history{recommended: []event{{9, ago(299)}}}
	if got := h.settle(b, 10, 5, 1, 100, now); got.replicas != 9 {
		t.Errorf("by default: %+v", got)
	}
}

// What is remembered is bounded by what looks back at it.
func TestHistoryForgets(t *testing.T) {
	b := &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp:   rules(30, autoscalingv2.MaxChangePolicySelect, podsIn(4, 60)),
		ScaleDown: rules(30, autoscalingv2.MaxChangePolicySelect, podsIn(4, 120)),
	}
	h := &history{}
	for i := range 1000 {
		at := now.Add(time.Duration(i) * period)
		h.settle(b, 5, 5, 1, 10, at)
		h.done(b, 5, 6, at)
		h.done(b, 6, 5, at)
	}
	if len(h.recommended) > 4 || len(h.added) > 10 || len(h.removed) > 10 {
		t.Errorf("%d recommendations, %d and %d changes", len(h.recommended), len(h.added), len(h.removed))
	}
}
