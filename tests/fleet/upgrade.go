package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A build that is broken: one of its programs is another.
type build struct{ name, version, program, text string }

// broken are builds that an upgrade has to come back from. What stands for a program
// may use those of the second version, which lie in /opt/fleet/real.
var broken = []build{
	{"3", "v1.36.5+refused", "shoal-coordinator", "#!/bin/sh\necho 'field serviceCIDR: no longer known' >&2\nexit 1\n"},
	{"4", "v1.36.6+ends", "shoal-agent", agentOf("v1.36.6+ends", "exit 3")},
	{"5", "v1.36.7+silent", "shoal-coordinator", silent},
	// It says that it is ready at once, and ends a little later, again and again.
	{"6", "v1.36.8+falls", "shoal-agent", agentOf("v1.36.8+falls",
		"systemd-notify --ready --pid=$$; sleep 2; exit 4")},
}

// silent is a coordinator that serves the API and writes to the store, and never says
// that it is ready.
const silent = `#!/bin/sh
[ "$1" != check ] || exit 0
unset NOTIFY_SOCKET
exec /opt/fleet/real/shoal-coordinator "$@"
`

// agentOf is an agent that passes for a version until it serves.
func agentOf(version, serves string) string {
	return "#!/bin/sh\ncase \"$1\" in --version) echo " + version + "; exit 0 ;; check) exit 0 ;; esac\n" + serves + "\n"
}

// runUpgrade: a machine goes to good and to broken versions, around a pod that runs.
func runUpgrade(ctx context.Context, r *rig) (err error) {
	dir := filepath.Join(r.dir, r.name)
	made := filepath.Join(dir, "packages")
	if !r.step(ctx, "packages of good and of broken builds are made", func(ctx context.Context) (string, error) {
		return "", r.brokenPackages(ctx, made, filepath.Join(dir, "bin"))
	}) {
		return nil
	}
	c, remove, ok, err := r.bare(ctx, dir, made)
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil || !ok {
		return err
	}
	defer r.showOnFailure(c)
	if !r.script(ctx, c, "the first version runs a pod", admin+install(1)+enable+runKeeper) {
		return nil
	}
	r.script(ctx, c, "what does not fit is refused, and nothing is touched", admin+refusedUpgrades)
	r.script(ctx, c, "a build whose coordinator refuses the configuration is not installed", admin+
		hostPID+stays+`
not shoal upgrade --to /opt/fleet/shoal-3.deb; grep 'no longer known' /tmp/not
dpkg -s shoal | grep -q '^Version: 1.36.3'; pod_stays`)
	r.script(ctx, c, "a build whose agent ends at its start is gone back from",
		admin+returns("4", "shoal-agent.service does not get ready"))
	r.script(ctx, c, "one whose coordinator serves and never gets ready, and the old store with it", admin+
		returns("5", "the store is that of before"))
	r.script(ctx, c, "one whose agent ends again and again after it was ready", admin+returns("6", "has ended after its start"))
	r.powerCut(ctx, c, "power is lost while the package is replaced: the old version starts", "switching")
	r.powerCut(ctx, c, "power is lost while the new version is watched: the old one starts", "watching")
	r.script(ctx, c, "a good one is gone to", admin+
		around("shoal upgrade --to /opt/fleet/shoal-2.deb >/tmp/upgrade || { cat /tmp/upgrade; exit 1; }")+`
[ ! -e /etc/systemd/system/shoal-upgrade.service ]; shoal upgrade status | grep '^done'
[ -z "$(dpkg -V shoal | grep -v /etc/shoal/agent.yaml)" ]; tail -1 /tmp/upgrade`)
	r.script(ctx, c, "and gone back from, by the version's name", admin+hostPID+stays+`
shoal upgrade --to v1.36.3+fleet.1 >/tmp/upgrade || { cat /tmp/upgrade; exit 1; }
[ -z "$(dpkg -V shoal | grep -v /etc/shoal/agent.yaml)" ]; grep 'fleet: mine' /etc/shoal/agent.yaml
pod_stays; shoal upgrade status`)
	return nil
}

