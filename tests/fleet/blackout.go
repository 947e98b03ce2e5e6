package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// shop prints pods of each kind of thing that must outlive a power cut: a Service with
// a pod on each machine, a Secret and a ConfigMap, a claim of the class local.
const shop = `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 5
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
      containers:
      - name: web
        image: localhost/busybox:1
        command: [sh, -c, "mkdir -p /www; hostname >/www/index.html; exec httpd -f -p 8080 -h /www"]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Secret
metadata: {name: password}
stringData: {password: of-the-secret}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: colours}
data: {colour: of-the-config-map}
---
apiVersion: v1
kind: Pod
metadata: {name: reader}
spec:
  nodeSelector: {kubernetes.io/hostname: second}
  volumes:
  - {name: password, secret: {secretName: password}}
  - {name: colours, configMap: {name: colours}}
  containers:
  - name: reader
    image: localhost/busybox:1
    command: [sleep, "1000000"]
    env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: password, key: password}}}]
    volumeMounts: [{name: password, mountPath: /password}, {name: colours, mountPath: /colours}]
---
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 8080}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      nodeSelector: {kubernetes.io/hostname: third}
      containers:
      - name: db
        image: localhost/busybox:1
        command: [sh, -c, "echo start >>/data/starts; exec httpd -f -p 8080 -h /data"]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {storageClassName: local, accessModes: [ReadWriteOnce], resources: {requests: {storage: 32Mi}}}
`

// runBlackout: four machines lose power, three of them come back, the one with the
// coordinator is missing; later it comes, too.
func runBlackout(ctx context.Context, r *rig) (err error) {
	c, remove, ok, err := r.newCluster(ctx, "second", "third", "fourth")
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil || !ok {
		return err
	}
	defer r.showNodes(c)
	b := &blackout{rig: r, cluster: c}
	if !r.step(ctx, "pods with volumes, Secret, Service run", b.deploy) {
		return nil
	}
	if !r.step(ctx, "all machines lose power, three come back without a coordinator", b.cutAndBoot) {
		return nil
	}
	b.together(ctx, []promise{
		{"all their pods run, with their addresses", b.runs},
		{"Secret, ConfigMap and the claim's data are there", b.holds},
		{"pods of the three reach each other by address", b.reaches},
		{"names are answered", b.names},
		{"Services answer, and the dead machine has no share", b.serves},
	})
	r.step(ctx, "the coordinator is back: nothing restarts or doubles", b.returns)
	return nil
}

// promise is what must hold on each node after the power cut; check is a script.
type promise struct {
	what  string
	check func(*container) string
}

// together waits for all promises at the same time, so that none hides how late
// another is.
func (b *blackout) together(ctx context.Context, list []promise) {
	type result struct {
		said string
		err  error
	}
	results := make([]result, len(list))
	var wg sync.WaitGroup
	for i, p := range list {
		wg.Go(func() { results[i].said, results[i].err = b.everywhere(ctx, p.check) })
	}
	wg.Wait()
	for i, p := range list {
		b.step(ctx, p.what, func(context.Context) (string, error) { return results[i].said, results[i].err })
	}
}

type blackout struct {
	*rig
	cluster
	pods    []found
	service string
	began   time.Time // when the machines booted after the cut
}

// deploy waits until all is there and known to every node.
func (b *blackout) deploy(ctx context.Context) (string, error) {
	said, err := b.first.sh(ctx, apply(fmt.Sprintf(shop, 4))+`
until_ 120 kubectl rollout status deployment/web --timeout=5s >&2
until_ 120 kubectl rollout status statefulset/db --timeout=5s >&2
until_ 60 kubectl wait pod/reader --for=condition=Ready --timeout=5s >&2
kubectl exec db-0 -- sh -c 'echo kept >/data/index.html; sync'`)
	if err != nil {
		return said, err
	}
	if b.service, err = b.first.sh(ctx, "field service/web .spec.clusterIP"); err != nil {
		return "", err
	}
	if b.pods, err = podsOf(ctx, b.first); err != nil {
		return "", err
	}
	for _, m := range b.all() {
		if web := b.on(m, "web-"); len(web) != 1 {
			return "", fmt.Errorf("%d pods of web on %s: %v", len(web), nodeName(m), b.pods)
		}
		if _, err := until(ctx, m, time.Now(), time.Minute, b.shares(b.all())); err != nil {
			return "", err
		}
	}
	return fmt.Sprint(len(b.pods), " pods"), nil
}

