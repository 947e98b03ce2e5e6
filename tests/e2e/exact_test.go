package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/cpuset"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/tests/harness"
)

// exactPod is a pod of the node, with the limits %[2]s.
const exactPod = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  nodeName: exact
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers:
  - name: c
    image: "localhost/busybox:1"
    command: [sleep, "9999"]
    resources: {limits: {%[2]s}}
`

// TestExactResources: a container that asks for a whole CPU has it alone and without a quota,
// on the node's memory; the others are off it until the pod ends, also when the agent is killed
// meanwhile. Where the policy is none again, all of them run on all CPUs.
func TestExactResources(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	agent, err := cluster.Host("exact", func(_ *harness.Agent, c *agentconfig.Config) {
		c.CPUManagerPolicy, c.ReservedSystemCPUs = agentconfig.CPUManagerStatic, "0"
		c.MemoryManagerPolicy = agentconfig.MemoryManagerOn
		c.TopologyManagerPolicy = "single-numa-node"
		c.RegisterWithTaints = []string{"only=this:NoSchedule"}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer leave(t, agent, "exact")
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	s.k("wait", "node/exact", "--for=create", "--timeout=60s")
	s.k("wait", "node/exact", "--for=condition=Ready", "--timeout=60s")
	data, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		t.Fatal(err)
	}
	online, err := cpuset.Parse(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	all := online.String()

	on := func(pod, cpus string) {
		t.Helper()
		harness.Eventually(t, pod+" runs on "+cpus, func() (bool, string) {
			out, err := cluster.Kubectl("", "-n", s.ns, "exec", pod, "--", "sh", "-c",
				"sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/1/status")
			return err == nil && strings.TrimSpace(out) == cpus, fmt.Sprint(out, err)
		})
	}
	s.apply(fmt.Sprintf(exactPod, "shared", ""))
	s.ready("shared")
	on("shared", all)

	s.apply(fmt.Sprintf(exactPod, "own", "cpu: 1, memory: 32Mi"))
	s.ready("own")
	own := s.k("exec", "own", "--", "sh", "-c", "sed -n 's/^[CM][a-z]*s_allowed_list:[[:space:]]*//p' /proc/1/status")
	cpu, nodes, _ := strings.Cut(strings.TrimSpace(own), "\n")
	alone, err := cpuset.Parse(cpu)
	if err != nil || alone.Size() != 1 || alone.Contains(0) || !alone.IsSubsetOf(online) || nodes != "0" {
		t.Errorf("it runs on the CPUs %q and the NUMA nodes %q", cpu, nodes)
	}
	rest := online.Difference(alone).String()
	on("shared", rest)
	uid := s.k("get", "pod", "own", "-o", "jsonpath={.metadata.uid}")
	if quotas := quotasOf(uid); len(quotas) != 2 || quotas[0] != quotas[1] || quotas[0] != "-1" && quotas[0] != "max" {
		t.Errorf("quotas of the pod and its container: %v", quotas)
	}
	want := s.ns + "/own/c: [" + cpu + "] memory 33554432 on 0\n"
	if got := exactly(t, filepath.Join(agent.Dir, "kubelet")); got != want {
		t.Errorf("the pod resources API tells %q, want %q", got, want)
	}
	s.k("patch", "pod", "own", "--subresource", "resize", "-p",
		`{"spec":{"containers":[{"name":"c","resources":{"requests":{"memory":"64Mi"},"limits":{"memory":"64Mi"}}}]}}`)
	s.field("pod/own", `.status.conditions[?(@.type=="PodResizePending")].reason`, "Infeasible")

	if err := agent.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	s.apply(fmt.Sprintf(exactPod, "later", ""))
	s.ready("later")
	on("later", rest)
	on("own", cpu)
	on("shared", rest)

	// The policy none gives them back.
	if err := agent.Kill(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(agent.Dir, "agent.yaml")
	if data, err = os.ReadFile(file); err != nil {
		t.Fatal(err)
	}
	data = bytes.ReplaceAll(data, []byte("cpuManagerPolicy: static"), []byte("cpuManagerPolicy: none"))
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	for _, pod := range []string{"own", "shared", "later"} {
		on(pod, all)
	}
	harness.Eventually(t, "its limit of CPU time binds again", func() (bool, string) {
		quotas := fmt.Sprint(quotasOf(uid))
		return quotas == "[100000 100000]", quotas
	})
	harness.Eventually(t, "nothing is kept of CPUs", func() (bool, string) {
		_, err := os.Stat(filepath.Join(agent.Dir, "agent", "checkpoint", "cpus"))
		return errors.Is(err, fs.ErrNotExist), fmt.Sprint(err)
	})
}

// quotasOf are the CPU quotas of a pod's group and those below it.
func quotasOf(uid string) (quotas []string) {
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(path, "/pod"+uid) &&
			(d.Name() == "cpu.cfs_quota_us" || d.Name() == "cpu.max") {
			data, _ := os.ReadFile(path)
			quotas = append(quotas, strings.Fields(string(data))[0])
		}
		return nil
	})
	return quotas
}

// exactly is what the pod resources API tells of CPUs and memory.
func exactly(t *testing.T, kubelet string) (out string) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(kubelet, "pod-resources", "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	list, err := podresourcesv1.NewPodResourcesListerClient(conn).List(context.Background(),
		&podresourcesv1.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.GetPodResources() {
		for _, c := range p.GetContainers() {
			if len(c.GetCpuIds()) == 0 {
				continue
			}
			out += fmt.Sprint(p.GetNamespace(), "/", p.GetName(), "/", c.GetName(), ": ", c.GetCpuIds())
			for _, m := range c.GetMemory() {
				out += fmt.Sprint(" ", m.GetMemoryType(), " ", m.GetSize(), " on ", m.GetTopology().GetNodes()[0].GetID())
			}
			out += "\n"
		}
	}
	return out
}
