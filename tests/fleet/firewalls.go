package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// firewallPackages are what the machines of this scenario have beside the others'.
var firewallPackages = []string{"iptables", "firewalld", "ufw"}

// runFirewalls: two machines, each behind a firewall as its distribution sets it up, with
// nothing but the ports opened that machines open to each other.
func runFirewalls(ctx context.Context, r *rig) (err error) {
	others := r.cache
	defer func() { r.cache = others }()
	r.cache = filepath.Join(others, r.name)
	if err := makeRootfs(ctx, r.cache, append(packages, firewallPackages...)); err != nil {
		return err
	}
	c, remove, err := r.machines(ctx, secondName)
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil {
		return err
	}
	for _, m := range c.all() {
		images := filepath.Join(m.dir, "var/lib/shoal/images")
		if err := errors.Join(r.install(ctx, m.root), r.images(images)); err != nil {
			return err
		}
	}
	first, second := c.first, c.nodes[0]
	// ufw of the first is there and not active; Debian starts what is installed.
	if err := os.Symlink("/dev/null", filepath.Join(second.root, "etc/systemd/system/firewalld.service")); err != nil {
		return err
	}
	if !r.boots(ctx, c) {
		return nil
	}
	defer r.showNodes(c)
	f := &firewalls{rig: r, cluster: c}
	if !r.script(ctx, first, "firewalld runs, with the zone public", behindFirewalld) ||
		!r.script(ctx, second, "ufw is enabled, and denies", behindUFW) {
		return nil
	}
	const left = "printf 'hostFirewall: leave\\n' >>/etc/shoal/agent.yaml\n"
	if !r.script(ctx, first, "the first machine has coordinator and agent", left+loopDevices+smallDisk+services) ||
		!r.prepared(ctx, first, second, left+loopDevices+smallDisk) ||
		!r.script(ctx, first, "pods run on both", f.deploy()) || !f.learn(ctx) {
		return nil
	}
	r.step(ctx, "with hostFirewall: leave pods are cut off", f.cutOff)
	r.step(ctx, "opened, which is the default", func(ctx context.Context) (string, error) {
		return "", each(ctx, c.all(), func(ctx context.Context, m *container) error {
			_, err := m.sh(ctx, "sed -i /hostFirewall/d /etc/shoal/agent.yaml; systemctl restart shoal-agent")
			return err
		})
	})
	f.work(ctx, "opened")
	r.script(ctx, first, "firewalld shows what is opened", `firewall-cmd --list-all
firewall-cmd --list-interfaces | grep -w 'shoal0+'
firewall-cmd --list-rich-rules | grep -c 'destination address="10.96.0.10" port port="53"' | grep -x 2`)
	r.script(ctx, second, "iptables shows what is opened", `iptables -S FORWARD | grep shoal:shoal0:
iptables -S INPUT | grep shoal:shoal0:`)
	r.step(ctx, "nothing else is", f.closed)
	for _, what := range []struct {
		m      *container
		script string
	}{
		{first, "firewall-cmd --reload"}, {second, "ufw reload"}, {first, "systemctl restart firewalld"},
		{second, "ufw disable; ufw --force enable"}, {second, "iptables -F FORWARD; ufw reload"},
	} {
		if r.script(ctx, what.m, what.script, what.script+" >/dev/null") {
			f.work(ctx, "after "+what.script)
		}
	}
	r.step(ctx, "nothing else is, still", f.closed)
	r.script(ctx, second, "shoal leave takes it back", no+`shoal leave --force >/dev/null
iptables -S >/tmp/left; no grep shoal /tmp/left; grep -e '-P FORWARD DROP' /tmp/left`)
	r.script(ctx, first, "shoal-agent cleanup takes it back", no+`systemctl stop shoal-agent
shoal-agent cleanup --config /etc/shoal/agent.yaml
firewall-cmd --list-all >/tmp/left; no grep -e shoal -e 10.96 /tmp/left; grep -e 'services: .*ssh' /tmp/left`)
	return nil
}

