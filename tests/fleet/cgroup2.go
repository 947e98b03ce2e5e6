package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// kernelTests are the packages whose tests work on kernel parts that differ
// between cgroup v1 and v2.
var kernelTests = []string{"agent/cgroup", "agent/oci", "agent/container", "agent/qos", "agent/runtime", "agent/stats"}

// payload gathers what the virtual machine needs and returns the tests in it.
func (r *rig) payload(ctx context.Context, dir string) ([]string, error) {
	if err := r.installation(ctx)(dir); err != nil {
		return nil, err
	}
	tests := filepath.Join(dir, "tests")
	if err := os.MkdirAll(tests, 0o755); err != nil {
		return nil, err
	}
	var made []string
	for _, p := range kernelTests {
		if r.quick && p != "agent/runtime" {
			continue
		}
		dir := filepath.Join(tests, strings.ReplaceAll(p, "/", "-"))
		out := filepath.Join(dir, "test")
		cmd := exec.CommandContext(ctx, r.gotool, "test", "-c", "-ldflags", "-s -w", "-o", out, "./"+p)
		cmd.Dir, cmd.Env = r.source, append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build the tests of %s: %w: %s", p, err, text)
		}
		if _, err := os.Stat(out); err == nil { // some have no tests
			made = append(made, p)
		}
		if data := filepath.Join(r.source, p, "testdata"); isDir(data) {
			if err := os.CopyFS(filepath.Join(dir, "testdata"), os.DirFS(data)); err != nil {
				return nil, err
			}
		}
	}
	return made, nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

const useDisk = useInstallation + `test "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs
cat /sys/fs/cgroup/cgroup.controllers`

// runTests runs a package's tests and prints what failed, or else the number
// of tests.
const runTests = `cd /mnt/tests/%s; export SHOAL_TEST_PAUSE=/usr/bin/shoal-pause
./test %s -test.v -test.timeout 8m >/tmp/out 2>&1 || true
grep -A8 -e '--- FAIL' /tmp/out || true
tail -1 /tmp/out | grep -qx PASS || { tail -30 /tmp/out | cut -c1-200; exit 1; }
echo $(grep -c -e '^--- PASS' /tmp/out) tests`

func runCgroup2(ctx context.Context, r *rig) error {
	var tests []string
	fill := func(payload string) (err error) {
		tests, err = r.payload(ctx, payload)
		return err
	}
	return r.onMachine(ctx, fill, func(v *vm) {
		if !r.script(ctx, v, "its control groups are v2 alone", useDisk) {
			return
		}
		r.script(ctx, v, "the runtime's tests by systemd", "export SHOAL_TEST_CGROUP_DRIVER=systemd\n"+
			fmt.Sprintf(runTests, "agent-runtime", "-test.run TestExitCodesAndReasons"))
		if r.quick {
			r.systemdDriver(ctx, v)
			return
		}
		for _, p := range tests {
			r.script(ctx, v, "tests of "+p, fmt.Sprintf(runTests, strings.ReplaceAll(p, "/", "-"), ""))
		}
		r.filesDriver(ctx, v)
		r.systemdDriver(ctx, v)
	})
}

// limited is a pod whose limits show in its groups, greedy one that takes
// more memory than it may.
const limited = `apiVersion: v1
kind: Pod
metadata: {name: limited}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/busybox:1
    command: [sh, -c, "while :; do sleep 1; done"]
    resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 250m, memory: 64Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: localhost/busybox:1
    command: [sh, -c, "tail /dev/zero"]
    resources: {limits: {memory: 32Mi}}
`

// groupOf prints the control group of a pod's container, which tells its
// pod's too.
const groupOf = `group() { id=$(field pod/$1 '.status.containerStatuses[0].containerID'); cut -d: -f3 /proc/$(cat /run/shoal/containers/${id#*//}/pid)/cgroup; }
`

