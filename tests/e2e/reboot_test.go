package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/tests/harness"
)

// stateful has what a pod can need to start: a ConfigMap, a Secret, a token, a
// network and a Service.
const stateful = `
apiVersion: v1
kind: ConfigMap
metadata: {name: c}
data: {key: from-config}
---
apiVersion: v1
kind: Secret
metadata: {name: s}
stringData: {key: from-secret}
---
apiVersion: v1
kind: Service
metadata: {name: app}
spec: {selector: {app: app}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: app, labels: {app: app}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/hello:1
    env: [{name: FROM, valueFrom: {secretKeyRef: {name: s, key: key}}}]
    volumeMounts: [{name: c, mountPath: /c}, {name: s, mountPath: /s}]
  - name: disk
    image: localhost/busybox:1
    command: [sh, -c, "date +%s%N >> /d/starts; cat /c/key /s/key /var/run/secrets/kubernetes.io/serviceaccount/token > /d/seen; exec sleep 99999"]
    volumeMounts: [{name: c, mountPath: /c}, {name: s, mountPath: /s}, {name: d, mountPath: /d}]
  volumes: [{name: c, configMap: {name: c}}, {name: s, secret: {secretName: s}}, {name: d, emptyDir: {}}]
`

// TestKillEverything: kill -9 of the supervisor, the coordinator and the agent,
// then shoal up: nothing that ran was touched.
func TestKillEverything(t *testing.T) {
	s := newSpace(t)
	s.apply(stateful)
	s.ready("app")
	before := pids(t, s.ns, "disk")
	killDaemons(t)
	if err := cluster.Up(); err != nil {
		t.Fatal(err)
	}
	if after := pids(t, s.ns, "disk"); after != before {
		t.Errorf("containers restarted:\nbefore %s\nafter  %s", before, after)
	}
	serviceAnswers(t, s)
}

func serviceAnswers(t *testing.T, s space) {
	t.Helper()
	address := s.k("get", "service", "app", "-o", "jsonpath={.spec.clusterIP}")
	harness.Eventually(t, "the Service answers", func() (bool, string) { return answersAt(address) })
}

func answersAt(address string) (bool, string) {
	out, err := cluster.Run("curl", "-sS", "--max-time", "2", "http://"+address)
	return err == nil && strings.HasPrefix(out, "Hello from pod app"), fmt.Sprint(out, err)
}

// named asks the node's DNS server for the address of a name.
func named(name, want string) (ok bool, said string) {
	q := new(dns.Msg)
	q.SetQuestion(name, dns.TypeA)
	err := harness.Inside(cluster.NetNS, func() error {
		r, _, err := new(dns.Client).Exchange(q, "10.96.0.10:53")
		if err == nil {
			said = r.String()
			ok = len(r.Answer) == 1 && strings.HasSuffix(r.Answer[0].String(), "\t"+want)
		}
		return err
	})
	return ok, fmt.Sprint(said, err)
}

// killDaemons ends the supervisor first, which would start the others again.
func killDaemons(t *testing.T) {
	t.Helper()
	supervisor, err := cluster.SupervisorPid()
	if err != nil {
		t.Fatal(err)
	}
	victims := []int{supervisor}
	for _, d := range []string{"coordinator", "agent"} {
		pid, err := cluster.Pid(d)
		if err != nil {
			t.Fatal(err)
		}
		victims = append(victims, pid)
	}
	kill(t, victims)
}

func kill(t *testing.T, victims []int) {
	t.Helper()
	for _, pid := range victims {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
	harness.Eventually(t, "processes are gone", func() (bool, string) {
		for _, pid := range victims {
			if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !bytes.Contains(stat, []byte(") Z ")) {
				return false, string(stat)
			}
		}
		return true, ""
	})
}

// reboot takes from the cluster what a machine's reboot takes: all processes,
// mounts, interfaces, nftables, cgroups and the run directory.
func reboot(t *testing.T) {
	t.Helper()
	killDaemons(t)
	t.Cleanup(func() {
		if err := cluster.Up(); err != nil {
			t.Error(err)
		}
	})
	for {
		victims := processes(t)
		if len(victims) == 0 {
			break
		}
		kill(t, victims)
	}
	unmount(t)
	if err := os.RemoveAll(filepath.Join(cluster.Dir, "run")); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"nft flush ruleset", "ip link del shoal0", "ip addr flush dev lo", "ip addr add 127.0.0.1/8 dev lo"} {
		f := strings.Fields(command)
		if out, err := cluster.Run(f[0], f[1:]...); err != nil {
			t.Fatal(out, err)
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == cluster.Name {
			removeCgroup(path)
			return fs.SkipDir
		}
		return nil
	})
}

