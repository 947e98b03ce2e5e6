package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Versions of the two packages: the second one's programs tell it.
const (
	firstVersion  = "v1.36.3+fleet.1"
	secondVersion = "v1.36.4+fleet.2"
)

// runPackage has packages come to and go from a machine that has never seen Shoal.
func runPackage(ctx context.Context, r *rig) (err error) {
	dir := filepath.Join(r.dir, r.name)
	made := filepath.Join(dir, "packages")
	if !r.step(ctx, "packages of two versions are made",
		func(ctx context.Context) (string, error) { return "", r.packages(ctx, made, filepath.Join(dir, "bin")) }) {
		return nil
	}
	c, remove, ok, err := r.bare(ctx, dir, made)
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil || !ok {
		return err
	}
	defer r.showOnFailure(c)
	r.script(ctx, c, "the rpm has the files, configuration and scripts of the deb", sameFiles)
	var before string
	if !r.step(ctx, "what is on it is listed", func(ctx context.Context) (_ string, err error) {
		before, err = c.sh(ctx, lists)
		return fmt.Sprintf("%d lines", strings.Count(before, "\n")+1), err
	}) {
		return nil
	}
	if !r.firstMachine(ctx, c) || !r.upgrade(ctx, c) {
		return nil
	}
	r.script(ctx, c, "remove with ON_REMOVE=keep leaves the pod to the next installation", admin+kept)
	r.script(ctx, c, "remove ends the pod as its grace period says, and keeps the state", admin+stopped)
	r.script(ctx, c, "purge", "apt-get purge -qqy shoal 2>&1 | tail -1")
	r.nothingLeft(ctx, c, "nothing is left after the purge", before)
	r.script(ctx, c, "the package comes again, and is purged while its pod runs", admin+install(1)+enable+runKeeper+`
sed -i s/^ON_REMOVE=stop/ON_REMOVE=keep/ /etc/default/shoal
`+hostPID+`pid=$(pid_of keeper)
apt-get purge -qqy shoal`+orTell+`
not kill -0 $pid; grep '^shoal:' /tmp/apt`)
	r.nothingLeft(ctx, c, "nothing is left of that either", before)
	r.script(ctx, c, "remove with ON_REMOVE=drain waits for the pods to go", admin+drained)
	r.script(ctx, c, "rpm installs, upgrades around the pod, and removes with it", admin+byRPM)
	return nil
}

// bare boots a machine that has packages, none of them installed; the returned function
// removes it.
func (r *rig) bare(ctx context.Context, dir, packages string) (c *container, remove func() error, ok bool, err error) {
	remove = func() error { return nil }
	// All of /var is on the disk: a directory for each of Shoal's would be there
	// before the package, and after it.
	if c, err = newContainer(ctx, filepath.Join(dir, "machine"), r.cache, "var"); err != nil {
		return c, remove, false, err
	}
	if err := r.equip(ctx, c, packages); err != nil {
		return c, c.remove, false, err
	}
	ok = r.step(ctx, "the machine boots", func(ctx context.Context) (string, error) { return "", c.boot(ctx) })
	return c, c.remove, ok, nil
}

// packages makes a deb and an rpm of each version in dir; bin is for the programs of
// the second one.
func (r *rig) packages(ctx context.Context, dir, bin string) error {
	err := errors.Join(os.MkdirAll(bin, 0o755), os.MkdirAll(dir, 0o755), r.buildAs(ctx, bin, secondVersion))
	if err != nil {
		return err
	}
	for _, format := range []string{"deb", "rpm"} {
		err := errors.Join(r.pack(ctx, format, firstVersion, r.bin, filepath.Join(dir, "shoal-1."+format)),
			r.pack(ctx, format, secondVersion, bin, filepath.Join(dir, "shoal-2."+format)))
		if err != nil {
			return err
		}
	}
	return nil
}

// alteredPackage makes a deb of the first version, with the altered library, in dir.
func (r *rig) alteredPackage(ctx context.Context, dir string) error {
	bin := filepath.Join(dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	overlay, err := overlay(ctx, r.gotool, dir)
	if err != nil {
		return err
	}
	r.buildFlags = []string{"-overlay", overlay}
	defer func() { r.buildFlags = nil }()
	if err := r.buildAs(ctx, bin, firstVersion); err != nil {
		return err
	}
	return r.pack(ctx, "deb", firstVersion, bin, filepath.Join(dir, "shoal-1.deb"))
}

// pack makes a package of the programs in bin.
func (r *rig) pack(ctx context.Context, format, version, bin, to string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(r.source, "hack", "package.sh"), format, version, filepath.Dir(to))
	cmd.Env = append(os.Environ(), "BIN="+bin, "GO="+r.gotool)
	out, err := cmd.Output() // the file's name
	if err != nil {
		return fmt.Errorf("package.sh %s %s: %w: %s", format, version, err, out)
	}
	return os.Rename(strings.TrimSpace(string(out)), to)
}

