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

// broken are builds that an upgrade has to come back from: programs that stand for
// those of the second version, which lie in /opt/fleet/real.
var broken = []struct{ name, version, program, text string }{
	{"3", "v1.36.5+refused", "shoal-coordinator", "#!/bin/sh\necho 'field serviceCIDR: no longer known' >&2\nexit 1\n"},
	{"4", "v1.36.6+ends", "shoal-agent", agentOf("v1.36.6+ends", "exit 3")},
	// It serves the API and writes to the store, and never says that it is ready.
	{"5", "v1.36.7+silent", "shoal-coordinator", `#!/bin/sh
[ "$1" != check ] || exit 0
unset NOTIFY_SOCKET
exec /opt/fleet/real/shoal-coordinator "$@"
`},
	// It says that it is ready at once, and ends a little later, again and again.
	{"6", "v1.36.8+falls", "shoal-agent", agentOf("v1.36.8+falls",
		"systemd-notify --ready --pid=$$; sleep 2; exit 4")},
}

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
	c, err := newContainer(ctx, filepath.Join(dir, "machine"), r.cache, "var")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.remove()) }()
	if err := r.equip(ctx, c, made); err != nil {
		return err
	}
	if !r.step(ctx, "the machine boots", func(ctx context.Context) (string, error) { return "", c.boot(ctx) }) {
		return nil
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
	r.script(ctx, c, "a build whose agent ends at its start is gone back from", admin+returns("4")+
		"grep 'shoal-agent.service does not get ready' /tmp/not")
	r.script(ctx, c, "one whose coordinator serves and never gets ready, and the old store with it", admin+
		returns("5")+"grep 'the store is that of before' /tmp/not")
	r.script(ctx, c, "one whose agent ends again and again after it was ready", admin+returns("6"))
	r.powerCut(ctx, c)
	r.script(ctx, c, "a good one is gone to", admin+around("shoal upgrade --to /opt/fleet/shoal-2.deb >/tmp/upgrade || { cat /tmp/upgrade; exit 1; }")+`
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
		wrong := bin + "-wrong"
		err := errors.Join(command(ctx, "cp", "-r", bin, wrong), os.WriteFile(filepath.Join(wrong, b.program), []byte(b.text), 0o755))
		if b.program != "shoal-agent" { // the agent tells the version
			err = errors.Join(err, os.WriteFile(filepath.Join(wrong, "shoal-agent"), []byte(agentOf(b.version,
				"exec /opt/fleet/real/shoal-agent \"$@\"")), 0o755))
		}
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, filepath.Join(r.source, "hack", "package.sh"), Deb, b.version, dir)
		cmd.Env = append(os.Environ(), "BIN="+wrong, "GO="+r.gotool)
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("package.sh: %w: %s", err, out)
		}
		if err := os.Rename(strings.TrimSpace(string(out)), filepath.Join(dir, "shoal-"+b.name+".deb")); err != nil {
			return err
		}
		if err := os.RemoveAll(wrong); err != nil {
			return err
		}
	}
	return command(ctx, "cp", "-r", bin, filepath.Join(dir, "real"))
}

// Deb is the format of the packages here.
const Deb = "deb"

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
func returns(number string) string {
	return hostPID + stays + `
kubectl create configmap before-` + number + `
not shoal upgrade --to /opt/fleet/shoal-` + number + `.deb
grep 'the old version runs again' /tmp/not
took=$(($(date +%s)-began)); [ $took -le 75 ]
until_ 20 has node/machine .status.nodeInfo.kubeletVersion "$(shoal-agent --version)"
until_ 30 kubectl wait --for=condition=Ready node --all --timeout=5s
dpkg -s shoal | grep -q '^Version: 1.36.3'; [ -z "$(dpkg -V shoal | grep -v /etc/shoal/agent.yaml)" ]; grep -q 'fleet: mine' /etc/shoal/agent.yaml
[ ! -e /etc/systemd/system/shoal-upgrade.service ]; not systemctl -q is-enabled shoal-upgrade
until_ 30 kubectl logs keeper; pod_stays
kubectl get configmap before-` + number + ` >/dev/null
shoal upgrade status | grep '^returned'
sed -n 's/.*"\(tried\|back\)Seconds": \(.*\),*/\1 \2 s/p' /var/lib/shoal/upgrade/record.json
`
}

// powerCut has the machine lose power while it watches a broken build.
func (r *rig) powerCut(ctx context.Context, c *container) {
	r.step(ctx, "power is lost while the new version is watched: the old one starts", func(ctx context.Context) (string, error) {
		said, err := c.sh(ctx, admin+`systemd-run -q --unit=upgrading shoal upgrade --to /opt/fleet/shoal-5.deb
until_ 60 grep -q '"phase": "watching"' /var/lib/shoal/upgrade/record.json; dpkg -s shoal | grep ^Version`)
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
