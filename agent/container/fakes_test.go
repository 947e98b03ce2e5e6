package container

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/cgroup"
)

// The two programs that a container needs, as they are when they are called: conmon,
// and an OCI runtime ("runc", or "other" for one whose state directory is unknown
// to us). A container of theirs is a shell on this machine, in control groups of its
// own and else without any walls. A file "fault" beside them says what they do
// wrong.

// fault is what the programs beside self do wrong.
func fault(self string) string {
	text, _ := os.ReadFile(filepath.Join(filepath.Dir(self), "fault"))
	return strings.TrimSpace(string(text))
}

func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// options reads a command line: values by name, several of one name with spaces
// between them, flags as "set", and what follows.
func options(args []string, flags ...string) (values map[string]string, rest []string) {
	values = map[string]string{}
	for len(args) > 0 && strings.HasPrefix(args[0], "--") {
		name := args[0]
		if slices.Contains(flags, name) {
			values[name], args = "set", args[1:]
			continue
		}
		values[name] = strings.TrimSpace(values[name] + " " + args[1])
		args = args[2:]
	}
	return values, args
}

// monitor is conmon(8) in the background.
type monitor struct {
	values map[string]string
	bundle string

	mu      sync.Mutex
	log     *os.File
	clients []net.Conn // that are attached
	input   io.WriteCloser
}

// fakeMonitor waits for the word, goes to the background and leaves.
func fakeMonitor(args []string) error {
	values, _ := options(args[1:], "--full-attach", "--no-sync-log", "--terminal", "--stdin", "--leave-stdin-open")
	report := os.NewFile(3, "sync pipe")
	if os.Getenv("FAKE_BACKGROUND") != "" {
		m := &monitor{values: values, bundle: values["--bundle"]}
		return m.run(args[0], report)
	}
	if _, err := os.NewFile(4, "start pipe").Read(make([]byte, 1)); err != nil {
		return err
	}
	switch fault(args[0]) {
	case "conmon-fails":
		return errors.New("conmon: no memory")
	case "conmon-lies":
		_, err := io.WriteString(report, "pid: seven\n")
		return err
	}
	self := exec.Command("/proc/self/exe")
	self.Args = args
	self.Env = append(os.Environ(), "FAKE_BACKGROUND=1")
	self.ExtraFiles = []*os.File{report}
	self.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := self.Start(); err != nil {
		return err
	}
	return os.WriteFile(values["--conmon-pidfile"], []byte(strconv.Itoa(self.Process.Pid)), 0o600)
}

// run has the runtime create the container, keeps its streams and waits for its end.
func (m *monitor) run(self string, report *os.File) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := errors.Join(os.Chdir(m.bundle), m.reopen()); err != nil {
		return err
	}
	if err := unix.Mkfifo("ctl", 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := os.Remove("attach"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	attach, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: "attach", Net: "unixpacket"})
	if err != nil {
		return err
	}
	go m.accept(attach)
	go m.listen()
	pid, copied, err := m.create()
	if err != nil {
		_ = json.NewEncoder(report).Encode(map[string]any{"pid": -1, "message": err.Error()})
		return err
	}
	if err := json.NewEncoder(report).Encode(map[string]any{"pid": pid}); err != nil {
		return err
	}
	report.Close()
	var status unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &status, 0, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	copied()
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	if fault(self) == "no-exit-file" {
		return nil
	}
	file := filepath.Join(m.values["--exit-dir"], m.values["--cid"])
	if err := os.WriteFile(file+".tmp", []byte(strconv.Itoa(code)), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".tmp", file)
}

// create calls the runtime; copied returns when all that the container wrote is in
// its log.
func (m *monitor) create() (pid int, copied func(), err error) {
	args := append(strings.Fields(m.values["--runtime-arg"]), "create",
		"--bundle", m.bundle, "--pid-file", m.values["--container-pidfile"], m.values["--cid"])
	cmd := exec.Command(m.values["--runtime"], args...)
	var streams sync.WaitGroup
	var outputs []*os.File
	for stream, set := range map[string]func(*os.File){
		"stdout": func(f *os.File) { cmd.Stdout = f },
		"stderr": func(f *os.File) { cmd.Stderr = f },
	} {
		r, w, err := os.Pipe()
		if err != nil {
			return 0, nil, err
		}
		defer w.Close()
		set(w)
		outputs = append(outputs, r)
		streams.Go(func() { m.copy(stream, r) })
	}
	if m.values["--stdin"] != "" {
		r, w, err := os.Pipe()
		if err != nil {
			return 0, nil, err
		}
		defer r.Close()
		cmd.Stdin = r
		m.mu.Lock()
		m.input = w
		m.mu.Unlock()
	}
	if err := cmd.Run(); err != nil {
		return 0, nil, fmt.Errorf("runtime: %w", err)
	}
	pid, err = readPID(m.values["--container-pidfile"])
	return pid, func() {
		for _, r := range outputs { // what others still hold open is not waited for
			_ = r.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		}
		streams.Wait()
	}, err
}

