package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestPodLife: restart policies, init containers and sidecars in order,
// termination messages, back-off and a deadline, as the status tells them.
func TestPodLife(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: never}
spec: {restartPolicy: Never, containers: [{name: c, image: "localhost/busybox:1", command: [sh, -c, "echo said > /dev/termination-log; exit 7"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: fallback}
spec: {restartPolicy: Never, containers: [{name: c, image: "localhost/busybox:1", terminationMessagePolicy: FallbackToLogsOnError, command: [sh, -c, "echo from the log; exit 1"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: onfailure}
spec:
  restartPolicy: OnFailure
  containers: [{name: c, image: "localhost/busybox:1", command: [sh, -c, "[ -f /m/x ] || { touch /m/x; exit 1; }"], volumeMounts: [{name: m, mountPath: /m}]}]
  volumes: [{name: m, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: crash}
spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: "localhost/busybox:1", command: ["false"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: order}
spec:
  restartPolicy: Never
  initContainers:
  - {name: one, image: "localhost/busybox:1", command: [sh, -c, "echo one >> /m/log"], volumeMounts: [{name: m, mountPath: /m}]}
  - {name: side, image: "localhost/busybox:1", restartPolicy: Always, command: [sh, -c, "trap 'exit 0' TERM; echo side >> /m/log; while true; do sleep 0.1; done"], volumeMounts: [{name: m, mountPath: /m}], startupProbe: {exec: {command: [grep, side, /m/log]}, periodSeconds: 1}}
  - {name: two, image: "localhost/busybox:1", command: [sh, -c, "echo two >> /m/log"], volumeMounts: [{name: m, mountPath: /m}]}
  containers: [{name: c, image: "localhost/busybox:1", command: [sh, -c, "cat /m/log"], volumeMounts: [{name: m, mountPath: /m}]}]
  volumes: [{name: m, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: initfails}
spec:
  restartPolicy: Never
  initContainers: [{name: one, image: "localhost/busybox:1", command: ["false"]}]
  containers: [{name: c, image: "localhost/busybox:1", command: ["true"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: deadline}
spec: {activeDeadlineSeconds: 2, terminationGracePeriodSeconds: 0, containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "999"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: hooks}
spec:
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, "trap 'echo term; exit 0' TERM; while true; do sleep 0.1; done"]
    lifecycle:
      postStart: {exec: {command: [sh, -c, "echo started > /host/start"]}}
      preStop: {exec: {command: [sh, -c, "echo stopped > /host/stop"]}}
    volumeMounts: [{name: host, mountPath: /host}]
  volumes: [{name: host, hostPath: {path: ` + cluster.Dir + `/hooks, type: DirectoryOrCreate}}]
---
apiVersion: v1
kind: Pod
metadata: {name: oom}
spec: {restartPolicy: Never, containers: [{name: c, image: "localhost/busybox:1", command: [sh, -c, "exec tail /dev/zero"], resources: {limits: {memory: 16Mi}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: huge}
spec: {containers: [{name: c, image: "localhost/busybox:1", resources: {requests: {memory: 900Gi}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: noexec}
spec: {restartPolicy: Never, containers: [{name: c, image: "localhost/busybox:1", command: [/nonsense]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: noconfig}
spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: "localhost/busybox:1", env: [{name: A, valueFrom: {configMapKeyRef: {name: none, key: a}}}]}]}
`)
	first := ".status.containerStatuses[0]"
	s.field("pod/never", ".status.phase", "Failed")
	s.field("pod/never", first+".state.terminated.exitCode", "7")
	s.field("pod/never", first+".state.terminated.message", "said")
	s.field("pod/never", first+".state.terminated.reason", "Error")
	s.field("pod/fallback", first+".state.terminated.message", "from the log")
	s.field("pod/onfailure", ".status.phase", "Succeeded")
	s.field("pod/onfailure", first+".restartCount", "1")
	s.field("pod/order", ".status.phase", "Succeeded")
	s.until("one\nside\ntwo", "logs", "order", "-c", "c")
	s.field("pod/order", ".status.initContainerStatuses[1].state.terminated.exitCode", "0")
	s.shows("Init:Error", "get", "pod", "initfails")
	s.field("pod/initfails", ".status.phase", "Failed")
	s.field("pod/deadline", ".status.reason", "DeadlineExceeded")
	s.field("pod/deadline", ".status.phase", "Failed")
	s.field("pod/oom", first+".state.terminated.reason", "OOMKilled")
	s.field("pod/oom", first+".state.terminated.exitCode", "137")
	s.shows("0/1 nodes are available: 1 Insufficient memory.", "get", "events", "--field-selector=involvedObject.name=huge")
	s.field("pod/noexec", first+".state.terminated.reason", "StartError")
	s.field("pod/noexec", first+".state.terminated.exitCode", "128")
	s.shows("CreateContainerConfigError", "get", "pod", "noconfig")
	s.says(`configmap "none" not found`, "get", "pod", "noconfig", "-o", "jsonpath={"+first+".state.waiting.message}")
	s.k("create", "configmap", "none", "--from-literal=a=b")
	s.shows("CrashLoopBackOff", "get", "pod", "crash")
	s.shows("Back-off restarting failed container c in pod crash_"+s.ns, "get", "events", "--field-selector=involvedObject.name=crash")

	s.ready("hooks")
	s.k("delete", "pod", "hooks", "--timeout=30s")
	for name, want := range map[string]string{"start": "started\n", "stop": "stopped\n"} {
		if got, err := os.ReadFile(cluster.Dir + "/hooks/" + name); err != nil || string(got) != want {
			t.Errorf("hook %s: %q %v", name, got, err)
		}
	}
}

// TestProbes: readiness by exec, HTTP, TCP and gRPC, failing liveness restarts,
// failing startup restarts too.
func TestProbes(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: http}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "localhost/hello:1", readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}, livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 60}}
---
apiVersion: v1
kind: Pod
metadata: {name: tcp}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "localhost/hello:1", readinessProbe: {tcpSocket: {port: 9}, periodSeconds: 1}}
---
apiVersion: v1
kind: Pod
metadata: {name: grpc}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "localhost/hello:1", readinessProbe: {grpc: {port: 8080}, periodSeconds: 1}}
---
apiVersion: v1
kind: Pod
metadata: {name: gate}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "localhost/busybox:1", command: [sleep, "999"], readinessProbe: {exec: {command: [test, -f, /tmp/ready]}, periodSeconds: 1}}
---
apiVersion: v1
kind: Pod
metadata: {name: live}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: "localhost/busybox:1"
    command: [sh, -c, "touch /tmp/live; exec sleep 999"]
    # A busy machine may take seconds to touch the file, and to read it.
    startupProbe: {exec: {command: [test, -f, /tmp/live]}, periodSeconds: 1, failureThreshold: 60, timeoutSeconds: 30}
    livenessProbe: {exec: {command: [cat, /tmp/live]}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 30}
---
apiVersion: v1
kind: Pod
metadata: {name: startup}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "localhost/busybox:1", command: [sleep, "999"], startupProbe: {httpGet: {port: 1}, periodSeconds: 1, failureThreshold: 1}}
`)
	event := func(pod, want string) {
		t.Helper()
		s.shows(want, "get", "events", "--field-selector=involvedObject.name="+pod)
	}
	s.ready("http", "live")
	event("tcp", "Readiness probe failed: dial tcp")
	event("grpc", "Readiness probe failed:")
	s.exec("gate", "touch", "/tmp/ready")
	s.ready("gate")
	s.exec("gate", "rm", "/tmp/ready")
	s.k("wait", "pod/gate", "--for=condition=Ready=false", "--timeout=30s")
	s.exec("live", "rm", "/tmp/live")
	s.field("pod/live", ".status.containerStatuses[0].restartCount", "1")
	event("live", "Liveness probe failed: cat: can't open '/tmp/live': No such file or directory")
	event("live", "Container c failed liveness probe, will be restarted")
	event("startup", "Container c failed startup probe, will be restarted")
	s.field("pod/http", ".status.containerStatuses[0].restartCount", "0")
}

// TestPodSecurity: what a process may do and who it is.
func TestPodSecurity(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  terminationGracePeriodSeconds: 0
  securityContext: {runAsUser: 1000, runAsGroup: 3000, fsGroup: 2000, supplementalGroups: [4000]}
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, "999"]
    securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
    volumeMounts: [{name: m, mountPath: /m}]
  volumes: [{name: m, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: root}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "999"], securityContext: {capabilities: {add: [NET_ADMIN]}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: privileged}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "999"], securityContext: {privileged: true}}]
---
apiVersion: v1
kind: Pod
metadata: {name: nonroot}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "999"], securityContext: {runAsNonRoot: true}}]
---
apiVersion: v1
kind: Pod
metadata: {name: shared}
spec:
  terminationGracePeriodSeconds: 0
  shareProcessNamespace: true
  containers:
  - {name: a, image: "localhost/busybox:1", command: [sleep, "998"]}
  - {name: b, image: "localhost/busybox:1", command: [sleep, "997"]}
---
apiVersion: v1
kind: Pod
metadata: {name: hostns}
spec:
  terminationGracePeriodSeconds: 0
  hostNetwork: true
  hostPID: true
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "999"]}]
`)
	s.ready("user", "root", "privileged", "shared", "hostns")
	if got := s.exec("user", "id"); !strings.HasPrefix(got, "uid=1000 gid=3000 groups=2000,3000,4000") {
		t.Errorf("id: %q", got)
	}
	status := s.exec("user", "cat", "/proc/1/status")
	for _, want := range []string{"CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(status, want) {
			t.Errorf("no %q in\n%s", want, status)
		}
	}
	s.refused("Read-only file system", "exec", "user", "--", "touch", "/x")
	s.exec("user", "touch", "/m/x")
	if got := s.exec("user", "stat", "-c", "%g %a", "/m"); got != "2000 2777\n" {
		t.Errorf("fsGroup: %q", got)
	}
	s.refused("Operation not permitted", "exec", "shared", "-c", "a", "--", "ip", "link", "set", "lo", "down")
	s.exec("root", "ip", "link", "set", "lo", "down")
	s.exec("privileged", "mount", "-t", "tmpfs", "none", "/tmp")
	s.shows("container has runAsNonRoot and image will run as root", "get", "pod", "nonroot", "-o", "jsonpath={.status.containerStatuses[0].state.waiting.message}")
	if got := s.exec("shared", "ps"); !strings.Contains(got, "sleep 998") || !strings.Contains(got, "sleep 997") {
		t.Errorf("shared processes: %s", got)
	}
	if got := s.k("get", "pod", "hostns", "-o", "jsonpath={.status.podIP}"); got != cluster.Address {
		t.Errorf("address on the host's network: %s", got)
	}
	if got := s.exec("hostns", "ps"); !strings.Contains(got, "shoal-agent") {
		t.Errorf("host's processes: %s", got)
	}
}

// TestVolumes: every kind of this release with what the kernel shows of it,
// and live updates of those that are written.
func TestVolumes(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.k("create", "configmap", "c", "--from-literal=a=1", "--from-literal=b=2")
	s.k("create", "secret", "generic", "s", "--from-literal=p=hidden")
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {l: one}, annotations: {an: two}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, "999"]
    resources: {limits: {cpu: 500m, memory: 64Mi}}
    env:
    - {name: PLAIN, value: "v$(HOST)w"}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}
    - {name: SECRET, valueFrom: {secretKeyRef: {name: s, key: p}}}
    - {name: NONE, valueFrom: {configMapKeyRef: {name: c, key: zzz, optional: true}}}
    - {name: EXPANDED, value: "$(NODE)-$$(NODE)"}
    envFrom: [{configMapRef: {name: c}, prefix: CM_}]
    volumeMounts:
    - {name: disk, mountPath: /disk}
    - {name: disk, mountPath: /sub, subPathExpr: $(NODE)}
    - {name: mem, mountPath: /mem}
    - {name: host, mountPath: /host, readOnly: true}
    - {name: cm, mountPath: /cm}
    - {name: cm, mountPath: /etc/one, subPath: a}
    - {name: sec, mountPath: /sec}
    - {name: down, mountPath: /down}
    - {name: all, mountPath: /all}
  volumes:
  - {name: disk, emptyDir: {}}
  - {name: mem, emptyDir: {medium: Memory, sizeLimit: 8Mi}}
  - {name: host, hostPath: {path: ` + cluster.Dir + `/images}}
  - {name: cm, configMap: {name: c}}
  - {name: sec, secret: {secretName: s, defaultMode: 0400}}
  - {name: down, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}, {path: mem, resourceFieldRef: {containerName: c, resource: limits.memory}}]}}
  - name: all
    projected:
      sources:
      - configMap: {name: c, items: [{key: a, path: x/a}]}
      - secret: {name: s}
      - downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}
      - serviceAccountToken: {path: token, audience: shop, expirationSeconds: 600}
---
apiVersion: v1
kind: Pod
metadata: {name: missing}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "999"], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, secret: {secretName: later}}]
`)
	s.ready("p")
	ip := s.k("get", "pod", "p", "-o", "jsonpath={.status.podIP}")
	for _, c := range []struct{ script, want string }{
		{"echo $PLAIN $NODE $CPU $SECRET $CM_a$CM_b [$NONE] $EXPANDED", "v$(HOST)w node1 500 hidden 12 [] node1-$(NODE)"},
		{"echo $IP", ip},
		{"grep ' /mem ' /proc/mounts | cut -d' ' -f3; df -m /mem | tail -1 | awk '{print $2}'", "tmpfs\n8"},
		{"grep ' /sec ' /proc/mounts | cut -d' ' -f3; cat /sec/p; stat -L -c ' %a' /sec/p", "tmpfs\nhidden 400"},
		{"ls /host | head -1; touch /host/x 2>&1", "busybox.tar\ntouch: /host/x: Read-only file system"},
		{"cat /cm/a /cm/b /etc/one", "121"},
		{"cat /down/labels; echo; cat /down/mem", "l=\"one\"\n67108864"},
		{"cat /all/x/a /all/p /all/name; cut -d. -f1,3 /all/token | grep -c .", "1hiddenp1"},
		{"touch /sub/f; ls /disk/node1", "f"},
	} {
		if got := strings.TrimSpace(s.k("exec", "p", "--", "sh", "-c", c.script+"; true")); got != c.want {
			t.Errorf("%s: %q, want %q", c.script, got, c.want)
		}
	}
	s.k("patch", "configmap", "c", `-p={"data":{"a":"new"}}`)
	s.k("patch", "secret", "s", `-p={"stringData":{"p":"other"}}`)
	s.k("label", "pod", "p", "l=changed", "--overwrite")
	s.until("new2", "exec", "p", "--", "cat", "/cm/a", "/cm/b")
	s.until("other", "exec", "p", "--", "cat", "/sec/p")
	s.until("newother", "exec", "p", "--", "cat", "/all/x/a", "/all/p")
	s.until(`l="changed"`, "exec", "p", "--", "cat", "/down/labels")
	s.says("1", "exec", "p", "--", "cat", "/etc/one")
	s.shows(`MountVolume.SetUp failed for volume "v" : secret "later" not found`, "get", "events", "--field-selector=involvedObject.name=missing")
	s.k("create", "secret", "generic", "later")
	s.ready("missing")
}

// TestHostPort: a port of the node leads to the pod, and only one pod gets it.
func TestHostPort(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	pod := `{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: "localhost/hello:1", ports: [{containerPort: 8080, hostPort: 8123}]}]}}`
	s.apply(fmt.Sprintf(pod, "first"))
	s.ready("first")
	s.apply(fmt.Sprintf(pod, "second"))
	s.shows("1 node(s) didn't have free ports for the requested pod ports", "get", "events", "--field-selector=reason=FailedScheduling")
	if out, err := cluster.Run("curl", "-sS", "--max-time", "5", "http://"+cluster.Address+":8123"); err != nil ||
		!strings.HasPrefix(out, "Hello from pod first") {
		t.Errorf("host port: %v %q", err, out)
	}
	s.k("delete", "pod", "first", "--now")
	s.ready("second")
}

// TestJobs: completions, failures, indexes, removal after a time, CronJob's
// parts aside.
func TestJobs(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: batch/v1
kind: Job
metadata: {name: three}
spec: {completions: 3, parallelism: 2, template: {spec: {restartPolicy: Never, containers: [{name: c, image: "localhost/busybox:1", command: ["true"]}]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: fails}
spec: {backoffLimit: 0, template: {spec: {restartPolicy: Never, containers: [{name: c, image: "localhost/busybox:1", command: ["false"]}]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: indexed}
spec: {completions: 2, parallelism: 2, completionMode: Indexed, template: {spec: {restartPolicy: Never, containers: [{name: c, image: "localhost/busybox:1", command: [sh, -c, "echo index $JOB_COMPLETION_INDEX"]}]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: short}
spec: {ttlSecondsAfterFinished: 0, template: {spec: {restartPolicy: Never, containers: [{name: c, image: "localhost/busybox:1", command: ["true"]}]}}}
`)
	s.k("wait", "job/three", "--for=condition=Complete", "--timeout=60s")
	s.says("Complete   3/3", "get", "job", "three")
	s.k("wait", "job/fails", "--for=condition=Failed", "--timeout=60s")
	s.says("BackoffLimitExceeded", "get", "job", "fails", "-o", "jsonpath={.status.conditions[*].reason}")
	s.k("wait", "job/indexed", "--for=condition=Complete", "--timeout=60s")
	s.says("0,1", "get", "job", "indexed", "-o", "jsonpath={.status.completedIndexes}")
	s.says("index 1", "logs", "-l", "job-name=indexed,batch.kubernetes.io/job-completion-index=1")
	s.until("", "get", "jobs", "-l", "x!=y", "--field-selector=metadata.name=short", "-o", "name")
	s.until("", "get", "pods", "-l", "job-name=short", "-o", "name")
}

// TestDaemonSet: a pod on the node, rolling update, rollback.
func TestDaemonSet(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	set := `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: d}
spec:
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: "localhost/hello:1", env: [{name: V, value: "%d"}]}]}
`
	s.apply(fmt.Sprintf(set, 1))
	s.says("successfully rolled out", "rollout", "status", "daemonset/d", "--timeout=60s")
	s.apply(fmt.Sprintf(set, 2))
	s.says("successfully rolled out", "rollout", "status", "daemonset/d", "--timeout=60s")
	s.until("2", "get", "pods", "-l", "app=d", "-o", "jsonpath={.items[*].spec.containers[0].env[0].value}")
	s.says("rolled back", "rollout", "undo", "daemonset/d")
	s.says("successfully rolled out", "rollout", "status", "daemonset/d", "--timeout=60s")
	s.until("1", "get", "pods", "-l", "app=d", "-o", "jsonpath={.items[*].spec.containers[0].env[0].value}")
}
