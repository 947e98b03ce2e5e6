package main

import (
	"context"
	"errors"
	"path/filepath"
)

// sctpDisk has a kernel with sockets of SCTP, addresses of both families and, outside the
// machine, another one by the name world.
const sctpDisk = useInstallation + `modprobe sctp
ip addr add fd97::2/64 dev eth0 nodad
ip -6 route add default via fd97::1 dev eth0
ip netns add world
ip link add world type veth peer name eth0 netns world
ip addr add 192.0.2.1/24 dev world; ip addr add 2001:db8::1/64 dev world nodad; ip link set world up
ip -n world addr add 192.0.2.2/24 dev eth0; ip -n world addr add 2001:db8::2/64 dev eth0 nodad
ip -n world link set eth0 up; ip -n world link set lo up
ip -n world route add default via 192.0.2.1; ip -n world route add default via 2001:db8::1
for f in coordinator agent; do
	printf 'clusterCIDR: 10.244.0.0/16,fd00:10:244::/56\nserviceCIDR: 10.96.0.0/16,fd00:10:96::/112\n' >>/etc/shoal/$f.yaml
done
echo 'clusterDNS: 10.96.0.10,fd00:10:96::a' >>/etc/shoal/coordinator.yaml
echo 'clusterDNS: [10.96.0.10, "fd00:10:96::a"]' >>/etc/shoal/agent.yaml
echo Linux $(uname -r), $(grep -w -o ^SCTP /proc/net/protocols)`

// sctpPods are two that serve, at two ports, and one that asks.
const sctpPods = `{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {app: sctp}}, spec: {terminationGracePeriodSeconds: 1,
  containers: [{name: c, image: "localhost/testserver:1", args: [sctp, "9000", "9001"],
    ports: [{containerPort: 9000, hostPort: 9999, protocol: SCTP}]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: b, labels: {app: sctp}}, spec: {terminationGracePeriodSeconds: 1,
  containers: [{name: c, image: "localhost/testserver:1", args: [sctp, "9000", "9001"],
    ports: [{containerPort: 9000, protocol: SCTP}]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: c}, spec: {terminationGracePeriodSeconds: 1,
  containers: [{name: c, image: "localhost/testserver:1", args: [pause]}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: sctp}, spec: {type: NodePort, ipFamilyPolicy: RequireDualStack, selector: {app: sctp},
  ports: [{name: s, protocol: SCTP, port: 8000, targetPort: 9000, nodePort: 30900},
    {name: t, protocol: SCTP, port: 8001, targetPort: 9001, nodePort: 30901}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: sticky}, spec: {type: NodePort, sessionAffinity: ClientIP, selector: {app: sctp},
  ipFamilyPolicy: RequireDualStack, ports: [{protocol: SCTP, port: 8000, targetPort: 9000, nodePort: 30902}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: nobody}, spec: {selector: {app: nobody},
  ports: [{protocol: SCTP, port: 8000}]}}
`

