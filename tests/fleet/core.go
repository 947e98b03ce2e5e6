package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// runCore is the life of a small fleet in short: packages are installed, two machines
// join, one is cut off its power, all are upgraded, one is powered off in good order.
func runCore(ctx context.Context, r *rig) (err error) {
	made := filepath.Join(r.dir, r.name+"-packages")
	if !r.step(ctx, "packages of two versions are made",
		func(ctx context.Context) (string, error) {
			return "", r.packages(ctx, made, filepath.Join(made, "bin"))
		}) {
		return nil
	}
	c, remove, err := r.machines(ctx, "second", "third")
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil {
		return err
	}
	for _, m := range c.all() {
		if err := r.carries(ctx, m, made); err != nil {
			return err
		}
	}
	if !r.boots(ctx, c) {
		return nil
	}
	defer r.showNodes(c)
	ok := r.step(ctx, "apt installs it on three machines", func(ctx context.Context) (string, error) {
		return "", each(ctx, c.all(), func(ctx context.Context, m *container) error {
			_, err := m.sh(ctx, admin+install(1))
			return err
		})
	}) && r.script(ctx, c.first, "systemctl enable --now makes a node that is Ready", loopDevices+smallDisk+enable)
	for _, m := range c.nodes {
		ok = ok && r.becomesNode(ctx, c.first, m)
	}
	var ip string
	ok = ok && r.step(ctx, "a Service has a pod on each machine", func(ctx context.Context) (said string, err error) {
		said, err = c.first.sh(ctx, "kubectl label nodes --all web=yes >/dev/null\n"+apply(shopFront)+spread)
		if err != nil {
			return said, err
		}
		ip, err = c.first.sh(ctx, "field service/web .spec.clusterIP")
		return said, err
	})
	if !ok {
		return nil
	}
	if !r.losesPower(ctx, c, c.nodes[1], ip) {
		return nil
	}
	r.step(ctx, "the Service is asked from now on", func(ctx context.Context) (string, error) {
		return c.first.sh(ctx, fmt.Sprintf(load, ip))
	})
	for _, m := range c.all() {
		r.upgradesAround(ctx, c.first, m)
	}
	r.tellsJournal(ctx, c.first, c.nodes[0])
	r.powersOff(ctx, c.first, c.nodes[0])
	r.script(ctx, c.first, "no request has failed meanwhile", counted)
	return nil
}

// inOrder has an agent end its pods before the machine powers off.
const inOrder = `printf 'shutdownGracePeriod: 20s\n' >>/etc/shoal/agent.yaml` + "\n"

// carries gives a machine the packages, kubectl and the pods' image.
func (r *rig) carries(ctx context.Context, m *container, packages string) error {
	fleet := filepath.Join(m.root, "opt/fleet")
	errs := []error{os.Mkdir(fleet, 0o755), r.images(filepath.Join(m.dir, "var/lib/shoal/images")),
		os.Symlink(rootKubeconfig, filepath.Join(m.root, "root/admin.kubeconfig")),
		command(ctx, "install", "-D", "-m", "755",
			filepath.Join(r.bin, "kubectl"), filepath.Join(m.root, "usr/local/bin/kubectl"))}
	names, err := filepath.Glob(filepath.Join(packages, "shoal-*.deb"))
	for _, name := range names {
		errs = append(errs, command(ctx, "cp", name, fleet))
	}
	return errors.Join(append(errs, err)...)
}

// losesPower cuts a machine off its power and starts it again.
func (r *rig) losesPower(ctx context.Context, c cluster, m *container, ip string) bool {
	name := nodeName(m)
	return r.step(ctx, "a machine loses power: the others know, and serve without it",
		func(ctx context.Context) (string, error) {
			began := time.Now()
			m.cut()
			known, err := until(ctx, c.first, began, 30*time.Second,
				"[ \"$(field node/"+name+" '.status.conditions[?(@.type==\"Ready\")].status')\" != True ]")
			if err != nil {
				return "", err
			}
			ask := fmt.Sprintf("for i in $(seq 20); do curl -s -S -m 2 -o /dev/null http://%s/; done\n", ip)
			served, err := until(ctx, c.first, began, 30*time.Second, ask)
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("NotReady after %.1f s, 20 of 20 requests answered after %.1f s",
				known.Seconds(), served.Seconds()), nil
		}) && r.step(ctx, "it is back, with the pod that it had", func(ctx context.Context) (string, error) {
		began := time.Now()
		if err := m.boot(ctx); err != nil {
			return "", err
		}
		said, err := c.first.sh(ctx, "until_ 60 kubectl wait --for=condition=Ready node/"+name+" --timeout=5s\n"+spread)
		return fmt.Sprintf("after %.1f s %s", time.Since(began).Seconds(), said), err
	})
}

