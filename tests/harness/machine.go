package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	agentconfig "github.com/shoal-project/shoal/agent/config"
)

// kubeletDir is where programs that are written for Kubernetes expect a node's
// directory: drivers of volumes have it in their manifests.
const kubeletDir = "/var/lib/kubelet"

// Machine is a change for Host: the node gets its own mounts, processes and host
// name beside its network, so that PID 1, what pods mount for the host to see
// and kubeletDir are the node's own. Its files are the machine's that tests.
func Machine(a *Agent, cfg *agentconfig.Config) {
	a.machine, cfg.RootDir = true, kubeletDir
}

// Identify has the machine believe that it is the one of that ID, and no other.
func (a *Agent) Identify(id string) error {
	a.id = a.path("machine-id")
	return os.WriteFile(a.id, []byte(id+"\n"), 0o444)
}

// Disk has the machine keep its volumes on a disk of its own: an image of a file
// system, which is removed with the machine.
func (a *Agent) Disk(image string) { a.disk = image }

// machineInit is a machine's PID 1. It ends with the agent, or removes what the
// agent made and then ends, when it is told to.
const machineInit = `set -e
hostname "$0"
mount --make-rprivate /
mount --make-rshared /
mount -t proc proc /proc
mount --bind "$1" ` + kubeletDir + `
[ -z "$4" ] || mount -o loop "$4" "$5"
[ -z "$6" ] || for id in /etc/machine-id /sys/class/dmi/id/product_uuid; do
	[ ! -e $id ] || mount --bind "$6" $id
done
stopped=
agent=
trap 'stopped=1; kill -TERM $agent' TERM
"$2" --config "$3" &
agent=$!
set +e
while kill -0 $agent 2>/dev/null; do wait $agent; done
[ -z "$stopped" ] || "$2" cleanup --purge --config "$3"
`

// startMachine starts the machine with its agent.
func (a *Agent) startMachine(logs *os.File) error {
	volumes := a.path("agent", "local-volumes")
	for _, dir := range []string{kubeletDir, a.path("kubelet"), volumes} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	a.cmd = in(a.NetNS, "sh", "-c", machineInit, a.Name, a.path("kubelet"),
		filepath.Join(a.cluster.Bin, "shoal-agent"), a.config, a.disk, volumes, a.id)
	a.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS,
	}
	a.cmd.Stdout, a.cmd.Stderr = logs, logs
	return a.cmd.Start()
}

// stopMachine has the agent's leavings removed, and ends the machine.
func (a *Agent) stopMachine() error {
	_ = a.cmd.Process.Signal(syscall.SIGTERM)
	err := a.cmd.Wait()
	a.cmd = nil
	if err != nil {
		err = fmt.Errorf("machine %s: %w: %s", a.Name, err, a.Logs())
	}
	return errors.Join(err, os.RemoveAll(a.Dir))
}

// Command returns a command that runs on the node: on a machine, among its
// processes and mounts.
func (a *Agent) Command(name string, args ...string) *exec.Cmd {
	first := a.cmd
	if a.init != nil {
		first = a.init
	}
	if !a.machine || first == nil {
		return in(a.NetNS, name, args...)
	}
	enter := []string{fmt.Sprintf("--target=%d", first.Process.Pid), "--net", "--mount", "--pid", "--uts"}
	if a.service {
		enter = append(enter, "--cgroup", "--", "sh", "-c", serviceEnter)
	} else {
		enter = append(enter, "--")
	}
	return exec.Command("nsenter", append(append(enter, name), args...)...)
}
