package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// movedTime bounds how long a cluster may take to be well after a machine has another
// address: seconds until the programs start again, and the others hear of it.
const movedTime = time.Minute

// readdress gives a machine another address, as a lease of DHCP that changed does: the old
// one is gone before the new one is there.
const readdress = `sed -i 's|^Address=.*|Address=%s/24|' /etc/systemd/network/*lan.network
ip addr flush dev host0; networkctl reload; networkctl reconfigure host0
until_ 10 sh -c 'ip -4 addr show host0 | grep -q "%s/"'
until_ 10 sh -c 'ip route | grep -q ^default'`

// runAddresses: machines of a cluster get other addresses while pods run: a node, the only
// coordinator, and one of three.
func runAddresses(ctx context.Context, r *rig) (err error) {
	c, remove, ok, err := r.newCluster(ctx, "second", "third")
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil || !ok {
		return err
	}
	defer r.showNodes(c)
	three := apply(strings.Replace(web, "replicas: 2", "replicas: 3", 1))
	if !r.script(ctx, c.first, "a pod of a Service runs on each", three+
		"kubectl expose deployment web --port=80 --target-port=8080\n"+
		"until_ 120 kubectl rollout status deployment/web --timeout=5s\nkubectl get pods -o wide --no-headers") {
		return nil
	}
	second, third := c.nodes[0], c.nodes[1]
	pids, err := podProcesses(ctx, c)
	if err != nil {
		return err
	}
	moves := []struct {
		what, to string
		m        *container
	}{
		{"a node", "10.97.0.23", second},
		{"the only coordinator", "10.97.0.22", c.first},
		{"the node, back,", "10.97.0.3", second},
		{"the only coordinator, back,", "10.97.0.2", c.first},
	}
	for _, move := range moves {
		if !r.moves(ctx, c, move.what, move.m, move.to) {
			return nil
		}
	}
	if !r.becomes(ctx, c.first, second, "coordinator") || !r.becomes(ctx, c.first, third, "coordinator") {
		return nil
	}
	_ = r.moves(ctx, c, "one of three coordinators", third, "10.97.0.24") &&
		r.moves(ctx, c, "another one", c.first, "10.97.0.22")
	r.step(ctx, "the pods' processes are those of before", func(ctx context.Context) (string, error) {
		after, err := podProcesses(ctx, c)
		if err == nil && after != pids {
			err = fmt.Errorf("before: %s; after: %s", pids, after)
		}
		return "", err
	})
	return nil
}

// moves has one machine get another address, and looks until all is well: its Node tells
// it, each Node is Ready, the kubelets are reached, each machine asks the Service, and its
// pods answer.
func (r *rig) moves(ctx context.Context, c cluster, what string, m *container, to string) bool {
	return r.step(ctx, fmt.Sprintf("%s gets another address: %s %s", what, nodeName(m), to),
		func(ctx context.Context) (string, error) {
			if said, err := m.sh(ctx, fmt.Sprintf(readdress, to, to)); err != nil {
				return said, err
			}
			began := time.Now()
			well := fmt.Sprintf(`has node/%s '.status.addresses[?(@.type=="InternalIP")].address' %s
for n in machine second third; do has node/$n '.status.conditions[?(@.type=="Ready")].status' True; done
for p in $(kubectl get pods -o name); do [ "$(kubectl exec $p -- echo yes)" = yes ]; done
field endpointslice/kubernetes '.endpoints[*].addresses[0]'`, nodeName(m), to)
			after, err := until(ctx, c.first, began, movedTime, well)
			if err != nil {
				said, _ := c.first.sh(ctx, "kubectl get nodes -o wide --no-headers; kubectl get endpointslice kubernetes")
				return said, fmt.Errorf("not well within %s: %w", movedTime, err)
			}
			ip, err := c.first.sh(ctx, "field service/web .spec.clusterIP")
			if err != nil {
				return "", err
			}
			for _, each := range c.all() {
				asks := fmt.Sprintf("for i in $(seq 10); do curl -s -S -m 2 -o /dev/null http://%s/; done", ip)
				took, err := until(ctx, each, began, movedTime, asks)
				if err != nil {
					return "", fmt.Errorf("%s asks the Service: %w", nodeName(each), err)
				}
				after = max(after, took)
			}
			return fmt.Sprintf("well after %.1f s", after.Seconds()), nil
		})
}

// podProcesses are the first processes of containers, by machine.
func podProcesses(ctx context.Context, c cluster) (string, error) {
	var all []string
	for _, m := range c.all() {
		pids, err := m.sh(ctx, "cat /run/shoal/containers/*/pid | sort -n | tr '\\n' ' '")
		if err != nil {
			return "", err
		}
		all = append(all, nodeName(m)+": "+pids)
	}
	return strings.Join(all, "; "), nil
}
