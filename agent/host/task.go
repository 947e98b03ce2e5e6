package host

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Task is a thread as the kernel schedules it.
type Task struct {
	// Started is when it began, by the time since the boot: of two with one number
	// (which are used again) it tells them apart.
	Started time.Duration
	// Waiting is whether it waits for something that no signal ends.
	Waiting bool
	// Switches is how often it gave a processor away: as long as that stays, it did
	// nothing.
	Switches uint64
}

// maxTaskFile is more than the kernel writes of a task.
const maxTaskFile = 16 << 10

// ReadTask tells of the thread with a number; the error is fs.ErrNotExist of none.
func ReadTask(id int) (Task, error) { return readTask(proc, id) }

func readTask(proc string, id int) (Task, error) {
	dir := filepath.Join(proc, strconv.Itoa(id))
	stat, err := readSome(filepath.Join(dir, "stat"))
	if err != nil {
		return Task{}, err
	}
	status, err := readSome(filepath.Join(dir, "status"))
	if err != nil {
		return Task{}, err
	}
	t, ok := parseTask(stat, status)
	if !ok {
		return Task{}, fmt.Errorf("task %d: unexpected text in /proc", id)
	}
	return t, nil
}

func readSome(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxTaskFile))
}

// parseTask reads proc(5)'s stat, whose second field is the task's name in parentheses
// and may hold anything, and status.
func parseTask(stat, status []byte) (t Task, ok bool) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return t, false
	}
	fields := bytes.Fields(stat[i+1:]) // from the third on
	if len(fields) < 20 {
		return t, false
	}
	ticks, err := strconv.ParseUint(string(fields[19]), 10, 39) // 174 years
	if err != nil {
		return t, false
	}
	t.Waiting = string(fields[0]) == "D"
	t.Started = time.Duration(ticks) * (time.Second / userHZ)
	for line := range bytes.Lines(status) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		switch string(key) {
		case "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches":
			n, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 63)
			if err != nil {
				return t, false
			}
			t.Switches += n
			ok = true
		}
	}
	return t, ok
}
