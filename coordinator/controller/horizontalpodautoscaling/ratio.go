package horizontalpodautoscaling

import (
	"errors"
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

const (
	// cpuInitialization is how long after its start a pod's CPU use counts only
	// while the pod is ready: it may be busy with starting.
	cpuInitialization = 5 * time.Minute
	// readinessDelay is how long after its start a pod's first change of readiness
	// counts as its first.
	readinessDelay = 30 * time.Second
)

var errNoPods = errors.New("no pods returned by selector while calculating replica count")

// tolerances are how far a ratio may be from 1 without any scaling.
type tolerances struct{ down, up float64 }

func (t tolerances) within(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

// ceil rounds replicas up.
func ceil(replicas float64) int32 { return int32(min(math.Ceil(replicas), math.MaxInt32)) }

// addCapped adds what may be as large as an int64 can be.
func addCapped(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// groups are an autoscaler's pods by what their metrics are worth.
type groups struct {
	ready int // pods that count
	// unready pods count as using nothing when scaling up, missing ones (of which no
	// metric is known) as whatever speaks against scaling. Those that end are left
	// out altogether.
	unready, missing, ending []string
}

func groupPods(pods []*corev1.Pod, metrics PodMetrics, cpu bool, now time.Time) (g groups) {
	for _, p := range pods {
		m, known := metrics[p.Name]
		switch {
		case p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed:
			g.ending = append(g.ending, p.Name)
		case p.Status.Phase == corev1.PodPending:
			g.unready = append(g.unready, p.Name)
		case !known:
			g.missing = append(g.missing, p.Name)
		case cpu && starting(p, m, now):
			g.unready = append(g.unready, p.Name)
		default:
			g.ready++
		}
	}
	return g
}

func readiness(p *corev1.Pod) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c
		}
	}
	return nil
}

// starting tells whether a pod's CPU use may be that of its start: while it is young,
// when it is not ready or the metric is from before it was; later, when it has never
// been ready.
func starting(p *corev1.Pod, m PodMetric, now time.Time) bool {
	ready := readiness(p)
	if ready == nil || p.Status.StartTime == nil {
		return true
	}
	begin, changed := p.Status.StartTime.Time, ready.LastTransitionTime.Time
	if begin.Add(cpuInitialization).After(now) {
		return ready.Status == corev1.ConditionFalse || m.Time.Before(changed.Add(m.Window))
	}
	return ready.Status == corev1.ConditionFalse && begin.Add(readinessDelay).After(changed)
}

// readyPods counts the pods that run and are ready.
func readyPods(pods []*corev1.Pod) (int, error) {
	if len(pods) == 0 {
		return 0, fmt.Errorf("unable to calculate ready pods: %w", errNoPods)
	}
	n := 0
	for _, p := range pods {
		if c := readiness(p); p.Status.Phase == corev1.PodRunning && c != nil && c.Status == corev1.ConditionTrue {
			n++
		}
	}
	return n, nil
}

// score is how pods do against a target.
type score struct {
	ratio       float64
	utilization int32 // percent of requests
	average     int64
}

// target is what the metrics of pods are held against.
type target interface {
	// prepare looks at the pods before the first score.
	prepare(pods []*corev1.Pod) error
	score(m PodMetrics) (score, error)
	// most is what a pod without a metric counts as when scaling down.
	most(pod string) int64
}

// averageValue is a target of so much for each pod.
type averageValue int64

func (averageValue) prepare([]*corev1.Pod) error { return nil }

func (t averageValue) most(string) int64 { return int64(t) }

func (t averageValue) score(m PodMetrics) (score, error) {
	var sum int64
	for _, p := range m {
		sum += p.Value
	}
	average := sum / int64(len(m))
	return score{ratio: float64(average) / float64(t), average: average}, nil
}

// utilization is a target in percent of what pods, or their containers of one name,
// request.
type utilization struct {
	percent   int32
	resource  corev1.ResourceName
	container string
	requests  map[string]int64
}

func (t *utilization) prepare(pods []*corev1.Pod) error {
	t.requests = map[string]int64{}
	for _, p := range pods {
		request, err := requestOf(p, t.resource, t.container)
		if err != nil {
			return err
		}
		t.requests[p.Name] = request
	}
	return nil
}

func (t *utilization) most(pod string) int64 {
	return t.requests[pod] * int64(max(100, t.percent)) / 100
}