// brokenPackages makes those of the two versions, and of the broken builds.
func (r *rig) brokenPackages(ctx context.Context, dir, bin string) error {
	if err := r.packages(ctx, dir, bin); err != nil {
		return err
	}
	for _, b := range broken {
		if err := r.brokenPackage(ctx, dir, bin, b); err != nil {
			return err
		}
	}
	return command(ctx, "cp", "-r", bin, filepath.Join(dir, "real"))
}

// brokenPackage makes a package of the programs in bin, but for one.
func (r *rig) brokenPackage(ctx context.Context, dir, bin string, b build) error {
	wrong := bin + "-wrong"
	defer os.RemoveAll(wrong)
	err := errors.Join(command(ctx, "cp", "-r", bin, wrong),
		os.WriteFile(filepath.Join(wrong, b.program), []byte(b.text), 0o755))
	if b.program != "shoal-agent" { // which tells the version
		err = errors.Join(err, os.WriteFile(filepath.Join(wrong, "shoal-agent"), []byte(agentOf(b.version,
			"exec /opt/fleet/real/shoal-agent \"$@\"")), 0o755))
	}
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(r.source, "hack", "package.sh"), "deb", b.version, dir)
	cmd.Env = append(os.Environ(), "BIN="+wrong, "GO="+r.gotool)
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("package.sh: %w: %s", err, out)
	}
	return os.Rename(strings.TrimSpace(string(out)), filepath.Join(dir, "shoal-"+b.name+".deb"))
}

// stays notes the pod's process, and defines what fails when it is another one.
const stays = `
before=$(pid_of keeper); conmon=$(ps -o ppid= -p $before); began=$(date +%s)
pod_stays() { [ "$(pid_of keeper)" = "$before" ] && kill -0 $before && [ "$(ps -o ppid= -p $before)" = "$conmon" ] && has pod/keeper '.status.containerStatuses[0].restartCount' 0; }
`

const refusedUpgrades = `
cd /tmp; mkdir -p far/DEBIAN
printf 'Package: shoal\nVersion: 1.38.0\nArchitecture: %s\nMaintainer: x <x@x>\nDescription: x\n' $(dpkg --print-architecture) >far/DEBIAN/control
dpkg-deb -b far far.deb >/dev/null; not shoal upgrade --to far.deb; grep 'go by v1.37' /tmp/not
sed -i 's/1.38.0/1.35.9/' far/DEBIAN/control; dpkg-deb -b far old.deb >/dev/null; not shoal upgrade --to old.deb; grep 'older minor' /tmp/not
not shoal upgrade --to /opt/fleet/shoal-1.deb; grep 'installed already' /tmp/not
not shoal upgrade --to /opt/fleet/shoal-2.rpm; grep 'of the form rpm' /tmp/not
not shoal upgrade --to /etc/passwd; grep 'neither a deb nor an rpm' /tmp/not
not shoal upgrade --to v1.36.9; grep 'no such file' /tmp/not
[ ! -e /etc/systemd/system/shoal-upgrade.service ]`

// returns upgrades to a broken build, and wants all as it was.
func returns(number, because string) string {
	return hostPID + stays + `
kubectl create configmap before-` + number + `
not shoal upgrade --to /opt/fleet/shoal-` + number + `.deb
grep 'the old version runs again' /tmp/not >/tmp/ended; grep -q '` + because + `' /tmp/not || { cat /tmp/not; exit 1; }
took=$(($(date +%s)-began)); [ $took -le 75 ]
until_ 20 has node/machine .status.nodeInfo.kubeletVersion "$(shoal-agent --version)"
until_ 30 kubectl wait --for=condition=Ready node --all --timeout=5s
dpkg -s shoal | grep -q '^Version: 1.36.3'; [ -z "$(dpkg -V shoal | grep -v /etc/shoal/agent.yaml)" ]; grep -q 'fleet: mine' /etc/shoal/agent.yaml
[ ! -e /etc/systemd/system/shoal-upgrade.service ]; not systemctl -q is-enabled shoal-upgrade
until_ 30 kubectl logs keeper; pod_stays
kubectl get configmap before-` + number + ` >/dev/null
shoal upgrade status | grep -q '^returned'; cut -d: -f3- /tmp/ended | cut -c1-100
sed -n 's/.*"\(tried\|back\)Seconds": \(.*\),*/\1 \2 s/p' /var/lib/shoal/upgrade/record.json
`
}

