package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// A machine's clock is this machine's, and its disk cannot be slowed. So programs of
// some scenarios are built with a standard library that asks a file of the machine how
// many seconds to add to the time of day, and how long a write to the disk takes at
// least (fsync and fdatasync). The monotonic clock goes on, as it does when a clock is set.

// alteredFile holds two numbers of 64 bits: seconds, and nanoseconds.
const alteredFile = "opt/fleet/altered"

// alterations are made in the standard library's files: after old comes what is new.
var alterations = []struct{ file, old, new string }{
	{"time/time.go", "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n", "\tsec += syscall.FleetClock()\n"},
	{"time/time.go", "import (\n\t\"errors\"\n", "\t\"syscall\"\n"},
	{"syscall/zsyscall_linux_" + runtime.GOARCH + ".go", "func Fdatasync(fd int) (err error) {\n", "\tfleetSlow()\n"},
	{"syscall/zsyscall_linux_" + runtime.GOARCH + ".go", "func Fsync(fd int) (err error) {\n", "\tfleetSlow()\n"},
}

// alteredSyscall is a file more of package syscall.
const alteredSyscall = `package syscall

import (
	"sync/atomic"
	"unsafe"
)

var fleetPage = openFleetPage()

func openFleetPage() *[2]int64 {
	fd, err := Open("/` + alteredFile + `", O_RDONLY|O_CLOEXEC, 0)
	if err != nil {
		return new([2]int64)
	}
	defer Close(fd)
	page, err := Mmap(fd, 0, 16, PROT_READ, MAP_SHARED)
	if err != nil {
		return new([2]int64)
	}
	return (*[2]int64)(unsafe.Pointer(&page[0]))
}

// FleetClock returns the seconds to add to the time of day.
func FleetClock() int64 { return atomic.LoadInt64(&fleetPage[0]) }

func fleetSlow() {
	if n := atomic.LoadInt64(&fleetPage[1]); n > 0 {
		t := NsecToTimespec(n)
		Nanosleep(&t, nil)
	}
}
`

// overlay writes the altered library into dir and returns the file to build with
// (go build -overlay).
func overlay(ctx context.Context, gotool, dir string) (string, error) {
	out, err := exec.CommandContext(ctx, gotool, "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	source := filepath.Join(string(bytes.TrimSpace(out)), "src")
	files := map[string][]byte{"syscall/fleet.go": []byte(alteredSyscall)}
	for _, a := range alterations {
		text, ok := files[a.file]
		if !ok {
			if text, err = os.ReadFile(filepath.Join(source, a.file)); err != nil {
				return "", err
			}
		}
		if bytes.Count(text, []byte(a.old)) != 1 {
			return "", fmt.Errorf("%s of this Go has no %q: teach the rig its words", a.file, a.old)
		}
		files[a.file] = bytes.Replace(text, []byte(a.old), []byte(a.old+a.new), 1)
	}
	var o struct{ Replace map[string]string }
	o.Replace = map[string]string{}
	for name, text := range files {
		path := filepath.Join(dir, "altered", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return "", err
		}
		o.Replace[filepath.Join(source, name)] = path
	}
	text, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, text, 0o644)
}

// alter sets a machine's clock, by what it differs from the true one, and how slow its
// disk is. The first call has to come before the programs start.
func (c *container) alter(clock, sync time.Duration) error {
	page := binary.NativeEndian.AppendUint64(nil, uint64(int64(clock/time.Second)))
	page = binary.NativeEndian.AppendUint64(page, uint64(sync.Nanoseconds()))
	f, err := os.OpenFile(filepath.Join(c.root, alteredFile), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(page, 0)
	return err
}
