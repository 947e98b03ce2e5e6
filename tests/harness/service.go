package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	agentconfig "github.com/shoal-project/shoal/agent/config"
)

// Service is a change for Host: the node is a machine, as Machine's, that outlives its
// agent, which Halt ends and Start starts again, as a service is. Logs of pods are where a
// kubelet has them, and the pods' cgroup is at the top, so there can be one at a time.
func Service(a *Agent, cfg *agentconfig.Config) {
	Machine(a, cfg)
	a.service = true
	cfg.PodLogsDir, cfg.ContainerLogsDir = "/var/log/pods", "/var/log/containers"
	cfg.CgroupRoot = ""
}

// serviceInit is the PID 1 of such a machine. Whatever else is below /run on the machine
// that tests is not seen.
const serviceInit = `set -e
hostname "$0"
mount --make-rprivate /
mount --make-rshared /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mount --bind "$1" ` + kubeletDir + `
mount --bind "$2" /var/log
trap 'exit 0' TERM
touch "$3"
while :; do sleep 3600 & wait $!; done
`

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
	return a.cmd.Start()
}

func (a *Agent) startInit(logs *os.File) error {
	for _, dir := range []string{kubeletDir, a.path("kubelet"), a.path("var-log", "pods"), a.path("var-log",
		"containers")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// Users of pods with a user namespace come through to their containers.
	if err := os.Chmod(a.Dir, 0o711); err != nil {
		return err
	}
	up := a.path("up")
	a.init = in(a.NetNS, "sh", "-c", serviceInit, a.Name, a.path("kubelet"), a.path("var-log"), up)
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
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("machine %s does not come up: %s", a.Name, a.Logs())
		}
	}
}

// Config is the file of the agent's configuration.
func (a *Agent) Config() string { return a.config }

// Running tells whether the agent of such a machine runs.
func (a *Agent) Running() bool {
	_, err := a.agentPid()
	return err == nil
}

// Halt sends the agent of such a machine a signal and waits for its end.
func (a *Agent) Halt(s syscall.Signal) error {
	pid, err := a.agentPid()
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, s); err != nil {
		return err
	}
	_ = a.cmd.Wait()
	a.cmd = nil
	return nil
}

// agentPid is the agent's process as this process sees it: the child of the one that
// entered the machine.
func (a *Agent) agentPid() (int, error) {
	if a.cmd == nil {
		return 0, errors.New("the agent does not run")
	}
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
	errs = append(errs, a.init.Process.Signal(syscall.SIGTERM), a.init.Wait(), os.RemoveAll(a.Dir))
	a.init = nil
	return errors.Join(errs...)
}
