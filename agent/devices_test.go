package main

import (
	"errors"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/checkpoint"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/device/plugin"
	"github.com/shoal-project/shoal/agent/device/topology"
	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/pod"
)

// A pod waits for a plugin that may come back, and is rejected in the kubelet's words
// where it cannot have its devices, unless it is one of a manifest.
func TestEnsurePlugged(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	cfg := config.Default()
	cfg.RootDir = t.TempDir()
	var kept stores
	var err error
	if kept.devices, err = checkpoint.Open[plugin.Pod](t.TempDir(), nil, log); err != nil {
		t.Fatal(err)
	}
	if kept.resources, err = checkpoint.Open[plugin.Known](t.TempDir(), nil, log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kept.devices.Close)
	t.Cleanup(kept.resources.Close)
	const dev = "vendor.example/dev"
	if err := errors.Join(
		kept.resources.Put(dev, &plugin.Known{Name: dev}),
		kept.devices.PutNow("has", &plugin.Pod{
			UID:  "has",
			Name: "has",
			Containers: map[string]map[string]*plugin.Allocation{
				"c": {dev: {Devices: []plugin.Device{{ID: "a"}}, Boot: "now"}}},
		}),
	); err != nil {
		t.Fatal(err)
	}
	m, err := newDevices(&cfg, kept, "now", metrics.NewAgent(), log)
	if err != nil {
		t.Fatal(err)
	}
	all, err := topology.New(topology.Manager{Machine: &topology.Machine{}, Providers: []topology.Provider{m}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	e := &exact{all: all, plugged: m}
	asks := func(name, n string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "has"}}
		if name != "has" {
			p.UID = "new"
		}
		p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{dev: resource.MustParse(n)}}}}
		return p
	}
	for _, tt := range []struct {
		pod      *corev1.Pod
		manifest bool
		reason   string
		rejects  bool
	}{
		{pod: asks("has", "1")},
		{asks("has", "2"), false, "UnexpectedAdmissionError", true},
		{asks("has", "2"), true, "UnexpectedAdmissionError", false},
		{asks("new", "1"), false, "DevicesNotReady", false},
	} {
		err := ensureExact(e)(t.Context(), &pod.Setting{Pod: tt.pod, Manifest: tt.manifest})
		fault := new(pod.Fault)
		if err != nil && !errors.As(err, &fault) {
			t.Fatal(err)
		}
		if fault.Reason != tt.reason || fault.Rejects != tt.rejects {
			t.Errorf("%s, of a manifest %t: %+v", tt.pod.Name, tt.manifest, fault)
		}
	}
	capacity, allocatable := counted(e)()
	if c, a := capacity[dev], allocatable[dev]; len(capacity) != 1 || !c.IsZero() || !a.IsZero() {
		t.Errorf("the node shows %v %v", capacity, allocatable)
	}
	if err := releaseExact(e, nil)(t.Context(), &pod.Setting{Pod: asks("has", "1")}); err != nil || len(m.Pods()) > 0 {
		t.Errorf("left: %v %v", m.Pods(), err)
	}
}
