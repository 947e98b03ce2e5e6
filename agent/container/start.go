package container

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/logs"
	"github.com/shoal-project/shoal/agent/oci"
	"github.com/shoal-project/shoal/agent/process"
)

// Start runs a created container. A container that cannot be started is
// Exited with reason StartError and code 128.
func (m *Manager) Start(_ context.Context, id string) error {
	s, err := m.find(id)
	if err != nil {
		return err
	}
	s.op.Lock()
	defer s.op.Unlock()
	c := *m.state(s)
	if c.State != Created {
		return fmt.Errorf("container %q is not in created state, but %s: %w", c.ID, c.State,
			errdefs.ErrFailedPrecondition)
	}
	if err := m.start(&c, s.profile); err != nil {
		c.State, c.FinishedAt, c.ExitCode, c.Reason, c.Message = Exited, time.Now(), exitStartError,
			ReasonStartError, err.Error()
		c.StartedAt = c.FinishedAt
		m.discardHalfStarted(&c)
		if perr := m.put(s, c); perr != nil { // true without a record too
			err = errors.Join(err, perr)
			m.mu.Lock()
			s.c = &c
			m.mu.Unlock()
		}
		close(s.exited)
		m.cfg.OnChange(m.state(s))
		return err
	}
	if err := m.put(s, c); err != nil {
		return err
	}
	m.cfg.OnChange(m.state(s))
	if !m.follow(&c) {
		m.recordEnd(c.ID) // it has ended already
		return nil
	}
	m.watchFirst(&c)
	// The pod pays for its monitor from here on. Not earlier: the move waits
	// for a grace period of the kernel, and so would the container.
	go func() {
		if err := m.cfg.Cgroups.AddMonitor(c.Cgroup, c.Monitor); err != nil {
			m.cfg.Log.Debug("conmon stays in the agent's cgroup", "container", c.ID, "err", err)
		}
	}()
	return nil
}

// start makes the container by conmon and lets its process run. profile is "" where
// its translation is known already.
func (m *Manager) start(c *Container, profile oci.Profile) error {
	rt, err := m.runtime(c.Handler)
	if err != nil {
		return err
	}
	if c.PID, err = m.runMonitor(c, rt); err != nil {
		return err
	}
	if c.PIDStart, err = startTime(c.PID); err != nil && !hasEnded(err) {
		return fmt.Errorf("look at the container's process: %w", err)
	}
	if c.Monitor, err = readPID(filepath.Join(m.bundle(c.ID), "conmon.pid")); err != nil {
		return fmt.Errorf("read conmon's process ID: %w", err)
	}
	if c.MonitorAt, err = startTime(c.Monitor); err != nil && !hasEnded(err) {
		return fmt.Errorf("look at conmon's process: %w", err)
	}
	c.State, c.StartedAt = Running, time.Now()
	if m.cfg.Cgroups.Driver() == cgroup.Systemd {
		c.PodOOMs, _ = m.cfg.Cgroups.OOMKills(filepath.Dir(c.Cgroup))
		// crun (1.8) tells systemd of few limits; the next daemon-reload would
		// undo the others.
		if err := m.cfg.Cgroups.Set(c.Cgroup, limits(c.Config.GetLinux().GetResources())); err != nil {
			return fmt.Errorf("limit container: %w", err)
		}
	}
	// The record says Running before the process does: an agent killed right
	// here finds the container and its monitor again.
	if err := m.records.Put(c.ID, &record{c}); err != nil {
		return err
	}
	if err := m.mayRun(c); err != nil {
		return err
	}
	if !rt.Direct() {
		return m.runtimeStart(rt, c.ID)
	}
	m.filters.Learn(rt, c.ID, profile) // before a program of the container runs
	if err := rt.Release(c.ID); err != nil {
		return fmt.Errorf("OCI runtime start failed: %w", err)
	}
	return nil
}

func (m *Manager) runtimeStart(rt oci.Runtime, id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), m.startWait())
	defer cancel()
	args := append(rt.GlobalArgs(m.runtimeLog(id)), "start", id)
	cmd := exec.CommandContext(ctx, rt.Path, args...)
	cmd.WaitDelay = drain
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("OCI runtime start failed: %s: %w", strings.TrimSpace(string(out)), err)
	}
	return nil
}

// stateWait is how long a runtime may take to tell a container's state: the
// agent's start waits for it.
const stateWait = 10 * time.Second

// waits asks a runtime whether it has created a container and not started it.
func (m *Manager) waits(rt oci.Runtime, id string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), stateWait)
	defer cancel()
	out, err := exec.CommandContext(ctx, rt.Path, append(rt.GlobalArgs(m.runtimeLog(id)), "state", id)...).Output()
	var state specs.State
	return err == nil && json.Unmarshal(out, &state) == nil && state.Status == specs.StateCreated
}

