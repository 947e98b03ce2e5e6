package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/shoal-project/shoal/agent/cgroup"
	agentconfig "github.com/shoal-project/shoal/agent/config"
)

// Service is a change for Host: the node is a machine, as Machine's, that outlives its
// agent, which Halt ends and Start starts again, as a service is. Logs of pods are where a
// kubelet has them. The pods' cgroup is at the top of the machine's, which are a namespace of
// their own, and its disk is its own, too: what others use is not the node's.
func Service(a *Agent, cfg *agentconfig.Config) {
	Machine(a, cfg)
	a.service = true
	cfg.PodLogsDir, cfg.ContainerLogsDir = "/var/log/pods", "/var/log/containers"
	cfg.CgroupRoot = ""
}

// serviceInit is the PID 1 of such a machine. It makes the groups that are the machine's
// top, in a namespace of control groups, and mounts them in place of the whole ones. Whatever
// else is below /run on the machine that tests is not seen. Processes are not at the very top
// of cgroup2, where a group with processes passes on no controller (cgroups(7)).
const serviceInit = `set -e
hostname $name
export mounted="$(awk '$(NF-2) ~ /^cgroup/ { print $5, $(NF-2), $NF }' /proc/self/mountinfo)"
echo "$mounted" | while read -r dir kind options; do
	mkdir $dir/$group
	if [ $dir = /sys/fs/cgroup/cpuset ]; then
		cat $dir/cpuset.cpus >$dir/$group/cpuset.cpus
		cat $dir/cpuset.mems >$dir/$group/cpuset.mems
	fi
	if [ $kind = cgroup2 ]; then
		for c in $(cat $dir/cgroup.controllers); do echo +$c >$dir/cgroup.subtree_control; done
	fi
done
for dir in $(echo "$mounted" | cut -d' ' -f1); do echo 0 >$dir/$group/cgroup.procs; done
exec unshare --cgroup sh -c "$rest"
`

// serviceRest is what it does in the namespace. Pods with a user namespace get no /proc unless
// there is one that nothing is mounted on (mount_too_revealing() of the kernel).
const serviceRest = `set -e
mount --make-rprivate /
echo "$mounted" | while read -r dir kind options; do
	umount $dir
	mount -t $kind -o ${options#rw,} cgroup $dir
	[ $kind = cgroup ] || mkdir $dir/init
done
for dir in $(echo "$mounted" | awk '$2 == "cgroup2" { print $1 }'); do echo 0 >$dir/init/cgroup.procs; done
mount --make-rshared /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/proc /run/disk
mount -t proc proc /run/proc
cp /proc/meminfo /run/meminfo
mount --bind /run/meminfo /proc/meminfo
mount -o loop $disk /run/disk
mkdir -p /run/disk/kubelet /run/disk/log/pods /run/disk/log/containers /run/disk/agent
mount --bind /run/disk/kubelet ` + kubeletDir + `
mount --bind /run/disk/log /var/log
mount --bind /run/disk/agent $data
umount /run/disk
trap 'exit 0' TERM
touch $up
while :; do sleep 3600 & wait $!; done
`

// serviceEnter is how a process goes into the groups of the machine that it has entered.
const serviceEnter = `for dir in $(awk '$(NF-2) == "cgroup" { print $5 } $(NF-2) == "cgroup2" { print $5 "/init" }' \
	/proc/self/mountinfo); do
	echo 0 >$dir/cgroup.procs || exit
done
exec "$0" "$@"`

// group is the machine's top group, in each hierarchy.
func (a *Agent) group() string { return a.cluster.Name + "-" + a.Name }

// removeGroups removes the machine's groups, which its pods' are gone from.
func (a *Agent) removeGroups() error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var errs []error
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		switch f[len(f)-3] {
		case "cgroup2":
			errs = append(errs, os.Remove(filepath.Join(f[4], a.group(), "init")))
			fallthrough
		case "cgroup":
			errs = append(errs, os.Remove(filepath.Join(f[4], a.group())))
		}
	}
	return errors.Join(errs...)
}

