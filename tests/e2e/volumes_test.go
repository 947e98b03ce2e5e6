package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestVolumesFollowNothing plays a container that wants the agent to delete,
// overwrite or show a directory of the node: by what it makes of its volumes,
// and by a link in the directory of logs. VOL-1.
func TestVolumesFollowNothing(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	victim := t.TempDir()
	secret := filepath.Join(victim, "secret")
	if err := os.WriteFile(secret, []byte("2026-01-01T00:00:00Z stdout F root's own\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	away := strings.Repeat("../", 40) + strings.TrimPrefix(victim, "/")
	s.k("create", "configmap", "cm", "--from-literal=a=one")
	s.k("create", "secret", "generic", "sec", "--from-literal=a=one")
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: attacker}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: plain
    image: localhost/busybox:1
    command: [sleep, "3600"]
    volumeMounts: &mounts
    - {name: cm, mountPath: /cm}
    - {name: sec, mountPath: /sec}
    - {name: all, mountPath: /all}
    - {name: cm, mountPath: /sub/a, subPath: a}
    - {name: disk, mountPath: /disk}
  - name: mounter
    image: localhost/busybox:1
    command: [sleep, "3600"]
    securityContext: {capabilities: {add: [SYS_ADMIN]}, seccompProfile: {type: Unconfined}}
    volumeMounts: *mounts
  volumes:
  - {name: cm, configMap: {name: cm}}
  - {name: sec, secret: {secretName: sec}}
  - {name: all, projected: {sources: [{configMap: {name: cm}}, {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]}}
  - {name: disk, emptyDir: {}}
---
apiVersion: v1
kind: Pod
metadata: {name: neighbour}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "3600"], volumeMounts: [{name: cm, mountPath: /cm}]}]
  volumes: [{name: cm, configMap: {name: cm}}]
---
apiVersion: v1
kind: Pod
metadata: {name: logger}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, "echo started; sleep 3600"]
    env: [{name: ME, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}]
    volumeMounts: [{name: logs, mountPath: /logs}]
  volumes: [{name: logs, hostPath: {path: ` + cluster.Dir + `/pod-logs}}]
`)
	s.ready("attacker", "neighbour", "logger")
	for _, write := range []string{"touch /cm/x", "rm -f /cm/..data", "rm -f /sec/a", "mkdir /all/..x", "echo x >/sub/a"} {
		s.refused("Read-only file system", "exec", "attacker", "-c", "plain", "--", "sh", "-c", write)
	}

	// With the capability to mount, what the agent wrote can be changed.
	for _, dir := range []string{"/cm", "/sec", "/all"} {
		s.k("exec", "attacker", "-c", "mounter", "--", "sh", "-ec", `
mount -o remount,rw,bind none `+dir+`
cd `+dir+`
rm -rf ..data a
ln -s `+away+` ..data
mkfifo a
for d in ..2*; do rm -rf $d; ln -s `+away+` $d; done
ln -s `+away+` ..data_tmp`)
	}
	s.k("exec", "attacker", "-c", "mounter", "--", "ln", "-s", away, "/disk/away")
	s.k("patch", "configmap", "cm", "-p", `{"data":{"a":"two"}}`)
	s.k("patch", "secret", "sec", "-p", `{"stringData":{"a":"two"}}`)
	s.until("two", "exec", "neighbour", "--", "cat", "/cm/a")
	for _, file := range []string{"/cm/a", "/sec/a", "/all/a"} {
		s.until("two", "exec", "attacker", "-c", "plain", "--", "timeout", "2", "cat", file)
	}

	s.exec("logger", "sh", "-ec", "cd /logs/*$ME/c; rm 0.log; ln -s "+secret+" 0.log")
	if out, err := cluster.Kubectl("", s.args([]string{"logs", "logger"})...); strings.Contains(out, "root's own") {
		t.Errorf("a link among the logs shows a file of the node: %s%v", out, err)
	}
	s.k("delete", "pod", "attacker", "neighbour", "logger", "--timeout=60s")

	entries, err := os.ReadDir(victim)
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory of the node was changed: %v, %v", entries, err)
	}
	if data, err := os.ReadFile(secret); err != nil || !strings.HasSuffix(string(data), "root's own\n") {
		t.Errorf("the file of the node was changed: %q, %v", data, err)
	}
}

// TestDisksNeedTheirPrograms: where the node lacks what a disk of a storage network
// needs, the pod's events name it, and the pod can go. VOL-28, VOL-55.
func TestDisksNeedTheirPrograms(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("iscsiadm"); err == nil {
		t.Skip("this machine has open-iscsi")
	}
	s := newSpace(t)
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: scsi}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "3600"], volumeMounts: [{name: d, mountPath: /d}]}]
  volumes: [{name: d, iscsi: {targetPortal: 192.0.2.1, iqn: "iqn.2020-01.com.example:a", lun: 0}}]
---
apiVersion: v1
kind: Pod
metadata: {name: fibre}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "3600"], volumeMounts: [{name: d, mountPath: /d}]}]
  volumes: [{name: d, fc: {targetWWNs: ["50060e801049cfd1"], lun: 0}}]
`)
	for pod, want := range map[string]string{
		"scsi":  `MountVolume.WaitForAttach failed for volume "d" : iscsi: target iqn.2020-01.com.example:a at portal `,
		"fibre": `MountVolume.WaitForAttach failed for volume "d" : fc: this node has no Fibre Channel adapter`,
	} {
		s.shows(want, "get", "events", "--field-selector", "involvedObject.name="+pod+",reason=FailedMount",
			"-o", "jsonpath={.items[*].message}")
	}
	s.shows("install open-iscsi", "get", "events", "--field-selector", "involvedObject.name=scsi,reason=FailedMount",
		"-o", "jsonpath={.items[*].message}")
	s.k("delete", "pod", "scsi", "fibre", "--wait", "--timeout=60s")
}