// runMonitor starts conmon, which has the runtime create the container, and
// returns the container's process ID.
func (m *Manager) runMonitor(c *Container, rt oci.Runtime) (int, error) {
	syncR, syncW, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("start conmon: %w", err)
	}
	defer syncR.Close()
	startR, startW, err := os.Pipe()
	if err != nil {
		syncW.Close()
		return 0, fmt.Errorf("start conmon: %w", err)
	}
	m.cfg.Cgroups.ExpectMove()
	cmd := exec.Command(m.cfg.Conmon, m.monitorArgs(c, rt)...)
	cmd.Dir = m.bundle(c.ID)
	cmd.ExtraFiles = []*os.File{syncW, startR} // descriptors 3 and 4
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "_OCI_SYNCPIPE=3", "_OCI_STARTPIPE=4"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = process.Start(cmd)
	syncW.Close()
	startR.Close()
	if err != nil {
		startW.Close()
		return 0, fmt.Errorf("start conmon: %w", err)
	}
	patience := time.AfterFunc(m.startWait(), func() {
		_ = cmd.Process.Kill() // if it is not in the background yet
		m.endMonitor(c.ID)
		_ = syncR.SetReadDeadline(time.Now())
	})
	defer patience.Stop()
	_, err = startW.Write([]byte{0})
	startW.Close()
	if err != nil {
		_ = cmd.Process.Kill()
		return 0, errors.Join(fmt.Errorf("start conmon: %w", err), cmd.Wait())
	}
	waitErr := cmd.Wait() // it forks itself into the background
	pid, err := m.readSync(c, syncR)
	if !patience.Stop() { // it was killed, whatever it had told by then
		return 0, fmt.Errorf("OCI runtime create failed: %s did not make the container within %s, and was killed",
			rt.Installed(), m.startWait())
	}
	if err != nil && waitErr != nil {
		return 0, fmt.Errorf("%w (conmon: %w)", err, waitErr)
	}
	return pid, err
}

// startWait is how long conmon and the runtime may take to make a container: as long as a
// client of the CRI waits by default.
func (m *Manager) startWait() time.Duration { return cmp.Or(m.cfg.startWait, 2*time.Minute) }

// readSync reads conmon's report: {"pid": N}, or {"pid": -1, "message": …}.
func (m *Manager) readSync(c *Container, r *os.File) (int, error) {
	var report struct {
		PID     int    `json:"pid"`
		Message string `json:"message"`
	}
	line, err := bufio.NewReader(r).ReadBytes('\n')
	if len(line) > 0 {
		err = json.Unmarshal(line, &report)
	}
	if err == nil && report.PID > 0 {
		return report.PID, nil
	}
	msg := oci.LastError(m.runtimeLog(c.ID))
	if msg == "" {
		msg = strings.TrimSpace(report.Message)
	}
	if msg == "" && err != nil {
		msg = "conmon gave no answer: " + err.Error()
	}
	return 0,
		fmt.Errorf(
			"failed to create containerd task: failed to create shim task: OCI runtime create failed: %s: unknown", msg)
}

func (m *Manager) monitorArgs(c *Container, rt oci.Runtime) []string {
	b := m.bundle(c.ID)
	args := []string{
		"--cid", c.ID, "--cuuid", c.ID, "--name", c.ID, "--runtime", rt.Path, "--bundle", b,
		"--conmon-pidfile", filepath.Join(b, "conmon.pid"), "--container-pidfile", filepath.Join(b, "pid"),
		"--exit-dir", m.exitDir(), "--full-attach", "--log-level", "error", "--no-sync-log",
	}
	for _, a := range rt.GlobalArgs(m.runtimeLog(c.ID)) {
		args = append(args, "--runtime-arg", a)
	}
	args = append(args, "--log-path", m.monitorLog(c))
	// Not where the file system limits the logs: a monitor ends, and its container with
	// it, when it is refused a new file.
	if most := c.Config.GetAnnotations()[logs.AnnotationMax]; most != "" && c.HardLimit == 0 {
		args = append(args, "--log-size-max", most)
	}
	if c.Config.GetTty() {
		args = append(args, "--terminal")
	}
	if c.Config.GetStdin() {
		args = append(args, "--stdin")
		if !c.Config.GetStdinOnce() {
			args = append(args, "--leave-stdin-open")
		}
	}
	return args
}

// discardHalfStarted ends what a start that did not succeed left behind.
func (m *Manager) discardHalfStarted(c *Container) {
	if err := m.cfg.Cgroups.Kill(c.Cgroup); err != nil {
		m.cfg.Log.Warn("cannot end the processes of a container that failed to start", "container", c.ID, "err", err)
	}
	if err := m.runtimeDelete(c); err != nil {
		m.cfg.Log.Debug("the runtime does not forget a container that failed to start", "container", c.ID, "err", err)
	}
	_ = m.cfg.Cgroups.Delete(c.Cgroup)
	_ = os.Remove(filepath.Join(m.exitDir(), c.ID))
}

func readPID(file string) (int, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// startTime identifies a process together with its number, proc_pid_stat(5).
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(b[max(0, strings.LastIndexByte(string(b), ')')):]), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 20 {
		return 0, errors.New("unexpected format of /proc/pid/stat")
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// hasEnded tells whether an error of startTime says that there is no such process.
func hasEnded(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// sameProcess tells whether a process runs that began then. An error says that this is not
// known, for lack of descriptors for example.
func sameProcess(pid int, start uint64) (bool, error) {
	if pid <= 0 {
		return false, nil
	}
	t, err := startTime(pid)
	if hasEnded(err) {
		return false, nil
	}
	return t == start, err
}
