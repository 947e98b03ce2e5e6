package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Versions of the scenario skew: the older one is of the minor version before.
const olderVersion = "v1.35.9+fleet.1"

// olderPackage makes a deb of the tree of another revision, of the version before, in dir.
func (r *rig) olderPackage(ctx context.Context, revision, dir string) error {
	tree := filepath.Join(r.dir, r.name+"-tree")
	bin := filepath.Join(tree, "bin")
	if err := command(ctx, "git", "-C", r.source, "worktree", "add", "-f", "--detach", tree, revision); err != nil {
		return err
	}
	defer func() {
		_ = command(context.WithoutCancel(ctx), "git", "-C", r.source, "worktree", "remove", "--force", tree)
	}()
	older := *r
	older.source = tree
	return errors.Join(os.MkdirAll(bin, 0o755), os.MkdirAll(dir, 0o755), older.buildAs(ctx, bin, olderVersion),
		command(ctx, "cp", "-r", filepath.Join(r.bin, "share"), bin), // manual pages: not what is tried here
		older.pack(ctx, "deb", olderVersion, bin, filepath.Join(dir, "shoal-1.deb")))
}

// newerPackage makes one of this tree.
func (r *rig) newerPackage(ctx context.Context, dir string) error {
	bin := filepath.Join(dir, "bin")
	return errors.Join(os.MkdirAll(bin, 0o755), r.buildAs(ctx, bin, secondVersion),
		r.pack(ctx, "deb", secondVersion, bin, filepath.Join(dir, "shoal-2.deb")))
}

// runSkew has the programs of another revision of this repository and those of this tree
// in one cluster, in the order in which its machines are upgraded, and back: coordinators
// first, since nodes must not be newer than all of them.
func runSkew(ctx context.Context, r *rig) (err error) {
	if r.from == "" {
		return errors.New("give the older version's revision of git: -from REVISION")
	}
	made := filepath.Join(r.dir, r.name+"-packages")
	if !r.step(ctx, "packages of "+r.from+" and of this tree are made", func(ctx context.Context) (string, error) {
		return "", errors.Join(r.olderPackage(ctx, r.from, made), r.newerPackage(ctx, made))
	}) {
		return nil
	}
	c, remove, err := r.machines(ctx, "second", "third", "fourth", "fifth")
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil {
		return err
	}
	for _, m := range c.all() {
		if err := r.carries(ctx, m, made); err != nil {
			return err
		}
	}
	if !r.boots(ctx, c) {
		return nil
	}
	defer r.showNodes(c)
	second, third, fourth, fifth := c.nodes[0], c.nodes[1], c.nodes[2], c.nodes[3]
	ok := r.step(ctx, "the machines have the older version, one the newer", func(ctx context.Context) (string, error) {
		return "", each(ctx, c.all(), func(ctx context.Context, m *container) error {
			number := 1
			if m == fifth {
				number = 2
			}
			_, err := m.sh(ctx, admin+install(number)+loopDevices+smallDisk)
			return err
		})
	}) && r.script(ctx, c.first, "the first has coordinator and agent", enable) &&
		r.becomes(ctx, c.first, second, "coordinator") && r.becomes(ctx, c.first, third, "coordinator")
	for _, m := range []*container{second, third} {
		ok = ok && r.prepared(ctx, c.first, m, "")
	}
	ok = ok && r.script(ctx, c.first, "each has a pod, of a Service, and a claim",
		apply(spreadPods)+"until_ 60 kubectl rollout status daemonset/each --timeout=5s\n"+
			containersOf+"containers >/tmp/containers; wc -l </tmp/containers")
	if !ok {
		return nil
	}
	works := func(round int, what string) {
		r.script(ctx, c.first, what, admin+containersOf+strings.ReplaceAll(allWorks, "ROUND", fmt.Sprint(round)))
	}
	installs := func(m *container, number int) {
		r.step(ctx, fmt.Sprintf("%s gets version %d", nodeName(m), number), func(ctx context.Context) (string, error) {
			said, err := m.sh(ctx, admin+strings.Replace(install(number), "install -", "install --allow-downgrades -", 1))
			if err != nil {
				return said, err
			}
			return c.first.sh(ctx, "until_ 60 kubectl wait --for=condition=Ready node/"+nodeName(m)+" --timeout=5s >&2\n"+
				"field node/"+nodeName(m)+" .status.nodeInfo.kubeletVersion")
		})
	}
	works(1, "all works: old coordinators, old nodes")
	installs(c.first, 2)
	works(2, "all works: the first machine is new")
	r.prepared(ctx, c.first, fourth, "") // an older node, by a newer coordinator
	works(3, "all works: an old machine has joined by the new coordinator")
	installs(second, 2)
	works(4, "all works: one coordinator is old")
	installs(c.first, 1)
	works(5, "all works: the first machine is old again")
	installs(c.first, 2)
	installs(third, 2)
	works(6, "all works: all coordinators are new, one node is old")
	r.prepared(ctx, c.first, fifth, "")
	works(7, "all works: a new machine has joined")
	installs(fourth, 2)
	works(8, "all works: all are new")
	return nil
}