// processes are those in the cluster's cgroups and its containers' monitors.
func processes(t *testing.T) []int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, dir := range all {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		groups, _ := os.ReadFile(dir + "/cgroup")
		command, _ := os.ReadFile(dir + "/cmdline")
		ours := bytes.Contains(groups, []byte("/"+cluster.Name+"/")) || bytes.Contains(command, []byte(cluster.Dir))
		if ours && pid != os.Getpid() {
			found = append(found, pid)
		}
	}
	return found
}

// unmount unmounts all below the cluster's directory, the newest first.
func unmount(t *testing.T) {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(cluster.Dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range slices.Backward(mounts) {
		if m.Mountpoint == cluster.Dir {
			continue
		}
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil {
			t.Fatal(m.Mountpoint, err)
		}
	}
}

func removeCgroup(path string) {
	entries, _ := os.ReadDir(path)
	for _, e := range entries {
		if e.IsDir() {
			removeCgroup(filepath.Join(path, e.Name()))
		}
	}
	_ = os.Remove(path)
}

// TestRebootCutOff: all processes and mounts are gone, the disk is kept and the
// coordinator does not run: the agent starts its pods again from its checkpoint
// with their volumes, secrets, token, network and Service. When the coordinator
// is back nothing restarts.
func TestRebootCutOff(t *testing.T) {
	s := newSpace(t)
	s.apply(stateful)
	s.ready("app")
	uid := s.k("get", "pod", "app", "-o", "jsonpath={.metadata.uid}")
	address := s.k("get", "service", "app", "-o", "jsonpath={.spec.clusterIP}")
	serviceAnswers(t, s)
	ip := s.k("get", "pod", "app", "-o", "jsonpath={.status.podIP}")
	harness.Eventually(t, "the Service is on the disk", func() (bool, string) {
		data, err := os.ReadFile(filepath.Join(cluster.Dir, "agent", "checkpoint", "services.json"))
		return bytes.Contains(data, []byte(ip)), fmt.Sprint(string(data), err)
	})
	starts := filepath.Join(cluster.Dir, "kubelet", "pods", uid, "volumes", "kubernetes.io~empty-dir", "d", "starts")
	seen := filepath.Join(filepath.Dir(starts), "seen")
	reboot(t)
	if err := os.Remove(seen); err != nil {
		t.Fatal(err)
	}

	began := time.Now()
	agent := cluster.Command("shoal-agent", "--config", filepath.Join(cluster.Dir, "agent.yaml"))
	var log bytes.Buffer
	agent.Stdout, agent.Stderr = &log, &log
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			_ = agent.Process.Signal(syscall.SIGKILL)
			_ = agent.Wait()
			if t.Failed() {
				t.Log(log.String())
			}
		}
	}
	defer stop()
	harness.Eventually(t, "the pod runs again without a coordinator", func() (bool, string) {
		data, err := os.ReadFile(seen)
		return strings.HasPrefix(string(data), "from-configfrom-secretey"), fmt.Sprint(string(data), err)
	})
	harness.Eventually(t, "its Service answers without a coordinator", func() (bool, string) { return answersAt(address) })
	harness.Eventually(t, "its name is answered without a coordinator", func() (bool, string) {
		return named("app."+s.ns+".svc.cluster.local.", address)
	})
	t.Logf("runs and answers %v after the agent's start", time.Since(began).Round(10*time.Millisecond))
	stop()

	if err := cluster.Up(); err != nil {
		t.Fatal(err)
	}
	s.ready("app")
	s.field("pod/app", ".status.containerStatuses[1].restartCount", "1")
	serviceAnswers(t, s)
	if data, err := os.ReadFile(starts); err != nil || strings.Count(string(data), "\n") != 2 {
		t.Errorf("starts: %q %v; want two", data, err)
	}
}
