package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/shoal-project/shoal/agent/cgroup"
)

// meminfoPeriod is shorter than the time that an agent takes, which has ended a pod, to look
// at what that has freed. The kernel tells of no change of what is used.
const meminfoPeriod = 50 * time.Millisecond

// tellMemory has a machine that is a service told of the memory that its own groups use, not
// of what others use of the machine that tests: a file is in the place of its /proc/meminfo,
// as with lxcfs.
func (a *Agent) tellMemory(root *cgroup.Root) error {
	f, err := os.OpenFile(filepath.Join(a.Root(), "run", "meminfo"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	host, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return errors.Join(err, f.Close())
	}
	write := func() error {
		s, err := root.Stat(a.group())
		if err != nil {
			return err
		}
		_, err = f.WriteAt(meminfoOf(host, s), 0)
		return err
	}
	if err := write(); err != nil {
		return errors.Join(err, f.Close())
	}
	done := make(chan struct{})
	a.memory = done
	go func() {
		defer f.Close()
		for tick := time.NewTicker(meminfoPeriod); ; {
			select {
			case <-done:
				tick.Stop()
				return
			case <-tick.C:
				_ = write() // it has worked before
			}
		}
	}()
	return nil
}

// meminfoOf is a /proc/meminfo in which only the group uses memory. Its length is always
// the same, for who reads it while it is written.
func meminfoOf(host []byte, s cgroup.Stats) []byte {
	var out bytes.Buffer
	var total uint64
	for line := range bytes.Lines(host) {
		var kib uint64
		key, _, _ := bytes.Cut(line, []byte(":"))
		switch string(key) {
		case "MemTotal":
			_, _ = fmt.Sscanf(string(line), "MemTotal: %d", &total)
			kib = total
		case "MemFree":
			kib = total - min(total, s.Memory>>10)
		case "MemAvailable":
			kib = total - min(total, s.WorkingSet>>10)
		case "Buffers":
		case "Cached":
			kib = s.Cache >> 10
		default:
			out.Write(line)
			continue
		}
		fmt.Fprintf(&out, "%-15s %8d kB\n", string(key)+":", kib)
	}
	return out.Bytes()
}
