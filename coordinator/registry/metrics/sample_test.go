package metrics

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func TestBetween(t *testing.T) {
	at := func(seconds int, cpu, memory uint64) reading {
		return reading{time: time.Unix(int64(seconds), 0), cpu: cpu, memory: memory}
	}
	for _, c := range []struct {
		name     string
		old, now reading
		apart    time.Duration
		want     usage
		ok       bool
	}{
		{"half a core", at(0, 1e9, 5), at(10, 6e9, 7), 10 * time.Second,
			usage{time.Unix(10, 0), 10 * time.Second, 5e8, 7}, true},
		{"seconds are cut off", at(0, 1e9, 5), at(2, 2e9, 7), 1250 * time.Millisecond,
			usage{time.Unix(2, 0), 1250 * time.Millisecond, 8e8, 7}, true},
		{"measured before it was asked for", at(0, 1e9, 5), at(10, 6e9, 7), 12 * time.Second,
			usage{time.Unix(10, 0), 10 * time.Second, 5e8, 7}, true},
		{"idle", at(0, 1e9, 5), at(2, 1e9, 5), 2 * time.Second, usage{time.Unix(2, 0), 2 * time.Second, 0, 5}, true},
		{"same time", at(3, 1e9, 5), at(3, 2e9, 5), time.Second, usage{}, false},
		{"time went back", at(3, 1e9, 5), at(2, 2e9, 5), time.Second, usage{}, false},
		{"began anew", at(0, 9e9, 5), at(10, 1e9, 5), 10 * time.Second, usage{}, false},
	} {
		if got, ok := between(c.old, c.now, c.apart); got != c.want || ok != c.ok {
			t.Errorf("%s: %+v, %v, want %+v, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

// A pod's usage is known when that of all its containers is.
func TestPodUsage(t *testing.T) {
	key := types.NamespacedName{Namespace: "n", Name: "p"}
	pod := func(uid string, seconds int, cpu map[string]uint64) *sample {
		p := podSample{uid: uid, containers: map[string]reading{}}
		for name, ns := range cpu {
			p.containers[name] = reading{time: time.Unix(int64(seconds), 0), cpu: ns}
		}
		return &sample{taken: time.Unix(int64(seconds), 0), pods: map[types.NamespacedName]podSample{key: p}}
	}
	type cpu = map[string]uint64
	for _, c := range []struct {
		name     string
		old, now *sample
		want     int // containers; 0: not known
	}{
		{"both samples", pod("u", 0, cpu{"a": 1, "b": 1}), pod("u", 9, cpu{"a": 2, "b": 2}), 2},
		{"a container is new", pod("u", 0, cpu{"a": 1}), pod("u", 9, cpu{"a": 2, "b": 2}), 0},
		{"a container is gone", pod("u", 0, cpu{"a": 1, "b": 1}), pod("u", 9, cpu{"a": 2}), 1},
		{"a container restarted", pod("u", 0, cpu{"a": 1, "b": 9}), pod("u", 9, cpu{"a": 2, "b": 2}), 0},
		{"another pod of the name", pod("u", 0, cpu{"a": 1}), pod("v", 9, cpu{"a": 2}), 0},
		{"not there", pod("u", 0, cpu{"a": 1}), &sample{}, 0},
		{"one sample", nil, pod("u", 9, cpu{"a": 2}), 0},
	} {
		if got, ok := (pair{c.old, c.now}).podUsage(key); len(got) != c.want || ok != (c.want > 0) {
			t.Errorf("%s: %v, %v", c.name, got, ok)
		}
	}
}

func TestReadSample(t *testing.T) {
	s, err := readSample(strings.NewReader(`{"node": {"nodeName": "n",
		"cpu": {"time": "2026-01-01T00:00:00Z", "usageCoreNanoSeconds": 5}, "memory": {"workingSetBytes": 6}},
		"pods": [
			{"podRef": {"name": "p", "namespace": "n", "uid": "1"}, "containers": [
				{"name": "c", "cpu": {"time": "2026-01-01T00:00:01Z", "usageCoreNanoSeconds": 7},
				 "memory": {"workingSetBytes": 8}},
				{"name": "unmeasured"}]},
			{"podRef": {"name": "p", "namespace": "n", "uid": "0"}, "containers": []}]}`), time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	pod := s.pods[types.NamespacedName{Namespace: "n", Name: "p"}]
	if s.node == nil || s.node.cpu != 5 || s.node.memory != 6 || pod.uid != "1" || len(pod.containers) != 1 ||
		pod.containers["c"].cpu != 7 || pod.containers["c"].memory != 8 {
		t.Errorf("%+v, node %+v", s, s.node)
	}
	if _, err := readSample(strings.NewReader("hello"), time.Unix(1, 0)); err == nil {
		t.Error("no error for what is no summary")
	}
}

func FuzzReadSample(f *testing.F) {
	f.Add(`{"node":{"cpu":{"time":"2026-01-01T00:00:00Z","usageCoreNanoSeconds":5},"memory":{"workingSetBytes":6}}}`)
	f.Add(`{"pods":[{"podRef":{"name":"p"},"containers":[{"name":"c","cpu":{},"memory":{}}]}]}`)
	f.Fuzz(func(t *testing.T, told string) {
		s, err := readSample(strings.NewReader(told), time.Unix(1, 0))
		if err != nil {
			return
		}
		p := pair{s, s}
		if _, ok := p.nodeUsage(); ok {
			t.Error("a rate from one sample")
		}
		for key := range s.pods {
			if _, ok := p.podUsage(key); ok {
				t.Errorf("a rate of %s from one sample", key)
			}
		}
	})
}