func (t *utilization) score(m PodMetrics) (score, error) {
	var used, requested, count int64
	for name, p := range m {
		if request, ok := t.requests[name]; ok {
			used, requested, count = used+p.Value, requested+request, count+1
		}
	}
	if requested == 0 {
		return score{}, errors.New("no metrics returned matched known pods")
	}
	percent := int32(used * 100 / requested)
	return score{ratio: float64(percent) / float64(t.percent), utilization: percent, average: used / count}, nil
}

// requestOf is what a pod requests: at its own level where it does (KEP-2837), else
// the sum of its containers, sidecars among them.
func requestOf(p *corev1.Pod, name corev1.ResourceName, container string) (int64, error) {
	if container == "" && resource.IsPodLevelRequestsSet(p) {
		q, ok := resource.PodRequests(p, resource.PodResourcesOptions{})[name]
		if !ok {
			return 0, fmt.Errorf("missing pod-level request for %s in Pod %s", name, p.Name)
		}
		return q.MilliValue(), nil
	}
	sum, found := int64(0), container == ""
	add := func(c *corev1.Container) error {
		if container != "" && c.Name != container {
			return nil
		}
		q, ok := c.Resources.Requests[name]
		if !ok {
			return fmt.Errorf("missing request for %s in container %s of Pod %s", name, c.Name, p.Name)
		}
		sum, found = sum+q.MilliValue(), true
		return nil
	}
	for i := range p.Spec.Containers {
		if err := add(&p.Spec.Containers[i]); err != nil {
			return 0, err
		}
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		if err := add(c); err != nil {
			return 0, err
		}
	}
	if !found {
		return 0, fmt.Errorf("container %s not found in Pod %s", container, p.Name)
	}
	return sum, nil
}

// countByPods returns the replicas that bring pods to their target, and how they do
// now. Where metrics are missing it is careful: nothing that is assumed may turn the
// direction, and none of it makes the change larger.
func countByPods(pods []*corev1.Pod, all PodMetrics, cpu bool, t target, current int32, tol tolerances,
	now time.Time) (int32, score, error) {
	if len(pods) == 0 {
		return 0, score{}, errNoPods
	}
	g := groupPods(pods, all, cpu, now)
	metrics := PodMetrics{}
	for name, m := range all {
		metrics[name] = m
	}
	for _, list := range [][]string{g.ending, g.unready} {
		for _, name := range list {
			delete(metrics, name)
		}
	}
	if len(metrics) == 0 {
		return 0, score{}, errors.New("did not receive metrics for targeted pods (pods might be unready)")
	}
	if err := t.prepare(pods); err != nil {
		return 0, score{}, err
	}
	is, err := t.score(metrics)
	if err != nil {
		return 0, score{}, err
	}
	withUnready := len(g.unready) > 0 && is.ratio > 1
	if !withUnready && len(g.missing) == 0 {
		if tol.within(is.ratio) {
			return current, is, nil
		}
		return ceil(is.ratio * float64(g.ready)), is, nil
	}
	for _, name := range g.missing {
		if is.ratio < 1 {
			metrics[name] = PodMetric{Value: t.most(name)}
		} else if is.ratio > 1 {
			metrics[name] = PodMetric{}
		}
	}
	if withUnready {
		for _, name := range g.unready {
			metrics[name] = PodMetric{}
		}
	}
	assumed, err := t.score(metrics)
	if err != nil {
		return 0, is, err
	}
	replicas := ceil(assumed.ratio * float64(len(metrics)))
	if tol.within(assumed.ratio) || is.ratio < 1 && assumed.ratio > 1 || is.ratio > 1 && assumed.ratio < 1 ||
		assumed.ratio < 1 && replicas > current || assumed.ratio > 1 && replicas < current {
		return current, is, nil
	}
	return replicas, is, nil
}

// countByValue returns the replicas that bring one value for all pods to its target.
func countByValue(pods []*corev1.Pod, value, target int64, current int32, tol tolerances) (int32, error) {
	ratio := float64(value) / float64(target)
	if current == 0 {
		return ceil(ratio), nil
	}
	if tol.within(ratio) {
		return current, nil
	}
	ready, err := readyPods(pods)
	if err != nil {
		return 0, err
	}
	return ceil(ratio * float64(ready)), nil
}

// countByShare returns the replicas among which a value gives each its target, and
// the share of each of the pods that there are.
func countByShare(value, target int64, replicas int32, tol tolerances) (int32, int64) {
	want := replicas
	if !tol.within(float64(value) / (float64(target) * float64(replicas))) {
		want = ceil(float64(value) / float64(target))
	}
	share := int64(math.MaxInt64)
	if value < math.MaxInt64 && replicas > 0 {
		share = int64(math.Ceil(float64(value) / float64(replicas)))
	}
	return want, share
}
