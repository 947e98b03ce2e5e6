package harness

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"github.com/shoal-project/shoal/agent/cgroup"
)

// A machine that is a service is told of the memory that its own groups use, not of what
// others use of the machine that tests: a file takes the place of /proc/meminfo, as with lxcfs.

// meminfo keeps the file up to date until done is closed.
type meminfo struct {
	file  *os.File
	group string // the machine's
	done  chan struct{}
}

const meminfoPeriod = 20 * time.Millisecond

func newMeminfo(path, group string) (*meminfo, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	m := &meminfo{f, group, make(chan struct{})}
	return m, m.write(cgroup.Stats{})
}

// keep writes the file again and again, for the kernel tells of no change of what is used:
// faster than an agent that has ended a pod looks at what that has freed.
func (m *meminfo) keep(root *cgroup.Root) {
	defer m.file.Close()
	for {
		select {
		case <-m.done:
			return
		case <-time.After(meminfoPeriod):
		}
		if s, err := root.Stat(m.group); err == nil {
			_ = m.write(s)
		}
	}
}

func (m *meminfo) write(s cgroup.Stats) error {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return err
	}
	_, err = m.file.WriteAt(meminfoOf(data, s), 0)
	return err
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
