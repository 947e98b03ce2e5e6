package oci

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Runtime is one OCI runtime program and the directory of its state.
type Runtime struct {
	Name string   // RuntimeClass handler
	Path string   // program
	From string   `json:",omitempty"` // where it is installed, if Path is a way around; "": Path
	Args []string `json:",omitempty"` // options of its own before any command, as --network=host
	Root string   // its state directory
	// Systemd has it make containers' control groups by systemd.
	Systemd bool
	// InnerPIDs tells that processes of a container are numbered by a kernel of its own,
	// as in gVisor: exec writes a command's number to --internal-pid-file, and kill takes
	// it by --pid.
	InnerPIDs bool
}

// Installed is where the program is, as people know it.
func (r Runtime) Installed() string { return cmp.Or(r.From, r.Path) }

// Parse reads a program of the configuration with options of its own after it.
func Parse(command string) Runtime {
	words := strings.Fields(command)
	if len(words) == 0 {
		return Runtime{}
	}
	return Runtime{Path: words[0], Args: words[1:]}
}

// probeWait bounds what is asked of a runtime's program when the agent starts.
const probeWait = 10 * time.Second

// Probe asks a runtime that is not known for what its commands take.
func (r Runtime) Probe(ctx context.Context) Runtime {
	if r.Direct() {
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	help, _ := exec.CommandContext(ctx, r.Path, append(slices.Clone(r.Args), "exec", "--help")...).CombinedOutput()
	r.InnerPIDs = bytes.Contains(help, []byte("-internal-pid-file")) // an error is as good as no such option
	return r
}

// Checkpoints tells whether the program can have CRIU write down a container that goes on:
// crun can only if it was built with it. Runtimes with a kernel of their own write down
// something else.
func (r Runtime) Checkpoints(ctx context.Context) bool {
	if r.InnerPIDs {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	help, _ := exec.CommandContext(ctx, r.Path, append(slices.Clone(r.Args), "checkpoint", "--help")...).CombinedOutput()
	return bytes.Contains(help, []byte("-leave-running"))
}

// GlobalArgs come before the runtime's command. Errors go to logFile as JSON
// lines.
func (r Runtime) GlobalArgs(logFile string) []string {
	args := append(slices.Clone(r.Args), "--root", r.Root, "--log", logFile, "--log-format", "json")
	if r.Systemd {
		args = append(args, "--systemd-cgroup")
	}
	return args
}

// Direct tells whether the runtime is known to wait at exec.fifo in its state
// directory after create, as runc and crun do, so that start and delete need
// no further process.
func (r Runtime) Direct() bool {
	base := filepath.Base(r.Path)
	return base == "runc" || base == "crun"
}

// HandsOutConsole tells whether exec without --detach takes --console-socket.
// runc refuses it.
func (r Runtime) HandsOutConsole() bool { return filepath.Base(r.Path) == "crun" }

// UserNamespaces tells whether containers can join a sandbox's user namespace.
// runc before 1.2 cannot.
func (r Runtime) UserNamespaces() bool { return filepath.Base(r.Path) == "crun" }

// StateDir is where the runtime keeps what it knows about a container.
func (r Runtime) StateDir(id string) string { return filepath.Join(r.Root, id) }

// ErrNotCreated tells that the runtime has no container to start.
var ErrNotCreated = errors.New("the container is not waiting to be started")

// releaseWait bounds the wait for a created process to come to its fifo.
const releaseWait = 10 * time.Second

// Release lets a created container's process run, as the runtime's start
// does: runc's process waits until somebody reads exec.fifo, crun's until
// somebody writes to it.
func (r Runtime) Release(id string) error {
	fifo := filepath.Join(r.StateDir(id), "exec.fifo")
	if _, err := os.Lstat(fifo); err != nil {
		return ErrNotCreated
	}
	done := make(chan error, 1)
	go func() { done <- r.meet(fifo) }()
	select {
	case err := <-done:
		if err == nil {
			err = os.Remove(fifo)
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
		}
		return err
	case <-time.After(releaseWait):
		// The process has gone. Opening both ends lets the goroutine go on.
		if f, err := os.OpenFile(fifo, os.O_RDWR|unix.O_NONBLOCK, 0); err == nil {
			_, _ = f.Write([]byte{0})
			<-done
			f.Close()
		}
		return errors.New("the container's process does not wait to be started")
	}
}

func (r Runtime) meet(fifo string) error {
	if filepath.Base(r.Path) == "crun" {
		f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.Write([]byte{0})
		return errors.Join(err, f.Close())
	}
	f, err := os.OpenFile(fifo, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := f.Read(make([]byte, 1))
	if n == 0 && err == nil {
		err = ErrNotCreated
	}
	return err
}

// maxLog is how much of a runtime's log is read. A few lines are usual; some
// versions of crun put there what the container says.
const maxLog = 1 << 20

// LastError is the last error message in a runtime's JSON log, "" if none.
func LastError(logFile string) string {
	f, err := os.Open(logFile)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxLog))
	if err != nil {
		return ""
	}
	last := ""
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		var line struct{ Level, Msg string }
		if json.Unmarshal(sc.Bytes(), &line) == nil && (line.Level == "error" || line.Level == "fatal") {
			last = line.Msg
		}
	}
	return strings.TrimSpace(last)
}
