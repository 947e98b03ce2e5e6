package oci

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Runtime is one OCI runtime program and the directory of its state.
type Runtime struct {
	Name string // RuntimeClass handler
	Path string // program
	Root string // its state directory
}

// GlobalArgs come before the runtime's command. Errors go to logFile as JSON
// lines.
func (r Runtime) GlobalArgs(logFile string) []string {
	return []string{"--root", r.Root, "--log", logFile, "--log-format", "json"}
}

// Direct tells whether the runtime is known to wait at exec.fifo in its state
// directory after create, as runc and crun do, so that start and delete need
// no further process.
func (r Runtime) Direct() bool {
	base := filepath.Base(r.Path)
	return base == "runc" || base == "crun"
}

// StateDir is where the runtime keeps what it knows about a container.
func (r Runtime) StateDir(id string) string { return filepath.Join(r.Root, id) }

// ErrNotCreated tells that the runtime has no container to start.
var ErrNotCreated = errors.New("the container is not waiting to be started")

// Release lets a created container's process run: it waits until somebody
// reads exec.fifo (runc's and crun's start do the same).
func (r Runtime) Release(id string) error {
	fifo := filepath.Join(r.StateDir(id), "exec.fifo")
	f, err := os.OpenFile(fifo, os.O_RDONLY, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return ErrNotCreated
		}
		return err
	}
	defer f.Close()
	if n, err := f.Read(make([]byte, 1)); n == 0 {
		if err == nil {
			err = ErrNotCreated
		}
		return err
	}
	return os.Remove(fifo)
}

// LastError is the last error message in a runtime's JSON log, "" if none.
func LastError(logFile string) string {
	b, err := os.ReadFile(logFile)
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
