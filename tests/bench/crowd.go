package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/tests/bench/measure"
)

// room is how many pods more than a crowd the node takes.
const room = 20

// crowded measures a node with many pods: their start, what they weigh, the agent's start
// among them, and probes of each, once a second over HTTP.
func crowded(ctx context.Context, n, runs int) (rows []row, err error) {
	c, err := prepare("crowd")
	if err != nil {
		return nil, err
	}
	if err := c.Up("--max-pods", strconv.Itoa(n+room), "--node-cidr-mask-size", "20"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	b := &bench{cluster: c}
	if err := b.connect(); err != nil {
		return nil, err
	}
	name := func(what string) string { return fmt.Sprintf("%d pods: %s", n, what) }
	time.Sleep(afterEffects)
	idle, err := b.weigh(ctx, 1, time.Second)
	if err != nil {
		return nil, err
	}
	_, took, err := b.pods.Together(ctx, n)
	if err != nil {
		return nil, err
	}
	rows = append(rows, row{name("started at once"), "", "", measure.Sample{took.Seconds()}, "s"})
	time.Sleep(afterEffects)
	full, err := b.weigh(ctx, runs, idleWatch)
	if err != nil {
		return nil, err
	}
	rows = append(rows,
		row{name("CPU of both"), "1", "", full.cpu, "% of a core"},
		row{name("agent PSS"), "", "", measure.Sample{full.agent}, "MB"},
		row{name("monitors PSS"), "", "", measure.Sample{full.monitors}, "MB"},
		row{name("agent and monitors PSS"), "250", "", measure.Sample{full.agent + full.monitors}, "MB"},
		row{name("coordinator PSS"), "", "", measure.Sample{full.coordinator}, "MB"},
		row{"weight of a pod beyond its workload", "1", "7",
			measure.Sample{(full.total() - idle.total()) / float64(n)}, "MB"})
	var back measure.Sample
	for range runs {
		took, err := b.restart(ctx, n)
		if err != nil {
			return nil, err
		}
		back = append(back, took.Seconds())
	}
	rows = append(rows, row{name("agent's start until it answers with all of them"), "1", "", back, "s"})
	if _, err := b.pods.DeleteAll(ctx); err != nil {
		return nil, err
	}
	b.pods.Probe = true
	if _, _, err := b.pods.Together(ctx, n); err != nil {
		return nil, err
	}
	time.Sleep(afterEffects)
	probed, err := b.weigh(ctx, runs, idleWatch)
	if err != nil {
		return nil, err
	}
	rows = append(rows, row{name("HTTP probes each second: CPU of both"), "", "", probed.cpu, "% of a core"})
	_, err = b.pods.DeleteAll(ctx)
	return rows, err
}

// restart kills the agent, and measures from the start of the next until it answers with all
// pods. None of them may be touched.
func (b *bench) restart(ctx context.Context, n int) (time.Duration, error) {
	before, err := b.containers(ctx)
	if err != nil {
		return 0, err
	}
	old, err := b.cluster.Pid("agent")
	if err != nil {
		return 0, err
	}
	if err := syscall.Kill(old, syscall.SIGTERM); err != nil {
		return 0, err
	}
	var began time.Time
	for deadline := time.Now().Add(stepTimeout); ; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return 0, errors.New("the agent does not answer after its end")
		}
		if began.IsZero() {
			if pid, err := b.cluster.Pid("agent"); err == nil && pid != old {
				began = time.Now()
			}
			continue
		}
		var list corev1.PodList
		err := b.pods.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + nodeName + "/proxy/runningpods/").
			Do(ctx).Into(&list)
		if err == nil && len(list.Items) >= n {
			break
		}
	}
	took := time.Since(began)
	time.Sleep(afterEffects)
	after, err := b.containers(ctx)
	if err != nil {
		return 0, err
	}
	for pod, id := range before {
		if after[pod] != id {
			return 0, fmt.Errorf("%s was touched by the agent's start: %s, then %s", pod, id, after[pod])
		}
	}
	return took, nil
}

// nodeName is that of the cluster's machine.
const nodeName = "node1"

// containers are the IDs and restarts of all pods' containers.
func (b *bench) containers(ctx context.Context) (map[string]string, error) {
	list, err := b.pods.Client.CoreV1().Pods(measure.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, p := range list.Items {
		for _, c := range p.Status.ContainerStatuses {
			out[p.Name] = fmt.Sprint(c.ContainerID, " ", c.RestartCount, " ", c.Ready)
		}
	}
	return out, nil
}
