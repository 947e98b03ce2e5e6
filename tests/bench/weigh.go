package main

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-project/shoal/tests/bench/measure"
)

// weight is memory in MB of PSS (smaps_rollup) and CPU in percent of a core.
type weight struct {
	coordinator, agent, supervisor, monitors float64

	cpu measure.Sample
}

func (w weight) total() float64 { return w.coordinator + w.agent + w.monitors }

// weigh reads the daemons' CPU use in windows of a time, then the memory of
// daemons and monitors.
func (b *bench) weigh(ctx context.Context, windows int, over time.Duration) (weight, error) {
	var w weight
	pids := map[string]int{}
	for _, d := range []string{"coordinator", "agent"} {
		pid, err := b.cluster.Pid(d)
		if err != nil {
			return w, err
		}
		pids[d] = pid
	}
	for range windows {
		before, err := cpuSeconds(pids)
		if err != nil {
			return w, err
		}
		select {
		case <-ctx.Done():
			return w, ctx.Err()
		case <-time.After(over):
		}
		after, err := cpuSeconds(pids)
		if err != nil {
			return w, err
		}
		w.cpu = append(w.cpu, 100*(after-before)/over.Seconds())
	}
	var err error
	if w.coordinator, err = measure.PSS(pids["coordinator"]); err != nil {
		return w, err
	}
	if w.agent, err = measure.PSS(pids["agent"]); err != nil {
		return w, err
	}
	supervisor, err := os.ReadFile(filepath.Join(b.cluster.Dir, "shoal.pid"))
	if err != nil {
		return w, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(supervisor)))
	if err != nil {
		return w, err
	}
	if w.supervisor, err = measure.PSS(pid); err != nil {
		return w, err
	}
	w.monitors, err = b.monitors()
	return w, err
}

func cpuSeconds(pids map[string]int) (sum float64, err error) {
	for _, pid := range pids {
		s, err := measure.CPUSeconds(pid)
		if err != nil {
			return 0, err
		}
		sum += s
	}
	return sum, nil
}

// monitors sums the memory of this cluster's conmon processes.
func (b *bench) monitors() (float64, error) {
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, file := range procs {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // it ended
		}
		line := string(data)
		program, _, _ := strings.Cut(line, "\x00")
		if filepath.Base(program) != "conmon" || !strings.Contains(line, b.cluster.RunDir) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			continue
		}
		if mb, err := measure.PSS(pid); err == nil {
			sum += mb
		}
	}
	return sum, nil
}