// powerCut has the machine lose power in a phase of an upgrade to a broken build.
func (r *rig) powerCut(ctx context.Context, c *container, what, phase string) {
	r.step(ctx, what, func(ctx context.Context) (string, error) {
		said, err := c.sh(ctx, admin+`systemd-run -q --collect --unit=upgrading shoal upgrade --to /opt/fleet/shoal-5.deb
until_ 60 grep -q '"phase": "`+phase+`"' /var/lib/shoal/upgrade/record.json; dpkg -s shoal | grep -E '^(Version|Status)'`)
		if err != nil {
			return said, err
		}
		c.cut()
		began := time.Now()
		if err := c.boot(ctx); err != nil {
			return "", err
		}
		back, err := c.sh(ctx, admin+`
until_ 60 grep -q '"phase": "returned"' /var/lib/shoal/upgrade/record.json
until_ 60 kubectl wait --for=condition=Ready node --all --timeout=5s
has node/machine .status.nodeInfo.kubeletVersion "$(shoal-agent --version)"
dpkg -s shoal | grep '^Version: 1.36.3'; [ -z "$(dpkg -V shoal | grep -v /etc/shoal/agent.yaml)" ]
until_ 60 kubectl wait pod/keeper --for=condition=Ready --timeout=5s
until_ 10 sh -c '[ ! -e /etc/systemd/system/shoal-upgrade.service ]'; shoal upgrade status | sed -n 2p`)
		return fmt.Sprintf("%s; %s; Ready %.1f s after the start", said, back, time.Since(began).Seconds()), err
	})
	r.script(ctx, c, "its count of restarts begins anew", admin+`kubectl delete pod keeper --wait --grace-period=1
`+apply(pod("keeper", 1, ""))+fmt.Sprintf(running, "keeper"))
}

