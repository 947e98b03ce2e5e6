package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// thirdName and thirdAddress are those of the machine that only votes.
const (
	thirdName    = "third"
	thirdAddress = "10.97.0.4"
)

// runCoordinators: two coordinators and a witness; the first machine loses power, and
// the cluster goes on.
func runCoordinators(ctx context.Context, r *rig) (err error) {
	first, err := newContainer(ctx, filepath.Join(r.dir, r.name), r.cache)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, first.remove()) }()
	second, err := beside(first, filepath.Join(r.dir, r.name+"-second"), secondName, secondAddress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, second.remove()) }()
	third, err := beside(first, filepath.Join(r.dir, r.name+"-third"), thirdName, thirdAddress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, third.remove()) }()
	for _, c := range []*container{first, second, third} {
		images := filepath.Join(c.dir, "var/lib/shoal/images")
		if err := errors.Join(r.install(ctx, c.root), r.images(images)); err != nil {
			return err
		}
		if !r.step(ctx, "a machine boots", func(ctx context.Context) (string, error) { return "", c.boot(ctx) }) {
			return nil
		}
	}
	defer r.showOnFailure(second)
	if !r.script(ctx, first, "the first machine has coordinator and agent", smallDisk+services) {
		return nil
	}
	if !r.becomes(ctx, first, second, "coordinator") || !r.becomes(ctx, first, third, "witness") {
		return nil
	}
	r.script(ctx, third, "the witness has little, and no key of the cluster", frugal)
	r.script(ctx, second, "shoal coordinators lists them", asAdmin+`
shoal coordinators >/tmp/list; grep -q 'One may fail' /tmp/list; [ $(grep -c yes /tmp/list) = 3 ]; tr -s ' ' </tmp/list | head -4`)
	if _, err := second.sh(ctx, smallDisk); err != nil {
		return err
	}
	if !r.joins(ctx, first, second, "the second machine is a node, too") {
		return nil
	}
	r.survives(ctx, first, second)
	return nil
}

// becomes has a machine join by a token of a role.
func (r *rig) becomes(ctx context.Context, first, c *container, role string) bool {
	return r.step(ctx, "shoal join --"+role, func(ctx context.Context) (string, error) {
		token, err := first.sh(ctx, "shoal token create --ttl 10m --"+role)
		if err != nil {
			return "", err
		}
		return c.sh(ctx, "systemd-sysusers; systemd-tmpfiles --create\nshoal join --"+role+" "+token)
	})
}

// frugal shows what a witness holds.
const frugal = `
systemctl -q is-active shoal-coordinator
[ "$(ls /var/lib/shoal/coordinator/pki)" = etcd ]; [ ! -e /var/lib/shoal/coordinator/pki/etcd/ca.key ]
[ -z "$(find /var/lib/shoal/coordinator ! -user shoal-coordinator)" ]
ss -Hltn | grep -q ':2380'; [ -z "$(ss -Hltn 'sport = :6443')" ]
grep -E 'VmRSS|RssAnon' /proc/$(systemctl show -P MainPID shoal-coordinator)/status | tr -s '\t ' ' '`

const asAdmin = "shoal-coordinator kubeconfig --user admin --group system:masters " +
	"--server https://127.0.0.1:6443 --out /root/admin.kubeconfig\n"

// survives: the first machine loses power.
func (r *rig) survives(ctx context.Context, first, second *container) {
	steady := apply(pod("steady", 0, "  nodeName: second"))
	if !r.script(ctx, second, "a pod runs on the second machine", steady+
		fmt.Sprintf(running, "steady")+hostPID+"pid_of steady >/tmp/pid; cat /tmp/pid") {
		return
	}
	r.step(ctx, "the first machine loses power: the API is written to", func(ctx context.Context) (string, error) {
		first.cut()
		began := time.Now()
		_, err := second.sh(ctx, "until_ 30 kubectl create configmap after-the-cut --request-timeout=3s")
		return fmt.Sprintf("after %.1f s", time.Since(began).Seconds()), err
	})
	r.script(ctx, second, "its Node is NotReady, the other's is Ready, the pod stays", hostPID+`
until_ 60 has node/machine '.status.conditions[?(@.type=="Ready")].status' Unknown
until_ 60 has node/second '.status.conditions[?(@.type=="Ready")].status' True
[ "$(pid_of steady)" = "$(cat /tmp/pid)" ]; kill -0 $(cat /tmp/pid)
has pod/steady '.status.containerStatuses[0].restartCount' 0
kubectl get nodes --no-headers | tr -s ' '`)
	one := strings.Replace(apply(web), "replicas: 2", "replicas: 1", 1)
	r.script(ctx, second, "scheduler and controllers go on", one+`
until_ 60 kubectl rollout status deployment/web --timeout=5s
kubectl get lease -n kube-system shoal-coordinator -o jsonpath='{.spec.holderIdentity}' | cut -d_ -f1 | grep -x second
shoal coordinators | tail -1`)
	back := "the first machine is back: it has caught up, its Node is Ready"
	r.step(ctx, back, func(ctx context.Context) (string, error) {
		if err := first.boot(ctx); err != nil {
			return "", err
		}
		return first.sh(ctx, `until_ 60 kubectl get configmap after-the-cut
until_ 60 has node/machine '.status.conditions[?(@.type=="Ready")].status' True
ok() { shoal coordinators | grep -q 'One may fail'; }
until_ 60 ok; shoal coordinators | tail -1`)
	})
}