// buildAs builds the programs of another version, with the linker's flags of the Makefile.
func (r *rig) buildAs(ctx context.Context, dir, version string) error {
	for name, source := range map[string]string{
		"shoal": "./agent/shoal", "shoal-agent": "./agent", "shoal-coordinator": "./coordinator",
		"shoal-cni": "./cni/shoal-cni", "shoal-pause": "./agent/pause", "shoal-hybrid": "./agent/oci/shoal-hybrid",
		"shoal-fence": "./agent/fence/shoal-fence", "shoal-tunnel": "./cni/shoal-tunnel",
		"shoal-gateway": "./agent/gatewayproxy/shoal-gateway",
	} {
		if err := r.buildOne(ctx, filepath.Join(dir, name), version, source); err != nil {
			return err
		}
	}
	return nil
}

func (r *rig) buildOne(ctx context.Context, out, version, source string) error {
	const product = "github.com/shoal-project/shoal/"
	release, _, _ := strings.Cut(version, "+")
	flags := "-s -w -X " + product + "agent/node.Version=" + version +
		" -X " + product + "coordinator/apiserver.gitVersion=" + release
	args := slices.Concat([]string{"build", "-ldflags", flags, "-o", out}, r.buildFlags, []string{source})
	cmd := exec.CommandContext(ctx, r.gotool, args...)
	cmd.Dir, cmd.Env = r.source, append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", source, err, said)
	}
	return nil
}

// sameFiles compares what dpkg and rpm say of the first version's packages.
const sameFiles = `cd /opt/fleet; t=$(mktemp -d)
zsh=s,/zsh/vendor-completions/,/zsh/site-functions/,
dpkg-deb --fsys-tarfile shoal-1.deb | tar -t | grep -v '/$' | sed "s,^\.,,;$zsh" | sort >$t/files.deb
rpm -qpl shoal-1.rpm | sort >$t/files.rpm
diff $t/files.deb $t/files.rpm
dpkg-deb -I shoal-1.deb conffiles | grep . | sort >$t/conf.deb; rpm -qpc shoal-1.rpm | sort >$t/conf.rpm
diff $t/conf.deb $t/conf.rpm
rpm -qp --scripts shoal-1.rpm >$t/scripts
for s in postinst:postinstall prerm:preuninstall postrm:postuninstall; do
	grep -q "^${s#*:} scriptlet" $t/scripts
	dpkg-deb -I shoal-1.deb ${s%:*} | grep -v '^$' | while IFS= read -r line; do grep -qxF -e "$line" $t/scripts; done
done
rpm -qp --requires shoal-1.rpm | grep -qx conmon
echo $(wc -l <$t/files.rpm) files, $(wc -l <$t/conf.rpm) of configuration`

// equip gives a machine its own /var, the packages, kubectl and an image archive.
func (r *rig) equip(ctx context.Context, c *container, packages string) error {
	fleet := filepath.Join(c.root, "opt/fleet")
	return errors.Join(
		command(ctx, "cp", "-a", filepath.Join(r.cache, "rootfs", "var")+"/.", filepath.Join(c.dir, "var")),
		os.Mkdir(fleet, 0o755),
		command(ctx, "cp", "-a", packages+"/.", fleet),
		os.Symlink(rootKubeconfig, filepath.Join(c.root, "root/admin.kubeconfig")),
		command(ctx, "install", "-D", "-m", "755",
			filepath.Join(r.bin, "kubectl"), filepath.Join(c.root, "usr/local/bin/kubectl")),
		r.images(fleet))
}