// runUpgrades: three machines go to another version together, by one command on the
// first of them; a build that fails on one of them stops it there.
func runUpgrades(ctx context.Context, r *rig) (err error) {
	dir := filepath.Join(r.dir, r.name)
	made := filepath.Join(dir, "packages")
	what, bin := "packages of two versions, and of one that third does not run", filepath.Join(dir, "bin")
	if !r.step(ctx, what, func(ctx context.Context) (string, error) {
		return "", errors.Join(r.packages(ctx, made, bin), r.brokenPackage(ctx, made, bin,
			build{"3", "v1.36.5+third", "shoal-agent", agentOf("v1.36.5+third",
				"[ $(hostname) != third ] || exit 3\nexec /opt/fleet/third \"$@\"")}),
			r.brokenPackage(ctx, made, bin, build{"4", "v1.36.6+silent", "shoal-coordinator", silent}),
			r.brokenPackage(ctx, made, bin, build{"5", "v1.36.5+third", "shoal-agent", agentOf("v1.36.5+third",
				"exec /opt/fleet/third \"$@\"")}),
			command(ctx, "cp", "-r", bin, filepath.Join(made, "real")),
			r.buildOne(ctx, filepath.Join(made, "third"), "v1.36.5+third", "./agent"))
	}) {
		return nil
	}
	first, err := newContainer(ctx, filepath.Join(dir, "machine"), r.cache)
	if err != nil {
		return err
	}
	c := cluster{first: first}
	defer func() {
		for _, m := range c.nodes {
			err = errors.Join(err, m.remove())
		}
		err = errors.Join(err, first.remove())
	}()
	for i, name := range []string{"second", "third"} {
		m, err := beside(first, filepath.Join(dir, name), name, fmt.Sprintf("10.97.0.%d", 3+i))
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, m)
	}
	for _, m := range c.all() {
		if err := r.unpackaged(ctx, m, made, m == first); err != nil {
			return err
		}
	}
	boots := func(ctx context.Context) (string, error) { return "", each(ctx, c.all(), boot) }
	if !r.step(ctx, "the machines boot", boots) ||
		!r.script(ctx, first, "the first has coordinator and agent", admin+install(1)+enable+runKeeper) {
		return nil
	}
	defer r.showNodes(c)
	for _, m := range c.nodes {
		if _, err := m.sh(ctx, admin+install(1)); err != nil {
			return err
		}
		if !r.becomesNode(ctx, first, m) {
			return nil
		}
	}
	r.script(ctx, first, "each has a pod", admin+"kubectl label nodes second third topology.kubernetes.io/zone=a\n"+
		strings.ReplaceAll(apply(spreadPods), "\t", "  ")+`
until_ 60 kubectl rollout status daemonset/each --timeout=5s
`+containersOf+"containers >/tmp/containers; cat /tmp/containers")
	r.script(ctx, first, "a build that fails on the third stops there, which goes back", admin+containersOf+`
not shoal upgrade --to /opt/fleet/shoal-3.deb --all; grep 'node third: "the old version runs again' /tmp/not || { cat /tmp/not; exit 1; }
shoal upgrade status --all
has node/machine .status.nodeInfo.kubeletVersion v1.36.5+third; has node/second .status.nodeInfo.kubeletVersion v1.36.5+third
has node/third .status.nodeInfo.kubeletVersion "$(/opt/fleet/first --version)"
until_ 30 kubectl wait --for=condition=Ready node --all --timeout=5s
containers | diff /tmp/containers -`)
	r.script(ctx, first, "who is no administrator makes no machine run anything", `
export HOME=/tmp; digest=$(printf x | sha256sum | cut -d' ' -f1)
ask() { curl -s -o /tmp/answer -w '%{http_code}' --cacert /var/lib/shoal/coordinator/pki/ca.crt "$@"; }
[ "$(ask -X PUT --data x https://127.0.0.1:6443/shoal/v1/packages?digest=$digest)" = 403 ]
[ "$(ask https://127.0.0.1:6443/shoal/v1/packages?digest=$digest)" = 403 ]
token=$(kubectl create token default)
[ "$(ask -H "Authorization: Bearer $token" -X PUT --data x https://127.0.0.1:6443/shoal/v1/packages?digest=$digest)" = 403 ]
[ "$(ask -H "Authorization: Bearer $token" https://127.0.0.1:6443/shoal/v1/packages?digest=$digest)" = 403 ]
export KUBECONFIG=/var/lib/shoal/agent/kubeconfig
if kubectl patch node second --type=merge -p '{"metadata":{"annotations":{"shoal-project.io/upgrade":"x"}}}' 2>/tmp/answer; then exit 1; fi
cut -c1-120 /tmp/answer`)
	r.script(ctx, first, "a good one is gone to by all, and no container is started anew", admin+containersOf+`
shoal upgrade --to /opt/fleet/shoal-2.deb --all
[ "$(kubectl get nodes -o jsonpath='{.items[*].status.nodeInfo.kubeletVersion}')" = '`+
		secondVersion+" "+secondVersion+" "+secondVersion+`' ]
containers | diff /tmp/containers -
shoal upgrade --to /opt/fleet/shoal-2.deb --all | grep 'all nodes have'`)
	if r.becomes(ctx, first, c.nodes[0], "coordinator") && r.becomes(ctx, first, c.nodes[1], "coordinator") {
		r.upgradesCoordinators(ctx, first)
	}
	return nil
}