// copy writes lines to the log, and to those who are attached.
func (m *monitor) copy(stream string, r io.Reader) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			m.mu.Lock()
			tag := map[bool]string{true: "F", false: "P"}[strings.HasSuffix(line, "\n")]
			if m.log != nil {
				fmt.Fprintf(m.log, "%s %s %s %s\n", time.Now().Format(time.RFC3339Nano), stream, tag,
					strings.TrimSuffix(line, "\n"))
			}
			packet := append([]byte{map[string]byte{"stdout": attachStdout, "stderr": attachStderr}[stream]}, line...)
			for _, c := range m.clients {
				_, _ = c.Write(packet)
			}
			m.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

func (m *monitor) reopen() (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	path := m.values["--log-path"]
	if path == "none" {
		return nil
	}
	if m.log != nil {
		m.log.Close()
	}
	m.log, err = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return err
}

// listen does what the control fifo says.
func (m *monitor) listen() {
	f, err := os.OpenFile("ctl", os.O_RDWR, 0)
	if err != nil {
		return
	}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), strconv.Itoa(controlReopen)+" ") {
			_ = m.reopen()
		}
	}
}

// accept attaches those who come; what they send is the container's input.
func (m *monitor) accept(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		m.mu.Lock()
		m.clients = append(m.clients, c)
		m.mu.Unlock()
		go func() {
			buf := make([]byte, attachPacket)
			for {
				n, err := c.Read(buf)
				m.mu.Lock()
				if m.input != nil && n > 0 {
					_, _ = m.input.Write(buf[:n])
				}
				if m.input != nil && (err != nil || n == 0) && m.values["--leave-stdin-open"] == "" {
					m.input.Close()
				}
				m.mu.Unlock()
				if err != nil || n == 0 {
					return
				}
			}
		}()
	}
}

// fakeRuntime does one command of an OCI runtime.
func fakeRuntime(args []string) error {
	global, rest := options(args[1:])
	self := args[0]
	state := func(id string) string { return filepath.Join(global["--root"], id) }
	values, rest := options(rest[1:], "--force")
	command := args[slices.Index(args, "--log-format")+2]
	if fault(self) == command+"-fails" {
		log, err := os.OpenFile(global["--log"], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer log.Close()
		fmt.Fprintln(log, `{"level":"warning","msg":"as always"}`)
		fmt.Fprintf(log, `{"level":"error","msg":"%s refused"}`+"\n", command)
		return errors.New("the reason is in the log")
	}
	if fault(self) == command+"-hangs" {
		time.Sleep(time.Hour)
	}
	if fault(self) == command+"-quits" {
		return errors.New("it says nothing to its log")
	}
	if fault(self) == command+"-dies" {
		return unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	id := rest[len(rest)-1]
	switch command {
	case "create":
		return createProcess(values["--bundle"], values["--pid-file"], state(id))
	case "start":
		return startProcess(filepath.Join(state(id), "exec.fifo"))
	case "state":
		status := specs.StateCreated
		if !exists(filepath.Join(state(id), "exec.fifo")) {
			status = specs.StateRunning
		}
		return json.NewEncoder(os.Stdout).Encode(specs.State{ID: id, Status: status})
	case "exec":
		return execProcess(values["--process"], values["--pid-file"])
	case "delete":
		return os.RemoveAll(state(id))
	}
	return fmt.Errorf("unknown command %q", command)
}

// createProcess makes the container's first process, which waits at exec.fifo until
// it is started, and puts it into its control group.
func createProcess(bundle, pidFile, state string) error {
	text, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return err
	}
	var spec specs.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		return err
	}
	fifo := filepath.Join(state, "exec.fifo")
	if err := errors.Join(os.MkdirAll(state, 0o700), unix.Mkfifo(fifo, 0o600)); err != nil {
		return err
	}
	groups, err := cgroup.Open("")
	if err == nil {
		err = groups.Ensure(spec.Linux.CgroupsPath, cgroup.Resources{})
	}
	if err != nil {
		return err
	}
	waiting := []string{"-c", `printf 0 > "$1"; shift; exec "$@"`, "sh", fifo}
	cmd := exec.Command("sh", append(waiting, spec.Process.Args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := []byte(strconv.Itoa(cmd.Process.Pid))
	for _, hierarchy := range []string{"", "memory", "unified"} {
		group := filepath.Join("/sys/fs/cgroup", hierarchy, spec.Linux.CgroupsPath, "cgroup.procs")
		if err := os.WriteFile(group, pid, 0o600); err != nil && !errors.Is(err, os.ErrNotExist) &&
			!errors.Is(err, os.ErrPermission) {
			return err
		}
	}
	return os.WriteFile(pidFile, pid, 0o600)
}

// startProcess lets it run.
func startProcess(fifo string) error {
	f, err := os.Open(fifo)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Read(make([]byte, 1))
	return errors.Join(err, os.Remove(fifo))
}

// execProcess runs a command beside the container's first process.
func execProcess(process, pidFile string) error {
	text, err := os.ReadFile(process)
	if err != nil {
		return err
	}
	var p specs.Process
	if err := json.Unmarshal(text, &p); err != nil {
		return err
	}
	cmd := exec.Command(p.Args[0], p.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		return err
	}
	return cmd.Wait()
}
