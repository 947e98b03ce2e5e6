package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
)

// policyPackages are Debian's policy for SELinux and what loads it.
var policyPackages = []string{
	"selinux-policy-default", "policycoreutils", "selinux-utils", "libsemanage2", "libsemanage-common", "libsepol2",
}

// containerTypes are those that the policy's lxc_contexts names, and Debian's policy lacks.
const containerTypes = `(type container_t)
(roletype system_r container_t)
(typeattributeset domain (container_t))
(type container_file_t)
(roletype object_r container_file_t)
(typeattributeset file_type (container_file_t))
`

// policy puts what the packages add to the machines' root file system into dir. They are
// installed here, above a copy: an emulated machine takes minutes to build the policy.
func (r *rig) policy(ctx context.Context, work, dir string) (err error) {
	debs, root := filepath.Join(work, "debs"), filepath.Join(work, "root")
	if err := makeRootfs(ctx, r.cache, packages); err != nil {
		return err
	}
	lower, err := filepath.Abs(filepath.Join(r.cache, "rootfs"))
	if err != nil {
		return err
	}
	for _, d := range []string{debs, root, dir, filepath.Join(work, "overlay")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	download := append([]string{"-c", `cd "$1"; shift; apt-get -qq -o APT::Sandbox::User=root download "$@"`, "sh", debs},
		policyPackages...)
	if err := command(ctx, "sh", download...); err != nil {
		return err
	}
	if err := command(ctx, "mount", "-t", "overlay", "overlay", "-o",
		"lowerdir="+lower+",upperdir="+dir+",workdir="+filepath.Join(work, "overlay"), root); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, command(context.WithoutCancel(ctx), "umount", root)) }()
	return errors.Join(
		os.WriteFile(filepath.Join(debs, "containers.cil"), []byte(containerTypes), 0o644),
		command(ctx, "sh", "-c", `mkdir "$2/debs"; cp "$1"/* "$2/debs"`, "sh", debs, root),
		command(ctx, "chroot", root, "sh", "-c", "dpkg -i /debs/*.deb && semodule -n -i /debs/containers.cil && rm -r /debs"))
}

// usePolicy loads it into the kernel that has booted without one. Nothing is enforced:
// what counts is which labels things get.
const usePolicy = `mount -o ro /dev/vdb /mnt
cp -a /mnt/policy/. /
printf 'SELINUX=permissive\nSELINUXTYPE=default\n' >/etc/selinux/config
mount -t selinuxfs selinuxfs /sys/fs/selinux 2>/dev/null || true
load_policy -i
cp -a /mnt/install/. /
mkdir -p /var/lib/shoal; cp -r /mnt/images /var/lib/shoal/images
cat /etc/selinux/default/contexts/lxc_contexts | tr '\n' ' '
sestatus | grep -e 'SELinux status: *enabled'`

const labelled = `apiVersion: v1
kind: Secret
metadata: {name: s}
stringData: {k: v}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: alone}
spec: {accessModes: [ReadWriteOncePod], resources: {requests: {storage: 64Mi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: shared}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: labelled}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {seLinuxOptions: {level: "s0:c1,c2"}}
  volumes:
  - {name: alone, persistentVolumeClaim: {claimName: alone}}
  - {name: shared, persistentVolumeClaim: {claimName: shared}}
  - {name: empty, emptyDir: {}}
  - {name: secret, secret: {secretName: s}}
  - {name: host, hostPath: {path: /srv, type: Directory}}
  containers:
  - name: main
    image: localhost/busybox:1
    command: [sh, -c, "cat /proc/self/attr/current; for d in alone shared empty; do echo x >/$d/x; done; touch /x; while :; do sleep 1; done"]
    volumeMounts:
    - {name: alone, mountPath: /alone}
    - {name: shared, mountPath: /shared}
    - {name: empty, mountPath: /empty}
    - {name: secret, mountPath: /secret}
    - {name: host, mountPath: /host}
---
apiVersion: v1
kind: Pod
metadata: {name: plain}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: "localhost/busybox:1", command: [sh, -c, "cat /proc/self/attr/current; while :; do sleep 1; done"]}
---
apiVersion: v1
kind: Pod
metadata: {name: typed}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {seLinuxOptions: {type: container_t}}
  containers:
  - {name: main, image: "localhost/busybox:1", command: [sh, -c, "trap 'exit 1' TERM; cat /proc/self/attr/current; while :; do sleep 1; done"]}
---
apiVersion: v1
kind: Pod
metadata: {name: wrong}
spec:
  securityContext: {seLinuxOptions: {type: no_such_t, level: s0}}
  containers:
  - {name: main, image: "localhost/busybox:1", command: [sleep, "1000"]}
`