func (a *Agent) startService(logs *os.File) error {
	if a.init == nil {
		if err := a.startInit(logs); err != nil {
			return err
		}
	}
	if a.Running() {
		return errors.New("the agent runs already")
	}
	a.cmd = a.Command(filepath.Join(a.cluster.Bin, "shoal-agent"), "--config", a.config)
	a.cmd.Stdout, a.cmd.Stderr = logs, logs
	if err := a.cmd.Start(); err != nil {
		return err
	}
	cmd, ended := a.cmd, make(chan struct{})
	a.ended = ended
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return nil
}

// diskSize is that of such a machine's disk, most of which is a hole.
const diskSize = 24 << 30

func (a *Agent) newDisk(file string) error {
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, diskSize)); err != nil {
		return err
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-O", "^has_journal", file).CombinedOutput(); err != nil {
		return fmt.Errorf("make a disk of %s (mkfs.ext4 is in Debian's e2fsprogs): %w: %s", a.Name, err, out)
	}
	return nil
}

func (a *Agent) startInit(logs *os.File) error {
	for _, dir := range []string{kubeletDir, a.path("agent")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// Users of pods with a user namespace come through to their containers.
	if err := os.Chmod(a.Dir, 0o711); err != nil {
		return err
	}
	if err := a.newDisk(a.path("disk")); err != nil {
		return err
	}
	root, err := cgroup.Open(cgroup.Cgroupfs)
	if err != nil {
		return err
	}
	up := a.path("up")
	a.init = in(a.NetNS, "sh", "-c", serviceInit)
	a.init.Env = append(os.Environ(), "name="+a.Name, "group="+a.group(), "rest="+serviceRest,
		"disk="+a.path("disk"), "data="+a.path("agent"), "up="+up)
	a.init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS,
	}
	a.init.Stdout, a.init.Stderr = logs, logs
	if err := a.init.Start(); err != nil {
		a.init = nil
		return err
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(up); err == nil {
			return a.tellMemory(root)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("machine %s does not come up: %s", a.Name, a.Logs())
		}
	}
}

// Root is the directory of such a machine's files, as this process sees them.
func (a *Agent) Root() string { return fmt.Sprintf("/proc/%d/root", a.init.Process.Pid) }

// Config is the file of the agent's configuration.
func (a *Agent) Config() string { return a.config }

// Running tells whether the agent of such a machine runs.
func (a *Agent) Running() bool {
	if a.ended == nil {
		return false
	}
	select {
	case <-a.ended:
		return false
	default:
		return true
	}
}

// Halt sends the agent of such a machine a signal and waits for its end.
func (a *Agent) Halt(s syscall.Signal) error {
	for deadline := time.Now().Add(10 * time.Second); a.Running(); time.Sleep(20 * time.Millisecond) {
		pid, err := a.agentPid()
		if err == nil {
			if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
			<-a.ended
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
	}
	return nil
}

// agentPid is the agent's process as this process sees it: the child of the one that
// entered the machine. In its first moment there is none yet.
func (a *Agent) agentPid() (int, error) {
	parent := a.cmd.Process.Pid
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(children)))
}

// stopService ends the agent, has its leavings removed and ends the machine.
func (a *Agent) stopService() error {
	var errs []error
	if a.Running() {
		errs = append(errs, a.Halt(syscall.SIGTERM))
	}
	out, err := a.Command(filepath.Join(a.cluster.Bin, "shoal-agent"), "cleanup", "--purge",
		"--config", a.config).CombinedOutput()
	if err != nil {
		errs = append(errs, fmt.Errorf("cleanup of %s: %w: %s", a.Name, err, out))
	}
	if a.memory != nil {
		close(a.memory)
	}
	errs = append(errs, a.init.Process.Signal(syscall.SIGTERM), a.init.Wait(), a.removeGroups(), os.RemoveAll(a.Dir))
	a.init = nil
	return errors.Join(errs...)
}