// upgradesAround installs the second version on a machine; its pod's process stays.
func (r *rig) upgradesAround(ctx context.Context, first, m *container) {
	r.step(ctx, "an upgrade leaves the pod alone: "+nodeName(m), func(ctx context.Context) (string, error) {
		uid, err := first.sh(ctx, "kubectl get pods -l app=web --field-selector spec.nodeName="+nodeName(m)+
			" -o jsonpath='{.items[*].metadata.uid}'")
		if err != nil {
			return uid, err
		}
		before, err := m.sh(ctx, pidOf+"pid_of "+uid)
		if err != nil || before == "" || strings.Contains(before, "\n") {
			return "", fmt.Errorf("processes of pod %q: %q: %w", uid, before, err)
		}
		if said, err := m.sh(ctx, admin+install(2)); err != nil {
			return said, err
		}
		said, err := first.sh(ctx, "until_ 60 has node/"+nodeName(m)+" .status.nodeInfo.kubeletVersion "+secondVersion+
			"\nuntil_ 60 kubectl wait --for=condition=Ready node/"+nodeName(m)+" --timeout=5s")
		if err != nil {
			return said, err
		}
		after, err := m.sh(ctx, pidOf+"pid_of "+uid)
		if err == nil && after != before {
			err = fmt.Errorf("the pod's process was %s and is %s", before, after)
		}
		return "process " + after + " stays", err
	})
}

// tellsJournal: what the agent logged is read through the API, where the node shows it; and a
// shutdown is to wait for its pods, though logind began before the packages told it so.
func (r *rig) tellsJournal(ctx context.Context, first, m *container) {
	r.step(ctx, "a node's journal is read through the API", func(ctx context.Context) (string, error) {
		began := time.Now().Add(-time.Second)
		said, err := m.sh(ctx, inOrder+`printf 'enableSystemLogQuery: true\n' >>/etc/shoal/agent.yaml
systemctl restart shoal-agent
until_ 30 sh -c 'systemd-inhibit --list --no-legend | grep kubelet' >/dev/null
busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager InhibitDelayMaxUSec |
	grep -x 't 60000000'`)
		if err != nil {
			return said, err
		}
		ask := "kubectl get --raw '/api/v1/nodes/" + nodeName(m) + "/proxy/logs/?query=kubelet&boot=0&tailLines=500&sinceTime=" +
			began.UTC().Format(time.RFC3339)
		return first.sh(ctx, `started() { `+ask+`&pattern=Started' >/tmp/journal && grep 'Started.*shoal' /tmp/journal; }
until_ 60 started >/dev/null
! grep -v Started /tmp/journal | grep .
`+ask+`' | grep -c ' shoal-agent\['`)
	})
}

// powersOff: the pods of a machine that is powered off have ended before it is off.
func (r *rig) powersOff(ctx context.Context, first, m *container) {
	name := nodeName(m)
	r.step(ctx, "systemctl poweroff ends the pods first", func(ctx context.Context) (string, error) {
		began := time.Now()
		_, err := m.sh(ctx, "systemctl poweroff")
		if err != nil {
			return "", err
		}
		if err := m.off(ctx); err != nil {
			return "", err
		}
		off := time.Since(began)
		_, err = first.sh(ctx, `ended() { [ "$(kubectl get pods -l app=web --field-selector spec.nodeName=`+name+
			`,status.phase=Failed -o jsonpath='{.items[*].status.reason}')" = Terminated ]; }
until_ 30 ended
[ "$(field node/`+name+` '.status.conditions[?(@.type=="Ready")].status')" != True ]`)
		return fmt.Sprintf("off after %.1f s", off.Seconds()), err
	})
}
