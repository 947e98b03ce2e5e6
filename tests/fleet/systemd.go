package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// install puts the product into a machine's root as an operator does, with
// kubectl and the images that the pods need.
func (r *rig) install(ctx context.Context, root string) error {
	if err := command(ctx, filepath.Join(r.bin, "..", "hack", "install.sh"), root); err != nil {
		return err
	}
	if err := command(ctx, "install", "-D", "-m", "755", filepath.Join(r.bin, "kubectl"),
		filepath.Join(root, "usr/local/bin/kubectl")); err != nil {
		return err
	}
	return nil
}

// images puts the image archives where the agent imports them from.
func (r *rig) images(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return exec.Command("cp", filepath.Join(r.bin, "test-images", "busybox.tar"), dir).Run()
}

// services are the commands of docs/configuration.md, As systemd services.
const services = `
systemd-sysusers
systemd-tmpfiles --create
systemctl enable -q --now shoal-coordinator shoal-agent
ln -sf /etc/shoal/admin.kubeconfig /root/admin.kubeconfig
until_ 240 kubectl wait --for=condition=Ready node --all --timeout=5s
echo $(systemctl show -p Id,ActiveState,NRestarts shoal-coordinator shoal-agent)`

// pod prints a manifest: a pod that catches SIGTERM and takes seconds to end.
func pod(name string, seconds int, more string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
%s
  terminationGracePeriodSeconds: 60
  containers:
  - name: main
    image: localhost/busybox:1
    command: [sh, -c, "trap 'echo caught; sleep %d; echo ended; exit 0' TERM; echo started; while :; do sleep 0.1; done"]
`, name, more, seconds)
}

func apply(manifest string) string { return "kubectl apply -f - <<'EOF'\n" + manifest + "EOF\n" }

const running = "until_ 60 kubectl wait pod/%s --for=condition=Ready --timeout=5s\n"

// hostPID defines pid_of, which prints the process of a pod's only container.
const hostPID = `pid_of() { id=$(field pod/$1 '.status.containerStatuses[0].containerID'); cat /run/shoal/containers/${id#*//}/pid; }
`

func runSystemd(ctx context.Context, r *rig) (err error) {
	c, err := newContainer(ctx, filepath.Join(r.dir, r.name), r.cache)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.remove()) }()
	if err := errors.Join(r.install(ctx, c.root), r.images(filepath.Join(c.dir, "var/lib/shoal/images"))); err != nil {
		return err
	}
	if !r.step(ctx, "the machine boots", func(ctx context.Context) (string, error) { return "", c.boot(ctx) }) {
		return nil
	}
	defer r.showOnFailure(c)
	// Its disk is the host's, whose pressure is not the matter here.
	const disk = `printf 'evictionHard: {nodefs.available: 1%%, imagefs.available: 1%%}\n' >>/etc/shoal/agent.yaml` + "\n"
	if !r.script(ctx, c, "coordinator and agent are services; the node is Ready", disk+services) {
		return nil
	}
	if !r.script(ctx, c, "a pod runs", apply(pod("keeper", 0, ""))+fmt.Sprintf(running, "keeper")+"kubectl get pod keeper --no-headers | tr -s ' '") {
		return nil
	}
	r.script(ctx, c, "the coordinator has no right of root", confined)
	r.script(ctx, c, "a data directory of root's becomes the coordinator's", upgraded)
	r.script(ctx, c, "shoal secrets rotate, by root beside the service", rotated)
	r.script(ctx, c, "the key of the node's records is a systemd credential", credential)
	r.restarts(ctx, c)
	r.watchdogs(ctx, c)
	if !r.step(ctx, "after a reboot the pod runs again, its restart counted",
		func(ctx context.Context) (string, error) { return r.rebooted(ctx, c) }) {
		return nil
	}
	r.powerOff(ctx, c)
	return nil
}

// confined looks at the coordinator as the kernel does, and at what systemd
// calls the exposure of the unit (10 is the worst).
const confined = `
status=/proc/$(systemctl show -P MainPID shoal-coordinator)/status
for set in CapInh CapPrm CapEff CapBnd CapAmb; do grep -qx "$set:	0000000000000000" $status; done
grep -qx 'NoNewPrivs:	1' $status; grep -qx 'Seccomp:	2' $status
[ "$(stat -c %U /var/lib/shoal/coordinator/pki/ca.key)" = shoal-coordinator ]
[ "$(stat -c %a /var/lib/shoal/coordinator)" = 700 ]
systemd-analyze security --no-pager shoal-coordinator | tail -1
systemd-analyze security --no-pager --threshold=20 shoal-coordinator >/dev/null`

// upgraded: units of before ran the coordinator as root.
const upgraded = `
systemctl stop shoal-coordinator
chown -R root:root /var/lib/shoal/coordinator; chmod 755 /var/lib/shoal/coordinator
systemctl start shoal-coordinator
until_ 30 kubectl wait --for=condition=Ready node --all --timeout=5s
[ -z "$(find /var/lib/shoal/coordinator ! -user shoal-coordinator)" ]
[ "$(stat -c %a /var/lib/shoal/coordinator)" = 700 ]
systemctl show -P NRestarts shoal-coordinator | grep -qx 0`

// rotated: what root writes stays the service's to read.
const rotated = `
kubectl create secret generic fleet --from-literal=k=v >/dev/null
shoal secrets rotate | tail -1 | cut -c1-60
[ "$(stat -c '%U %a' /var/lib/shoal/coordinator/pki/encryption.yaml)" = "shoal-coordinator 600" ]
systemctl restart shoal-coordinator
until_ 30 has secret/fleet .data.k dg==
kubectl delete secret fleet >/dev/null`

// credential has the commands of docs/security.md, Keys, and deletes the key
// that the records had before.
const credential = hostPID + `
before=$(pid_of keeper)
mkdir -p /etc/credstore.encrypted
head -c 32 /dev/urandom | base64 | systemd-creds encrypt --name=shoal-checkpoint-key --with-key=auto - /etc/credstore.encrypted/shoal-checkpoint-key
for round in first second; do # with the old key beside it, and without
	systemctl restart shoal-agent
	until_ 30 kubectl wait --for=condition=Ready node --all --timeout=5s
	journalctl -u shoal-agent -o cat _SYSTEMD_INVOCATION_ID=$(systemctl show -P InvocationID shoal-agent) >/tmp/journal
	grep -q 'systemd credential shoal-checkpoint-key' /tmp/journal
	rm -f /etc/shoal/checkpoint.key
done
if grep 'moved aside' /tmp/journal; then exit 1; fi
[ ! -e /etc/shoal/checkpoint.key ]; [ -z "$(find /var/lib/shoal/agent -name '*.damaged')" ]
[ "$(pid_of keeper)" = "$before" ]; kill -0 $before
ls -l /run/credentials/shoal-agent.service/ | tail -1 | cut -d' ' -f1,3,4; grep -c . /var/lib/systemd/credential.secret >/dev/null && echo under the key of the host`

// restarts: no container restarts when a daemon does.
func (r *rig) restarts(ctx context.Context, m machine) {
	for _, unit := range []string{"shoal-agent", "shoal-coordinator"} {
		r.script(ctx, m, "systemctl restart "+unit+" leaves the pod's process", hostPID+`
before=$(pid_of keeper); conmon=$(ps -o ppid= -p $before)
systemctl restart `+unit+`
until_ 30 kubectl wait --for=condition=Ready node --all --timeout=5s
until_ 30 kubectl logs keeper
[ "$(pid_of keeper)" = "$before" ]; kill -0 $before; [ "$(ps -o ppid= -p $before)" = "$conmon" ]
has pod/keeper '.status.containerStatuses[0].restartCount' 0
echo process $before stays`)
	}
}

// watchdogs: a daemon that hangs is started anew.
func (r *rig) watchdogs(ctx context.Context, m machine) {
	for _, unit := range []string{"shoal-agent", "shoal-coordinator"} {
		r.script(ctx, m, "a "+unit+" that hangs is restarted by its watchdog", hostPID+`
before=$(pid_of keeper)
mkdir -p /run/systemd/system/`+unit+`.service.d
printf '[Service]\nWatchdogSec=3s\n' >/run/systemd/system/`+unit+`.service.d/fast.conf
systemctl daemon-reload; systemctl restart `+unit+`
sleep 5 # longer than the limit: it says that it lives
systemctl show -p NRestarts `+unit+` | grep -qx NRestarts=0
kill -STOP $(systemctl show -P MainPID `+unit+`)
restarted() { [ $(systemctl show -P NRestarts `+unit+`) = 1 ] && systemctl -q is-active `+unit+`; }
until_ 30 restarted
until_ 30 kubectl wait --for=condition=Ready node --all --timeout=5s
[ "$(pid_of keeper)" = "$before" ]; kill -0 $before
rm -r /run/systemd/system/`+unit+`.service.d; systemctl daemon-reload; systemctl restart `+unit+`
until_ 30 kubectl wait --for=condition=Ready node --all --timeout=5s
echo the pod stays`)
	}
}

func (r *rig) rebooted(ctx context.Context, c *container) (string, error) {
	boot, err := c.sh(ctx, "cat /proc/sys/kernel/random/boot_id; field node/machine .status.nodeInfo.bootID")
	if err != nil {
		return "", err
	}
	if err := c.reboot(ctx); err != nil {
		return boot, err
	}
	return c.sh(ctx, `until_ 60 kubectl wait --for=condition=Ready node --all --timeout=5s
until_ 60 has pod/keeper '.status.containerStatuses[0].restartCount' 1
until_ 60 has pod/keeper '.status.containerStatuses[0].ready' true
kubectl get pod keeper --no-headers | tr -s ' '`)
}

// powerOff: a shutdown waits for the pods, ordinary ones first (KEP-2000).
func (r *rig) powerOff(ctx context.Context, c *container) {
	const critical = "  priorityClassName: system-node-critical"
	if !r.script(ctx, c, "with shutdownGracePeriod the agent holds logind's lock", `
printf 'shutdownGracePeriod: 20s\nshutdownGracePeriodCriticalPods: 10s\n' >>/etc/shoal/agent.yaml
systemctl restart shoal-agent
until_ 30 kubectl wait --for=condition=Ready node --all --timeout=5s
systemd-inhibit --list --no-legend | grep kubelet | tr -s ' '
busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager InhibitDelayMaxUSec
`+apply(pod("web", 4, "")+"---\n"+
		strings.Replace(pod("vital", 2, critical), "{name: vital}", "{name: vital, namespace: kube-system}", 1))+
		fmt.Sprintf(running, "web")+"until_ 60 kubectl wait -n kube-system pod/vital --for=condition=Ready --timeout=5s\n") {
		return
	}
	r.step(ctx, "systemctl poweroff waits for the pods, critical ones last", func(ctx context.Context) (string, error) {
		if _, err := c.sh(ctx, "systemctl poweroff"); err != nil {
			return "", err
		}
		if err := c.off(ctx); err != nil {
			return "", err
		}
		return podTimes(filepath.Join(c.dir, "var/log/pods"))
	})
	r.step(ctx, "afterwards the pods are Failed with reason Terminated", func(ctx context.Context) (string, error) {
		if err := c.boot(ctx); err != nil {
			return "", err
		}
		return c.sh(ctx, `until_ 60 kubectl wait --for=condition=Ready node --all --timeout=5s
for p in keeper web; do
	has pod/$p .status.phase Failed && has pod/$p .status.reason Terminated || { kubectl get pod $p -o yaml; exit 1; }
	has pod/$p .status.message 'Pod was terminated in response to imminent node shutdown.'
	has pod/$p '.status.conditions[?(@.type=="DisruptionTarget")].reason' TerminationByKubelet
done
kubectl get events --field-selector reason=Shutdown,involvedObject.kind=Node -o jsonpath='{.items[*].message}' | grep -q 'Shutdown manager detected shutdown event'
kubectl get --raw /api/v1/nodes/machine/proxy/metrics | grep '^kubelet_graceful_shutdown' | cut -c1-60
kubectl get pods -A --no-headers | tr -s ' '`)
	})
}

// podTimes reads from the pods' logs when each caught the signal and ended,
// and checks the order: web, then vital.
func podTimes(dir string) (string, error) {
	at := map[string]string{}
	for _, pod := range []string{"web", "vital"} {
		logs, err := filepath.Glob(filepath.Join(dir, "*_"+pod+"_*", "main", "0.log"))
		if err != nil || len(logs) != 1 {
			return "", fmt.Errorf("%d logs of %s: %w", len(logs), pod, err)
		}
		b, err := os.ReadFile(logs[0])
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) == 4 {
				at[pod+" "+f[3]] = f[0][11:23]
			}
		}
	}
	order := []string{"web caught", "web ended", "vital caught", "vital ended"}
	var text []string
	for i, event := range order {
		text = append(text, event+" "+at[event])
		if at[event] == "" || i > 0 && at[event] < at[order[i-1]] {
			return "", fmt.Errorf("not in order: %v", at)
		}
	}
	return strings.Join(text, ", "), nil
}

// showOnFailure prints the daemons' journal when a step failed.
func (r *rig) showOnFailure(m machine) {
	if r.failed == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	out, err := m.sh(ctx, "set +e; kubectl get pods -A; kubectl get events; kubectl describe nodes | sed -n 1,40p; kubectl get pods -A -o jsonpath='{.items[*].status.containerStatuses}'; journalctl -b -n 60 --no-pager -u shoal-agent -u shoal-coordinator -u systemd-logind; systemctl --failed --no-legend")
	fmt.Println(out, err)
}
