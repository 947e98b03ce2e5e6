package e2e

import (
	"strings"
	"testing"

	"github.com/shoal-project/shoal/agent/cgroup"
)

// TestSharedProcessNamespaceIsNoWayOut: a container that may trace others
// reaches the pod's first process, and gets nothing by it.
func TestSharedProcessNamespaceIsNoWayOut(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: node-users}
spec:
  terminationGracePeriodSeconds: 0
  shareProcessNamespace: true
  containers:
  - {name: a, image: "localhost/busybox:1", command: [sleep, "998"], securityContext: {capabilities: {add: [SYS_PTRACE, DAC_READ_SEARCH]}}}
  - {name: b, image: "localhost/busybox:1", command: [sh, -c, "while true; do sh -c 'sleep 0.1 & exit'; sleep 0.2; done"]}
---
apiVersion: v1
kind: Pod
metadata: {name: own-users}
spec:
  terminationGracePeriodSeconds: 0
  shareProcessNamespace: true
  hostUsers: false
  containers:
  - {name: a, image: "localhost/busybox:1", command: [sleep, "998"], securityContext: {capabilities: {add: [SYS_PTRACE, DAC_READ_SEARCH]}}}
  - {name: b, image: "localhost/busybox:1", command: [sh, -c, "while true; do sh -c 'sleep 0.1 & exit'; sleep 0.2; done"]}
`)
	s.ready("node-users", "own-users")
	for _, pod := range []string{"node-users", "own-users"} {
		status := s.exec(pod, "cat", "/proc/1/status")
		for _, want := range []string{"Name:\tpause\n", "Uid:\t65535\t", "Gid:\t65535\t", "CapPrm:\t0000000000000000\n",
			"CapEff:\t0000000000000000\n",
			"CapBnd:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n"} {
			if !strings.Contains(status, want) {
				t.Errorf("%s: no %q in the status of its first process:\n%s", pod, want, status)
			}
		}
		got := s.exec(pod, "sh", "-c", `exec 2>/dev/null
			cat /proc/1/environ; head -c 64 /proc/1/mem
			for d in root cwd; do ls -A /proc/1/$d; cat /proc/1/$d/etc/shadow /proc/1/$d/../etc/shadow; touch /proc/1/$d/x && echo wrote in $d; done
			ls /proc/1/fd; (echo x >>/proc/1/exe) && echo wrote to exe
			for s in TERM QUIT SEGV KILL; do kill -$s 1; done; true`)
		if got != "" {
			t.Errorf("%s: a container got from the pod's first process:\n%s", pod, got)
		}
		// Orphans that ended are reaped: at most one is just ending.
		if zombies := s.exec(pod, "sh", "-c",
			"cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true"); len(zombies) > 2 || zombies > "2" {
			t.Errorf("%s: %s ended processes are not reaped", pod, zombies)
		}
	}
	s.k("wait", "pod/node-users", "pod/own-users", "--for=condition=Ready", "--timeout=10s")
}

// TestDefaultConfinement: containers that say nothing have the default seccomp
// profile, and pods a limit of processes.
func TestDefaultConfinement(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: silent}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "localhost/busybox:1", command: [sleep, "999"]}
  - {name: free, image: "localhost/busybox:1", command: [sleep, "999"], securityContext: {seccompProfile: {type: Unconfined}}}
  - {name: privileged, image: "localhost/busybox:1", command: [sleep, "999"], securityContext: {privileged: true}}
`)
	s.ready("silent")
	for container, want := range map[string]string{"c": "2", "free": "0", "privileged": "0"} {
		if got := s.k("exec", "silent", "-c", container, "--", "grep", "Seccomp:",
			"/proc/1/status"); strings.TrimSpace(strings.TrimPrefix(got, "Seccomp:")) != want {
			t.Errorf("container %s: %s", container, got)
		}
	}
	groups, err := cgroup.Open("")
	if err != nil {
		t.Fatal(err)
	}
	pods := "/" + cluster.Name + "/kubepods"
	pod := pods + "/besteffort/pod" + s.k("get", "pod", "silent", "-o", "jsonpath={.metadata.uid}")
	if st, err := groups.Stat(pod); err != nil || st.PidsLimit != 4096 {
		t.Errorf("the pod's limit of processes: %d, %v", st.PidsLimit, err)
	}
	if st, err := groups.Stat(pods); err != nil || st.PidsLimit == 0 {
		t.Errorf("the limit of all pods: %d, %v", st.PidsLimit, err)
	}
}
