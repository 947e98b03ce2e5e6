package measure

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// PSS is a process's proportional set size in MB (smaps_rollup): memory shared
// by several processes counts in parts.
func PSS(pid int) (float64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	for in.Scan() {
		if fields := strings.Fields(in.Text()); len(fields) > 1 && fields[0] == "Pss:" {
			kb, err := strconv.ParseFloat(fields[1], 64)
			return kb / 1024, err
		}
	}
	if err := in.Err(); err != nil { // the process ended
		return 0, err
	}
	return 0, fmt.Errorf("no Pss in smaps_rollup of %d", pid)
}

// CPUSeconds is the CPU time that a process has used (proc(5), stat fields 14
// and 15, in ticks of 10 ms).
func CPUSeconds(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(data), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 13 {
		return 0, fmt.Errorf("stat of %d is of another form", pid)
	}
	user, err := strconv.ParseFloat(f[11], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100, err
}
