package measure

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// Namespace is where pods are started.
const Namespace = "default"

// stepTimeout bounds each wait.
const stepTimeout = 2 * time.Minute

// Pods starts groups of pods of the example image and deletes them. The times
// are a client's, from watch events.
type Pods struct {
	Client kubernetes.Interface
	// CgroupRoot is the cgroup that the node keeps its pods' cgroups in.
	CgroupRoot string
	// Probe has each pod's readiness probed over HTTP, once a second.
	Probe bool

	made atomic.Int64 // pods and groups so far
}

// pod is a pod of a group; names are never used twice, so that no late event of
// an earlier step is taken for one of this.
func (p *Pods) pod(group string) *corev1.Pod {
	c := corev1.Container{Name: "c", Image: "localhost/hello:1"}
	if p.Probe {
		c.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", group, p.made.Add(1)), Namespace: Namespace,
			Labels: map[string]string{"group": group}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			Containers:                    []corev1.Container{c},
		},
	}
}

// Follow calls seen for each event of a group's pods until it returns true.
func (p *Pods) Follow(ctx context.Context, group string, start func() error,
	seen func(watch.EventType, *corev1.Pod, time.Time) bool) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	opts := metav1.ListOptions{LabelSelector: "group=" + group}
	list, err := p.Client.CoreV1().Pods(Namespace).List(ctx, opts)
	if err != nil {
		return err
	}
	opts.ResourceVersion = list.ResourceVersion
	w, err := p.Client.CoreV1().Pods(Namespace).Watch(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { w.Stop() }()
	started := make(chan error, 1)
	go func() { started <- start() }()
	for {
		select {
		case err := <-started:
			if err != nil {
				return err
			}
			started = nil
		case e, ok := <-w.ResultChan():
			if !ok {
				// The server cuts off watchers that fall behind; they resume.
				next, err := p.Client.CoreV1().Pods(Namespace).Watch(ctx, opts)
				if err != nil {
					return fmt.Errorf("follow pods of %s: %w", group, err)
				}
				w = next
				continue
			}
			pod, isPod := e.Object.(*corev1.Pod)
			if !isPod {
				return apierrors.FromObject(e.Object)
			}
			opts.ResourceVersion = pod.ResourceVersion
			if seen(e.Type, pod, time.Now()) {
				return nil
			}
		}
	}
}

// Started is the way of one pod.
type Started struct {
	UID types.UID
	// Began is when the creation was called, Answered when that returned,
	// Scheduled and Running when events showed it.
	Began, Answered, Scheduled, Running time.Time
}

// One starts one pod and returns when it runs.
func (p *Pods) One(ctx context.Context) (Started, error) {
	var s Started
	var answered atomic.Pointer[time.Time]
	group := fmt.Sprintf("one-%d", p.made.Add(1))
	err := p.Follow(ctx, group, func() error {
		s.Began = time.Now()
		_, err := p.Client.CoreV1().Pods(Namespace).Create(ctx, p.pod(group), metav1.CreateOptions{})
		answered.Store(ptr.To(time.Now()))
		return err
	}, func(_ watch.EventType, pod *corev1.Pod, at time.Time) bool {
		s.UID = pod.UID
		if s.Scheduled.IsZero() && pod.Spec.NodeName != "" {
			s.Scheduled = at
		}
		s.Running = at
		return pod.Status.Phase == corev1.PodRunning && answered.Load() != nil
	})
	if a := answered.Load(); a != nil {
		s.Answered = *a
	}
	return s, err
}

// Together creates n pods at once and returns their group and the time until
// all ran.
func (p *Pods) Together(ctx context.Context, n int) (string, time.Duration, error) {
	var start, last time.Time
	running := map[string]bool{}
	group := fmt.Sprintf("many-%d", p.made.Add(1))
	err := p.Follow(ctx, group, func() error {
		start = time.Now()
		var wg sync.WaitGroup
		errs := make([]error, n)
		for i := range n {
			wg.Go(func() {
				_, errs[i] = p.Client.CoreV1().Pods(Namespace).Create(ctx, p.pod(group), metav1.CreateOptions{})
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	}, func(_ watch.EventType, pod *corev1.Pod, at time.Time) bool {
		if pod.Status.Phase == corev1.PodRunning {
			running[pod.Name], last = true, at
		}
		return len(running) == n
	})
	if err != nil {
		err = fmt.Errorf("%d of %d pods run: %w", len(running), n, err)
	}
	return group, last.Sub(start), err
}

// DeleteAll deletes every pod with grace period 0 and returns when none has a
// process or cgroup left on the node; v1 has no event for that.
func (p *Pods) DeleteAll(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	err := p.Client.CoreV1().Pods(Namespace).DeleteCollection(ctx,
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for deadline := start.Add(stepTimeout); ; time.Sleep(5 * time.Millisecond) {
		groups, err := p.Groups()
		if err != nil {
			return 0, err
		}
		if len(groups) == 0 {
			return time.Since(start), nil
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("pods still on the node: %v", groups)
		}
	}
}

// Groups lists the cgroups of the node's pods.
func (p *Pods) Groups() ([]string, error) {
	var all []string
	for _, pattern := range []string{"/sys/fs/cgroup/memory/%s/kubepods/%s", "/sys/fs/cgroup/%s/kubepods/%s"} {
		for _, qos := range []string{"pod*", "besteffort/pod*", "burstable/pod*"} {
			found, err := filepath.Glob(fmt.Sprintf(pattern, p.CgroupRoot, qos))
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
	}
	return all, nil
}