// allWorks: each coordinator answers and reaches each node, leadership moves, a Deployment
// with a Service and a claim comes up, and no container of before has restarted.
const allWorks = `
until_ 60 kubectl wait --for=condition=Ready node --all --timeout=5s
kubectl get csr -o name | xargs -r kubectl certificate approve >/dev/null # versions before left some to administrators
nodes=$(kubectl get nodes -o name | wc -l)
kubectl apply -f - <<'EOF'
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data-ROUND}
spec: {accessModes: [ReadWriteOnce], storageClassName: local, resources: {requests: {storage: 8Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: keeps-ROUND, labels: {round: "ROUND"}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: data, persistentVolumeClaim: {claimName: data-ROUND}}]
  containers: [{name: main, image: "localhost/busybox:1", command: [sh, -c, "echo kept >/data/file; exec sleep 100000"], volumeMounts: [{name: data, mountPath: /data}]}]
---
apiVersion: v1
kind: Service
metadata: {name: web-ROUND}
spec: {selector: {app: web-ROUND}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web-ROUND}
spec:
  selector: {matchLabels: {app: web-ROUND}}
  template:
    metadata: {labels: {app: web-ROUND}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: localhost/busybox:1
        command: [sh, -c, "mkdir /www; hostname >/www/index.html; exec httpd -f -p 8080 -h /www"]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
EOF
until_ 60 kubectl rollout status daemonset/web-ROUND --timeout=5s || {
	kubectl get nodes,pods -o wide; kubectl describe pods -l app=web-ROUND | tail -60; kubectl get events | tail -30; exit 1; }
until_ 60 kubectl wait pod/keeps-ROUND --for=condition=Ready --timeout=5s || { kubectl describe pod/keeps-ROUND; exit 1; }
ready() { [ $(kubectl get pods -l app=web-ROUND -o jsonpath='{.items[*].status.podIP}' | wc -w) = $nodes ]; }
until_ 30 ready
ip=$(kubectl get service web-ROUND -o jsonpath='{.spec.clusterIP}')
for api in 10.97.0.2 10.97.0.3 10.97.0.4; do
	k="kubectl --server https://$api:6443 --request-timeout=20s"
	until_ 30 $k get --raw /readyz
	for p in $(kubectl get pods -l app=web-ROUND -o name); do
		answers() { $k exec $p -- sh -c "printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 5 $ip 80" | grep -q '^web-ROUND-'; }
		until_ 30 answers
		$k logs $p >/dev/null
	done
	$k get --raw /version | grep gitVersion
done
[ "$(kubectl exec keeps-ROUND -- cat /data/file)" = kept ]
shoal coordinators | tail -1; [ "$(shoal members | grep -c alive)" -ge $((nodes+3)) ] || { shoal members; exit 1; }
kubectl delete daemonset/web-ROUND service/web-ROUND pod/keeps-ROUND pvc/data-ROUND --timeout=60s >/dev/null
containers >/tmp/now; comm -23 /tmp/containers /tmp/now >/tmp/gone; [ ! -s /tmp/gone ] || { cat /tmp/gone /tmp/now; exit 1; }
`
