package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// secondName and secondAddress are those of the machine that joins.
const (
	secondName    = "second"
	secondAddress = "10.97.0.3"
)

// beside makes another machine on the first one's network; it does not run yet.
func beside(first *container, dir, name, address string) (*container, error) {
	c := &container{dir: dir, cache: first.cache, root: filepath.Join(dir, "root"), second: name}
	for _, d := range append([]string{"root", "upper", "work"}, ownDirs...) {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	layers := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", filepath.Join(c.cache, "rootfs"),
		filepath.Join(dir, "upper"), filepath.Join(dir, "work"))
	if err := syscall.Mount("overlay", c.root, "overlay", 0, layers); err != nil {
		return nil, fmt.Errorf("mount the root of %s: %w", name, err)
	}
	network := strings.Replace(files["etc/systemd/network/10-lan.network"], "10.97.0.2/", address+"/", 1)
	for name, text := range map[string]string{
		"etc/hostname": name + "\n", "etc/systemd/network/10-lan.network": network,
	} {
		if err := os.WriteFile(filepath.Join(c.root, name), []byte(text), 0o644); err != nil {
			return nil, errors.Join(err, c.remove())
		}
	}
	for _, d := range ownDirs {
		if err := os.MkdirAll(filepath.Join(c.root, d), 0o755); err != nil {
			return nil, errors.Join(err, c.remove())
		}
	}
	var err error
	c.log, err = os.Create(filepath.Join(dir, "console.log"))
	return c, err
}

// smallDisk has the agent not mind the disk, which is the host's.
const smallDisk = `printf 'evictionHard: {nodefs.available: 1%%, imagefs.available: 1%%}\n' >>/etc/shoal/agent.yaml` + "\n"

// runJoin: a second machine becomes a node by a token, and none again.
func runJoin(ctx context.Context, r *rig) (err error) {
	first, err := newContainer(ctx, filepath.Join(r.dir, r.name), r.cache)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, first.remove()) }()
	second, err := beside(first, filepath.Join(r.dir, r.name+"-second"), secondName, secondAddress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, second.remove()) }()
	for _, c := range []*container{first, second} {
		images := filepath.Join(c.dir, "var/lib/shoal/images")
		if err := errors.Join(r.install(ctx, c.root), r.images(images)); err != nil {
			return err
		}
		if !r.step(ctx, "a machine boots", func(ctx context.Context) (string, error) { return "", c.boot(ctx) }) {
			return nil
		}
	}
	defer r.showOnFailure(first)
	defer r.showAgent(second)
	if !r.script(ctx, first, "the first machine has coordinator and agent", smallDisk+services) {
		return nil
	}
	r.script(ctx, second, "what is no token is refused with what to do", refusals)
	if !r.joins(ctx, first, second, "shoal join TOKEN makes the second machine a node") {
		return nil
	}
	r.script(ctx, second, "joining again changes nothing, with a token that is used up", joinedAgain)
	r.script(ctx, first, "pods on both machines reach each other", crossTraffic)
	r.leaves(ctx, first, second)
	r.joins(ctx, first, second, "the machine joins again, with another token")
	return nil
}

// no fails when the command succeeds, which set -e does not see after a "!".
const no = `no() { if "$@" >/tmp/no 2>&1; then echo "succeeded: $*"; cat /tmp/no; exit 1; fi; }
`

// refusals: nothing is written by what fails.
const refusals = no + `
refused() { want=$1; shift; if "$@" >/tmp/out 2>&1; then echo "succeeded: $*"; exit 1; fi; grep -q -- "$want" /tmp/out || { cat /tmp/out; exit 1; }; }
` + smallDisk + `
refused 'make one with .shoal token create' shoal join abcdef.0123456789abcdef
refused 'copy the whole line' shoal join shoal1.AAAAAAAA
[ ! -e /var/lib/shoal/agent/kubeconfig ]
no systemctl -q is-enabled shoal-agent
shoal leave | tail -1 | cut -c1-60`

