package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/coordinator/pki"
)

const (
	coordinatorBin = "shoal-coordinator"
	agentBin       = "shoal-agent"
	// startTimeout bounds the wait for a Ready node; slow machines included.
	startTimeout = 2 * time.Minute
	// Certificates with less than this left are issued anew by `shoal up`.
	renewBefore = 30 * 24 * time.Hour
)

// up starts the cluster. In the foreground it returns when the user stops it,
// with everything down; detached, when the node is Ready.
func up(ctx context.Context, o *options, detach bool) error {
	if err := o.complete(); err != nil {
		return err
	}
	if err := preflight(); err != nil {
		return err
	}
	if p := running(o.path("shoal.pid"), "shoal"); p != nil && p.Pid != os.Getpid() {
		return showRunning(ctx, o, p.Pid)
	}
	if detach && os.Getenv(progressEnv) == "" {
		return startDetached(ctx, o)
	}
	return supervise(ctx, o, os.Stdout)
}

// showRunning answers a second `shoal up`: the cluster stays as it is.
func showRunning(ctx context.Context, o *options, pid int) error {
	old, err := load(o.DataDir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if _, err := waitReady(ctx, old); err != nil {
		return err
	}
	fmt.Printf("The cluster in %s runs already (pid %d).\n", o.DataDir, pid)
	screen(os.Stdout, old, false)
	return nil
}

// preflight finds what would make the daemons fail, with the remedy.
func preflight() error {
	if os.Geteuid() != 0 {
		return errors.New("must run as root: the agent makes cgroups, mounts and network namespaces; try sudo")
	}
	if _, err := exec.LookPath("conmon"); err != nil {
		return errors.New("conmon is not installed; run: apt-get install conmon")
	}
	for _, runtime := range []string{"crun", "runc"} {
		if _, err := exec.LookPath(runtime); err == nil {
			return nil
		}
	}
	return errors.New("no OCI runtime is installed; run: apt-get install runc (or crun)")
}

// program finds one of our binaries beside this one, or on PATH.
func program(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		if beside := filepath.Join(filepath.Dir(self), name); executable(beside) {
			return beside, nil
		}
	}
	p, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside this program nor on PATH; build it with `make`", name)
	}
	return p, nil
}

