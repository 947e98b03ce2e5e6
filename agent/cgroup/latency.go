package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// ioLatency is the file with the group's targets, one a disk.
const ioLatency = "io.latency"

// HasIOLatency tells whether the kernel keeps to targets of latency of disks, for groups
// such as path: on cgroup v2, with CONFIG_BLK_CGROUP_IOLATENCY.
func (r *Root) HasIOLatency(path string) bool {
	if !r.on2("io") {
		return false
	}
	_, err := os.Stat(filepath.Join(r.unified, clean(path), ioLatency))
	return err == nil
}

// SetIOLatency gives the group a target on each of some disks (MAJOR:MINOR), and lifts those
// that it has on others; 0 is no target. Without io.latency nothing is done. systemd
// leaves the file alone, for units that it was told no target of.
func (r *Root) SetIOLatency(path string, disks []string, target time.Duration) error {
	if !r.on2("io") {
		return nil
	}
	dir := filepath.Join(r.unified, clean(path))
	now, err := os.ReadFile(filepath.Join(dir, ioLatency))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, line := range latencyChanges(string(now), disks, target) {
		if err := write(dir, ioLatency, line); err != nil { // the kernel takes one disk at a time
			errs = append(errs, fmt.Errorf("%s of %s: %w", ioLatency, path, err))
		}
	}
	return errors.Join(errs...)
}

// latencyChanges is what is to be written to a file that says now. The kernel takes
// microseconds, and tells as much.
func latencyChanges(now string, disks []string, target time.Duration) (out []string) {
	want := map[string]string{}
	for _, d := range disks {
		if target > 0 {
			want[d] = fmt.Sprintf("target=%d", target.Microseconds())
		}
	}
	for line := range strings.Lines(now) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch disk := fields[0]; want[disk] {
		case "":
			out = append(out, disk+" target=0")
		case fields[1]:
			delete(want, disk)
		}
	}
	for _, d := range slices.Sorted(maps.Keys(want)) {
		out = append(out, d+" "+want[d])
	}
	return out
}
