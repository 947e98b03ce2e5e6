package cgroup

import (
	"fmt"
	"os"
	"testing"
)

// BenchmarkPod does what a pod's start, a reading of its use and its end do
// to its control group.
func BenchmarkPod(b *testing.B) {
	r := open(b)
	top := fmt.Sprintf("/shoal-bench-cgroup-%d", os.Getpid())
	b.Cleanup(func() { _ = r.Delete(top) })
	limit, shares, pids := int64(64<<20), uint64(512), int64(100)
	res := Resources{MemoryLimit: &limit, CPUShares: &shares, PidsLimit: &pids}
	if err := r.Ensure(top+"/kubepods/burstable", Resources{}); err != nil {
		b.Fatal(err)
	}
	pod := top + "/kubepods/burstable/pod1"
	steps := []struct {
		name string
		do   func() error
	}{
		{"Ensure", func() error { return r.Ensure(pod, res) }},
		{"EnsureAgain", func() error { return r.Ensure(pod, res) }},
		{"Stat", func() error { _, err := r.Stat(pod); return err }},
		{"Use", func() error { _, err := r.Use(pod); return err }},
		{"OOMKills", func() error { _, err := r.OOMKills(pod); return err }},
		{"Kill", func() error { return r.Kill(pod) }},
		{"Delete", func() error { return r.Delete(pod) }},
	}
	for _, s := range steps {
		b.Run(s.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				if s.name == "Ensure" {
					_ = r.Delete(pod)
				} else if err := r.Ensure(pod, res); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if err := s.do(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