// on lists a machine's pods whose name begins so.
func (b *blackout) on(m *container, prefix string) (list []found) {
	for _, p := range b.pods {
		if p.node == nodeName(m) && strings.HasPrefix(p.name, prefix) {
			list = append(list, p)
		}
	}
	return list
}

func (b *blackout) cutAndBoot(ctx context.Context) (string, error) {
	cut := func(_ context.Context, m *container) error { m.cut(); return nil }
	if err := each(ctx, b.all(), cut); err != nil {
		return "", err
	}
	b.began = time.Now()
	err := each(ctx, b.nodes, boot)
	return fmt.Sprintf("units are up after %.1f s", time.Since(b.began).Seconds()), err
}

// everywhere tries a check on each node until it succeeds, and tells when it did.
func (b *blackout) everywhere(ctx context.Context, check func(*container) string) (string, error) {
	var mu sync.Mutex
	var told []string
	err := each(ctx, b.nodes, func(ctx context.Context, m *container) error {
		after, err := until(ctx, m, b.began, 2*time.Minute, check(m))
		mu.Lock()
		told = append(told, fmt.Sprintf("%s %.1f s", nodeName(m), after.Seconds()))
		mu.Unlock()
		return err
	})
	slices.Sort(told)
	return "after boot: " + strings.Join(told, ", "), err
}

// runs: each pod has one process, and its address in the process's network.
func (b *blackout) runs(m *container) string {
	script := pidOf
	for _, p := range b.on(m, "") {
		script += fmt.Sprintf("pid=$(pid_of %s); [ $(echo \"$pid\" | grep -c .) = 1 ] || { echo 'no process: %s'; exit 1; }\n"+
			"nsenter -t $pid -n ip -4 -o addr show | grep -q ' %s/' || { nsenter -t $pid -n ip -4 -o addr; exit 1; }\n",
			p.uid, p.name, p.ip)
	}
	return script
}

// holds: what pods have from elsewhere is what it was.
func (b *blackout) holds(m *container) string {
	script := pidOf
	for _, p := range b.on(m, "reader") {
		script += "root=/proc/$(pid_of " + p.uid + `); grep -qx of-the-secret $root/root/password/password
grep -qx of-the-config-map $root/root/colours/colour; tr '\0' '\n' <$root/environ | grep -qx PASSWORD=of-the-secret` + "\n"
	}
	for _, p := range b.on(m, "db") {
		script += "root=/proc/$(pid_of " + p.uid + `); grep -qx kept $root/root/data/index.html
[ $(grep -c start $root/root/data/starts) = 2 ]; grep -q ' /data .*/dev/loop' $root/mountinfo` + "\n"
	}
	return script
}

// inPod begins a script that runs in the network of the machine's pod of web.
func (b *blackout) inPod(m *container) string {
	return pidOf + "pid=$(pid_of " + b.on(m, "web-")[0].uid + "); [ -n \"$pid\" ]\n"
}

// reaches: from the machine's pod to each pod of web on the three.
func (b *blackout) reaches(m *container) string {
	script := b.inPod(m)
	for _, to := range b.nodes {
		for _, p := range b.on(to, "web-") {
			script += fmt.Sprintf("nsenter -t $pid -n curl -s -m 2 http://%s:8080/ | grep -qx %s\n", p.ip, p.name)
		}
	}
	return script
}

// names: of a Service with an address, and of a pod behind one without. The pod's own
// program asks, at the server that its resolv.conf names.
func (b *blackout) names(m *container) string {
	script := b.inPod(m) + "answer() { nsenter -t $pid -m -n timeout 5 nslookup $1 | grep -q \" $2\\$\"; }\n" +
		"answer web.default.svc.cluster.local " + b.service + "\n"
	for _, p := range b.pods {
		if p.name == "db-0" {
			script += "answer db-0.db.default.svc.cluster.local " + p.ip + "\n"
		}
	}
	return script
}

