package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	"golang.org/x/sys/unix"
)

// Use is the Time, CPUNanos, Memory, WorkingSet and Swap of Stat, and nothing else: what
// metrics of resources tell of every pod, many times a minute. It reads three or four files
// where Stat reads seventeen.
func (r *Root) Use(path string) (Stats, error) {
	s := Stats{Time: time.Now()}
	if _, err := os.Stat(r.main(path)); err != nil {
		return s, fmt.Errorf("stat cgroup %s: %w", path, err)
	}
	// What cannot be read is left out: the group may be disappearing.
	text := make([]byte, 0, 8<<10)
	if dir := r.dir1(path, cgroup1.Cpuacct); dir != "" {
		s.CPUNanos = number(contents(filepath.Join(dir, "cpuacct.usage"), text))
	}
	if dir := r.dir1(path, cgroup1.Memory); dir != "" {
		s.Memory = number(contents(filepath.Join(dir, "memory.usage_in_bytes"), text))
		all := contents(filepath.Join(dir, "memory.stat"), text)
		s.WorkingSet = s.Memory - min(s.Memory, valueOf(all, "total_inactive_file"))
		s.Swap = valueOf(all, "total_swap")
	}
	if r.unified == "" {
		return s, nil
	}
	dir := filepath.Join(r.unified, path)
	if r.mode == V2 || r.on2("cpu") {
		s.CPUNanos = valueOf(contents(filepath.Join(dir, "cpu.stat"), text), "usage_usec") * 1000
	}
	if r.on2("memory") {
		s.Memory = number(contents(filepath.Join(dir, "memory.current"), text))
		all := contents(filepath.Join(dir, "memory.stat"), text)
		s.WorkingSet = s.Memory - min(s.Memory, valueOf(all, "inactive_file"))
		s.Swap = number(contents(filepath.Join(dir, "memory.swap.current"), text))
	}
	return s, nil
}

// dir1 is the directory of a group in one hierarchy of v1, "" without the hierarchy.
func (r *Root) dir1(path string, name cgroup1.Name) string {
	for _, s := range r.v1 {
		if s.Name() == name {
			return s.(hierarchy).Path(clean(path))
		}
	}
	return ""
}

// contents reads a file of a control group into text, which may be replaced by a larger
// one; nothing if it cannot. It is not for the Go runtime's poller, which os.Open asks.
func contents(path string, text []byte) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	if cap(text) == 0 {
		text = make([]byte, 0, 8<<10)
	}
	for text = text[:0]; ; {
		if len(text) == cap(text) {
			text = append(text, 0)[:len(text)]
		}
		n, err := unix.Read(fd, text[len(text):cap(text)])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil
		case n == 0:
			return text
		default:
			text = text[:len(text)+n]
		}
	}
}

// number is a file's only value, 0 if it is none.
func number(text []byte) uint64 {
	n, _ := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
	return n
}

// valueOf is one value of a text of "key value" lines, 0 if it is not there.
func valueOf(text []byte, key string) uint64 {
	for line := range bytes.Lines(text) {
		if v, ok := bytes.CutPrefix(line, []byte(key)); ok && len(v) > 0 && v[0] == ' ' {
			return number(v)
		}
	}
	return 0
}