// limits checks what the kernel holds and what the agent tells of it.
func (r *rig) limits(ctx context.Context, m machine) bool {
	return r.script(ctx, m, "limits stand in the pod's and the container's groups", apply(limited)+`
until_ 240 kubectl wait pod/limited --for=condition=Ready --timeout=10s >/dev/null
`+groupOf+`g=/sys/fs/cgroup$(group limited); pod=$(dirname $g); echo "$g"
for d in $g $pod; do
	[ "$(cat $d/memory.max)" = 67108864 ]; [ "$(cat $d/cpu.max)" = "25000 100000" ]; [ "$(cat $d/cpu.weight)" = 17 ]
done
[ "$(cat $g/memory.oom.group)" = 1 ]; [ "$(cat $g/memory.swap.max)" = 0 ]
[ "$(cat $(dirname $pod)/cgroup.controllers | tr ' ' '\n' | grep -c -e cpu -e memory -e pids)" -ge 3 ]
conmon=$(ps -o ppid= -p $(head -1 $g/cgroup.procs)); cut -d: -f3 /proc/$((conmon))/cgroup`) &&
		r.script(ctx, m, "a container that takes too much memory is OOMKilled", `
until_ 240 has pod/greedy .status.phase Failed
has pod/greedy '.status.containerStatuses[0].state.terminated.reason' OOMKilled || { kubectl get pod greedy -o jsonpath='{.status}'; exit 1; }
has pod/greedy '.status.containerStatuses[0].state.terminated.exitCode' 137`) &&
		r.script(ctx, m, "the kubelet's API tells usage and pressure", `
used() { kubectl get --raw /api/v1/nodes/$(hostname)/proxy/stats/summary >/tmp/summary; tr -d ' \n' </tmp/summary | grep -q '"podRef":{"name":"limited".*"workingSetBytes":[1-9]' ; }
until_ 240 used
kubectl get --raw /api/v1/nodes/$(hostname)/proxy/metrics/cadvisor >/tmp/cadvisor
grep 'container_memory_working_set_bytes{.*pod="limited"' /tmp/cadvisor | head -1
[ $(grep -o '"psi"' /tmp/summary | wc -l) -ge 6 ] # of the node, pods and containers`)
}

// apparmor runs a pod that says nothing, one with a profile of the node's and
// one whose profile is missing.
const apparmor = `[ "$(cat /sys/module/apparmor/parameters/enabled)" = Y ]
printf 'profile fleet-nowrite flags=(attach_disconnected) { file, capability, network, deny /tmp/** w, }\n' | apparmor_parser -r
pod() { printf 'apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n  restartPolicy: Never\n  securityContext: {%s}\n  containers:\n  - {name: main, image: "localhost/busybox:1", command: [sh, -c, "cat /proc/self/attr/current; mkdir -p /tmp; touch /tmp/x && echo written"]}\n---\n' "$1" "$2"; }
{ pod plain ''; pod node 'appArmorProfile: {type: Localhost, localhostProfile: fleet-nowrite}'; pod missing 'appArmorProfile: {type: Localhost, localhostProfile: none}'
pod free 'appArmorProfile: {type: Unconfined}'; } | kubectl apply -f - >/dev/null
until_ 240 has pod/plain .status.phase Succeeded; kubectl logs plain | tr '\n' ' ' | grep 'shoal-default (enforce) written'
until_ 240 has pod/node .status.phase Failed; kubectl logs node | tr '\n' ' ' | grep 'fleet-nowrite (enforce) touch: /tmp/x: Permission denied'
until_ 240 has pod/free .status.phase Succeeded; kubectl logs free | tr '\n' ' ' | grep 'unconfined written'
until_ 240 has pod/missing '.status.containerStatuses[0].state.waiting.reason' CreateContainerError; field pod/missing '.status.containerStatuses[0].state.waiting.message'
kubectl delete pod plain node missing free --wait >/dev/null`