// lists prints what a purge has to bring back; files of /etc with what they hold. What
// the machine itself, dpkg and apt write is left out, and the copies of the files of
// accounts (passwd-) that each change leaves.
const lists = `
nft list ruleset | sed 's/^/nft /'
ip -o link | cut -d: -f2 | sed 's/^/link/'
ip rule | sed 's/^/rule /'; ip route show table all | sed 's/^/route /'
cut -d' ' -f4,5 /proc/self/mountinfo | sort | sed 's/^/mount /'
find /sys/fs/cgroup -type d | grep -v -e '/system.slice/' -e '/init.scope' | sort | sed 's/^/group /'
ls -A /run | sort | sed 's/^/run /'
find / /var -xdev \( -path /tmp -o -path /var/log/journal -o -path /var/lib/systemd -o -path /var/tmp -o -path '/var/lib/dpkg/*-old' \
	-o -path /var/lib/dpkg/triggers -o -path /var/log/dpkg.log -o -path /var/log/apt -o -path /var/cache/apt \
	-o -path /var/lib/apt -o -path /var/lib/rpm \) -prune -o -printf 'file %y %m %u %g %p %l\n' | sort
find /etc -type f ! -name '*-' | sort | xargs -d '\n' sha256sum | sed 's/^/sum /'`

// nothingLeft compares the machine with what it was.
func (r *rig) nothingLeft(ctx context.Context, c *container, what, before string) {
	r.step(ctx, what, func(ctx context.Context) (string, error) {
		after, err := c.sh(ctx, lists)
		if err != nil {
			return "", err
		}
		was, is := strings.Split(before, "\n"), strings.Split(after, "\n")
		var diff []string
		for _, line := range was {
			if !slices.Contains(is, line) {
				diff = append(diff, "- "+line)
			}
		}
		for _, line := range is {
			if !slices.Contains(was, line) {
				diff = append(diff, "+ "+line)
			}
		}
		if len(diff) > 0 {
			return "", errors.New(strings.Join(diff, "\n"))
		}
		return fmt.Sprintf("%d lines are the same", len(was)), nil
	})
}

// rootKubeconfig is what the agent's unit writes for the machine's root.
const rootKubeconfig = "/etc/shoal/admin.kubeconfig"

// admin is before scripts that use kubectl, which writes files of its own, and apt.
const admin = "export HOME=/tmp DEBIAN_FRONTEND=noninteractive\n" +
	// not COMMAND… wants it to fail: the shell's ! would not end a script.
	"not() { if \"$@\" >/tmp/not 2>&1; then echo \"should fail: $*\"; cat /tmp/not; return 1; fi; }\n"

// install installs the package of a number, without a network.
func install(number int) string {
	return fmt.Sprintf("apt-get install -qqy --no-install-recommends /opt/fleet/shoal-%d.deb", number) + orTell
}

// orTell ends a script where apt failed, with what it said.
const orTell = " >/tmp/apt 2>&1 || { cat /tmp/apt; exit 1; }\n"

// enable is all that the first machine of a cluster needs.
const enable = `systemctl enable -q --now shoal-coordinator shoal-agent
until_ 120 kubectl wait --for=condition=Ready node --all --timeout=5s
`

// runKeeper has the agent's configuration changed: the disk is the host's, whose
// pressure is not the matter here.
var runKeeper = `printf 'evictionHard: {nodefs.available: 1%%, imagefs.available: 1%%}\nnodeLabels: {fleet: mine}\n' >>/etc/shoal/agent.yaml
systemctl restart shoal-agent
until_ 30 shoal images import /opt/fleet/busybox.tar
` + apply(pod("keeper", 1, "")) + fmt.Sprintf(running, "keeper")

func (r *rig) firstMachine(ctx context.Context, c *container) bool {
	return r.script(ctx, c, "apt installs it; nothing starts by itself", admin+install(1)+`
grep '^shoal:' /tmp/apt
for u in shoal-coordinator shoal-agent; do
	not systemctl -q is-active $u
	not systemctl -q is-enabled $u
done
getent passwd shoal-coordinator >/dev/null; [ "$(stat -c '%a %U' /var/lib/shoal)" = '711 root' ]
grep -q __start_shoal /usr/share/bash-completion/completions/shoal
zcat /usr/share/man/man8/shoal-agent.8.gz | grep -q '^.TH "SHOAL-AGENT" "8"'`) &&
		r.script(ctx, c, "systemctl enable --now makes a node that is Ready", admin+enable+`
[ "$(stat -c '%a %U' `+rootKubeconfig+`)" = '600 root' ]; [ "$(stat -c '%a %U' /var/lib/shoal/agent/kubeconfig)" = '600 root' ]
echo $(systemctl show -p Id,ActiveState,NRestarts shoal-coordinator shoal-agent)`) &&
		r.script(ctx, c, "a pod runs", admin+runKeeper+"kubectl get pod keeper --no-headers | tr -s ' '")
}

