package main

import (
	"context"
)

// quotaDisk makes all that pods write lie on a file system with quotas of projects.
const quotaDisk = `mount -o ro /dev/vdb /mnt
cp -a /mnt/install/. /
truncate -s 1500M /quota.img
mkfs.ext4 -q -F -O project,quota -E quotatype=prjquota /quota.img
mkdir -p /q && mount -o loop,prjquota /quota.img /q
for d in /var/lib/shoal /var/lib/kubelet /var/log/pods; do
	mkdir -p $d /q/$(basename $d); mount --bind /q/$(basename $d) $d
done
cp -r /mnt/images /var/lib/shoal/images
grep ' /q ' /proc/mounts`

// greedyPods are pods that write more than they may, each in another place, and one that
// writes what it may.
const greedyPods = `{apiVersion: v1, kind: Pod, metadata: {name: emptydir}, spec: {terminationGracePeriodSeconds: 0,
  volumes: [{name: v, emptyDir: {sizeLimit: 32Mi}}, {name: h, hostPath: {path: /srv}}],
  containers: [{name: c, image: "localhost/busybox:1", volumeMounts: [{name: v, mountPath: /v}, {name: h, mountPath: /h}],
    command: [sh, -c, "dd if=/dev/zero of=/v/f bs=1M count=200 2>/h/emptydir; sleep 3600"]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: layer}, spec: {terminationGracePeriodSeconds: 0,
  volumes: [{name: h, hostPath: {path: /srv}}],
  containers: [{name: c, image: "localhost/busybox:1", resources: {limits: {ephemeral-storage: 32Mi}},
    volumeMounts: [{name: h, mountPath: /h}],
    command: [sh, -c, "dd if=/dev/zero of=/big bs=1M count=200 2>/h/layer; sleep 3600"]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: log}, spec: {terminationGracePeriodSeconds: 0,
  volumes: [{name: h, hostPath: {path: /srv}}],
  containers: [{name: c, image: "localhost/busybox:1", resources: {limits: {ephemeral-storage: 32Mi}},
    volumeMounts: [{name: h, mountPath: /h}],
    command: [sh, -c, "yes 0123456789012345678901234567890123456789 | head -c 150000000; echo >/h/log; sleep 3600"]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: modest}, spec: {terminationGracePeriodSeconds: 0,
  volumes: [{name: v, emptyDir: {sizeLimit: 32Mi}}],
  containers: [{name: c, image: "localhost/busybox:1", resources: {limits: {ephemeral-storage: 80Mi}},
    volumeMounts: [{name: v, mountPath: /v}],
    command: [sh, -c, "dd if=/dev/zero of=/v/f bs=1M count=30 && dd if=/dev/zero of=/f bs=1M count=30 && exec sleep 3600"]}]}}
`

// runQuotas has a node whose disk is ext4 with quotas of projects, which not every kernel
// has: what containers write has a hard limit, root's own too.
func runQuotas(ctx context.Context, r *rig) error {
	return r.onMachine(ctx, r.installation(ctx), func(v *vm) {
		if !r.script(ctx, v, "its disk has quotas of projects", quotaDisk) ||
			!r.script(ctx, v, "services", slowWatchdog+services) {
			return
		}
		r.script(ctx, v, "pods that write more than they may are evicted", apply(greedyPods)+`
for p in emptydir layer log; do
	until_ 240 has pod/$p .status.reason Evicted; field pod/$p .status.message; echo
done`)
		r.script(ctx, v, "none of them has written more than its hard limit", `
for f in emptydir layer; do grep 'Disk quota exceeded' /srv/$f; done
journalctl -u shoal-agent | grep -c 'no hard limit' | grep -x 0`)
		r.script(ctx, v, "one that writes what it may runs on", `
kubectl wait pod/modest --for=condition=Ready --timeout=60s
written() { [ "$(kubectl exec modest -- cat /v/f /f | wc -c)" = 62914560 ]; }
until_ 120 written # the disk of an emulated machine is slow
sleep 12 # longer than a round of measurements
has pod/modest .status.phase Running; has pod/modest '.status.containerStatuses[0].restartCount' 0; written`)
		r.script(ctx, v, "a restarted agent knows the limits", `
systemctl restart shoal-agent
until_ 240 kubectl exec modest -- true
kubectl exec modest -- dd if=/dev/zero of=/v/f bs=1M count=200 2>&1 | grep 'Disk quota exceeded'
until_ 240 has pod/modest .status.reason Evicted`)
		r.script(ctx, v, "nothing of theirs is left", `
kubectl delete pod --all --wait >/dev/null
left() { [ -z "$(ls -A /var/lib/kubelet/pods /var/log/pods /var/lib/shoal/agent/containers 2>/dev/null | grep -v -e '^/' -e '^$')" ]; }
until_ 240 left; df -m /q | tail -1`)
	})
}