// ownAndSwap has one pod that asks for a whole CPU, and one that may use swap: its share is
// 64Mi of the machine's memory, of 512 MiB. What both ask for is kept from being reclaimed, as
// far up as the pods' parents go. All of it stands after a daemon-reload.
const ownAndSwap = `kubectl delete pod limited --wait >/dev/null
fallocate -l 512M /swap; chmod 600 /swap; mkswap /swap >/dev/null; swapon /swap
printf 'cpuManagerPolicy: static\nreservedSystemCPUs: "0"\nmemorySwap: {swapBehavior: LimitedSwap}\nmemoryReservationPolicy: TieredReservation\nmemoryThrottlingFactor: 0.9\n' >>/etc/shoal/agent.yaml
systemctl restart shoal-agent
swap() { [ "$(kubectl get node -o jsonpath='{.items[0].status.nodeInfo.swap.capacity}')" -gt 500000000 ]; }
until_ 240 swap
until_ 240 kubectl wait --for=condition=Ready node --all --timeout=10s >/dev/null
pod() { printf 'apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n  terminationGracePeriodSeconds: 0\n  restartPolicy: Never\n  containers:\n  - {name: main, image: "localhost/busybox:1", command: [sh, -c, "%s"], resources: {%s}}\n---\n' "$1" "$2" "$3"; }
{ pod swaps 'sleep 9999' 'requests: {memory: 64Mi}, limits: {memory: 96Mi}'
pod own 'sleep 9999' 'limits: {cpu: 1, memory: 32Mi}'; } | kubectl apply -f - >/dev/null
until_ 240 kubectl wait pod/own pod/swaps --for=condition=Ready --timeout=10s >/dev/null
holds() { g=/sys/fs/cgroup$(group own); s=/sys/fs/cgroup$(group swaps); now=$(echo $(cat $g/cpuset.cpus $g/cpu.max $(dirname $g)/cpu.max $s/cpuset.cpus $g/memory.swap.max))
	[ "$now" = '1 max 100000 max 100000 0 0' ] || { echo "$now"; return 1; }; }
until_ 60 holds || { kubectl get pod swaps -o jsonpath='{.status.containerStatuses[0].state}'; exit 1; }
echo $now
systemctl daemon-reload; holds
kept() { p=$(dirname $g); b=$(dirname $(dirname $s)); k=$(dirname $p)
	now=$(echo $(cat $g/memory.min $p/memory.min $k/memory.min) $(cat $s/memory.low $(dirname $s)/memory.low $b/memory.low $k/memory.low) $(cat $s/memory.high))
	[ "$now" = '33554432 33554432 33554432 67108864 67108864 67108864 67108864 97304576' ] || { echo "$now"; return 1; }; }
kept; systemctl restart shoal-agent
until_ 240 kubectl wait --for=condition=Ready node --all --timeout=10s >/dev/null
kept; holds
max=$(cat $s/memory.swap.max); awk -v max=$max '/^MemTotal/ {t = $2 * 1024} /^SwapTotal/ {w = $2 * 1024} END {share = 67108864 / t * w; exit !(max > share - 8192 && max <= share)}' /proc/meminfo
echo "swap: $max"
kubectl delete pod own --wait >/dev/null
free() { [ "$(cat $k/memory.min)" = 0 ]; }
until_ 60 free # the pod is gone from the API a moment before its group
# One that takes more than it may have, four MiB a second: the rest is on the disk, and it
# lives. Who takes it all at once is ended: the kernel does not wait for the disk.
pod taker 'for i in $(seq 21); do dd if=/dev/zero bs=4M count=3 2>/dev/null | sleep 9999 & sleep 1; done; wait' 'requests: {memory: 64Mi}, limits: {memory: 96Mi}' | kubectl apply -f - >/dev/null
until_ 240 kubectl wait pod/taker --for=condition=Ready --timeout=10s >/dev/null
t=/sys/fs/cgroup$(group taker)
out() { [ "$(cat $t/memory.swap.current)" -gt 1000000 ]; }
until_ 120 out || { cat $t/memory.current $t/memory.swap.current $t/memory.events; exit 1; }
sleep 15; [ "$(kubectl get pod taker -o jsonpath='{.status.phase} {.status.containerStatuses[0].restartCount}')" = 'Running 0' ]
echo "on the disk: $(cat $t/memory.swap.current) of $(cat $t/memory.current)"
kubectl delete pod taker --wait >/dev/null`