// joins makes a token on the first machine and uses it on the second.
func (r *rig) joins(ctx context.Context, first, second *container, what string) bool {
	return r.step(ctx, what, func(ctx context.Context) (string, error) {
		token, err := first.sh(ctx, "shoal token create")
		if err != nil {
			return "", err
		}
		said, err := second.sh(ctx, "echo '"+token+"' >/tmp/token; shoal join - </tmp/token")
		if err != nil {
			return said, err
		}
		_, err = first.sh(ctx, "until_ 5 kubectl wait --for=condition=Ready node/"+secondName+" --timeout=5s\n"+
			"[ -z \"$(shoal token list | grep ' 1 ')\" ]")
		return said, err
	})
}

const joinedAgain = `
shoal join - </tmp/token | head -1
systemctl -q is-enabled shoal-agent; systemctl -q is-active shoal-agent
[ "$(stat -c %a /var/lib/shoal/agent/kubeconfig /var/lib/shoal/agent/gossip.key | tr '\n' ' ')" = "600 600 " ]
[ ! -e /var/lib/shoal/agent/joining.key ]
grep -q 'imagefs.available: 1%' /etc/shoal/agent.yaml
if shoal join --node-name other - </tmp/token 2>/tmp/out; then exit 1; fi; grep 'is node second of that cluster already' /tmp/out`

// web prints a Deployment of two pods, one a machine, with a budget that lets one go.
const web = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}}
      containers:
      - {name: web, image: "localhost/busybox:1", command: [sh, -c, "mkdir /www; hostname >/www/index.html; exec httpd -f -p 8080 -h /www"], readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
`

var crossTraffic = apply(web) + `
until_ 60 kubectl rollout status deployment/web --timeout=5s
[ "$(kubectl get pods -l app=web -o jsonpath='{.items[*].spec.nodeName}' | tr ' ' '\n' | sort | tr '\n' ' ')" = "machine second " ]
for pod in $(kubectl get pods -l app=web -o name); do
	for ip in $(kubectl get pods -l app=web -o jsonpath='{.items[*].status.podIP}'); do
		kubectl exec $pod -- sh -c "printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 5 $ip 8080" | grep -q '^web-'
	done
done
kubectl get pods -o wide --no-headers | tr -s ' ' | cut -d' ' -f1,3,6,7`

// leaves: the node's pods go elsewhere, the API forgets it, the machine keeps nothing
// that would open anything.
func (r *rig) leaves(ctx context.Context, first, second *container) {
	r.script(ctx, second, "shoal leave drains, and takes credentials away", no+`
shoal leave
no systemctl -q is-active shoal-agent; no systemctl -q is-enabled shoal-agent
for f in kubeconfig gossip.key kubelet-serving.pem kubelet-client.pem joining.key; do [ ! -e /var/lib/shoal/agent/$f ]; done
[ -z "$(nft list tables)" ]; [ -z "$(pgrep -x conmon)" ]; no ip link show shoal0
shoal leave | tail -1`)
	r.script(ctx, first, "the cluster has forgotten it, and runs its pods elsewhere", `
[ "$(kubectl get nodes -o name)" = node/machine ]
until_ 60 kubectl rollout status deployment/web --timeout=5s
[ "$(kubectl get pods -l app=web -o jsonpath='{.items[*].spec.nodeName}')" = "machine machine" ]
kubectl delete deployment/web poddisruptionbudget/web >/dev/null
kubectl get csinodes,leases -A --no-headers | grep -c second | grep -qx 0 || until_ 30 sh -c '! kubectl get csinodes,leases -A --no-headers | grep second'
kubectl get nodes --no-headers | tr -s ' '`)
}

// showAgent prints the second machine's journal when a step failed.
func (r *rig) showAgent(m machine) {
	if r.failed == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	out, err := m.sh(ctx, "journalctl -b -n 40 --no-pager -u shoal-agent; cat /etc/shoal/agent.yaml; ls -la /var/lib/shoal/agent")
	fmt.Println(out, err)
}