// sctpWords are what the scripts say. Programs run in pods' networks from outside, for
// kubectl is slow in an emulated machine.
const sctpWords = hostPID + `
pods() { for p in "$@"; do until_ 240 kubectl wait pod/$p --for=condition=Ready --timeout=10s
	pid_of $p >/tmp/pid-$p; field pod/$p .status.podIPs[0].ip >/tmp/4-$p; field pod/$p .status.podIPs[1].ip >/tmp/6-$p; done >/dev/null; }
ip4() { cat /tmp/4-$1; }
ip6() { cat /tmp/6-$1; }
vip4() { field service/$1 .spec.clusterIPs[0]; }
vip6() { field service/$1 .spec.clusterIPs[1]; }
in_pod() { pod=$1; shift; nsenter --net=/proc/$(cat /tmp/pid-$pod)/ns/net "$@"; }
in_world() { ip netns exec world "$@"; }
ask="testserver ask-sctp"
# seen COMMAND… asks twenty times; then /tmp/seen has each pod that answered, and the
# client's address that it saw, once.
seen() { "$@" >/tmp/answers || { cat /tmp/answers; echo "failed: $*"; return 1; }
	[ $(wc -l </tmp/answers) = 20 ] || { cat /tmp/answers; return 1; }
	sed 's/:[0-9]* asked//' /tmp/answers | sort | uniq -c | tr -s ' ' >/tmp/seen; echo $(tr '\n' ',' </tmp/seen); }
# both CLIENT COMMAND… does so: both pods answer, and see the client's address.
both() { client=$1; shift; seen "$@"; [ "$(cut -d' ' -f3- /tmp/seen)" = "$(printf 'a %s\nb %s' $client $client)" ]; }
# alone COMMAND… does so: one pod answers.
alone() { seen "$@"; [ $(wc -l </tmp/seen) = 1 ]; }
# one NAME CLIENT COMMAND… asks once.
one() { name=$1; client=$2; shift 2; said=$("$@") || { echo "failed: $*: $said"; return 1; }
	case $said in "$name $client:"*) echo "$said" ;; *) echo "$*: $said instead of $name $client"; return 1 ;; esac; }
# silent COMMAND… fails, and tells how.
silent() { if "$@" >/tmp/silent 2>&1; then cat /tmp/silent; echo "succeeded: $*"; return 1; fi; cut -d' ' -f3- /tmp/silent; }
# hold POD ADDRESS begins an association that goes on.
hold() { rm -f /tmp/held; nsenter --net=/proc/$(cat /tmp/pid-$1)/ns/net $ask -hold $2 >/tmp/held 2>/tmp/held.err & echo $! >/tmp/holder; until_ 20 test -s /tmp/held; }
lines() { wc -l </tmp/held; }
more() { n=$(lines); until_ "$1" eval '[ $(lines) -gt $((n+3)) ]'; }
# still waits until nothing is answered for three seconds.
still() { for i in 1 2 3 4 5 6; do n=$(lines); sleep 3; [ $(lines) = $n ] && return 0; done; echo "goes on: $(tail -1 /tmp/held)"; return 1; }
# ports PROTOCOL PORT prints a policy that lets that in to the servers, and nothing else.
ports() { printf 'apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: only}\nspec: {podSelector: {matchLabels: {app: sctp}}, policyTypes: [Ingress], ingress: [{ports: [{protocol: %s, port: %s}]}]}\n' $1 $2; }
`

// runSCTP has a node whose kernel has SCTP itself: what Services and policies do to
// associations of true sockets.
func runSCTP(ctx context.Context, r *rig) error {
	fill := func(payload string) error {
		return errors.Join(r.installation(ctx)(payload),
			command(ctx, "cp", filepath.Join(r.bin, "test-images", "testserver.tar"), filepath.Join(payload, "images")),
			command(ctx, "install", "-D", "-m", "755",
				filepath.Join(r.bin, "testserver"), filepath.Join(payload, "install/usr/local/bin/testserver")))
	}
	return r.onMachine(ctx, fill, func(v *vm) {
		if !r.script(ctx, v, "its kernel has sockets of SCTP", sctpDisk) ||
			!r.script(ctx, v, "services, with IPv4 and IPv6", slowWatchdog+services) ||
			!r.script(ctx, v, "pods serve SCTP", sctpWords+apply(sctpPods)+"pods a b c; ip4 a; ip6 a") {
			return
		}
		for _, s := range sctpSteps {
			r.script(ctx, v, s.what, sctpWords+s.script)
		}
	})
}

