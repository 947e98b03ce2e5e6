package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	criclient "k8s.io/cri-client/pkg"

	"github.com/shoal-project/shoal/tests/harness"
	"github.com/shoal-project/shoal/tests/upstream"
)

// With -containerd the node's runtime is a containerd of the run's own, which answers while
// the agent is stopped. With -criproxy the suite's proxy is between both: it makes it before
// its first request to the API, which waits here until the agent uses the proxy.

// outsideRuntime is the containerd of a node.
type outsideRuntime struct {
	upstream.Containerd
	agent *harness.Agent
	log   *os.File

	mu  sync.Mutex
	cmd *exec.Cmd // nil: it does not run
}

// outsideDir is a path in the directory of a node's containerd.
func outsideDir(a *harness.Agent, elem ...string) string {
	return filepath.Join(append([]string{a.Dir, "ctrd"}, elem...)...)
}

// containerdPrograms is where containerd is built, for other rigs too.
func containerdPrograms(bin string) string { return filepath.Join(bin, "peer") }

// newOutsideRuntime prepares a node's containerd, which keeps its images on the node's disk.
func newOutsideRuntime(a *harness.Agent, cache, bin, registries string) (*outsideRuntime, error) {
	if err := os.Mkdir(outsideDir(a), 0o711); err != nil {
		return nil, err
	}
	r := &outsideRuntime{agent: a, Containerd: upstream.Containerd{
		Programs:   containerdPrograms(bin),
		Bin:        bin,
		Dir:        outsideDir(a),
		Root:       filepath.Join(a.Dir, "agent", "containerd"),
		Pause:      pauseImage(cache).ref,
		Registries: registries,
		Handlers:   []string{testHandler},
	}}
	var err error
	if r.log, err = os.Create(outsideDir(a, "log")); err != nil {
		return nil, err
	}
	return r, r.Write()
}

// start starts it on the node, which is up, and imports the archives of images.
func (r *outsideRuntime) start(archives string) error {
	if err := r.run(); err != nil {
		return err
	}
	list, err := filepath.Glob(filepath.Join(archives, "*.tar"))
	if err != nil {
		return err
	}
	for _, archive := range list {
		command := r.Import(archive)
		if out, err := r.agent.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("import %s: %w: %s", archive, err, out)
		}
	}
	return nil
}

// run has it run; it returns when it answers.
func (r *outsideRuntime) run() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd != nil {
		return nil
	}
	command := r.Command()
	cmd := r.agent.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = r.log, r.log
	if err := cmd.Start(); err != nil {
		return err
	}
	r.cmd = cmd
	if err := answers(func() (net.Conn, error) { return net.Dial("unix", r.Socket()) }); err != nil {
		text, _ := os.ReadFile(r.log.Name())
		return fmt.Errorf("containerd: %w: %s", err, text)
	}
	return nil
}

// halt ends it; what it runs goes on.
func (r *outsideRuntime) halt() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd == nil {
		return nil
	}
	pid, err := child(r.cmd.Process.Pid)
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGTERM)
	}
	if err != nil {
		return err
	}
	_ = r.cmd.Wait()
	r.cmd = nil
	return nil
}

// stop removes all pods, whose agent has ended, and ends it.
func (r *outsideRuntime) stop() error {
	err := r.removePods()
	// The agent makes no groups of pods where the runtime is another's, which leaves those of its
	// containers' parents.
	if out, ferr := r.agent.Command("find", "/sys/fs/cgroup", "-depth", "-type", "d", "-path", "*/kubepods*", "-delete").
		CombinedOutput(); ferr != nil {
		err = errors.Join(err, fmt.Errorf("remove the groups of pods: %w: %s", ferr, out))
	}
	return errors.Join(err, r.halt(), r.log.Close())
}

// child is the process in a machine that a command's process, which has entered it, waits for.
func child(pid int) (int, error) {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(children)))
}

func (r *outsideRuntime) removePods() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cri, err := criclient.NewRemoteRuntimeService(ctx, "unix://"+r.Socket(), time.Minute, nil, false)
	if err != nil {
		return err
	}
	defer cri.Close(ctx)
	list, err := cri.ListPodSandbox(ctx, &criv1.PodSandboxFilter{})
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range list {
		errs = append(errs, cri.StopPodSandbox(ctx, s.Id), cri.RemovePodSandbox(ctx, s.Id))
	}
	return errors.Join(errs...)
}

// proxySockets are where proxies of the suite listen, also those of other runs.
const proxySockets = "/tmp/kubelet_remote_proxy_*.sock"

// attached passes requests on once the agent uses the suite's proxy.
func (n *nodeMachine) attached(api http.Handler) http.Handler {
	attach := sync.OnceValue(n.attach)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := attach(); err != nil {
			fmt.Fprintln(os.Stderr, "conformance:", err)
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		api.ServeHTTP(w, r)
	})
}

// attach has the agent use the suite's proxy in place of the runtime.
func (n *nodeMachine) attach() error {
	list, err := filepath.Glob(proxySockets)
	if err != nil {
		return err
	}
	machine, err := os.Readlink(filepath.Join(filepath.Dir(n.agent.Root()), "ns", "pid"))
	if err != nil {
		return err
	}
	for _, socket := range list {
		if pid, err := listener(socket); err != nil || !inNamespace(pid, machine) {
			continue
		}
		n.mu.Lock()
		n.base["containerRuntimeEndpoint"] = "unix://" + socket
		n.proxySocket = socket
		n.mu.Unlock()
		return n.unit("restart")
	}
	return errors.New("the suite asks for the API and has no proxy of the runtime yet")
}

func inNamespace(pid int, namespace string) bool {
	of, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	return err == nil && of == namespace
}

// listener is the process that listens on a socket.
func listener(socket string) (pid int, err error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	cerr := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(cerr, err); err != nil {
		return 0, err
	}
	return int(peer.Pid), nil
}