// filesDriver is the default: the agent writes the groups itself.
func (r *rig) filesDriver(ctx context.Context, m machine) {
	if !r.script(ctx, m, "shoal up", "shoal up --detach >/tmp/up; cp /var/lib/shoal/kubeconfig /root/admin.kubeconfig; grep -i ready /tmp/up") {
		return
	}
	r.limits(ctx, m)
	r.script(ctx, m, "shoal down leaves no group", `shoal down --purge
[ ! -e /sys/fs/cgroup/kubepods ]
pgrep -a conmon && exit 1 || echo nothing is left; rm -rf /var/lib/shoal; mkdir -p /var/lib/shoal; cp -r /mnt/images /var/lib/shoal/`)
}

// slowWatchdog: an emulated machine may be slower than the watchdog's minute.
const slowWatchdog = "mkdir -p /run/systemd/system/shoal-coordinator.service.d\nprintf '[Service]\\nWatchdogSec=0\\n' >/run/systemd/system/shoal-coordinator.service.d/slow.conf\nsystemctl daemon-reload\n"

// systemdDriver has systemd make the groups.
func (r *rig) systemdDriver(ctx context.Context, m machine) {
	if !r.script(ctx, m,
		"services with cgroupDriver: systemd",
		slowWatchdog+"echo 'cgroupDriver: systemd' >>/etc/shoal/agent.yaml\n"+services) {
		return
	}
	if r.limits(ctx, m) {
		r.script(ctx, m, "units hold the limits, also after systemctl daemon-reload", groupOf+`
g=$(group limited); unit=$(basename $(dirname $g))
systemctl daemon-reload
systemctl -q is-active $unit $(basename $g)
systemctl show -p MemoryMax -p CPUQuotaPerSecUSec $unit | sort | tr '\n' ' ' | grep 'CPUQuotaPerSecUSec=250ms MemoryMax=67108864'
for d in /sys/fs/cgroup$g /sys/fs/cgroup$(dirname $g); do # what a scope's properties are is up to the OCI runtime
	now=$(echo $(cat $d/memory.max $d/cpu.max $d/cpu.weight))
	[ "$now" = '67108864 25000 100000 17' ] || { echo "$d: $now"; exit 1; }
done
[ "$(cat /sys/fs/cgroup$g/memory.swap.max)" = 0 ]
[ "$(systemctl show -P IOWeight kubepods-besteffort.slice) $(cat /sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice/io.weight)" = '10 default 10' ]
systemctl list-units --no-legend --plain 'kubepods*' 'shoal-*' | cut -d' ' -f1`)
		r.script(ctx, m, "a restarted agent changes nothing", groupOf+`
g=$(group limited); pid=$(head -1 /sys/fs/cgroup$g/cgroup.procs)
systemctl restart shoal-agent
until_ 240 kubectl wait --for=condition=Ready node --all --timeout=10s >/dev/null
until_ 240 kubectl logs limited
[ "$(head -1 /sys/fs/cgroup$g/cgroup.procs)" = $pid ]; [ "$(group limited)" = $g ]; echo process $pid stays`)
	}
	r.script(ctx, m, "AppArmor confines containers, by default and by a profile of the node", apparmor)
	r.script(ctx, m, "a container has a CPU alone, another may swap; memory is kept", groupOf+ownAndSwap)
	r.script(ctx, m, "a deleted pod leaves no unit", `kubectl delete pod greedy swaps --wait >/dev/null
left() { systemctl list-units --all --no-legend --plain 'kubepods-*pod*' 'shoal-*.scope'; [ -z "$(systemctl list-units --all --no-legend --plain 'kubepods-*pod*' 'shoal-*.scope')" ]; }
until_ 240 left`)
}