var sctpSteps = []struct{ what, script string }{
	{"a pod asks another: kubectl exec, IPv4, IPv6, a port that is closed", `
one a "$(ip4 c)" kubectl exec c -- /testserver ask-sctp $(ip4 a):9000
one b "[$(ip6 c)]" in_pod c $ask [$(ip6 b)]:9001
silent in_pod c $ask $(ip4 a):9002`},
	{"a cluster IP is asked by a pod, by one of its own, and by the node", `
vip=$(vip4 sctp):8000
both $(ip4 c) in_pod c $ask -n 20 $vip
seen in_pod a $ask -n 20 $vip; [ "$(cut -d' ' -f3- /tmp/seen)" = "$(printf 'a 10.244.0.1\nb %s' $(ip4 a))" ]
seen $ask -n 20 $vip; [ $(wc -l </tmp/seen) = 2 ]`},
	{"a cluster IP of IPv6", `
both "[$(ip6 c)]" in_pod c $ask -n 20 [$(vip6 sctp)]:8000`},
	{"a node port is asked from outside, by a pod, and by the node", `
both 10.244.0.1 in_world $ask -n 20 10.97.0.2:30900
seen in_world $ask -n 20 [fd97::2]:30900; [ $(wc -l </tmp/seen) = 2 ]
seen in_pod c $ask -n 20 10.97.0.2:30900; [ $(wc -l </tmp/seen) = 2 ]
seen $ask -n 20 10.97.0.2:30900; [ $(wc -l </tmp/seen) = 2 ]`},
	{"a host port is asked from outside, by pods, and by the node", `
one a 192.0.2.2 in_world $ask 10.97.0.2:9999
one a "[2001:db8::2]" in_world $ask [fd97::2]:9999
one a "$(ip4 c)" in_pod c $ask 10.97.0.2:9999
for from in "in_pod a" "" "in_world"; do $from $ask 10.97.0.2:9999 | grep ^a; done
$ask 127.0.0.1:9999 | grep ^a`},
	{"affinity ClientIP: one pod for a client", `
vip=$(vip4 sticky):8000
for i in 1 2; do alone in_pod c $ask -n 20 $vip; cp /tmp/seen /tmp/first; done; cmp /tmp/seen /tmp/first
alone in_pod c $ask -n 20 [$(vip6 sticky)]:8000
alone in_world $ask -n 20 10.97.0.2:30902`},
	{"a Service without endpoints refuses at once", `
vip=$(vip4 nobody):8000
t=$(date +%s%N); silent in_pod c $ask $vip; echo after $((($(date +%s%N)-t)/1000000)) ms; grep refused /tmp/silent
silent $ask $vip; grep refused /tmp/silent`},
	{"a policy allows one port of SCTP, not the other, nor TCP's", `
ports SCTP 9000 | kubectl apply -f - >/dev/null; sleep 3
one a "$(ip4 c)" in_pod c $ask $(ip4 a):9000
silent in_pod c $ask $(ip4 a):9001
both "$(ip4 c)" in_pod c $ask -n 20 $(vip4 sctp):8000
silent in_pod c $ask [$(vip6 sctp)]:8001
ports TCP 9000 | kubectl apply -f - >/dev/null; sleep 3
silent in_pod c $ask $(ip4 a):9000
kubectl delete networkpolicy only >/dev/null; sleep 3
one a "$(ip4 c)" in_pod c $ask $(ip4 a):9001`},
	{"a policy reaches an association that stands, and lets it go on", `
hold c $(vip4 sctp):8001; first=$(head -1 /tmp/held | cut -d' ' -f1-2); more 20
ports SCTP 9000 | kubectl apply -f - >/dev/null; still
ports SCTP 9001 | kubectl apply -f - >/dev/null; more 90
last=$(tail -1 /tmp/held | cut -d' ' -f1-2); [ "$first" = "$last" ] # the same association
echo "$first: $(lines) answers"
kill $(cat /tmp/holder); kubectl delete networkpolicy only >/dev/null`},
	{"an endpoint goes: its association ends, new ones go to the other", `
vip=$(vip4 sctp):8000
hold c $vip; gone=$(head -1 /tmp/held | cut -d' ' -f1); if [ $gone = a ]; then left=b; else left=a; fi
for port in $(seq 5001 5012); do in_pod c $ask -from $port $vip; done >/tmp/before; grep -c "^$gone " /tmp/before
kubectl delete pod $gone --wait >/dev/null
ended() { ! kill -0 $(cat /tmp/holder) 2>/dev/null; }
until_ 30 ended; cat /tmp/held.err
alone in_pod c $ask -n 20 $vip; grep " $left " /tmp/seen
for port in $(seq 5001 5012); do in_pod c $ask -from $port $vip; done >/tmp/after; grep -c "^$left " /tmp/after | grep -x 12`},
}