// writes notes each ConfigMap that the API has acknowledged, until it is stopped.
const writes = `cat >/tmp/write.sh <<'END'
export KUBECONFIG=/etc/shoal/admin.kubeconfig HOME=/tmp
run=$(date +%s) n=0
while [ ! -e /tmp/stop ]; do
	n=$((n+1))
	if kubectl create configmap written-$run-$n --request-timeout=5s >/dev/null 2>&1
	then echo written-$run-$n >>/tmp/written; else echo $n >>/tmp/refused; fi
done
END
rm -f /tmp/stop /tmp/written /tmp/refused; touch /tmp/refused; systemd-run -q --unit=writing /bin/sh /tmp/write.sh
`

// written fails when one of them is missing.
const written = `touch /tmp/stop; sleep 1
sort -u /tmp/written >/tmp/acknowledged; [ $(wc -l </tmp/acknowledged) -gt 20 ]
kubectl get configmaps -o name | sed 's,.*/,,' | sort >/tmp/there; comm -23 /tmp/acknowledged /tmp/there >/tmp/lost
echo $(wc -l </tmp/acknowledged) writes acknowledged, $(wc -l </tmp/refused) not, $(wc -l </tmp/lost) lost; [ ! -s /tmp/lost ]
until_ 30 sh -c "shoal coordinators | tail -1 | grep 'One may fail'"
`

// upgradesCoordinators: three coordinators, one of which tries a build that never gets
// ready, and then all of which go to another version, while somebody writes.
func (r *rig) upgradesCoordinators(ctx context.Context, first *container) {
	r.script(ctx, first, "of three coordinators the first comes back from a broken build, with the store of now",
		admin+containersOf+writes+`
not shoal upgrade --to /opt/fleet/shoal-4.deb --all; grep 'node machine: the old version runs again' /tmp/not | cut -c1-150
shoal upgrade status | grep 'the store: kept'
`+written+"containers | diff /tmp/containers -")
	r.script(ctx, first, "all three go to another version, one by one", admin+containersOf+writes+`
shoal upgrade --to /opt/fleet/shoal-5.deb --all
[ "$(kubectl get nodes -o jsonpath='{.items[*].status.nodeInfo.kubeletVersion}')" = "$(for i in 1 2 3; do echo v1.36.5+third; done | xargs)" ]
`+written+"containers | diff /tmp/containers -")
}

// spreadPods prints a DaemonSet.
const spreadPods = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: each}
spec:
  selector: {matchLabels: {app: each}}
  template:
    metadata: {labels: {app: each}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "localhost/busybox:1", command: [sleep, "1000000"]}]
`

// containersOf defines what lists every pod's container, with its restarts.
const containersOf = `containers() { kubectl get pods -o jsonpath='{range .items[*]}{.spec.nodeName} {.metadata.name} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}{"\n"}{end}' | sort; }
`

// unpackaged gives a machine what it needs to install the first version; the first one
// gets all packages.
func (r *rig) unpackaged(ctx context.Context, m *container, packages string, all bool) error {
	fleet := filepath.Join(m.root, "opt/fleet")
	if err := os.MkdirAll(fleet, 0o755); err != nil {
		return err
	}
	if all {
		if err := command(ctx, "cp", "-a", packages+"/.", fleet); err != nil {
			return err
		}
	}
	return errors.Join(
		command(ctx, "cp", "-a", filepath.Join(packages, "shoal-1.deb"), fleet),
		command(ctx, "cp", filepath.Join(packages, "third"), fleet),
		command(ctx, "cp", filepath.Join(r.bin, "shoal-agent"), filepath.Join(fleet, "first")),
		os.Symlink(rootKubeconfig, filepath.Join(m.root, "root/admin.kubeconfig")),
		command(ctx, "install", "-D", "-m", "755",
			filepath.Join(r.bin, "kubectl"), filepath.Join(m.root, "usr/local/bin/kubectl")),
		r.images(filepath.Join(m.dir, "var/lib/shoal/images")), r.images(fleet))
}
