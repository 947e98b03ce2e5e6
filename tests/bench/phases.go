package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/shoal-project/shoal/tests/bench/measure"
)

// phaseOrder are the parts of a pod's start. Two are a client's view, the
// others end when the agent wrote a file, seen by its time of change.
var phaseOrder = []string{
	"API: creation answered",
	"scheduler: binding seen",
	"agent: pod heard, cgroup and directories",
	"agent: sandbox, network, volumes",
	"agent: image, root file system, specification",
	"conmon and OCI runtime: process made",
	"process runs, status written and seen",
}

// phases are the times of each part, in ms.
type phases map[string]measure.Sample

// add takes the moments at which the parts of one start ended. Parts that ran
// beside each other count once: a part ends no earlier than the one before.
func (p phases) add(began time.Time, ends []time.Time) {
	last := began
	for i, end := range ends {
		if end.Before(last) {
			end = last
		}
		p[phaseOrder[i]] = append(p[phaseOrder[i]], measure.Ms(end.Sub(last)))
		last = end
	}
}

// marks are the moments at which the agent began with a pod, had its sandbox,
// had its container prepared and had its process.
func (b *bench) marks(uid string) ([]time.Time, error) {
	run := b.cluster.RunDir
	var out []time.Time
	for _, pattern := range []string{
		filepath.Join(run, "sandboxes/*/hostname"), filepath.Join(b.cluster.Dir, "agent/sandboxes/*.json"),
		filepath.Join(run, "containers/*/config.json"), filepath.Join(run, "containers/*/pid"),
	} {
		at, err := newest(pattern)
		if err != nil {
			return nil, fmt.Errorf("phases of pod %s: %w", uid, err)
		}
		out = append(out, at)
	}
	return out, nil
}

// newest is the time of change of the file that changed last: pods start one by
// one here.
func newest(pattern string) (time.Time, error) {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return time.Time{}, err
	}
	var last time.Time
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			continue // it went with an earlier pod
		}
		if info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	if last.IsZero() {
		return last, fmt.Errorf("no file %s", pattern)
	}
	return last, nil
}