func executable(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// startDetached runs `shoal up` in a session of its own and copies its output
// until the node is Ready.
func startDetached(ctx context.Context, o *options) error {
	if err := o.save(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	logs, err := os.OpenFile(o.path("log", "up.log"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer logs.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = logs, logs, []*os.File{w}
	cmd.Env = append(os.Environ(), progressEnv+"=3")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	_ = w.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	copied := make(chan struct{})
	go func() { _, _ = io.Copy(os.Stdout, r); close(copied) }()
	select {
	case <-copied: // the child closes the pipe when the node is Ready, or ends
		if running(o.path("shoal.pid"), "shoal") != nil {
			return nil
		}
		<-ended
		return fmt.Errorf("the cluster did not start%s", tail(logs.Name()))
	case <-ctx.Done():
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		return ctx.Err()
	}
}

// progressEnv names the file descriptor that a detached `shoal up` writes its
// progress to; it closes it when the node is Ready. Who has it is the detached one.
const progressEnv = "SHOAL_PROGRESS_FD"

// supervise starts both daemons, keeps them running until ctx ends, and then
// takes the cluster down.
func supervise(ctx context.Context, o *options, out io.Writer) error {
	var progress io.Closer
	if fd, err := strconv.Atoi(os.Getenv(progressEnv)); err == nil {
		f := os.NewFile(uintptr(fd), "progress")
		syscall.CloseOnExec(fd)
		out, progress = f, f
	}
	steps := &steps{out: out, start: time.Now()}
	if err := o.save(); err != nil {
		return err
	}
	if err := seedImages(o); err != nil {
		return err
	}
	if err := os.WriteFile(o.path("shoal.pid"), []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		return err
	}
	defer os.Remove(o.path("shoal.pid"))
	if err := endLeftovers(ctx, o); err != nil {
		return err
	}
	steps.done("configuration in %s", o.DataDir)

	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	coordinator, agent, err := daemons(o, steps.said)
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	ended := make(chan struct{}, 2)
	start := func(d *daemon) {
		go func() {
			if err := d.run(runCtx); err != nil {
				failed <- err
			}
			ended <- struct{}{}
		}()
	}
	go process.Trim(runCtx)
	go renew(runCtx, o, steps.said)
	count := 1
	start(coordinator)
	err = func() error {
		if err := awaitKeys(ctx, o, failed); err != nil {
			return err
		}
		if err := credentials(ctx, o); err != nil {
			return err
		}
		// The agent starts beside the coordinator: its first requests wait in the
		// socket that the coordinator has opened already.
		count++
		start(agent)
		if err := await(ctx, coordinator.ready, failed); err != nil {
			return err
		}
		steps.done("coordinator serves the API at https://127.0.0.1:%d", o.Port)
		if err := await(ctx, agent.ready, failed); err != nil {
			return err
		}
		steps.done("agent runs node %s", o.NodeName)
		readyCtx, cancel := context.WithTimeout(ctx, startTimeout)
		defer cancel()
		state, err := waitReady(readyCtx, o)
		if err != nil {
			return err
		}
		if o.PodNetwork == agentconfig.NoNetwork {
			steps.done("node %s is up; it is Ready once %s holds a pod network's configuration", o.NodeName,
				o.CNIConfDir)
		} else {
			steps.done("node %s is %s", o.NodeName, state)
		}
		screen(out, o, progress == nil)
		if progress != nil {
			steps.to(os.Stdout) // first: a daemon may end at once
			_ = progress.Close()
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		}
	}()
	stopped := ctx.Err() != nil
	if stopped {
		err = nil
	}
	steps.start = time.Now()
	cancel()
	for range count {
		<-ended
	}
	if cleanErr := cleanup(context.WithoutCancel(ctx), o, false); cleanErr != nil { // quick where no agent ran
		return errors.Join(err, cleanErr)
	}
	if stopped {
		steps.done("the cluster is down")
	}
	return err
}

// await waits for a daemon to be ready.
func await(ctx context.Context, ready <-chan struct{}, failed <-chan error) error {
	select {
	case <-ready:
		return nil
	case err := <-failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(startTimeout):
		return fmt.Errorf("not ready after %s", startTimeout)
	}
}

func daemons(o *options, said func(string, ...any)) (coordinator, agent *daemon, err error) {
	make := func(name, bin string) *daemon {
		var path string
		path, pathErr := program(bin)
		err = errors.Join(err, pathErr)
		return &daemon{
			name: name, bin: path, dir: o.path("log"), said: said, ready: make(chan struct{}),
			args: []string{"--config", o.path(name + ".yaml")},
		}
	}
	return make("coordinator", coordinatorBin), make("agent", agentBin), err
}

// endLeftovers stops daemons of a supervisor that was killed. Pods keep
// running: the agent that starts next takes them over.
func endLeftovers(ctx context.Context, o *options) error {
	for name, bin := range map[string]string{"agent": agentBin, "coordinator": coordinatorBin} {
		if p := running(o.path("log", name+".pid"), bin); p != nil {
			if err := end(ctx, p, stopTimeout); err != nil {
				return fmt.Errorf("stop the %s of an earlier run (pid %d): %w", name, p.Pid, err)
			}
		}
	}
	return nil
}

// credentials makes the admin's and the node's kubeconfig, where they are missing
// or about to expire.
func credentials(ctx context.Context, o *options) error {
	server := fmt.Sprintf("https://127.0.0.1:%d", o.Port)
	node := credential{User: "system:node:" + o.NodeName, Groups: []string{"system:nodes"}, Server: server}
	var missing []credential
	ca, err := os.ReadFile(o.keys().Path(pki.CAFile))
	if err != nil {
		return err
	}
	if !fresh(o.kubeconfig(), ca) || aboveRBAC(o.kubeconfig()) {
		missing = append(missing, credential{Admin: true, Server: server, Out: o.kubeconfig()})
	}
	if node.Out = filepath.Join(o.agentDir(), "kubeconfig"); !fresh(node.Out, ca) {
		missing = append(missing, node)
	}
	return issue(ctx, o.path("coordinator.yaml"), missing)
}

// issue has the coordinator's program sign and write kubeconfigs.
func issue(ctx context.Context, coordinatorFile string, missing []credential) error {
	if len(missing) == 0 {
		return nil
	}
	bin, err := program(coordinatorBin)
	if err != nil {
		return err
	}
	list, err := json.Marshal(missing)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, bin, "credentials", "--config", coordinatorFile)
	cmd.Stdin = bytes.NewReader(list)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("issue certificates: %w: %s", err, out)
	}
	return nil
}

// renew looks once a day whether the kubeconfigs end soon, and makes them anew. The
// agent renews its own certificate long before that, and takes a newer kubeconfig
// without a restart.
func renew(ctx context.Context, o *options, said func(string, ...any)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(24 * time.Hour):
		}
		if err := credentials(ctx, o); err != nil {
			said("certificates could not be renewed: %v", err)
		}
	}
}

