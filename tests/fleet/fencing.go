package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// database prints a StatefulSet whose pod writes into a directory that all machines
// share, line by line: which run of the container, on which machine, how manieth line.
// The file's order is that of the writes, whatever clocks say. Databases of other names
// run on other machines.
func database(name string) string { return strings.ReplaceAll(databaseNamed, "NAME", name) }

const databaseNamed = `apiVersion: v1
kind: PersistentVolume
metadata:
  name: NAME
  annotations: {shoal.io/writes-end-with-pod: "true"} # one kernel has the directory
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  claimRef: {namespace: default, name: data-NAME-0}
  hostPath: {path: /shared/NAME}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: NAME}
spec:
  serviceName: NAME
  selector: {matchLabels: {app: NAME}}
  template:
    metadata:
      labels: {app: NAME, writes: alone}
      annotations: {shoal.io/when-isolated: stop}
    spec:
      nodeSelector: {db: "yes"}
      affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {writes: alone}}}]}}
      terminationGracePeriodSeconds: 1
      containers:
      - name: db
        image: localhost/busybox:1
        env: [{name: MACHINE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        command: [sh, -c, 'read id </proc/sys/kernel/random/uuid; n=0; while true; do n=$((n+1)); echo "$id $MACHINE $n" >>/data/log; sleep 0.02; done']
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {storageClassName: "", volumeName: NAME, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`

// failure is what happens to the machine that has the database.
type failure struct {
	name string
	// begin makes it happen, end undoes it.
	begin, end func(context.Context, *container) error
}

func (r *rig) failures() []failure {
	link := func(state string) func(context.Context, *container) error {
		return func(ctx context.Context, m *container) error { return setLink(ctx, nodeName(m), state) }
	}
	signal := func(script string) func(context.Context, *container) error {
		return func(ctx context.Context, m *container) error {
			_, err := m.sh(ctx, script)
			return err
		}
	}
	return []failure{
		{"loses power", func(_ context.Context, m *container) error { m.cut(); return nil }, boot},
		{"is cut off the network", link("down"), link("up")},
		{"has an agent that hangs", signal("systemctl kill -s STOP --kill-whom=main shoal-agent"),
			signal("systemctl kill -s CONT --kill-whom=main shoal-agent")},
		{"has no agent any more", signal("systemctl stop shoal-agent"), signal("systemctl start shoal-agent")},
		{"is cut off with an agent that was just killed", func(ctx context.Context, m *container) error {
			err := link("down")(ctx, m)
			_, killed := m.sh(ctx, "systemctl kill -s KILL --kill-whom=main shoal-agent")
			return errors.Join(err, killed)
		}, link("up")},
	}
}

// setLink plugs a machine in ("up"), or out ("down").
func setLink(ctx context.Context, machine, state string) error {
	return command(ctx, "ip", "-n", lan, "link", "set", "vb-"+machine, state)
}

// runFencing: the machine of a database fails in several ways; another writes in its
// stead in time, and never do two write.
func runFencing(ctx context.Context, r *rig) (err error) {
	defer func() { r.shared = "" }()
	if err := r.share("db"); err != nil {
		return err
	}
	c, remove, ok, err := r.newCluster(ctx, "second", "third")
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil || !ok {
		return err
	}
	defer r.showNodes(c)
	f := &fencing{rig: r, cluster: c}
	if !r.script(ctx, c.first, "a database writes",
		"kubectl label nodes second third db=yes >/dev/null\n"+apply(database("db"))+"until_ 60 kubectl rollout status statefulset/db --timeout=5s >&2") {
		return nil
	}
	r.step(ctx, "it writes on while no coordinator is there, with an agent that is killed", f.alone)
	r.step(ctx, "it stops when it hears no others either, and goes on with a coordinator", f.quiteAlone)
	failures := r.failures()
	for i := range r.cuts {
		at := failures[i%len(failures)]
		fails := func(ctx context.Context) (string, error) { return f.fail(ctx, at) }
		if !r.step(ctx, fmt.Sprintf("%d: its machine %s", i+1, at.name), fails) {
			break
		}
	}
	slices.Sort(f.took)
	r.step(ctx, "never have two written", func(context.Context) (string, error) {
		runs, lines, err := writers(r.logOf("db"))
		if len(f.took) > 0 && err == nil {
			half, longest := f.took[len(f.took)/2].Seconds(), f.took[len(f.took)-1].Seconds()
			return fmt.Sprintf("%d lines of %d runs; the next wrote after %.1f s (median), %.1f s (longest of %d)",
				lines, runs, half, longest, len(f.took)), nil
		}
		return "", err
	})
	return nil
}