func runSELinux(ctx context.Context, r *rig) (err error) {
	dir := filepath.Join(r.dir, r.name)
	payload := filepath.Join(dir, "payload")
	if err := r.installation(ctx)(payload); err != nil {
		return err
	}
	if !r.step(ctx, "Debian's policy is built", func(ctx context.Context) (string, error) {
		return "", r.policy(ctx, filepath.Join(dir, "policy"), filepath.Join(payload, "policy"))
	}) {
		return nil
	}
	v, ok := r.boot(ctx, dir, payload, "lsm=landlock,yama,selinux,bpf selinux=1 enforcing=0")
	if !ok {
		return nil
	}
	defer func() { err = errors.Join(err, v.remove()) }()
	defer r.showOnFailure(v)
	if !r.script(ctx, v, "its kernel has SELinux, with Debian's policy", usePolicy) ||
		!r.script(ctx, v, "services", slowWatchdog+services) {
		return nil
	}
	r.script(ctx, v, "pods ask for labels, for none, and for a wrong one",
		`kubectl patch csidriver local.shoal-project.io --type=merge -p '{"spec":{"seLinuxMount":true}}'
`+apply(labelled)+`
for p in labelled plain typed; do until_ 240 kubectl wait pod/$p --for=condition=Ready --timeout=10s; done >/dev/null`)
	r.script(ctx, v, "processes have the labels that were asked for", `
kubectl logs labelled | tr -d '\0' | tee -a /dev/stderr | grep -x '[a-z_]*:[a-z_]*:container_t:s0:c1,c2'
kubectl logs typed | tr -d '\0' | tee -a /dev/stderr | grep -xE '[a-z_]*:[a-z_]*:container_t:s0:c[0-9]+,c[0-9]+'
kubectl logs plain | tr -d '\0' | tee -a /dev/stderr | grep -v container_t`)
	r.script(ctx, v, "a volume of one pod alone is mounted with the label", `
mount | grep -e '/globalmount ' | tee -a /dev/stderr | grep -c 'context=' | grep -x 1
d=$(ls -d /var/lib/kubelet/pods/*/volumes/kubernetes.io~csi/*/mount); for x in $d; do ls -Z $x/x; done
for x in $d; do ls -Z $x/x | grep -e 'container_file_t:s0:c1,c2'; done`)
	r.script(ctx, v, "other volumes are relabelled, but for the host's", `
pod=/var/lib/kubelet/pods/$(field pod/labelled .metadata.uid)/volumes
ls -Zd $pod/kubernetes.io~empty-dir/empty $pod/kubernetes.io~empty-dir/empty/x $pod/kubernetes.io~secret/secret/..data $pod/kubernetes.io~secret/secret/..data/k $pod/../etc-hosts >/tmp/labels
cat /tmp/labels; [ $(grep -c 'container_file_t:s0:c1,c2' /tmp/labels) = 5 ]
ls -Zd /srv | grep -v container_file_t
id=$(field pod/labelled '.status.containerStatuses[0].containerID'); grep "/${id#*//}/rootfs overlay" /proc/mounts | grep 'context="*[a-z_:]*container_file_t:s0:c1,c2'`)
	r.script(ctx, v, "a restarted container keeps its level", `
before=$(kubectl logs typed | tr -d '\0')
systemctl restart shoal-agent
kubectl exec typed -- kill 1; until_ 240 has pod/typed '.status.containerStatuses[0].restartCount' 1
until_ 240 has pod/typed '.status.containerStatuses[0].ready' true
[ "$(kubectl logs typed | tr -d '\0')" = "$before" ]; echo "$before"`)
	r.script(ctx, v, "a label that the policy does not know is told", `
until_ 240 has pod/wrong '.status.containerStatuses[0].state.waiting.reason' CreateContainerError
field pod/wrong '.status.containerStatuses[0].state.waiting.message' | grep 'the policy does not know the label'`)
	r.script(ctx, v, "nothing is left of the pods", `
kubectl delete pod labelled plain typed wrong --wait >/dev/null; kubectl delete pvc --all --wait >/dev/null
left() { ! mount | grep -q globalmount; }; until_ 240 left`)
	return nil
}
