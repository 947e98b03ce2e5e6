package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// healTime is how long after the end of a fault all has to be well again.
const healTime = time.Minute

// chaos is a fleet to which bad things happen: five machines, three of them with a
// coordinator too.
type chaos struct {
	cluster
	*rig
	coordinators []*container
	load         *apiLoad
	pods         map[string]string // machines of pods, by UID

	mu        sync.Mutex
	processes map[string]map[string]string // of pods, by machine and UID, since its boot
	boots     map[string]int               // twice the number of them; odd while it is off
	wrong     []string                     // what the watch over processes has found
}

const chaosPods = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 3
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: db, image: "localhost/busybox:1", command: [sleep, "1000000"]}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: each}
spec:
  selector: {matchLabels: {app: each}}
  template:
    metadata: {labels: {app: each}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: each
        image: localhost/busybox:1
        command: [sh, -c, "mkdir -p /www; hostname >/www/index.html; exec httpd -f -p 8080 -h /www"]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
`

// runChaos does bad things to five machines for a time, by a seed, and judges what the
// API told its clients, what runs and how soon all is well again.
func runChaos(ctx context.Context, r *rig) (err error) {
	fmt.Printf("chaos of %s, seed %d\n", r.chaosTime, r.seed)
	c := &chaos{rig: r, processes: map[string]map[string]string{}, boots: map[string]int{}}
	remove, err := c.setUp(ctx)
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil || r.failed > 0 {
		return err
	}
	defer r.showNodes(c.cluster)
	loadCtx, endLoad := context.WithCancel(ctx)
	defer endLoad()
	var wg sync.WaitGroup
	var loadErr error
	wg.Go(func() { loadErr = c.load.run(loadCtx, r.seed) })
	wg.Go(func() { c.watch(loadCtx) })
	c.faults(ctx)
	endLoad()
	wg.Wait()
	r.step(ctx, "what the API told its clients is true", func(ctx context.Context) (string, error) {
		told, err := c.load.result(ctx)
		return told, errors.Join(err, loadErr)
	})
	r.step(ctx, "pods are the ones of before, no process ended without a cause or ran twice", c.same)
	return nil
}

// setUp makes the fleet; the returned function removes it.
func (c *chaos) setUp(ctx context.Context) (remove func() error, err error) {
	r := c.rig
	var disks []string
	remove = func() error { return nil }
	made := filepath.Join(r.dir, r.name+"-packages")
	if !r.step(ctx, "packages of two versions are made",
		func(ctx context.Context) (string, error) {
			return "", r.packages(ctx, made, filepath.Join(made, "bin"))
		}) {
		return remove, nil
	}
	machines, removeMachines, err := r.machines(ctx, "second", "third", "fourth", "fifth")
	c.cluster = machines
	remove = func() error {
		if c.load == nil {
			r.showNodes(c.cluster) // it did not come so far
		}
		err := removeMachines()
		for _, d := range disks {
			err = errors.Join(err, syscall.Unmount(d, syscall.MNT_DETACH))
		}
		return err
	}
	if err != nil {
		return remove, err
	}
	for _, m := range c.all() {
		// A disk of its own, for the machine to have it full.
		image := filepath.Join(m.dir, "disk.img")
		if err := command(ctx, "mkfs.ext4", "-q", "-F", image, "900M"); err != nil {
			return remove, err
		}
		if err := command(ctx, "mount", "-o", "loop", image, c.disk(m)); err != nil {
			return remove, err
		}
		disks = append(disks, c.disk(m))
		if err := r.carries(ctx, m, made); err != nil {
			return remove, err
		}
	}
	ok := r.boots(ctx, c.cluster) &&
		r.step(ctx, "apt installs it on five machines", func(ctx context.Context) (string, error) {
			return "", each(ctx, c.all(), func(ctx context.Context, m *container) error {
				_, err := m.sh(ctx, admin+install(1)+neverFull)
				return err
			})
		}) && r.script(ctx, c.first, "the first machine has coordinator and agent", enable)
	for _, m := range c.nodes[:2] {
		ok = ok && r.becomes(ctx, c.first, m, "coordinator")
	}
	for _, m := range c.nodes {
		ok = ok && r.prepared(ctx, c.first, m, "")
	}
	c.coordinators = []*container{c.first, c.nodes[0], c.nodes[1]}
	if !ok || !r.script(ctx, c.first, "pods run", apply(chaosPods)+
		"until_ 60 kubectl rollout status statefulset/db --timeout=5s; until_ 60 kubectl rollout status daemonset/each --timeout=5s") {
		return remove, nil
	}
	kubeconfig, err := os.ReadFile(filepath.Join(c.first.root, rootKubeconfig))
	if err != nil {
		return remove, err
	}
	c.load, err = newLoad(ctx, kubeconfig, []string{"10.97.0.2:6443", "10.97.0.3:6443", "10.97.0.4:6443"})
	if err != nil {
		return remove, err
	}
	c.pods, err = c.podsByUID(ctx)
	return remove, err
}

// disk is where the machine's disk of the product's state is mounted.
func (c *chaos) disk(m *container) string { return filepath.Join(m.dir, "var/lib/shoal") }

// neverFull: pods are not to be evicted for a disk that is full for some seconds,
// which would be a cause.
const neverFull = `printf 'evictionHard: {memory.available: 1%%}\n' >>/etc/shoal/agent.yaml
`

func (c *chaos) podsByUID(ctx context.Context) (map[string]string, error) {
	list, err := c.load.any.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, p := range list.Items {
		out[string(p.UID)] = p.Spec.NodeName
	}
	return out, nil
}

// faults has faults happen until the time is over, or one that is not healed.
func (c *chaos) faults(ctx context.Context) {
	r := rand.New(rand.NewPCG(c.seed, 0))
	healed := map[string][]time.Duration{}
	for end := time.Now().Add(c.chaosTime); time.Now().Before(end) && ctx.Err() == nil; {
		// Two at once now and then, never such that the store has no majority for
		// long: the second one is not to a coordinator's machine.
		at := map[*container]fault{}
		f := faults[r.IntN(len(faults))]
		at[c.victim(r, f.coordinator)] = f
		if second := faults[r.IntN(len(faults))]; r.IntN(3) == 0 && !second.coordinator && second.name != f.name {
			if m := c.nodes[2+r.IntN(2)]; at[m].do == nil {
				at[m] = second
			}
		}
		var names []string
		for m, f := range at {
			names = append(names, f.name+": "+nodeName(m))
		}
		slices.Sort(names)
		what := strings.Join(names, ", ")
		seeds := map[*container]uint64{}
		for _, m := range c.all() { // in the machines' order, for the seed to say all
			seeds[m] = r.Uint64()
		}
		var took time.Duration
		if !c.step(ctx, what, func(ctx context.Context) (string, error) {
			var hit []*container
			for m := range maps.Keys(at) {
				hit = append(hit, m)
			}
			if err := each(ctx, hit, func(ctx context.Context, m *container) error {
				return at[m].do(ctx, c, m, rand.New(rand.NewPCG(seeds[m], 0)))
			}); err != nil {
				return "", err
			}
			began := time.Now()
			err := c.well(ctx, began)
			took = time.Since(began)
			return fmt.Sprintf("well after %.1f s", took.Seconds()), err
		}) {
			return
		}
		for _, f := range at {
			healed[f.name] = append(healed[f.name], took)
		}
		sleep(ctx, seconds(r, 0, 4))
	}
	for _, name := range slices.Sorted(maps.Keys(healed)) {
		times := healed[name]
		slices.Sort(times)
		fmt.Printf("%-30s %3d times, well after %.1f s, at most %.1f s\n", name, len(times),
			times[len(times)/2].Seconds(), times[len(times)-1].Seconds())
	}
}

func (c *chaos) victim(r *rand.Rand, coordinator bool) *container {
	if coordinator {
		return c.coordinators[r.IntN(len(c.coordinators))]
	}
	return c.all()[r.IntN(1+len(c.nodes))]
}

// well waits until every coordinator answers, every Node is Ready and every pod is,
// on the machines where the processes are.
func (c *chaos) well(ctx context.Context, began time.Time) error {
	for {
		err := c.sick(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if time.Since(began) > healTime {
			return fmt.Errorf("not well within %s: %w", healTime, err)
		}
		sleep(ctx, 200*time.Millisecond)
	}
}

// sick tells what is not well.
func (c *chaos) sick(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for n, client := range c.load.coordinators {
		if _, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{}); err != nil {
			return fmt.Errorf("coordinator of %s: %w", nodeName(c.coordinators[n]), err)
		}
	}
	nodes, err := c.load.any.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range nodes.Items {
		ready := slices.ContainsFunc(n.Status.Conditions, func(o corev1.NodeCondition) bool {
			return o.Type == corev1.NodeReady && o.Status == corev1.ConditionTrue
		})
		if !ready || len(n.Spec.Taints) > 0 {
			return fmt.Errorf("node %s: Ready %v, taints %v", n.Name, ready, n.Spec.Taints)
		}
	}
	pods, err := c.load.any.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		ready := slices.ContainsFunc(p.Status.Conditions, func(o corev1.PodCondition) bool {
			return o.Type == corev1.PodReady && o.Status == corev1.ConditionTrue
		})
		if !ready {
			return fmt.Errorf("pod %s on %s is not Ready: %s %v", p.Name, p.Spec.NodeName, p.Status.Phase,
				p.Status.Conditions)
		}
	}
	return nil
}

// processesOf prints each process of each pod: its UID and its PID.
const processesOf = `for f in /run/shoal/containers/*/config.json; do
	[ -e $f ] || continue
	uid=$(grep -o 'pods/[0-9a-f-]\{36\}/' $f | head -1 | cut -d/ -f2); [ -n "$uid" ] || continue
	p=$(cat ${f%config.json}pid 2>/dev/null) || continue
	kill -0 $p 2>/dev/null && echo $uid $p
done; true`

// down is said before a machine goes down and after it is up: its processes end.
func (c *chaos) down(m *container) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boots[nodeName(m)]++
	delete(c.processes, nodeName(m))
}

func (c *chaos) boot(m *container) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boots[nodeName(m)]
}

// watch looks at the processes of all machines from time to time: each of a pod has to
// be the one of before, on its machine, once.
func (c *chaos) watch(ctx context.Context) {
	for ctx.Err() == nil {
		_ = each(ctx, c.all(), func(ctx context.Context, m *container) error {
			boot := c.boot(m)
			if boot%2 != 0 {
				return nil
			}
			if out, err := m.sh(ctx, processesOf); err == nil {
				c.look(m, boot, out)
			}
			return nil
		})
		sleep(ctx, 2*time.Second)
	}
}

func (c *chaos) look(m *container, boot int, out string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := nodeName(m)
	if c.boots[name] != boot {
		return
	}
	now := map[string]string{}
	for line := range strings.Lines(out) {
		uid, pid, _ := strings.Cut(strings.TrimSpace(line), " ")
		if was, ok := now[uid]; ok {
			c.wrong = append(c.wrong, fmt.Sprintf("%s: pod %s has processes %s and %s", name, uid, was, pid))
		}
		if c.pods[uid] != name {
			c.wrong = append(c.wrong,
				fmt.Sprintf("%s: pod %s has process %s; it is of machine %q", name, uid, pid, c.pods[uid]))
		}
		now[uid] = pid
	}
	before := c.processes[name]
	for uid, pid := range before {
		if now[uid] != pid {
			c.wrong = append(c.wrong, fmt.Sprintf("%s: process of pod %s was %s and is %q", name, uid, pid, now[uid]))
		}
	}
	if before == nil {
		c.processes[name] = map[string]string{}
	}
	maps.Copy(c.processes[name], now)
}

// same compares pods with those of before.
func (c *chaos) same(ctx context.Context) (string, error) {
	now, err := c.podsByUID(ctx)
	if err != nil {
		return "", err
	}
	if !maps.Equal(now, c.pods) {
		err = fmt.Errorf("pods by UID and machine are %v, were %v", now, c.pods)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.wrong) > 0 {
		slices.Sort(c.wrong)
		err = errors.Join(err, errors.New(strings.Join(slices.Compact(c.wrong), "\n")))
	}
	return fmt.Sprintf("%d pods", len(now)), err
}