type fencing struct {
	*rig
	cluster
	took []time.Duration
}

// share makes the directory that all machines have, with one for each database.
func (r *rig) share(databases ...string) error {
	r.shared = filepath.Join(r.dir, r.name+"-shared")
	for _, name := range databases {
		if err := os.MkdirAll(filepath.Join(r.shared, name), 0o777); err != nil {
			return err
		}
	}
	return nil
}

// logOf is what a database writes.
func (r *rig) logOf(name string) string { return filepath.Join(r.shared, name, "log") }

// named finds a machine that joined.
func (c cluster) named(name string) (*container, error) {
	for _, m := range c.nodes {
		if nodeName(m) == name {
			return m, nil
		}
	}
	return nil, fmt.Errorf("machine %q writes", name)
}

// fail has one fault happen, waits until another machine writes, and undoes it.
func (f *fencing) fail(ctx context.Context, at failure) (string, error) {
	log := f.logOf("db")
	id, name, err := lastWriter(log)
	if err != nil {
		return "", err
	}
	m, err := f.named(name)
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := at.begin(ctx, m); err != nil {
		return "", err
	}
	var stopped time.Duration
	size := int64(0)
	for {
		now, where, err := lastWriter(log)
		if err != nil {
			return "", err
		}
		if info, err := os.Stat(log); err == nil && info.Size() != size {
			size = info.Size()
			if now == id {
				stopped = time.Since(began)
			}
		}
		if now != id && where != name {
			break
		}
		if time.Since(began) > time.Minute {
			late := fmt.Errorf("nobody else writes after a minute; it wrote for %s more", stopped)
			seen, _ := f.first.sh(ctx, evidence)
			return seen, errors.Join(late, errors.New(seen), at.end(ctx, m))
		}
		time.Sleep(20 * time.Millisecond)
	}
	took := time.Since(began)
	f.took = append(f.took, took)
	if err := at.end(ctx, m); err != nil {
		return "", err
	}
	if _, _, err := writers(log); err != nil {
		return "", err
	}
	said, err := f.first.sh(ctx, "until_ 60 kubectl wait --for=condition=Ready node --all --timeout=5s >&2\n"+
		"free() { l=$(kubectl -n kube-node-lease get lease "+name+" -o yaml) &&\n"+
		"! echo \"$l\" | grep -q fence.shoal.io/raised; }\n"+
		"until_ 60 free; until_ 60 kubectl rollout status statefulset/db --timeout=5s >&2")
	if err != nil {
		return said, err
	}
	if took > 30*time.Second {
		return "", fmt.Errorf("the next wrote after %.1f s", took.Seconds())
	}
	return fmt.Sprintf("the last line of the old after %.1f s, the first of the new after %.1f s",
		stopped.Seconds(), took.Seconds()), nil
}

// uncoordinated is how long no coordinator is there: several holds.
const uncoordinated = 45 * time.Second

// writes tells whether a run of the container writes now.
func (f *fencing) writes(run string) error {
	size := func() int64 {
		info, err := os.Stat(f.logOf("db"))
		if err != nil {
			return 0
		}
		return info.Size()
	}
	before := size()
	time.Sleep(time.Second)
	now, _, err := lastWriter(f.logOf("db"))
	switch {
	case err != nil:
		return err
	case now != run:
		return errors.New("another run writes")
	case size() == before:
		return errors.New("nobody writes")
	}
	return nil
}

