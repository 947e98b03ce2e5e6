package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

const day = 24 * time.Hour

// clocks are machines whose clocks are set: each has a coordinator and an agent.
type clocks struct {
	*rig
	cluster
	before map[string]string // processes of the pods, by machine
}

// runClocks sets the clocks of machines forwards and backwards, and back. No process of
// a pod ends, and all is well within a minute.
func runClocks(ctx context.Context, r *rig) (err error) {
	made := filepath.Join(r.dir, r.name+"-packages")
	if !r.step(ctx, "a package of programs with clocks to be set is made", func(ctx context.Context) (string, error) {
		return "", r.alteredPackage(ctx, made)
	}) {
		return nil
	}
	machines, remove, err := r.machines(ctx, "second", "third")
	c := &clocks{rig: r, cluster: machines, before: map[string]string{}}
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil {
		return err
	}
	for _, m := range c.all() {
		if err := errors.Join(r.carries(ctx, m, made), m.alter(0, 0)); err != nil {
			return err
		}
	}
	defer r.showNodes(c.cluster)
	installs := func(ctx context.Context) (string, error) {
		return "", each(ctx, c.all(), func(ctx context.Context, m *container) error {
			_, err := m.sh(ctx, admin+install(1)+neverFull)
			return err
		})
	}
	ok := r.boots(ctx, c.cluster) && r.step(ctx, "apt installs it on three machines", installs) &&
		r.script(ctx, c.first, "the first machine has coordinator and agent", enable)
	for _, m := range c.nodes {
		ok = ok && r.becomes(ctx, c.first, m, "coordinator") && r.prepared(ctx, c.first, m, "")
	}
	if !ok || !r.script(ctx, c.first, "pods run", apply(chaosPods)+
		"until_ 60 kubectl rollout status statefulset/db --timeout=5s; until_ 60 kubectl rollout status daemonset/each --timeout=5s") {
		return nil
	}
	for _, m := range c.all() {
		if c.before[nodeName(m)], err = m.sh(ctx, processesOf); err != nil {
			return err
		}
	}
	for _, jump := range []time.Duration{-5 * time.Minute, 5 * time.Minute, -2 * time.Hour, 2 * time.Hour,
		3 * day, 400 * day, -400 * day} {
		for _, m := range []*container{c.first, c.nodes[1]} {
			c.jumps(ctx, jump, m)
		}
		c.jumps(ctx, jump, c.all()...)
	}
	return nil
}

// jumps sets the clocks of machines and, after a while, sets them right.
func (c *clocks) jumps(ctx context.Context, by time.Duration, at ...*container) {
	var names []string
	for _, m := range at {
		names = append(names, nodeName(m))
	}
	what := fmt.Sprintf("clock set by %s, and back: %s", by, strings.Join(names, ", "))
	c.step(ctx, what, func(ctx context.Context) (string, error) {
		set := func(by time.Duration) error {
			for _, m := range at {
				if err := m.alter(by, 0); err != nil {
					return err
				}
			}
			return nil
		}
		if err := set(by); err != nil {
			return "", err
		}
		meanwhile, err := until(ctx, c.first, time.Now(), 25*time.Second, wellNow)
		said := fmt.Sprintf("while it is wrong all is well after %.1f s, ", meanwhile.Seconds())
		if err != nil {
			said = "while it is wrong not all is well, "
		}
		sleep(ctx, 15*time.Second-meanwhile)
		if err := set(0); err != nil {
			return "", err
		}
		after, err := until(ctx, c.first, time.Now(), healTime, wellNow)
		said += fmt.Sprintf("right again after %.1f s", after.Seconds())
		for _, m := range c.all() {
			now, asked := m.sh(ctx, processesOf)
			if err = errors.Join(err, asked); asked == nil && now != c.before[nodeName(m)] {
				err = errors.Join(err,
					fmt.Errorf("processes of %s were\n%s\nand are\n%s", nodeName(m), c.before[nodeName(m)], now))
				c.before[nodeName(m)] = now
			}
		}
		return said, err
	})
}

// wellNow: every coordinator answers, every Node is Ready without a taint, every pod is
// Ready, and a new one can be had on each machine.
const wellNow = `for a in 2 3 4; do kubectl --request-timeout=3s -s https://10.97.0.$a:6443 get --raw /readyz >/dev/null; done
k="kubectl --request-timeout=5s"
nodes=$($k get nodes -o jsonpath='{.items[*].status.conditions[?(@.type=="Ready")].status}{.items[*].spec.taints[*].key}')
[ "$nodes" = "True True True" ] || { echo "nodes: $nodes"; exit 1; }
pods=$($k get pods -l '!run' -o jsonpath='{.items[*].status.conditions[?(@.type=="Ready")].status}') # without what a try has left
[ "$pods" = "True True True True True True" ] || { echo "pods: $pods"; exit 1; }
$k exec ds/each -- true
for n in machine second third; do
	$k delete pod try-$n --now --ignore-not-found >/dev/null
	$k run try-$n --image=localhost/busybox:1 --restart=Never --overrides='{"spec":{"nodeName":"'$n'"}}' -- true >/dev/null
done
for n in machine second third; do $k wait pod/try-$n --for=jsonpath={.status.phase}=Succeeded --timeout=5s >/dev/null; done
for n in machine second third; do $k delete pod try-$n --now >/dev/null; done
`