func (r *rig) upgrade(ctx context.Context, c *container) bool {
	return r.script(ctx, c, "an upgrade keeps the pod's process and what the administrator changed",
		admin+around(install(2))+"\nfor u in shoal-coordinator shoal-agent; do systemctl -q is-enabled $u; done")
}

// around upgrades to the second version by a command, around a pod that runs.
func around(upgrade string) string {
	return hostPID + `
before=$(pid_of keeper); conmon=$(ps -o ppid= -p $before)
` + upgrade + `
until_ 60 has node/machine .status.nodeInfo.kubeletVersion ` + secondVersion + `
until_ 60 kubectl wait --for=condition=Ready node --all --timeout=5s
kubectl get --raw /version | grep -q '"gitVersion": "v1.36.4"'
until_ 60 kubectl logs keeper
[ "$(pid_of keeper)" = "$before" ]; kill -0 $before; [ "$(ps -o ppid= -p $before)" = "$conmon" ]
has pod/keeper '.status.containerStatuses[0].restartCount' 0
has node/machine .metadata.labels.fleet mine
for u in shoal-coordinator shoal-agent; do systemctl -q is-active $u; done
echo process $before stays, $(field node/machine .status.nodeInfo.kubeletVersion)`
}

// byRPM does with rpm what was done with dpkg; the machine's database has nothing of
// what it needs.
var byRPM = "rpm -i --nodeps /opt/fleet/shoal-1.rpm\n" + enable + runKeeper +
	around("rpm -U --nodeps /opt/fleet/shoal-2.rpm") + `
rpm -e shoal
not kill -0 $before; not pgrep -a conmon; not systemctl -q is-active shoal-agent
[ -z "$(nft list tables)" ]; not ip link show shoal0
[ -e /etc/shoal/agent.yaml.rpmsave ]; [ ! -e /usr/bin/shoal ]`

// kept removes the package around a pod that runs, and installs it again.
var kept = hostPID + `
before=$(pid_of keeper)
sed -i s/^ON_REMOVE=stop/ON_REMOVE=keep/ /etc/default/shoal
apt-get remove -qqy shoal` + orTell + `
grep '^shoal:' /tmp/apt
kill -0 $before; [ ! -e /usr/bin/shoal-agent ]; not pgrep -x shoal-agent; not pgrep -f ^/usr/bin/shoal-coordinator
` + install(2) + enable + `
until_ 60 kubectl logs keeper
[ "$(pid_of keeper)" = "$before" ]; kill -0 $before
has pod/keeper '.status.containerStatuses[0].restartCount' 0
[ ! -e /var/lib/shoal/removed ]
sed -i s/^ON_REMOVE=keep/ON_REMOVE=stop/ /etc/default/shoal`

// drained removes the package once no pod is left that nobody makes anew.
var drained = install(1) + enable + runKeeper + `
sed -i s/^ON_REMOVE=stop/ON_REMOVE=drain/ /etc/default/shoal
if apt-get remove -qqy shoal >/tmp/apt 2>&1; then cat /tmp/apt; exit 1; fi
grep keeper /tmp/apt; systemctl -q is-active shoal-agent
kubectl delete pod keeper
apt-get remove -qqy shoal` + orTell + `
grep 'has forgotten' /tmp/apt
[ ! -e /usr/bin/shoal ]; [ -z "$(nft list tables)" ]
apt-get purge -qqy shoal` + orTell + `
[ ! -e /var/lib/shoal ]`

// stopped removes the package with its pods.
const stopped = hostPID + `
before=$(pid_of keeper); log=$(ls -d /var/log/pods/default_keeper_*)/main/0.log; tail -f $log >/tmp/log & tail=$!
apt-get remove -qqy shoal >/tmp/apt 2>&1 || { cat /tmp/apt; kill $tail; exit 1; }
kill $tail
grep '^shoal:' /tmp/apt
not kill -0 $before; not pgrep -a conmon
grep -q ended /tmp/log
[ -z "$(nft list tables)" ]; not grep -e /var/lib/kubelet -e /run/shoal /proc/self/mountinfo; not ip link show shoal0
[ -d /var/lib/shoal/coordinator/etcd ]; [ -d /var/lib/shoal/agent/image ]; [ -e /etc/shoal/agent.yaml ]
dpkg-query -W -f '${Status}\n' shoal`
