package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

const namespace = "default"

// stepTimeout bounds each wait of the bench.
const stepTimeout = 2 * time.Minute

// pauseBetween lets the last pod's late work (events, statuses) end before the
// next one is measured.
const pauseBetween = 300 * time.Millisecond

// pod is a pod of a group; names are never used twice, so that no late event of
// an earlier step is taken for one of this.
func (b *bench) pod(group string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", group, b.made.Add(1)), Namespace: namespace, Labels: map[string]string{"group": group}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			Containers:                    []corev1.Container{{Name: "c", Image: "localhost/hello:1"}},
		},
	}
}

// follow calls seen for each event of a group's pods until it returns true.
func (b *bench) follow(ctx context.Context, group string, start func() error, seen func(watch.EventType, *corev1.Pod, time.Time) bool) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	opts := metav1.ListOptions{LabelSelector: "group=" + group}
	list, err := b.client.CoreV1().Pods(namespace).List(ctx, opts)
	if err != nil {
		return err
	}
	opts.ResourceVersion = list.ResourceVersion
	w, err := b.client.CoreV1().Pods(namespace).Watch(ctx, opts)
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
				if w, err = b.client.CoreV1().Pods(namespace).Watch(ctx, opts); err != nil {
					return err
				}
				continue
			}
			p, isPod := e.Object.(*corev1.Pod)
			if !isPod {
				return apierrors.FromObject(e.Object)
			}
			opts.ResourceVersion = p.ResourceVersion
			if seen(e.Type, p, time.Now()) {
				return nil
			}
		}
	}
}

// oneByOne starts n pods one after the other; times from the creation's call
// to the event that shows the pod Running, in ms.
func (b *bench) oneByOne(ctx context.Context, n int) (sample, phases, error) {
	var total sample
	parts := phases{}
	for range n {
		var began, answered, scheduled, running time.Time
		var uid types.UID
		group := fmt.Sprintf("one-%d", b.made.Add(1))
		err := b.follow(ctx, group, func() error {
			began = time.Now()
			_, err := b.client.CoreV1().Pods(namespace).Create(ctx, b.pod(group), metav1.CreateOptions{})
			answered = time.Now()
			return err
		}, func(_ watch.EventType, p *corev1.Pod, at time.Time) bool {
			uid = p.UID
			if scheduled.IsZero() && p.Spec.NodeName != "" {
				scheduled = at
			}
			running = at
			return p.Status.Phase == corev1.PodRunning && !answered.IsZero()
		})
		if err != nil {
			return nil, nil, err
		}
		total = append(total, ms(running.Sub(began)))
		marks, err := b.marks(string(uid))
		if err != nil {
			return nil, nil, err
		}
		parts.add(began, append([]time.Time{answered, scheduled}, append(marks, running)...))
		time.Sleep(pauseBetween)
	}
	_, err := b.deleteAll(ctx)
	return total, parts, err
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// together creates n pods at once and returns when all are Running.
func (b *bench) together(ctx context.Context, n int) (time.Duration, error) {
	_, took, err := b.start(ctx, n)
	return took, err
}

// start is together, and returns the pods' group too.
func (b *bench) start(ctx context.Context, n int) (string, time.Duration, error) {
	var start, last time.Time
	running := map[string]bool{}
	group := fmt.Sprintf("many-%d", b.made.Add(1))
	err := b.follow(ctx, group, func() error {
		start = time.Now()
		var wg sync.WaitGroup
		errs := make([]error, n)
		for i := range n {
			wg.Go(func() {
				_, errs[i] = b.client.CoreV1().Pods(namespace).Create(ctx, b.pod(group), metav1.CreateOptions{})
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	}, func(_ watch.EventType, p *corev1.Pod, at time.Time) bool {
		if p.Status.Phase == corev1.PodRunning {
			running[p.Name], last = true, at
		}
		return len(running) == n
	})
	return group, last.Sub(start), err
}

// deleteAll deletes every pod with grace period 0 and returns when none has a
// process or cgroup left on the node.
func (b *bench) deleteAll(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	err := b.client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for deadline := start.Add(stepTimeout); ; time.Sleep(5 * time.Millisecond) {
		groups, err := b.podGroups()
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

// podGroups lists the cgroups of pods of this cluster.
func (b *bench) podGroups() ([]string, error) {
	var all []string
	for _, pattern := range []string{"/sys/fs/cgroup/memory/%s/kubepods/%s", "/sys/fs/cgroup/%s/kubepods/%s"} {
		for _, qos := range []string{"pod*", "besteffort/pod*", "burstable/pod*"} {
			found, err := filepath.Glob(fmt.Sprintf(pattern, b.cluster.Name, qos))
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
	}
	return all, nil
}

// crash kills the process of a container n times, each time of a new pod, and
// measures until the API shows it running again, in ms.
func (b *bench) crash(ctx context.Context, n int) (sample, error) {
	var s sample
	for i := range n {
		group, _, err := b.start(ctx, 1)
		if err != nil {
			return nil, err
		}
		var killed, back time.Time
		err = b.follow(ctx, group, func() error {
			pid, err := b.workload()
			if err != nil {
				return err
			}
			killed = time.Now()
			return syscall.Kill(pid, syscall.SIGKILL)
		}, func(_ watch.EventType, p *corev1.Pod, at time.Time) bool {
			back = at
			return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount == 1 && p.Status.ContainerStatuses[0].State.Running != nil
		})
		if err != nil {
			return nil, fmt.Errorf("crash %d: %w", i, err)
		}
		s = append(s, ms(back.Sub(killed)))
		if _, err := b.deleteAll(ctx); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// workload finds the one container process of the one pod. A container runs a
// moment before its program replaces the OCI runtime's.
func (b *bench) workload() (int, error) {
	for deadline := time.Now().Add(stepTimeout); ; time.Sleep(time.Millisecond) {
		pid, err := b.findWorkload()
		if err == nil || time.Now().After(deadline) {
			return pid, err
		}
	}
}

func (b *bench) findWorkload() (int, error) {
	groups, err := b.podGroups()
	if err != nil {
		return 0, err
	}
	for _, g := range groups {
		files, err := filepath.Glob(filepath.Join(g, "*", "cgroup.procs"))
		if err != nil {
			return 0, err
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				return 0, err
			}
			for pid := range strings.FieldsSeq(string(data)) {
				exe, err := os.Readlink("/proc/" + pid + "/exe")
				if err == nil && filepath.Base(exe) == "hello" {
					return strconv.Atoi(pid)
				}
			}
		}
	}
	return 0, errors.New("the container's process was not found")
}
