package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// shopFront prints a Service with three pods that leave it before they end, a budget
// that lets one go at a time, on machines with the label web.
const shopFront = `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 2, selector: {matchLabels: {app: web}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 5
      nodeSelector: {web: "yes"}
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}, matchLabelKeys: [pod-template-hash]}
      containers:
      - name: web
        image: localhost/busybox:1
        command: [sh, -c, "mkdir -p /www; hostname >/www/index.html; exec httpd -f -p 8080 -h /www"]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
        lifecycle: {preStop: {sleep: {seconds: 3}}}
`

// load asks a Service one request after the other until it is told to stop. Each line
// of its file is a request: its time in seconds, curl's exit code, the time of day.
const load = `cat >/tmp/load.sh <<'END'
while [ ! -e /tmp/stop ]; do
	t=$(curl -s -m 10 -o /dev/null -w '%%{time_total}' http://%s/); code=$?
	echo "$t $code $(date +%%T.%%3N)" >>/tmp/requests
	sleep 0.03
done
END
rm -f /tmp/stop /tmp/requests; systemd-run -q --unit=load /bin/sh /tmp/load.sh; sleep 1; [ -s /tmp/requests ]
`

// counted ends the load and fails when one of its requests did.
const counted = `
touch /tmp/stop; sleep 1
awk '{n++; if ($2 != 0) {bad++; print} if ($1 > max) max = $1; if ($1 > 1) slow++}
END {print n " requests, " bad+0 " failed, " slow+0 " took more than a second, the longest " max " s"; exit bad > 0}' /tmp/requests`

// runReboots: each of three machines, the coordinator's too, is drained, rebooted and
// used again, while a fourth asks the Service of their pods all the time.
func runReboots(ctx context.Context, r *rig) (err error) {
	c, remove, ok, err := r.newCluster(ctx, "second", "third", "fourth")
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil || !ok {
		return err
	}
	defer r.showNodes(c)
	asks := c.nodes[2]
	ok = r.step(ctx, "a Service has a pod on each of three machines", func(ctx context.Context) (string, error) {
		said, err := c.first.sh(ctx, "kubectl label nodes machine second third web=yes\n"+apply(shopFront)+spread)
		if err != nil {
			return said, err
		}
		ip, err := c.first.sh(ctx, "field service/web .spec.clusterIP")
		if err != nil {
			return "", err
		}
		return asks.sh(ctx, fmt.Sprintf(load, ip))
	})
	for _, m := range []*container{c.nodes[0], c.nodes[1], c.first} {
		ok = ok && r.step(ctx, "drained, rebooted, used again: "+nodeName(m), func(ctx context.Context) (string, error) {
			return drainAndReboot(ctx, c.first, m)
		})
	}
	if ok {
		r.rebootsAll(ctx, c)
	}
	r.script(ctx, asks, "no request has failed meanwhile", counted)
	return nil
}

// rebootsAll: one command on the first machine reboots the three, that one last.
func (r *rig) rebootsAll(ctx context.Context, c cluster) {
	what := "shoal reboot of the three, its own machine last"
	r.step(ctx, what, func(ctx context.Context) (string, error) {
		began := time.Now()
		if said, err := c.first.sh(ctx, "systemd-run -q --unit=reboots -p StandardOutput=file:/root/reboots "+
			"shoal reboot --node machine,second,third"); err != nil {
			return said, err
		}
		var took []string
		for _, m := range []*container{c.nodes[0], c.nodes[1], c.first} {
			if err := m.rebooted(ctx, m.leader); err != nil {
				return "", fmt.Errorf("%s: %w", nodeName(m), err)
			}
			took = append(took, fmt.Sprintf("%s up after %.1f s", nodeName(m), time.Since(began).Seconds()))
		}
		said, err := c.first.sh(ctx, `until_ 60 kubectl get --raw /readyz
until_ 120 kubectl wait --for=condition=Ready node --all --timeout=5s
settled() { [ -z "$(kubectl get nodes -o jsonpath='{.items[*].spec.unschedulable}{.items[*].metadata.annotations.shoal-project\.io/reboot}')" ]; }
until_ 60 settled
until_ 120 kubectl rollout status deployment/web --timeout=5s >/dev/null
cat /root/reboots`)
		return strings.Join(took, ", ") + "; " + said, err
	})
}

// spread waits until the pods of web are on three machines.
const spread = `
until_ 120 kubectl rollout status deployment/web --timeout=5s >/dev/null
three() { [ "$(kubectl get pods -l app=web -o jsonpath='{.items[*].spec.nodeName}' | tr ' ' '\n' | sort | tr '\n' ' ')" = "machine second third " ]; }
until_ 60 three
`

func drainAndReboot(ctx context.Context, first, m *container) (string, error) {
	name := nodeName(m)
	began := time.Now()
	said, err := first.sh(ctx, "kubectl drain "+name+" --ignore-daemonsets --delete-emptydir-data --timeout=120s\n"+
		"[ -z \"$(kubectl get pods -l app=web --field-selector spec.nodeName="+name+" -o name)\" ]")
	if err != nil {
		return said, err
	}
	drained := time.Since(began)
	if err := m.reboot(ctx); err != nil {
		return "", err
	}
	up := time.Since(began) - drained
	boot, err := m.sh(ctx, "until_ 30 systemctl -q is-active shoal-agent; cat /proc/sys/kernel/random/boot_id")
	if err != nil {
		return boot, err
	}
	said, err = first.sh(ctx, "until_ 60 kubectl get --raw /readyz\n"+
		"until_ 120 has node/"+name+" .status.nodeInfo.bootID "+boot+"\n"+
		"until_ 120 kubectl wait --for=condition=Ready node --all --timeout=5s\n"+
		"kubectl uncordon "+name+"; kubectl rollout restart deployment/web\n"+spread)
	if err != nil {
		return said, err
	}
	return fmt.Sprintf("drained in %.1f s, up %.1f s later, all in %.1f s", drained.Seconds(), up.Seconds(),
		time.Since(began).Seconds()), nil
}
