package main

import (
	"context"
)

// tokenPods are one that says something all the time and has a token of ten minutes, and one
// whose container is killed.
const tokenPods = `{apiVersion: v1, kind: Pod, metadata: {name: talks}, spec: {terminationGracePeriodSeconds: 1,
  volumes: [{name: t, projected: {sources: [{serviceAccountToken: {path: token, expirationSeconds: 600}}]}}],
  containers: [{name: c, image: "localhost/busybox:1", volumeMounts: [{name: t, mountPath: /t}],
    command: [sh, -c, "while true; do echo line; sleep 1; done"]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: dies}, spec: {terminationGracePeriodSeconds: 1,
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "100000"]}]}}
`

// jumpWords are what the scripts say. The kernel's clock is set: the kernel tells who asks.
const jumpWords = hostPID + `
kubectl_token() { kubectl --kubeconfig=/dev/null --server=https://127.0.0.1:6443 --insecure-skip-tls-verify --token="$1" auth whoami; }
accepted() { t=$(kubectl exec talks -- cat /t/token) && kubectl_token "$t" | grep -q system:serviceaccount:default:default; }
well() { [ "$(kubectl get --raw /readyz)" = ok ] && kubectl wait --for=condition=Ready node --all --timeout=5s &&
	kubectl wait --for=condition=Ready pod/talks pod/dies --timeout=5s && kubectl logs talks --tail=1 | grep -q line &&
	accepted && kubectl run try --image=localhost/busybox:1 --restart=Never -- true &&
	kubectl wait pod/try --for=jsonpath={.status.phase}=Succeeded --timeout=20s && kubectl delete pod try --now; }
again() { kubectl delete pod try --now --ignore-not-found >/dev/null 2>&1; well; }
# within SECONDS: all is well, by a clock that nobody sets.
within() { n=$1; begun=$(cut -d. -f1 /proc/uptime); while ! again >/tmp/well 2>&1; do
	[ $(($(cut -d. -f1 /proc/uptime)-begun)) -lt $n ] || { echo "not well within $n s"; cat /tmp/well; return 1; }; sleep 1; done
	echo "well after $(($(cut -d. -f1 /proc/uptime)-begun)) s"; }
# jump SECONDS sets the clock.
jump() { date -s "@$(($(date +%s)+$1))" >/dev/null; }
runs() { pgrep -xc -f 'sleep 100000' || true; }
restarts() { field pod/dies '.status.containerStatuses[0].restartCount'; }
# killed: its container is killed, and there is one again, once.
killed() { before=$(restarts); kill -9 $(pid_of dies); until_ 120 has pod/dies '.status.containerStatuses[0].restartCount' $((before+1))
	sleep 20; [ "$(runs)" = 1 ] && has pod/dies '.status.containerStatuses[0].restartCount' $((before+1)) ||
	{ echo "$(runs) of it run, $(restarts) restarts, $before before"; return 1; }; echo "one runs, $(restarts) restarts"; }
`

// runJumps sets the clock of one machine: its kernel's, so that all see it and hear of it.
func runJumps(ctx context.Context, r *rig) error {
	return r.onMachine(ctx, r.installation(ctx), func(v *vm) {
		if !r.script(ctx, v, "services", useInstallation+slowWatchdog+services) ||
			!r.script(ctx, v, "pods run", jumpWords+apply(tokenPods)+"within 240") {
			return
		}
		for _, s := range jumpSteps {
			r.script(ctx, v, s.what, jumpWords+s.script)
		}
	})
}

var jumpSteps = []struct{ what, script string }{
	{"an hour forward: the token is another", `
old=$(kubectl exec talks -- cat /t/token); jump 3600
renewed() { [ "$(kubectl exec talks -- cat /t/token)" != "$old" ]; }
until_ 120 renewed; within 120; killed`},
	{"an hour back: the token is another, and a container that is killed runs again, once", `
old=$(kubectl exec talks -- cat /t/token); jump -3600
renewed() { [ "$(kubectl exec talks -- cat /t/token)" != "$old" ]; }
until_ 120 renewed; within 120; killed`},
	{"300 days forward, while certificates are renewed for it; then back", `
jump $((300*86400)); sleep 60; jump $((-300*86400)); within 240; killed`},
	{"two years forward, and back", `jump $((730*86400)); sleep 30; jump $((-730*86400)); within 240; killed`},
	{"a day back, and forward", `jump -86400; sleep 30; jump 86400; within 240; killed`},
	{"it starts four years back, and the clock is set right later", `
systemctl stop shoal-agent shoal-coordinator; jump $((-4*365*86400)); systemctl start shoal-coordinator shoal-agent
sleep 60; jump $((4*365*86400)); within 240; killed`},
	{"it starts two days ahead, the clock is set right, and it starts again", `
systemctl stop shoal-agent shoal-coordinator; jump $((2*86400)); systemctl start shoal-coordinator shoal-agent
within 240; jump $((-2*86400)); within 240; systemctl restart shoal-coordinator; within 240; killed`},
}