// serves: from the machine and from its pod.
func (b *blackout) serves(m *container) string {
	return b.shares(b.nodes) + b.inPod(m) + fmt.Sprintf(
		"for i in $(seq 20); do nsenter -t $pid -n curl -s -S -m 2 -o /dev/null http://%s/; done\n", b.service)
}

// shares: of 40 requests none fails, and the pods that answer are those of machines.
func (b *blackout) shares(machines []*container) string {
	var want []string
	for _, m := range machines {
		for _, p := range b.on(m, "web-") {
			want = append(want, p.name)
		}
	}
	return fmt.Sprintf("for i in $(seq 40); do curl -s -S -m 2 http://%s/ || exit 1; done >/tmp/answers.$$\n"+
		"sort -u /tmp/answers.$$ >/tmp/who.$$\n"+
		"printf '%%s\\n' %s | sort | cmp - /tmp/who.$$ || { sort /tmp/answers.$$ | uniq -c; exit 1; }\n",
		b.service, strings.Join(want, " "))
}

// processes are those of each pod of the nodes.
func (b *blackout) processes(ctx context.Context) (map[string]string, error) {
	var mu sync.Mutex
	all := map[string]string{}
	err := each(ctx, b.nodes, func(ctx context.Context, m *container) error {
		for _, p := range b.on(m, "") {
			pid, err := m.sh(ctx, pidOf+"pid_of "+p.uid)
			if err != nil {
				return err
			}
			mu.Lock()
			all[p.name] = pid
			mu.Unlock()
		}
		return nil
	})
	return all, err
}

func (b *blackout) returns(ctx context.Context) (string, error) {
	before, err := b.processes(ctx)
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := b.first.boot(ctx); err != nil {
		return "", err
	}
	said, err := b.first.sh(ctx, `until_ 120 kubectl wait --for=condition=Ready node --all --timeout=5s
until_ 60 kubectl rollout status deployment/web --timeout=5s
until_ 60 kubectl rollout status statefulset/db --timeout=5s
until_ 60 kubectl wait pod/reader --for=condition=Ready --timeout=5s`)
	if err != nil {
		return said, err
	}
	ready := time.Since(began)
	// What is wrong may come late: with the first Leases, with a resync.
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Second):
	}
	if err := b.same(ctx, before); err != nil {
		return "", err
	}
	for _, m := range b.all() {
		if _, err := until(ctx, m, time.Now(), time.Minute, b.shares(b.all())); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("all Ready %.1f s after its boot, %d processes stay", ready.Seconds(), len(before)), nil
}

// same compares pods and processes with those of before.
func (b *blackout) same(ctx context.Context, before map[string]string) error {
	after, err := b.processes(ctx)
	if err != nil {
		return err
	}
	for name, pid := range before {
		if pid == "" || after[name] != pid {
			err = errors.Join(err, fmt.Errorf("%s: process %q, was %q", name, after[name], pid))
		}
	}
	pods, e := podsOf(ctx, b.first)
	if err = errors.Join(err, e); err != nil {
		return err
	}
	for i := range pods {
		if pods[i].restarts != "1" {
			err = errors.Join(err, fmt.Errorf("%s: %s restarts, 1 is the cut's", pods[i].name, pods[i].restarts))
		}
		pods[i].restarts = "0"
	}
	if fmt.Sprint(pods) != fmt.Sprint(b.pods) {
		err = errors.Join(err, fmt.Errorf("pods are %v, were %v", pods, b.pods))
	}
	return err
}

// showNodes prints the agents' journals when a step failed.
func (r *rig) showNodes(c cluster) {
	if r.failed == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	for _, m := range c.all() {
		out, err := m.sh(ctx, "journalctl -b -n 60 --no-pager -u shoal-agent; ip route; cat /etc/shoal/agent.yaml; "+
			"nft list table ip shoal 2>/dev/null | head -80; ls /run/shoal/containers")
		fmt.Println("---", nodeName(m), err)
		fmt.Println(out)
	}
}