// alone takes the coordinator's machine away for a while. Of three nodes two are left, and
// vouch for each other.
func (f *fencing) alone(ctx context.Context) (string, error) {
	run, name, err := lastWriter(f.logOf("db"))
	if err != nil {
		return "", err
	}
	m, err := f.named(name)
	if err != nil {
		return "", err
	}
	time.Sleep(22 * time.Second) // who has just begun vouches for nobody
	f.first.cut()
	var failed error
	for began, killed := time.Now(), false; time.Since(began) < uncoordinated && failed == nil; {
		failed = f.writes(run)
		if !killed && time.Since(began) > uncoordinated/2 {
			killed = true
			_, err := m.sh(ctx, "systemctl kill -s KILL --kill-whom=main shoal-agent")
			failed = errors.Join(failed, err)
		}
		if failed != nil {
			failed = fmt.Errorf("after %s: %w", time.Since(began).Round(time.Second), failed)
		}
	}
	said, _ := m.sh(ctx, "journalctl -q -u shoal-agent --no-pager | grep -E 'vouch|isolated|hold' | tail -5")
	if err := errors.Join(failed, boot(ctx, f.first)); err != nil {
		return said, err
	}
	_, err = f.first.sh(ctx, "until_ 60 kubectl wait --for=condition=Ready node --all --timeout=5s >&2; sleep 15")
	return said, errors.Join(err, f.writes(run))
}

// quiteAlone takes the coordinator away, and then the others.
func (f *fencing) quiteAlone(ctx context.Context) (string, error) {
	run, name, err := lastWriter(f.logOf("db"))
	if err != nil {
		return "", err
	}
	if _, err := f.first.sh(ctx, "systemctl stop shoal-coordinator"); err != nil {
		return "", err
	}
	time.Sleep(20 * time.Second)
	failed := f.writes(run)
	failed = errors.Join(failed, setLink(ctx, name, "down"))
	began := time.Now()
	for failed == nil && f.writes(run) == nil {
		if time.Since(began) > 20*time.Second {
			failed = errors.New("it writes on")
		}
	}
	took := time.Since(began)
	if err := errors.Join(failed, setLink(ctx, name, "up")); err != nil {
		return "", err
	}
	_, err = f.first.sh(ctx, "systemctl start shoal-coordinator\n"+
		"until_ 60 kubectl wait --for=condition=Ready node --all --timeout=5s >&2\n"+
		"until_ 60 kubectl rollout status statefulset/db --timeout=5s >&2")
	for began := time.Now(); err == nil; { // what the API shows may be of before
		if run, _, err = lastWriter(f.logOf("db")); err != nil {
			break
		}
		if err = f.writes(run); err == nil || time.Since(began) > time.Minute {
			break
		}
		err = nil
	}
	return fmt.Sprintf("nothing more after %.0f s", took.Seconds()), err
}

// evidence tells why nobody writes.
const evidence = `kubectl get pods -o wide; kubectl describe pods -l writes=alone | tail -40
kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.spec.taints} {.status.conditions[*].status}{"\n"}{end}'
kubectl -n kube-node-lease get leases -o jsonpath='{range .items[*]}{.metadata} {.spec}{"\n"}{end}'; kubectl get events | tail -12; df -h / /var/lib/shoal`

// lastWriter is the run of the container that wrote the last whole line, and its machine.
func lastWriter(log string) (id, node string, err error) {
	for range 200 {
		b, err := tail(log)
		if err != nil {
			return "", "", err
		}
		whole := strings.Split(string(b[:strings.LastIndexByte(string(b), '\n')+1]), "\n")
		if len(whole) > 1 {
			if f := strings.Fields(whole[len(whole)-2]); len(f) == 3 {
				return f[0], f[1], nil
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return "", "", errors.New("nobody has written")
}

// tail reads the end of a file that may be long, some lines.
func tail(log string) ([]byte, error) {
	f, err := os.Open(log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, max(info.Size()-4096, 0), 4096))
}

// writers counts the runs of the container in the log. One that writes after another has
// begun is an error: both wrote.
func writers(log string) (runs, lines int, err error) {
	b, err := os.ReadFile(log)
	if err != nil {
		return 0, 0, err
	}
	seen := map[string]bool{}
	last := ""
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 || !strings.HasSuffix(line, "\n") {
			return runs, lines, fmt.Errorf("line %d is torn: %q", lines+1, line)
		}
		lines++
		if f[0] == last {
			continue
		}
		if seen[f[0]] {
			return runs, lines, fmt.Errorf("line %d: %s wrote again after %s had begun", lines, f[0], last)
		}
		seen[f[0]], last = true, f[0]
		runs++
	}
	return runs, lines, nil
}
