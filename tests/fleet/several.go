package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// A cluster of machines: the first has coordinator and agent, the nodes are agents
// that joined by tokens.
type cluster struct {
	first *container
	nodes []*container
}

// all are its machines, the first one first.
func (c cluster) all() []*container { return append([]*container{c.first}, c.nodes...) }

// nodeName is the name of a machine's Node.
func nodeName(c *container) string {
	if c.second == "" {
		return "machine"
	}
	return c.second
}

// loopDevices are what nspawn does not give a machine; volumes of the class local are
// on them.
const loopDevices = `printf 'c /dev/loop-control 0600 root root - 10:237\n' >/etc/tmpfiles.d/loop.conf
for n in $(seq 0 31); do printf 'b /dev/loop%d 0600 root root - 7:%d\n' $n $n >>/etc/tmpfiles.d/loop.conf; done
systemd-tmpfiles --create loop.conf
`

// newCluster makes, boots and joins machines; the returned function removes them, and
// ok is false when a step failed.
func (r *rig) newCluster(ctx context.Context, names ...string) (c cluster, remove func() error, ok bool, err error) {
	c, remove, err = r.machines(ctx, names...)
	if err != nil {
		return c, remove, false, err
	}
	for _, m := range c.all() {
		images := filepath.Join(m.dir, "var/lib/shoal/images")
		if err := errors.Join(r.install(ctx, m.root), r.images(images)); err != nil {
			return c, remove, false, err
		}
	}
	ok = r.boots(ctx, c) &&
		r.script(ctx, c.first, "the first machine has coordinator and agent", loopDevices+smallDisk+services)
	for _, m := range c.nodes {
		ok = ok && r.becomesNode(ctx, c.first, m)
	}
	return c, remove, ok, nil
}

// machines makes machines on one network, the first one and those of names; the
// returned function removes them.
func (r *rig) machines(ctx context.Context, names ...string) (c cluster, remove func() error, err error) {
	remove = func() error {
		var errs []error
		for _, m := range c.nodes {
			errs = append(errs, m.remove())
		}
		if c.first != nil {
			errs = append(errs, c.first.remove())
		}
		return errors.Join(errs...)
	}
	if c.first, err = newContainer(ctx, filepath.Join(r.dir, r.name), r.cache); err != nil {
		return c, remove, err
	}
	c.first.shared = r.shared
	for i, name := range names {
		m, err := beside(c.first, filepath.Join(r.dir, r.name+"-"+name), name, fmt.Sprintf("10.97.0.%d", 3+i))
		if err != nil {
			return c, remove, err
		}
		m.shared = r.shared
		c.nodes = append(c.nodes, m)
	}
	return c, remove, nil
}

func (r *rig) boots(ctx context.Context, c cluster) bool {
	return r.step(ctx, "the machines boot", func(ctx context.Context) (string, error) {
		return "", each(ctx, c.all(), boot)
	})
}

func boot(ctx context.Context, m *container) error { return m.boot(ctx) }

// each does one thing with machines at the same time.
func each(ctx context.Context, all []*container, do func(context.Context, *container) error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, m := range all {
		wg.Go(func() {
			if err := do(ctx, m); err != nil {
				errs[i] = fmt.Errorf("%s: %w", nodeName(m), err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// becomesNode has a machine join by a token.
func (r *rig) becomesNode(ctx context.Context, first, m *container) bool {
	return r.prepared(ctx, first, m, loopDevices+smallDisk)
}

// prepared has a machine join by a token, after a script.
func (r *rig) prepared(ctx context.Context, first, m *container, script string) bool {
	return r.step(ctx, "shoal join TOKEN: "+nodeName(m), func(ctx context.Context) (string, error) {
		token, err := first.sh(ctx, "shoal token create")
		if err != nil {
			return "", err
		}
		if said, err := m.sh(ctx, script+"echo '"+token+"' | shoal join -"); err != nil {
			return said, err
		}
		return first.sh(ctx, "until_ 20 kubectl wait --for=condition=Ready node/"+nodeName(m)+" --timeout=5s")
	})
}

// found is a pod as the API told of it.
type found struct{ name, node, uid, ip, restarts string }

// podsOf asks the API for the pods of the default namespace.
func podsOf(ctx context.Context, m *container) (list []found, err error) {
	text, err := m.sh(ctx, `kubectl get pods -o jsonpath='{range .items[*]}{.metadata.name} {.spec.nodeName} {.metadata.uid} `+
		`{.status.podIP} {.status.containerStatuses[0].restartCount}{"\n"}{end}'`)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 5 {
			return nil, fmt.Errorf("a pod is not whole: %q", line)
		}
		list = append(list, found{f[0], f[1], f[2], f[3], f[4]})
	}
	return list, nil
}

// pidOf defines the function pid_of, which prints the processes of a pod's containers
// by the pod's UID, without an API.
const pidOf = `pid_of() { for f in $(grep -l "pods/$1/" /run/shoal/containers/*/config.json); do
	p=$(cat ${f%config.json}pid) && kill -0 $p && echo $p; done 2>/dev/null; }
`

// until tries a script on a machine until it succeeds, and returns how long after
// began that was.
func until(ctx context.Context, m *container, began time.Time, limit time.Duration, script string) (time.Duration, error) {
	for {
		_, err := m.sh(ctx, script)
		after := time.Since(began)
		if err == nil || ctx.Err() != nil || after > limit {
			return after, err
		}
		if err := m.pause(ctx); err != nil {
			return after, err
		}
	}
}
