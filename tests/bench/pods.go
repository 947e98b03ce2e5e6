package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shoal-project/shoal/tests/bench/measure"
)

// stepTimeout bounds the wait for a process.
const stepTimeout = 2 * time.Minute

// pauseBetween lets the last pod's late work (events, statuses) end before the
// next one is measured.
const pauseBetween = 300 * time.Millisecond

// oneByOne starts n pods one after the other; times from the creation's call
// to the event that shows the pod Running, in ms.
func (b *bench) oneByOne(ctx context.Context, n int) (measure.Sample, phases, error) {
	total, parts, err := b.startEach(ctx, n)
	if err != nil {
		return nil, nil, err
	}
	_, err = b.pods.DeleteAll(ctx)
	return total, parts, err
}

// startEach is oneByOne without the pods' end.
func (b *bench) startEach(ctx context.Context, n int) (measure.Sample, phases, error) {
	var total measure.Sample
	parts := phases{}
	for range n {
		s, err := b.pods.One(ctx)
		if err != nil {
			return nil, nil, err
		}
		total = append(total, measure.Ms(s.Running.Sub(s.Began)))
		marks, err := b.marks(string(s.UID))
		if err != nil {
			return nil, nil, err
		}
		parts.add(s.Began, append([]time.Time{s.Answered, s.Scheduled}, append(marks, s.Running)...))
		time.Sleep(pauseBetween)
	}
	return total, parts, nil
}

// crash kills the process of a container n times, each time of a new pod, and
// measures until the API shows it running again, in ms.
func (b *bench) crash(ctx context.Context, n int) (measure.Sample, error) {
	var s measure.Sample
	for i := range n {
		group, _, err := b.pods.Together(ctx, 1)
		if err != nil {
			return nil, err
		}
		var killed, back time.Time
		err = b.pods.Follow(ctx, group, func() error {
			pid, err := b.workload()
			if err != nil {
				return err
			}
			killed = time.Now()
			return syscall.Kill(pid, syscall.SIGKILL)
		}, func(_ watch.EventType, p *corev1.Pod, at time.Time) bool {
			back = at
			return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount == 1 &&
				p.Status.ContainerStatuses[0].State.Running != nil
		})
		if err != nil {
			return nil, fmt.Errorf("crash %d: %w", i, err)
		}
		s = append(s, measure.Ms(back.Sub(killed)))
		if _, err := b.pods.DeleteAll(ctx); err != nil {
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
	groups, err := b.pods.Groups()
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
