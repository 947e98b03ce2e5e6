package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-project/shoal/tests/bench/measure"
)

// weights are megabytes of PSS by program.
type weights map[string]float64

// weigh reads the memory of all processes of some groups but the workload's.
func weigh(groups []measure.Group) (weights, error) {
	w := weights{}
	for _, g := range groups {
		pids, err := g.PIDs()
		if err != nil {
			return nil, err
		}
		for _, pid := range pids {
			exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
			if err != nil {
				continue // it ended
			}
			name := strings.TrimSuffix(filepath.Base(exe), " (deleted)")
			if name == "hello" || name == "sleep" { // the workload, the holder of mounts
				continue
			}
			if mb, err := measure.PSS(pid); err == nil {
				w[name] += mb
			}
		}
	}
	return w, nil
}

// planePrograms are those of the control plane; the others are the node's.
var planePrograms = []string{"shoal-coordinator", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}

// parts sums the weights of the control plane and of the node.
func (w weights) parts() (control, node float64) {
	for name, mb := range w {
		if slices.Contains(planePrograms, name) {
			control += mb
		} else {
			node += mb
		}
	}
	return control, node
}