// The ports are those of docs/network.md.
const (
	behindFirewalld = `until_ 60 firewall-cmd --state
[ "$(firewall-cmd --get-default-zone)" = public ]
for p in 6443/tcp 10250/tcp 7946/tcp 7946/udp 7947/tcp 7947/udp; do firewall-cmd -q --permanent --add-port=$p; done
firewall-cmd --reload
firewall-cmd --version`
	behindUFW = `ufw default deny incoming >/dev/null
ufw default deny routed >/dev/null
for p in 10250/tcp 7946; do ufw allow $p >/dev/null; done
ufw --force enable
iptables --version`
)

// firewalls is the scenario as it goes.
type firewalls struct {
	*rig
	cluster
	pods     []found
	services map[string]serviceAt // by the node of their pod
}

// shopBehind is a pod on a machine and a Service with a node port that leads to it alone.
const shopBehind = `---
apiVersion: v1
kind: Service
metadata: {name: web-%[1]s}
spec: {type: NodePort, selector: {at: %[1]s}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-%[1]s, labels: {app: web, at: %[1]s}}
spec:
  nodeName: %[1]s
  terminationGracePeriodSeconds: 1
  containers:
  - name: web
    image: localhost/busybox:1
    command: [sh, -c, "mkdir -p /www; echo it answers >/www/index.html; exec httpd -f -p 8080 -h /www"]
`

func (f *firewalls) deploy() string {
	both := ""
	for _, m := range f.all() {
		both += fmt.Sprintf(shopBehind, nodeName(m))
	}
	return apply(both) + "until_ 60 kubectl wait pod --all --for=condition=Ready --timeout=5s"
}

// learn asks for addresses and ports.
func (f *firewalls) learn(ctx context.Context) bool {
	return f.step(ctx, "each has its addresses", func(ctx context.Context) (said string, err error) {
		if f.pods, err = podsOf(ctx, f.first); err != nil || len(f.pods) != 2 {
			return "", fmt.Errorf("pods %v: %w", f.pods, err)
		}
		f.services = map[string]serviceAt{}
		for _, p := range f.pods {
			one, err := f.first.sh(ctx, "field service/"+p.name+" '.spec.clusterIP} {.spec.ports[0].nodePort'")
			if err != nil {
				return "", err
			}
			ip, port, _ := strings.Cut(one, " ")
			f.services[p.node] = serviceAt{ip, port}
			said += one + "\n"
		}
		return strings.TrimSpace(said), nil
	})
}

// serviceAt is where a Service is asked.
type serviceAt struct{ ip, nodePort string }

// way is a connection that a script tries, on a machine or, without one, outside of all.
type way struct {
	what   string
	m      *container
	script string
}

func (w way) pass(ctx context.Context) (string, error) {
	if w.m != nil {
		return w.m.sh(ctx, w.script)
	}
	return "", command(ctx, "nsenter", "--net=/run/netns/"+lan, "sh", "-c", w.script)
}

// inPod runs a command in a pod, without the API: what is tried is not what tries.
func (f *firewalls) inPod(p found, what, script string) way {
	m := f.first
	if p.node != nodeName(f.first) {
		m = f.nodes[0]
	}
	return way{what + ", from a pod on " + p.node, m,
		pidOf + "p=$(pid_of " + p.uid + ")\nnsenter -t $p -n -m -- /bin/sh -c '" + script + "' | grep -q 'it answers'"}
}

const get = `(printf "GET / HTTP/1.0\r\n\r\n"; sleep 0.2) | nc -w 3 `

// opened are the ways that pods need.
func (f *firewalls) opened() (ways []way) {
	for _, p := range f.pods {
		for _, to := range f.pods {
			service := f.services[to.node]
			ways = append(ways,
				f.inPod(p, "the pod on "+to.node, get+to.ip+" 8080"),
				f.inPod(p, "the Service of "+to.node, get+service.ip+" 80"),
				f.inPod(p, "the name of the Service of "+to.node,
					"timeout 5 nslookup "+to.name+".default.svc.cluster.local | grep "+service.ip+" && echo it answers"),
				way{"the pod on " + to.node + ", from the node " + p.node, f.on(p.node), ask(to.ip + ":8080")},
				way{"the Service of " + to.node + ", from the node " + p.node, f.on(p.node), ask(service.ip)},
				way{"the node port of " + to.node + " on " + p.node + ", from outside", nil,
					ask(f.address(p.node) + ":" + service.nodePort)})
		}
		ways = append(ways,
			f.inPod(p, "names by TCP", "nc -w 3 10.96.0.10 53 </dev/null && echo it answers"),
			f.inPod(p, "the API by its Service", "nc -w 3 10.96.0.1 443 </dev/null && echo it answers"),
			f.inPod(p, "another machine", "nc -w 3 "+f.other(p)+" 10250 </dev/null && echo it answers"))
	}
	return ways
}