// credential is what `shoal-coordinator credentials` reads.
type credential struct {
	User   string   `json:"user,omitempty"`
	Groups []string `json:"groups,omitempty"`
	Server string   `json:"server,omitempty"`
	Admin  bool     `json:"admin,omitempty"`
	Out    string   `json:"out"`
}

// awaitKeys returns when the coordinator has made its keys, which it does first
// of all; ca.crt is what is needed next, gossip.key the last at the first start.
// Polled: it takes some milliseconds, once.
func awaitKeys(ctx context.Context, o *options, failed <-chan error) error {
	late := time.After(startTimeout)
	for {
		_, caErr := os.Stat(o.keys().Path(pki.CAFile))
		if _, err := os.Stat(o.keys().Path(pki.GossipKeyFile)); err == nil && caErr == nil {
			return nil
		}
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return fmt.Errorf("the coordinator made no keys in %s", startTimeout)
		case <-time.After(3 * time.Millisecond):
		}
	}
}

// fresh tells whether a kubeconfig or certificate file exists with enough time
// left on its certificate, which the CA has signed.
func fresh(file string, ca []byte) bool {
	cert, err := certificateOf(file)
	if err != nil {
		return false
	}
	signer, err := certificate(ca)
	return err == nil && cert.CheckSignatureFrom(signer) == nil && time.Until(cert.NotAfter) > renewBefore
}

// aboveRBAC holds for what an earlier release wrote: a certificate of
// system:masters, which no binding gives and none can take away.
func aboveRBAC(file string) bool {
	cert, err := certificateOf(file)
	return err == nil && slices.Contains(cert.Subject.Organization, "system:masters")
}

// certificateOf is the certificate in a kubeconfig or certificate file.
func certificateOf(file string) (*x509.Certificate, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if k, err := parseKubeconfig(data, file); err == nil {
		id, err := k.identity(file)
		if err != nil {
			return nil, err
		}
		data = id.cert
	}
	return certificate(data)
}

func certificate(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no PEM block")
	}
	return x509.ParseCertificate(block.Bytes)
}

// steps prints each step with the time since the start, and what daemons do
// meanwhile.
type steps struct {
	start time.Time

	mu  sync.Mutex
	out io.Writer
}

// to has all that follows printed elsewhere.
func (s *steps) to(out io.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = out
}

func (s *steps) print(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, format, args...)
}

func (s *steps) done(format string, args ...any) {
	s.print("%6.2fs  %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}

func (s *steps) said(format string, args ...any) {
	s.print("shoal: %s\n", fmt.Sprintf(format, args...))
}

// screen tells what to do with a running cluster.
func screen(w io.Writer, o *options, foreground bool) {
	flag := ""
	if o.DataDir != defaultOptions().DataDir {
		flag = " --data-dir " + o.DataDir
	}
	stop := "shoal down" + flag
	if foreground {
		stop = "Ctrl-C, or " + stop
	}
	kubectl := "kubectl"
	if path, err := program("kubectl"); err == nil && filepath.Dir(path) != "/usr/bin" {
		kubectl = path
	}
	fmt.Fprintf(w, `
The cluster is up. Its kubeconfig: %[1]s

  export KUBECONFIG=%[1]s
  %[2]s create deployment hello --image=localhost/hello:1 --replicas=3
  %[2]s rollout status deployment/hello
  %[2]s expose deployment hello --port=80 --target-port=8080 --type=NodePort
  %[2]s get pods,services -o wide
  curl http://$(%[2]s get service hello -o jsonpath='{.spec.clusterIP}')
  curl http://%[5]s:$(%[2]s get service hello -o jsonpath='{.spec.ports[0].nodePort}')
  %[2]s exec deployment/hello -- /hello get http://hello

Status: shoal status%[4]s    Stop: %[3]s
`, o.kubeconfig(), kubectl, stop, flag, cmp.Or(nodeIP(o), "NODE-IP"))
}