// ask is a script that asks a pod's server.
func ask(at string) string { return "curl -s -m 3 http://" + at + "/ | grep -q 'it answers'" }

// connects is a script that succeeds where somebody takes a connection, whatever he says.
func connects(to string) string {
	return "curl -s -m 2 -o /dev/null http://" + to + "/; c=$?; [ $c != 7 ] && [ $c != 28 ]"
}

// shut are ways that nobody opened.
func (f *firewalls) shut() (ways []way) {
	for _, p := range f.pods {
		ways = append(ways,
			f.inPod(p, "a port of its own node", "nc -w 2 "+f.address(p.node)+" 9 </dev/null && echo it answers"),
			way{"a port of " + p.node + ", from outside", nil, connects(f.address(p.node) + ":9")},
			way{"the names on " + p.node + ", from outside", nil,
				"ip route replace 10.96.0.10 via " + f.address(p.node) + "; " + connects("10.96.0.10:53")})
	}
	return ways
}

func (f *firewalls) on(node string) *container {
	if node == nodeName(f.first) {
		return f.first
	}
	return f.nodes[0]
}

func (f *firewalls) address(node string) string {
	if node == nodeName(f.first) {
		return "10.97.0.2"
	}
	return secondAddress
}

// other is the address of the machine that a pod is not on.
func (f *firewalls) other(p found) string {
	for _, q := range f.pods {
		if q.node != p.node {
			return f.address(q.node)
		}
	}
	return ""
}

// try tries ways at the same time, and returns those that do not pass, and why.
func try(ctx context.Context, ways []way) (blocked []way, why []error) {
	said, errs := make([]string, len(ways)), make([]error, len(ways))
	var all sync.WaitGroup
	for i, w := range ways {
		all.Go(func() { said[i], errs[i] = w.pass(ctx) })
	}
	all.Wait()
	for i, w := range ways {
		if errs[i] != nil {
			blocked, why = append(blocked, w), append(why, fmt.Errorf("%s: %w %s", w.what, errs[i], said[i]))
		}
	}
	return blocked, why
}

// work is the step that all ways are open, a moment later at the latest.
func (f *firewalls) work(ctx context.Context, when string) {
	f.step(ctx, "pods, Services, names, node ports: "+when, func(ctx context.Context) (string, error) {
		ways := f.opened()
		all, late := len(ways), ""
		var failed []error
		for range 10 {
			if ways, failed = try(ctx, ways); len(ways) == 0 {
				return fmt.Sprintf("%d ways%s", all, late), nil
			}
			late = fmt.Sprintf("; %d not at once, as %s", len(ways), ways[0].what)
			if err := f.first.pause(ctx); err != nil {
				return "", err
			}
		}
		return "", errors.Join(failed...)
	})
}

// cutOff: the firewalls would be no trial if pods worked behind them anyway.
func (f *firewalls) cutOff(ctx context.Context) (string, error) {
	blocked, _ := try(ctx, f.opened())
	all := len(f.opened())
	if len(blocked) < all/2 {
		return "", fmt.Errorf("only %d of %d ways are blocked", len(blocked), all)
	}
	return fmt.Sprintf("%d of %d ways", len(blocked), all), nil
}

// closed: what listens on a machine stays behind its firewall.
func (f *firewalls) closed(ctx context.Context) (string, error) {
	const listen = `systemctl -q is-active listens || systemd-run -q --unit=listens busybox httpd -f -p 9 -h /srv`
	if err := each(ctx, f.all(), func(ctx context.Context, m *container) error {
		_, err := m.sh(ctx, listen+"\nuntil_ 10 curl -s -m 2 -o /dev/null http://127.0.0.1:9/")
		return err
	}); err != nil {
		return "", err
	}
	var errs []error
	for _, w := range f.shut() { // one after the other: some set routes
		if _, err := w.pass(ctx); err == nil {
			errs = append(errs, errors.New(w.what+" is open"))
		}
	}
	return fmt.Sprintf("%d ways", len(f.shut())), errors.Join(errs...)
}
